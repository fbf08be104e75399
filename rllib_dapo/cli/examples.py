"""The experiment files that come with the package, for `rllib example`."""

from __future__ import annotations

from pathlib import Path

from rllib_dapo.cli.experiment_file import nearest
from rllib_dapo.errors import SettingError

# The files are inside the package when it is installed, and beside it in a checkout.
_FOLDERS = (
    Path(__file__).parent.parent / "tuned_examples",
    Path(__file__).parent.parent.parent / "tuned_examples",
)


def example_files(folders: tuple[Path, ...] = _FOLDERS) -> dict[str, Path]:
    """The files of the examples by name (`dapo_math`, `sweeps/lr`), sorted.

    Raises:
        SettingError: the files are missing.
    """
    for folder in folders:
        files = {
            path.relative_to(folder).with_suffix("").as_posix(): path
            for ending in ("*.yaml", "*.py")
            for path in folder.rglob(ending)
            if path.stem != "__init__"
        }
        if files:
            return dict(sorted(files.items()))
    raise SettingError(f"no examples in {folders[0]}; reinstall rllib-dapo")


def example_file(name: str, folders: tuple[Path, ...] = _FOLDERS) -> Path:
    """The file of an example. The name may be given with or without `.yaml` or `.py`.

    Raises:
        SettingError: there is no such example.
    """
    files = example_files(folders)
    wanted = name.removesuffix(".yaml").removesuffix(".py")
    if wanted not in files:
        raise SettingError(f"no example `{name}`; {nearest(wanted, files)}")
    return files[wanted]


def title(path: Path) -> str:
    """What an example is about: the comment or docstring at its top, to a line that ends in `.`."""
    words = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(("#", '"""')):
            break
        words.append(line.strip('#" '))
        if words[-1].endswith("."):
            break
    return " ".join(words)

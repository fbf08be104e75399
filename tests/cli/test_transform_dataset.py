"""Whole data sets turned into integers: files, resuming, origin, the command."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rllib_dapo.cli.main import app
from rllib_dapo.cli.transform.dataset import transform_dataset
from rllib_dapo.cli.transform.journal import Journal, TransformReport
from rllib_dapo.cli.transform.source_rows import Source
from rllib_dapo.data.load import load_problems
from rllib_dapo.errors import DataError, SettingError

FORMS = [r"11-2\sqrt{6}", "7", r"\frac{2}{4}", "(3,-4)", r"\text{Yes}"]


def rows(count: int) -> list[dict[str, str]]:
    return [{"problem": f"Problem {i}.", "answer": FORMS[i % len(FORMS)]} for i in range(count)]


def write_jsonl(path: Path, content: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", rows(50))


def journal_of(out: Path) -> Path:
    return out.with_name(out.name + ".journal.jsonl")


def settled(out: Path) -> int:
    """How many rows of the input are settled; the first line says what is transformed."""
    journal = journal_of(out)
    return max(journal.read_bytes().count(b"\n") - 1, 0) if journal.exists() else 0


def run(data: Path, out: Path, **options: Any) -> TransformReport:
    return transform_dataset(Source(str(data)), out, batch_size=8, **options)


def test_every_row_keeps_its_origin(data: Path, tmp_path: Path) -> None:
    outcome = run(data, tmp_path / "out.jsonl")
    accepted = read_jsonl(tmp_path / "out.jsonl")
    rejected = read_jsonl(tmp_path / "out.rejected.jsonl")
    assert accepted[0] == {
        "problem": r"Problem 0. The original answer is in the form $k-m\sqrt{n}$, where $k$ and $m$"
        r" are positive integers and $n$ is a square-free integer greater than 1. Please find the"
        " value of $k+m+n$.",
        "answer": "19",
        "form": "root_sum",
        "method": "rule",
        "source": "in.jsonl:1",
        "original_problem": "Problem 0.",
        "original_answer": r"11-2\sqrt{6}",
    }
    assert accepted[1] == {
        "problem": "Problem 1.",
        "answer": "7",
        "form": "integer",
        "method": "kept",
        "source": "in.jsonl:2",
        "original_problem": "Problem 1.",
        "original_answer": "7",
    }
    assert rejected[0] == {
        "source": "in.jsonl:3",
        "reason": "not simplified",
        "detail": "a fraction over 4 not in lowest terms",
        "original_problem": "Problem 2.",
        "original_answer": r"\frac{2}{4}",
    }
    sources = [row["source"] for row in accepted + rejected]
    assert sorted(sources) == sorted(f"in.jsonl:{i}" for i in range(1, 51))
    assert outcome.counts == {
        "rule/root_sum": 10,
        "kept/integer": 10,
        "rule/tuple": 10,
        "rejected/not simplified": 10,
        "rejected/words": 10,
    }
    loaded = load_problems(tmp_path / "out.jsonl")
    assert {p.answer for p in loaded} == {"19", "7", "-1"}


def test_parquet_and_chats(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "Find it."}]
    table = [{"prompt": chat, "reward_model": {"ground_truth": a}} for a in ("1/2", "5")]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.parquet")
    problems = load_problems(tmp_path / "out.parquet")
    assert [p.answer for p in problems] == ["3", "5"]
    assert isinstance(problems[0].problem, list)
    assert problems[0].problem[0] == chat[0]
    assert problems[0].text.startswith(r"Find it. The original answer is in the form $\frac{m}{n}$")
    assert problems[1].problem == chat
    assert pq.read_table(tmp_path / "out.parquet").column_names[:2] == ["problem", "answer"]
    left = {path.name for path in tmp_path.glob("out.*")}
    assert left == {"out.parquet", "out.rejected.jsonl", "out.parquet.journal.jsonl"}


def test_texts_and_chats_in_one_parquet_file(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Find it."}]
    data = [{"problem": "Find that.", "answer": "5"}, {"problem": chat, "answer": "6"}]
    run(write_jsonl(tmp_path / "in.jsonl", data), tmp_path / "out.parquet")
    problems = load_problems(tmp_path / "out.parquet")
    assert [p.problem for p in problems] == [[{"role": "user", "content": "Find that."}], chat]


def test_csv_gsm8k_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with (folder / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["question", "answer"], ["How many?", r"\frac{1}{3}"]])
    write_jsonl(folder / "b.jsonl", [{"question": "Q", "answer": "2 * 3 = <<2*3=6>>6\n#### 1,006"}])
    run(folder, tmp_path / "out.jsonl")
    found = [(r["source"], r["answer"], r["method"]) for r in read_jsonl(tmp_path / "out.jsonl")]
    assert found == [("a.csv:1", "4", "rule"), ("b.jsonl:1", "1006", "kept")]


def test_unreadable_rows_are_rejected_and_broken_files_are_errors(tmp_path: Path) -> None:
    data = [{"problem": "P", "answer": None}, {"problem": "", "answer": "1"}, *rows(2)]
    outcome = run(write_jsonl(tmp_path / "in.jsonl", data), tmp_path / "out.jsonl")
    assert outcome.counts["rejected/unreadable row"] == 2
    assert "found nothing" in read_jsonl(tmp_path / "out.rejected.jsonl")[0]["detail"]
    (tmp_path / "broken.jsonl").write_text('{"problem": "P", "answer": 1}\n{"problem":')
    with pytest.raises(DataError, match=r"broken\.jsonl, row 2"):
        run(tmp_path / "broken.jsonl", tmp_path / "out2.jsonl")
    with pytest.raises(DataError, match="no such file"):
        run(tmp_path / "none.jsonl", tmp_path / "out3.jsonl")


class StoppedError(Exception):
    pass


def stopping_after(number: int) -> Any:
    """A progress that stops the run once `number` batches are written."""

    def progress(batches: Iterable[Any], rows: int, before: int) -> Iterator[Any]:
        for i, batch in enumerate(batches):
            if i == number:
                raise StoppedError
            yield batch

    return progress


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_stopped_run_goes_on(data: Path, tmp_path: Path, name: str) -> None:
    whole = tmp_path / "whole" / name
    expected = run(data, whole)
    out = tmp_path / name
    for batches in (2, 0, 3):
        with pytest.raises(StoppedError):
            run(data, out, progress=stopping_after(batches))
        assert not out.exists()  # it is there when it is whole
        # What a killed process may have written after its last settled batch.
        with journal_of(out).open("a") as file:
            file.write('["rule/root_sum", {"problem": "torn')
    outcome = run(data, out)
    assert outcome.counts == expected.counts
    assert outcome.rows_before == 40
    assert out.read_bytes() == whole.read_bytes()
    assert (tmp_path / "out.rejected.jsonl").read_bytes() == expected.rejected.read_bytes()
    stamp = out.stat().st_mtime_ns
    assert run(data, out).counts == expected.counts  # finished: nothing is done again
    assert out.stat().st_mtime_ns == stamp


def test_a_killed_process_goes_on(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from rllib_dapo.cli.transform.dataset import transform_dataset\n"
        "from rllib_dapo.cli.transform.source_rows import Source\n"
        "def slowly(batches, rows, before):\n"
        "    for batch in batches:\n"
        "        yield batch\n"
        "        time.sleep(0.05)\n"
        "transform_dataset(Source(sys.argv[1]), Path(sys.argv[2]), batch_size=2, progress=slowly)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(data), str(out)])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not settled(out):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = settled(out)
    assert run(data, out).rows_before == before
    run(data, tmp_path / "whole.jsonl")
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_another_input_or_other_options_are_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(StoppedError):
        run(data, out, progress=stopping_after(2))
    with pytest.raises(SettingError, match="was begun with model None, now there is model 'm'"):
        run(data, out, model="m")
    changed = rows(50)
    changed[49]["answer"] = "8"
    write_jsonl(data, changed)
    with pytest.raises(SettingError, match="was begun with input"):
        run(data, out)
    assert run(data, out, restart=True).counts["kept/integer"] == 11
    assert len(read_jsonl(out)) == 31


def test_files_that_are_not_ours_are_left_alone(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious\n")
    with pytest.raises(SettingError, match=r"out\.jsonl exists .* --restart"):
        run(data, out)
    with pytest.raises(SettingError, match=r"in\.jsonl exists"):
        run(data, data)
    with pytest.raises(SettingError, match=r"ends in \.jsonl, \.parquet"):
        run(data, tmp_path / "out.txt")
    assert out.read_text() == "precious\n"
    for broken in ("{\n", "[]\n", "{}\n", '{"version": 0, "identity": {}}\n'):
        journal_of(out).write_text(broken)
        with pytest.raises(SettingError, match="cannot be read"):
            run(data, out)
    assert out.read_text() == "precious\n"


def test_rows_that_the_journal_lost_are_done_again(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(StoppedError):
        run(data, out, progress=stopping_after(3))
    lines = journal_of(out).read_text().splitlines(keepends=True)
    journal_of(out).write_text("".join(lines[:10]))
    assert run(data, out).rows_before == 9
    run(data, tmp_path / "whole.jsonl")
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_new_run_replaces_the_output_only_when_it_is_finished(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(data, out)
    whole = out.read_bytes()
    with pytest.raises(StoppedError):
        run(data, out, restart=True, progress=stopping_after(3))
    assert out.read_bytes() == whole
    assert run(data, out).rows_before == 24
    assert out.read_bytes() == whole


def test_what_was_written_must_still_be_there(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(data, out)
    out.unlink()
    with pytest.raises(SettingError, match="the file is gone"):
        run(data, out)


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    with (
        closing(Journal(tmp_path / "out.jsonl", {})),
        pytest.raises(SettingError, match="another process is writing"),
    ):
        Journal(tmp_path / "out.jsonl", {})


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["transform-dataset", *map(str, arguments)])


def test_the_command(data: Path, tmp_path: Path) -> None:
    outcome = call(data, tmp_path / "out.jsonl", "--limit", 20)
    assert outcome.exit_code == 0, outcome.output
    assert "root_sum" in outcome.stdout
    assert "not simplified" in outcome.stdout
    assert "20.0%" in outcome.stdout
    assert f"12 rows in {tmp_path / 'out.jsonl'}" in outcome.stdout
    assert f"8 rows in {tmp_path / 'out.rejected.jsonl'}" in outcome.stdout
    again = call(data, tmp_path / "out.jsonl", "--limit", 20)
    assert "20 rows were settled by an earlier run" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--answer-key", "solutoin"), "solutoin"),
        (("--split", "train"), "is one file"),
        (("--check-agreement", "9"), "check_agreement=9"),
        (("--samples", "0"), "samples=0"),
        (("--model", "./no/such/folder"), "no such folder"),
    ],
)
def test_what_the_user_got_wrong(
    data: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = call(data, tmp_path / "out.jsonl", *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr

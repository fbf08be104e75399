"""`rllib check-data` shows what a run would pose, without Ray and without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data_files import write_rows
from typer.testing import CliRunner

from rllib_dapo.cli.main import app
from rllib_dapo.data.inspection import kind_of
from rllib_dapo.rewards.grading.gold import parse_gold

ROWS = [{"question": f"{n} + {n} = ?", "answer": f"So.\n#### {2 * n}"} for n in range(1, 9)]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["check-data", *map(str, arguments)])


def found(*arguments: object, code: int) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout))


def test_good_data(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.jsonl", [{**row, "level": 1} for row in ROWS])
    seen = found(path, code=0)
    assert (seen["good"], seen["rows_read"], seen["rows_posed"]) == (True, 8, 8)
    assert seen["golds"] == {"integer": 8}
    assert (seen["bad"], seen["refused_golds"], seen["word_for_word"]) == ([], [], "")
    (taken,) = seen["columns"].values()
    assert (taken["problem"], taken["answer"], taken["unused"]) == ("question", "answer", ["level"])
    assert seen["characters"] == {"shortest": 9, "median": 9, "longest": 9}
    assert seen["prompts"] == [f"{n} + {n} = ?\n" for n in (1, 4, 8)]
    shown = run(path).output
    for part in ("8 read, 8 would be posed", "8 integer", "prompt 3", "level", "every row"):
        assert part in shown


def test_bad_rows_are_counted_by_reason(tmp_path: Path) -> None:
    rows = [*ROWS, *({"question": f"q{n}", "answer": ""} for n in range(3)), ROWS[0]]
    rows.append({"question": "", "answer": "1"})
    seen = found(write_rows(tmp_path / "p.jsonl", rows), code=1)
    assert (seen["rows_read"], seen["rows_posed"], seen["duplicates"]) == (13, 9, 1)
    assert [(r["count"], r["column"]) for r in seen["bad"]] == [(3, "answer"), (1, "question")]
    assert "row 9" in seen["bad"][0]["example"]


def test_the_settings_of_an_experiment_count(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.jsonl", ROWS)
    held_out = write_rows(tmp_path / "held_out.jsonl", ROWS[2:4])
    config = tmp_path / "x.yaml"
    config.write_text(
        "x:\n  env: rllib_dapo/Math-v0\n  config:\n    prompt_template: boxed\n"
        "    max_prompt_length: 20\n    lr: {grid_search: [1e-4, 1e-5]}\n"
        "    env_config: {dataset: elsewhere.jsonl, grader: strict}\n"
        f"    evaluation_config: {{env_config: {{dataset: {held_out}}}}}\n"
    )
    seen = found(path, "--config", config, code=1)
    assert "\\boxed{}" in seen["prompts"][0]
    assert (seen["too_long"], seen["rows_posed"], seen["max_prompt_length"]) == (8, 0, 20)
    assert len(seen["refused_golds"]) == 8  # the strict grader reads no box
    assert "2 evaluation problems are training problems too" in seen["overlap"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: [folder / "none.jsonl"], "no such file"),
        (lambda folder: [folder / "p.jsonl", "--problem-key", "qestion"], "'question'"),
        (lambda folder: [folder / "p.jsonl", "--config", folder / "x.yaml"], "x.yaml:3"),
    ],
)
def test_wrong_input_exits_with_2(tmp_path: Path, make: Any, message: str) -> None:
    write_rows(tmp_path / "p.jsonl", ROWS)
    (tmp_path / "x.yaml").write_text("x:\n  config:\n    max_prompt_length: -4\n")
    result = run(*make(tmp_path))
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        ("34", "integer"), ("1,250", "integer"), ("0.125", "decimal"), ("\\frac{3}{8}", "fraction"),
        ("3/8", "fraction"), ("34 cm", "number with a unit"), ("2\\sqrt{5}", "expression"),
        ("x^2+1", "expression"), ("(3, -2)", "tuple"), ("[2, 9)", "interval"), ("1, 2", "list"),
        ("\\{1, 2\\}", "set"), ("y = 2x + 1", "equation or inequality"), ("C", "letter"),
        ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "matrix"),
        ("it is blue, mostly", "text"),
    ],
)  # fmt: skip
def test_kinds_of_ground_truths(gold: str, kind: str) -> None:
    assert kind_of(parse_gold(gold)) == kind


def test_neither_ray_nor_vllm_is_started(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.jsonl", ROWS)
    code = (
        "import sys; from rllib_dapo.cli.check_data import read_config;"
        "from rllib_dapo.data.inspection import check_data;"
        f"assert check_data({str(path)!r}, read_config(None), {{}}).good;"
        "import ray; assert 'vllm' not in sys.modules and not ray.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

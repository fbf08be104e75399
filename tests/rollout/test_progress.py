"""What is shown while a batch fills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sampling_loops import problems
from strategies import make_group

from rllib_dapo.cli import console
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler
from rllib_dapo.rollout.group_filter import REMEDIES
from rllib_dapo.rollout.progress import FILE_NAME, RolloutProgress, describe


def sampler_with(*scores: tuple[float, float], in_flight: int = 0) -> DynamicSampler:
    wanted = len(scores)
    sampler = DynamicSampler(wanted, max_problems=10 * wanted)
    sampler.expect(problems(*range(wanted + in_flight)))
    for position, pair in enumerate(scores):
        sampler.add(make_group(position, pair))
    return sampler


def test_it_says_what_is_in_flight_and_what_was_dropped_and_why() -> None:
    sampler = sampler_with((1, -1), (1, 1), (-1, -1), (1, 1), in_flight=21)
    expected = "21 in flight, dropped 3 (1 all wrong, 2 all correct)"
    assert describe(sampler.progress) == expected
    assert describe(sampler_with((1, -1)).progress) == "0 in flight"


@pytest.mark.parametrize("reason", REMEDIES)
def test_every_reason_can_be_shown(reason: str) -> None:
    progress = replace(sampler_with((1, -1)).progress, dropped={reason: 2})
    assert describe(progress).startswith("0 in flight, dropped 2 (2 ")


def test_a_trial_leaves_its_progress_in_its_folder(tmp_path: Path) -> None:
    sampler = sampler_with((1, -1), (1, 1), in_flight=3)
    with RolloutProgress(2, 7, "auto", str(tmp_path)) as progress:
        progress.update(sampler.progress)
        text = (tmp_path / FILE_NAME).read_text(encoding="utf-8")
        assert text.startswith(
            "iteration 7: 1 of 2 groups kept, 3 in flight, dropped 1 (1 all correct)"
        )
    assert "updating the model" in (tmp_path / FILE_NAME).read_text(encoding="utf-8")


def test_off_leaves_nothing(tmp_path: Path) -> None:
    with RolloutProgress(2, 7, "off", str(tmp_path)) as progress:
        progress.update(sampler_with((1, -1)).progress)
    assert not list(tmp_path.iterdir())


def test_on_draws_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with RolloutProgress(2, 7, "on", None) as progress:
        progress.update(sampler_with((1, -1), (1, -1)).progress)
    assert "iteration 7" in capsys.readouterr().err


def trial(folder: Path, status: str = "RUNNING") -> Any:
    return SimpleNamespace(
        status=status, storage=SimpleNamespace(trial_working_directory=str(folder))
    )


def test_slow_iterations_are_reported_in_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).write_text("iteration 7: 1 of 2 groups kept\n", encoding="utf-8")
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(console.time, "monotonic", lambda: clock.now)
    line = console.StatusLine()
    line.show([trial(tmp_path)])
    assert capsys.readouterr().out == ""  # not at once: quick iterations stay one line each
    clock.now += 60.0
    line.show([trial(tmp_path), trial(tmp_path / "nowhere"), trial(tmp_path, "PENDING")])
    assert capsys.readouterr().out == "iteration 7: 1 of 2 groups kept\n"


def test_a_trial_without_progress_shows_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = console.StatusLine()
    line.show([trial(tmp_path), SimpleNamespace(status="RUNNING")])
    assert capsys.readouterr().out == ""

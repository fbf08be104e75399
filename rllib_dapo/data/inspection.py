"""What a run would pose from a data set, found out without Ray and without an engine."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from rllib_dapo.data.load import load_problems
from rllib_dapo.data.overlap import find_overlap
from rllib_dapo.data.problem_set import ProblemSet
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.source_options import SourceOptions, read_sources
from rllib_dapo.errors import DAPOError, SettingError
from rllib_dapo.rewards.grading.gold import Gold, parse_gold
from rllib_dapo.rewards.grading.grade import AUTO, grade_all, grader_name
from rllib_dapo.rewards.grading.pool import read_limits
from rllib_dapo.rewards.grading.trees import kind
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import IntArray

MOST_GRADED = 20_000
"""The number of different ground truths that are graded against themselves, at most."""
MOST_RENDERED = 50_000
"""The number of different problems whose prompts are measured in tokens, at most."""
_NUM_SHOWN = 3
_READING = tuple(f.name for f in fields(SourceOptions) if f.name not in ("path", "weight", "name"))


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The settings with which a data set is looked at.

    Attributes:
        settings: those of the model and of the prompt.
        env_config: the arguments of the environment.
        evaluation: the arguments of the evaluation environment; None if there is none of its own.
    """

    settings: DAPOSettings
    env_config: Mapping[str, Any]
    evaluation: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of many texts: the shortest, the median, the longest one."""

    shortest: int
    median: int
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int] | IntArray) -> Lengths:
        """The lengths of at least one text."""
        return cls(int(min(lengths)), int(np.median(lengths)), int(max(lengths)))


@dataclass(frozen=True, slots=True)
class DataCheck:
    """What a run would pose.

    Attributes:
        name: the data set.
        columns: for each file, the columns of `problem` and `answer`, the `rule` and the `unused`.
        rows_read: the number of rows that were looked at.
        rows_posed: the number of problems that a run would pose.
        bad: the number of rows that cannot be used for each reason, with an example.
        duplicates: the number of rows whose problem occurred before.
        conflicts: how many of these have another answer.
        golds: the number of rows for each kind of ground truth.
        word_for_word: one line on ground truths that only the same text equals; "" if none.
        characters: the lengths of the problems.
        tokens: the lengths of the prompts; None if none was measured.
        too_long: the number of rows whose prompt is longer than `max_prompt_length`.
        max_prompt_length: the limit in tokens.
        model: the model whose tokenizer was used.
        prompts: some prompts, as the model would see them.
        grader: the grader in use.
        refused_golds: ground truths that do not accept themselves, with their places.
        overlap: one line on problems that the evaluation set shares; "" if there are none.
    """

    name: str
    columns: dict[str, dict[str, Any]]
    rows_read: int
    rows_posed: int
    bad: list[dict[str, Any]]
    duplicates: int
    conflicts: int
    golds: dict[str, int]
    word_for_word: str
    characters: Lengths
    tokens: Lengths | None
    too_long: int
    max_prompt_length: int
    model: str
    prompts: list[str]
    grader: str
    refused_golds: list[dict[str, str]]
    overlap: str

    @property
    def good(self) -> bool:
        """Whether every row would be posed and every ground truth accepts itself."""
        return not (self.bad or self.too_long or self.refused_golds or self.overlap)

    @property
    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {"good": self.good, **asdict(self)}


def check_data(location: str, config: DataConfig, reading: Mapping[str, Any]) -> DataCheck:
    """Load a data set as a run would, and say what it would pose.

    Args:
        location: a file, a folder or an id on the hub.
        config: the settings.
        reading: options of `load_problems` that go before those of the settings.

    Raises:
        DataError: nothing of the data can be used.
        SettingError: an option or a setting is impossible.
    """
    with _silent():  # what loading warns of is part of the result
        problems = _load(location, {**config.env_config, **reading})
    settings = config.settings
    renderer = PromptRenderer.from_settings(settings)
    grader = grader_name(str(config.env_config.get("grader", AUTO)), "env_config.grader")
    report = problems.report
    lengths, rows = _lengths(problems, renderer)
    fitting = lengths <= settings.max_prompt_length
    return DataCheck(
        name=report.name,
        columns={name: asdict(taken) for name, taken in report.columns.items()},
        rows_read=report.rows_read,
        rows_posed=len(problems) - int(rows[~fitting].sum()),
        bad=_by_reason(report.bad_rows),
        duplicates=report.num_duplicates,
        conflicts=report.num_conflicts,
        golds=_kinds(problems),
        word_for_word=report.text_line,
        characters=Lengths.of([len(text) for text in problems.distinct_texts()]),
        tokens=Lengths.of(lengths),
        too_long=int(rows[~fitting].sum()),
        max_prompt_length=settings.max_prompt_length,
        model=settings.language_model,
        prompts=_shown(problems, renderer),
        grader=grader,
        refused_golds=_refused(problems, grader, config),
        overlap=_overlap(problems, config),
    )


@contextmanager
def _silent() -> Iterator[None]:
    log = logging.getLogger("rllib_dapo.data")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _load(location: str, options: Mapping[str, Any]) -> ProblemSet:
    """All usable rows, whatever `on_bad_row` is: the bad ones are listed."""
    wanted = {k: v for k, v in options.items() if k in _READING and v is not None}
    (source,) = read_sources(location, {**wanted, "on_bad_row": "skip"})
    return load_problems(source.path, **source.reading)


def _by_reason(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """The bad rows by column and reason; values inside the reason make no difference."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        shape = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "…", row.reason)
        groups.setdefault((row.column, shape), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [
        {"count": len(found), "column": column, "example": str(found[0])}
        for (column, _), found in ordered
    ]


def _kinds(problems: ProblemSet) -> dict[str, int]:
    counts = Counter(problem.answer for problem in problems)
    kinds: Counter[str] = Counter()
    for answer, count in counts.items():
        kinds[kind_of(parse_gold(answer))] += count
    return dict(kinds.most_common())


def kind_of(gold: Gold) -> str:
    """What a ground truth is, in a word for people."""
    number, tree = gold.number, gold.tree
    if number is not None:
        whole = "integer" if number.value.denominator == 1 else "fraction"
        plain = "decimal" if whole == "fraction" and "." in gold.plain else whole
        return plain if number.unit is None else "number with a unit"
    if re.fullmatch(r"\(?[A-Za-z]\)?", gold.plain):
        return "letter"
    if tree is None:
        return "text"
    if tree[0] == "tuple":
        return "tuple" if (tree[1], tree[2]) == ("(", ")") else "interval"
    if tree[0] == "set":
        return "set" if "{" in gold.plain else "list"
    words = {"rel": "equation or inequality", "matrix": "matrix", "region": "interval"}
    return words.get(kind(tree), "expression")


def _distinct(problems: ProblemSet) -> tuple[IntArray, IntArray]:
    """The first row of each different problem, and the number of its rows."""
    _, first, rows = np.unique(problems.distinct_of, return_index=True, return_counts=True)
    return first.astype(np.int64), rows.astype(np.int64)


def _lengths(problems: ProblemSet, renderer: PromptRenderer) -> tuple[IntArray, IntArray]:
    """The tokens of the prompt of each different problem, and the number of its rows."""
    first, rows = _distinct(problems)
    first, rows = first[:MOST_RENDERED], rows[:MOST_RENDERED]
    return renderer.lengths([problems[i].problem for i in first.tolist()]), rows


def _shown(problems: ProblemSet, renderer: PromptRenderer) -> list[str]:
    """The prompts of the first problem, of one in the middle and of the last."""
    first, _ = _distinct(problems)
    picks = np.unique(np.linspace(0, len(first) - 1, _NUM_SHOWN).astype(int))
    renderer.max_prompt_length = None  # a prompt that is too long is shown, too
    return [renderer.render(problems[int(first[i])].problem).text for i in picks]


def _refused(problems: ProblemSet, grader: str, config: DataConfig) -> list[dict[str, str]]:
    """The ground truths that do not accept themselves, in the form that the prompt asks for."""
    boxed = config.settings.prompt_template == "boxed"
    places: dict[str, str] = {}
    for problem in problems:
        if len(places) < MOST_GRADED:
            places.setdefault(problem.answer, problem.source)
    golds = list(places)
    texts = [f"\\boxed{{{gold}}}" if boxed else f"Answer: {gold}" for gold in golds]
    limits = read_limits(config.env_config.get("grading"), "env_config.grading")
    verdicts = grade_all(texts, golds, grader, limits)
    return [
        {"gold": gold, "source": places[gold], "found": str(verdict.extracted)}
        for gold, verdict in zip(golds, verdicts, strict=True)
        if not verdict.correct
    ]


def _overlap(problems: ProblemSet, config: DataConfig) -> str:
    given = {**config.env_config, **(config.evaluation or {})}
    dataset = (config.evaluation or {}).get("dataset")
    if dataset is None:
        return ""
    defaults = {k: v for k, v in given.items() if k in _READING and v is not None}
    lines = []
    for source in read_sources(dataset, defaults):
        try:
            with _silent():
                held_out = load_problems(source.path, **{**source.reading, "on_bad_row": "skip"})
        except DAPOError as error:
            raise SettingError(f"evaluation_config.env_config.dataset: {error}", None) from error
        shared = find_overlap(problems, held_out)
        if shared is not None:
            lines.append(
                f"{shared.count} evaluation problems are training problems too, for instance"
                f" {shared.evaluation.source} = {shared.training.source}"
                f" ({shared.evaluation.text[:80]!r})"
            )
    return "; ".join(lines)

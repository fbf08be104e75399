"""Find the problems that two data sets share, by comparing their texts."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from rllib_dapo.data.mixture import MixedProblems
from rllib_dapo.data.problem_set import Problem, ProblemSet

# What may differ between two typesettings of the same problem.
_TYPESETTING = re.compile(r"\s+|\$|\\[()\[\],;:! ]|\\(?:left|right|displaystyle)(?![a-zA-Z])")


@dataclass(frozen=True, slots=True)
class Overlap:
    """What the training and the evaluation set share.

    Attributes:
        count: the number of different evaluation problems that are training problems too.
        training: one of them, as the training set has it.
        evaluation: the same problem, as the evaluation set has it.
    """

    count: int
    training: Problem
    evaluation: Problem


def find_overlap(
    training: ProblemSet | MixedProblems, evaluation: ProblemSet | MixedProblems
) -> Overlap | None:
    """What the evaluation set shares with the training set; None if they share nothing.

    Two texts count as equal if they differ only in case, spaces, unicode form, dollar signs
    and the like. Instructions that stand around all texts of a data set, as in DAPO-Math-17k,
    make no difference either. Each different text costs a few microseconds. Only the
    fingerprints of the evaluation texts are kept in memory.
    """
    wanted: dict[bytes, tuple[int, int]] = {}
    parts = _parts(evaluation)
    for number, part in enumerate(parts):
        for problem, fingerprint in _fingerprints(part):
            wanted.setdefault(fingerprint, (number, problem))
    shared: set[tuple[int, int]] = set()
    first: tuple[Problem, Problem] | None = None
    for part in _parts(training):
        for problem, fingerprint in _fingerprints(part):
            place = wanted.get(fingerprint)
            if place is None:
                continue
            if first is None:
                first = _first(part, problem), _first(parts[place[0]], place[1])
            shared.add(place)
    return None if first is None else Overlap(len(shared), *first)


def _parts(problems: ProblemSet | MixedProblems) -> tuple[ProblemSet, ...]:
    return problems.parts if isinstance(problems, MixedProblems) else (problems,)


def _first(problems: ProblemSet, number: int) -> Problem:
    """The first row of a problem, which is given by its number among the different ones."""
    return problems[int(np.argmax(problems.distinct_of == number))]


def _fingerprints(problems: ProblemSet) -> Iterator[tuple[int, bytes]]:
    """For each different problem, the fingerprints of its text with and without instructions.

    Yields pairs of the problem's number and a fingerprint.
    """
    head, tail = _shared_wording(problems)
    for number, text in enumerate(problems.distinct_texts()):
        yield number, _fingerprint(text)
        if head or tail:
            inner = _fingerprint(text[head : len(text) - tail])
            if inner != _NOTHING:
                yield number, inner


def _shared_wording(problems: ProblemSet) -> tuple[int, int]:
    """The lengths of the instructions with which all texts begin and end, in characters."""
    texts = problems.distinct_texts()
    head = tail = next(texts, "")
    alone = True
    for text in texts:
        alone = False
        if not text.startswith(head):
            head = os.path.commonprefix((head, text))
        if not text.endswith(tail):
            tail = os.path.commonprefix((tail[::-1], text[::-1]))[::-1]
    # An instruction ends where a line ends. A shared "What is" belongs to the problem.
    head = head[: head.rfind("\n") + 1]
    tail = tail[tail.find("\n") :] if "\n" in tail else ""
    return (0, 0) if alone else (len(head), len(tail))


def _fingerprint(text: str) -> bytes:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    plain = _TYPESETTING.sub("", text).casefold()
    return blake2b(plain.encode(), digest_size=8).digest()


_NOTHING = _fingerprint("")

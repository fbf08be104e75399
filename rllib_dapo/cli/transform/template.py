r"""The form of an answer with letters for its integers, such as `k-m\sqrt{n}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["positive", "integer", "square-free", "cube-free", "natural"]
"""What the question says about a part. It is a positive integer, any integer, an integer above 1
that no square (or cube) of a prime divides, or (`natural`) an integer that is not negative."""

_ORDER = "kmnpqrstuvwbcdfghjl"
_PREFERRED = {1: "n", 2: "mn"}
_SINGLE_LETTER = re.compile(r"(?<![A-Za-z\\])([A-Za-z])(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """One integer in an answer, for which the question has a letter."""

    value: int
    role: Role = "positive"


Piece = str | AnswerPart


@dataclass(frozen=True, slots=True)
class Template:
    """The form of an answer.

    Attributes:
        pieces: the pieces of LaTeX text and the parts, in order.
        coprime: groups of parts whose greatest common divisor is 1. A part is given by its index in
            `parts`.
        distinct: groups of parts that are all different, given in the same way.
    """

    pieces: tuple[Piece, ...]
    coprime: tuple[tuple[int, ...], ...] = ()
    distinct: tuple[tuple[int, ...], ...] = ()

    @property
    def parts(self) -> tuple[AnswerPart, ...]:
        """The parts from left to right."""
        return tuple(piece for piece in self.pieces if isinstance(piece, AnswerPart))

    @property
    def total(self) -> int:
        """The sum of the parts, which is the new answer."""
        return sum(part.value for part in self.parts)

    def show(self, names: Sequence[object]) -> str:
        """Return the LaTeX text with `names` in the places of the parts."""
        remaining = iter(names)
        return "".join(
            piece if isinstance(piece, str) else str(next(remaining)) for piece in self.pieces
        )

    def filled(self) -> str:
        """Return the original answer as LaTeX text."""
        return self.show([part.value for part in self.parts])


def joined(templates: Sequence[Template], separators: Sequence[str]) -> Template:
    """Join templates into one, with `separators` before, between and after them."""
    pieces: list[Piece] = [separators[0]]
    coprime: list[tuple[int, ...]] = []
    distinct: list[tuple[int, ...]] = []
    offset = 0
    for template, separator in zip(templates, separators[1:], strict=True):
        pieces += [*template.pieces, separator]
        coprime += [tuple(offset + i for i in group) for group in template.coprime]
        distinct += [tuple(offset + i for i in group) for group in template.distinct]
        offset += len(template.parts)
    return Template(tuple(pieces), tuple(coprime), tuple(distinct))


def letters_for(count: int, problem: str, preferred: str = "") -> list[str]:
    """Return `count` letters that do not stand alone in the problem; none if too few are left."""
    used = set(_SINGLE_LETTER.findall(problem))
    order = dict.fromkeys(preferred + _PREFERRED.get(count, "") + _ORDER + _ORDER.upper())
    free = [letter for letter in order if letter not in used]
    return free[:count] if len(free) >= count else []


def describe(template: Template, letters: Sequence[str]) -> str:
    """Return the conditions on the letters, which only one choice of integers fulfils."""
    by_role: dict[Role, list[str]] = {}
    for letter, part in zip(letters, template.parts, strict=True):
        by_role.setdefault(part.role, []).append(letter)
    groups = [[letters[i] for i in group] for group in template.coprime]
    clauses = []
    for role, names in by_role.items():
        if role == "positive" and len(names) == 2 and groups == [names]:
            clauses.append(f"{_listed(names)} are coprime positive integers")
            groups = []
        else:
            clauses.append(_ROLE[role](names))
    for group in template.distinct:
        clauses.append(f"{_listed([letters[i] for i in group])} are different")
    for names in groups:
        if len(names) == 2:
            clauses.append(f"{_listed(names)} are coprime")
        else:
            clauses.append(f"the greatest common divisor of {_listed(names)} is 1")
    return ", ".join(clauses[:-1]) + (" and " if len(clauses) > 1 else "") + clauses[-1]


def sum_of(letters: Sequence[str]) -> str:
    """Return the sum of the letters as LaTeX, such as `$k+m+n$`."""
    return f"${'+'.join(letters)}$"


def _listed(letters: Sequence[str]) -> str:
    names = [f"${letter}$" for letter in letters]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _are(kind_of_one: str, kind_of_many: str) -> Callable[[Sequence[str]], str]:
    def clause(letters: Sequence[str]) -> str:
        if len(letters) == 1:
            return f"{_listed(letters)} is {kind_of_one}"
        return f"{_listed(letters)} are {kind_of_many}"

    return clause


_ROLE: Mapping[Role, Callable[[Sequence[str]], str]] = {
    "positive": _are("a positive integer", "positive integers"),
    "natural": _are("an integer that is not negative", "integers that are not negative"),
    "integer": _are("an integer", "integers"),
    "square-free": _are(
        "a square-free integer greater than 1", "square-free integers greater than 1"
    ),
    "cube-free": _are(
        "an integer greater than 1 that no cube of a prime divides",
        "integers greater than 1 that no cube of a prime divides",
    ),
}

r"""Decide whether an answer is as finished as the ground truth, whatever its value is.

`\sqrt{32}+\sqrt2` has the value of `5\sqrt2`, `3x-1>8` that of `x>3`. But work is left to do in
them, which the ground truth does not leave, and somebody who copies the question has done none.
So `open_work` lists the kinds of work that a tree leaves, and an answer may only leave what the
ground truth leaves, too. Order, signs, constant factors before a sum and equivalent fractions are
no work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import gcd, isqrt

from rllib_dapo.rewards.grading.factors import (
    TRIGONOMETRIC,
    Factor,
    Term,
    canonical,
    contains,
    degree,
    monomial,
    terms,
)
from rllib_dapo.rewards.grading.statements import open_statements
from rllib_dapo.rewards.grading.trees import Tree, children, kind, number, variables, walk

_PRIMES = [p for p in range(2, 1000) if all(p % q for q in range(2, isqrt(p) + 1))]
_QUOTIENTS = TRIGONOMETRIC - {"sin", "cos"}


@dataclass
class Work:
    """What a tree leaves to be done.

    Attributes:
        kinds: the kinds of work, in words.
        denominators: the degree of all denominators together.
        logs: how many logarithms there are.
        trigonometry: how many trigonometric functions there are.
        pieces: how many sets are joined or taken away.
        products: how many products there are that can be multiplied out.
        factors: how many factors these products have.
    """

    kinds: set[str] = field(default_factory=set)
    denominators: Fraction = Fraction(0)
    logs: int = 0
    trigonometry: int = 0
    pieces: int = 0
    products: int = 0
    factors: int = 0


def as_finished(answer: Tree, gold: Tree) -> bool:
    """Return whether an answer that is equal to a ground truth leaves no more to be done.

    Multiplied out and factored are two forms, and neither is a step towards the other. If the
    ground truth is one of them, the answer has to be the same one.
    """
    if canonical(answer) == canonical(gold):
        return True  # Only the order differs, as in most correct answers.
    left, right = open_work(answer), open_work(gold)
    return (
        left.kinds <= right.kinds
        and left.denominators <= right.denominators
        and left.logs <= right.logs
        and left.trigonometry <= right.trigonometry + 1
        and left.pieces <= right.pieces
        and bool(left.products) is bool(right.products)
        and left.factors >= right.factors
    )


@lru_cache(maxsize=4_096)
def open_work(tree: Tree) -> Work:
    """Find the work that a tree leaves."""
    work = Work()
    work.pieces = open_statements(tree, work.kinds)
    _scan(tree, work, outer=True)
    return work


def _scan(tree: Tree, work: Work, *, outer: bool) -> None:
    """Add what a tree leaves. In the arguments of functions and the like, `outer` is False."""
    if tree[0] in ("num", "var", "const", "inf"):
        return
    if kind(tree) != "scalar":
        for part in children(tree):
            _scan(part, work, outer=outer)
        return
    found = list(terms(tree))
    _scan_sum(found, work)
    for term in found:
        _scan_product(term, work)
        if outer:
            _note_products(term, work, alone=len(found) == 1)
    for node in _arithmetic(tree):
        if node[0] == "/":
            _scan_fraction(node, work)


def _arithmetic(tree: Tree) -> list[Tree]:
    """Return the sums, products and fractions of a scalar that are not inside anything else."""
    found = [tree] if tree[0] in ("+", "*", "/", "neg") else []
    for node in found:
        found += [part for part in node[1:] if part[0] in ("+", "*", "/", "neg")]
    return found


# -- sums


def _scan_sum(found: list[Term], work: Work) -> None:
    if len(found) < 2:
        return
    if len(set(map(monomial, found))) < len(found):
        work.kinds.add("like terms")
    is_complex = any(f.base == ("const", "i") for term in found for f in term.factors)
    if not is_complex and any(not term.coefficient for term in found):
        work.kinds.add("like terms")  # 6x + 0, whereas 0 + 2i is a form of complex numbers
    if sum(_is_worked_out(term) for term in found) > 1:
        work.kinds.add("like terms")
    if sum(any(f.under and degree(f.base) for f in term.factors) for term in found) > 1:
        work.kinds.add("sum of fractions")
    # A square of a sine, and 1 or the square of a cosine, are the square of a cosine, or 1.
    squares: Counter[tuple[Fraction, str]] = Counter()
    for term in found:
        if not term.factors:
            squares[abs(term.coefficient), "1"] += 1
        elif argument := _squared_function(term):
            squares[abs(term.coefficient), argument] += 1
    for (size, argument), count in squares.items():
        if argument != "1" and count + squares[size, "1"] > 1:
            work.kinds.add("sum of squares")


def _is_worked_out(term: Term) -> bool:
    """Return whether a term is an integer that is not written as one, such as 5! or 2^{10}."""
    return all(_is_integer(f) for f in term.factors)


def _is_integer(factor: Factor) -> bool:
    base, power = factor.base, factor.power
    if power is None or power.denominator > 1:
        return False
    if base[0] == "binom" or (base[0] == "fn" and base[1] in ("!", "floor", "ceil")):
        return not variables(base)
    return number(base) is not None


def _squared_function(term: Term) -> str:
    if len(term.factors) != 1 or term.factors[0].power != 2:
        return ""
    base = term.factors[0].base
    return canonical(base[2]) if base[0] == "fn" and base[1] in TRIGONOMETRIC else ""


# -- products


def _scan_product(term: Term, work: Work) -> None:
    factors = term.factors
    if len(factors) > 1:
        _scan_factors(factors, work)
    if sum(_is_integer(f) for f in factors) + (abs(term.coefficient) != 1) > 1:
        work.kinds.add("product of numbers")
    if term.divisions > 1:
        work.kinds.add("product of fractions")
    if term.divisions and any(_is_literal_power(f, below=0) for f in factors):
        work.kinds.add("fraction in a fraction")
    for factor in factors:
        _scan_factor(factor, work)


def _scan_factors(factors: tuple[Factor, ...], work: Work) -> None:
    bases = Counter(canonical(f.base) for f in factors if f.base[0] != "root")
    for f in factors:
        if bases.get(canonical(f.base), 0) > 1 and (f.base[0] != "+" or f.power != 1):
            work.kinds.add("like factors")
    roots = Counter(f.base[1] for f in factors if f.base[0] == "root")
    roots += Counter(
        str(f.power.denominator)
        for f in factors
        if f.power is not None and f.power.denominator > 1 and number(f.base) is not None
    )
    if any(count > 1 for count in roots.values()):
        work.kinds.add("product of roots")
    names = [(f.under, f.base[1]) for f in factors if f.base[0] == "fn"]
    if any(name in TRIGONOMETRIC for _, name in names) and len({under for under, _ in names}) > 1:
        work.kinds.add("quotient of functions")


def _scan_factor(factor: Factor, work: Work) -> None:
    base, power = factor.base, factor.power
    if power is None:
        _scan(factor.exponent, work, outer=False)
        if base == ("const", "e") and contains(factor.exponent, "fn"):
            work.kinds.update(_logs_in(factor.exponent))
    elif power < 0:
        work.denominators += degree(base) * abs(power)
        if contains(base, "root") or power.denominator > 1:
            work.kinds.add("root in a denominator")
        if ("const", "i") in walk(base):
            work.kinds.add("complex denominator")
    if _is_literal_power(factor, below=2) and not _is_literal_power(factor, below=0):
        work.kinds.add("power of 0 or 1")
    if base[0] == "^" or (power not in (None, 1, -1) and base[0] in ("*", "/", "neg", "root")):
        work.kinds.add("power of a product")
    if power is not None and power.denominator > 1:
        _scan_root(base, power.denominator, work)
    if base[0] == "root":
        _scan_root(base[2], int(base[1]), work)
        _scan(base[2], work, outer=False)
    elif base[0] == "fn":
        _scan_function(base, work)
    else:
        for part in children(base) if base[0] in ("binom", "^") else (base,):
            _scan(part, work, outer=False)


def _is_literal_power(factor: Factor, *, below: int) -> bool:
    """Return whether a whole exponent that is written out is smaller than `below`."""
    exponent = number(factor.exponent) if factor.is_power else None
    return exponent is not None and exponent.denominator == 1 and exponent < below


def _logs_in(tree: Tree) -> set[str]:
    return {"power of a log"} if any(n[:2] == ("fn", "ln") for n in walk(tree)) else set()


def _scan_function(tree: Tree, work: Work) -> None:
    name, argument = tree[1], tree[2]
    if name in TRIGONOMETRIC:
        work.trigonometry += 1
        if name in _QUOTIENTS:
            work.kinds.add(name)
    elif name in ("ln", "log", "lg"):
        work.logs += 1
        inside = argument[1] if argument[0] == "root" else argument
        if inside[0] in ("*", "/", "^", "root") and variables(argument):
            work.kinds.add("log of a product")
        if ("const", "e") in walk(argument) and not variables(argument):
            work.kinds.add("log of a power")
    _scan(argument, work, outer=False)


def _scan_root(inside: Tree, index: int, work: Work) -> None:
    """Note what can be taken out of a root."""
    if contains(inside, "root"):
        work.kinds.add("root in a root")
    found = list(terms(inside))
    if len(found) > 1:
        return
    coefficient, factors, _ = found[0]
    if coefficient.denominator > 1 or any(f.under for f in factors):
        work.kinds.add("root in a denominator")
    takes_out = any(f.power is not None and f.power >= index for f in factors)
    negative = coefficient < 0 and index % 2 == 0
    if takes_out or negative or _has_power(abs(coefficient.numerator), index):
        work.kinds.add("root to simplify")
    if coefficient.denominator > 1 and _has_power(coefficient.denominator, index):
        work.kinds.add("root to simplify")


def _has_power(value: int, index: int) -> bool:
    """Return whether a power of a small prime, or a square, divides an integer above 1."""
    if value < 2 or (index == 2 and isqrt(value) ** 2 == value):
        return value > 1
    if index >= value.bit_length():
        return False
    return any(value % p**index == 0 for p in _PRIMES if p**index <= value)


# -- fractions


def _scan_fraction(tree: Tree, work: Work) -> None:
    """Note fractions in fractions, and numbers that can be cancelled."""
    top, bottom = tree[1], tree[2]
    if any(node[0] == "/" for part in (top, bottom) for node in _arithmetic(part)):
        work.kinds.add("fraction in a fraction")
    if "+" not in (top[0], bottom[0]):
        return
    above, below = _common_factor(top), _common_factor(bottom)
    divisor = gcd(above, below)
    if divisor > 1 and (degree(bottom) or divisor == below):
        work.kinds.add("fraction to reduce")


def _common_factor(tree: Tree) -> int:
    coefficients = [term.coefficient for term in terms(tree)]
    if any(c.denominator > 1 for c in coefficients):
        return 1
    return gcd(*(c.numerator for c in coefficients))


# -- multiplied out or factored


def _note_products(term: Term, work: Work, *, alone: bool) -> None:
    """Count a product if there is a choice between multiplying it out and leaving it.

    That is so for polynomials with integer coefficients. n(n+1)/2, (x+1)e^x and πr(r+s) are
    accepted in both forms.
    """
    sums = [f for f in term.factors if f.base[0] == "+" and f.power and f.power.denominator == 1]
    count = sum(int(f.power) for f in sums if f.power and f.power > 0)
    others = [f for f in term.factors if f not in sums]
    letters = sum(int(f.power) for f in others if f.base[0] == "var" and f.power and f.power > 0)
    if not any(variables(f.base) for f in term.factors):
        if count > 1 or (count == 1 and any(_meets(f, sums[0]) for f in others)):
            work.kinds.add("product of constants")
        return
    plain = all(f.base[0] == "var" or f.base == ("const", "i") or f.base[0] == "+" for f in term[1])
    whole = all(f.power is not None and f.power.denominator == 1 for f in term[1])
    below = term.coefficient.denominator > 1 or any(f.under for f in term.factors)
    if not plain or not whole or below:
        return
    if count > 1 or (count == 1 and others):
        work.products += 1
        work.factors += count + letters if alone else 0


def _meets(factor: Factor, inside: Factor) -> bool:
    """Return whether a constant can be combined with one in a sum, such as i with 2+3i."""
    if factor.base == ("const", "i"):
        return ("const", "i") in walk(inside.base)
    value = number(factor.base[2]) if factor.base[0] == "root" else None
    others = [number(node[2]) for node in walk(inside.base) if node[0] == "root"]
    return value is not None and any(
        other is not None and gcd(value.numerator, other.numerator) > 1 for other in others
    )

"""Work that is left to be done: a table, and members of each kind drawn at random."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import examples
from verdicts_of_copies import COPIES
from verdicts_of_forms import FORMS

from rllib_dapo.rewards.grading.grade import grade
from rllib_dapo.rewards.grading.parser import parse_math
from rllib_dapo.rewards.grading.unfinished import as_finished

SMALL = st.integers(2, 9)
ROWS = [
    (answer, gold, correct)
    for gold, both in FORMS.items()
    for correct, answers in zip((True, False), both, strict=True)
    for answer in answers
]


def correct(answer: str, gold: str) -> bool:
    return grade(f"Answer: {answer}", gold).correct


def test_the_table_is_as_large_as_promised() -> None:
    assert len(ROWS) + len(COPIES) >= 400


@pytest.mark.parametrize(("answer", "gold", "expected"), [*ROWS, *COPIES])
def test_forms(answer: str, gold: str, expected: bool) -> None:
    assert correct(answer, gold) is expected


@pytest.mark.parametrize("gold", FORMS)
def test_every_form_accepts_itself(gold: str) -> None:
    assert correct(gold, gold)
    assert correct(rf"${gold}$", gold)


@given(SMALL, SMALL, st.sampled_from(["x", "y^2", r"\sqrt{3}", r"\pi", "ab", r"\ln 7"]))
@examples(40)
def test_like_terms(a: int, b: int, unit: str) -> None:
    gold = f"{a + b}{unit}"
    assert correct(gold, gold)
    for answer in (f"{a}{unit}+{b}{unit}", f"{a + b + 1}{unit}-{unit}", f"{b}{unit}+{a}{unit}"):
        assert not correct(answer, gold)


@given(SMALL, st.sampled_from([2, 3, 5, 6, 7, 10, 11]))
@examples(30)
def test_roots(a: int, radicand: int) -> None:
    gold = rf"{a}\sqrt{{{radicand}}}"
    assert correct(rf"\sqrt{{{radicand}}}\cdot {a}", gold)
    assert not correct(rf"\sqrt{{{a * a * radicand}}}", gold)
    assert not correct(rf"\sqrt{{{radicand}}}+\sqrt{{{(a - 1) ** 2 * radicand}}}", gold)
    assert not correct(rf"\frac{{{a * radicand}}}{{\sqrt{{{radicand}}}}}", gold)


@given(st.integers(-9, 9), st.integers(-9, 9), SMALL)
@examples(40)
def test_products_and_sums(a: int, b: int, factor: int) -> None:
    assume(a and b and a + b)
    product, swapped = f"(x{a:+})(x{b:+})", f"(x{b:+})(x{a:+})"
    sum_ = f"x^2{a + b:+}x{a * b:+}"
    other = f"{a * b}{a + b:+}x+x^2"
    assert correct(swapped, product)
    assert correct(other, sum_)
    assert not correct(sum_, product)
    assert not correct(product, sum_)
    assert correct(f"{factor}(x{a:+})", f"{factor}x{factor * a:+}")
    assert correct(f"{factor}x{factor * a:+}", f"{factor}(x{a:+})")


@given(st.sets(st.integers(0, 30), min_size=1), st.sets(st.integers(31, 60), min_size=1), SMALL)
@examples(40)
def test_sets(kept: set[int], left: set[int], cut: int) -> None:
    both = sorted(kept | left)
    gold, whole = (rf"\{{{','.join(map(str, items))}\}}" for items in (sorted(kept), both))
    rest = rf"\{{{','.join(map(str, sorted(left)))}\}}"
    assert correct(rf"\{{{','.join(map(str, sorted(kept, reverse=True)))}\}}", gold)
    assert not correct(rf"{whole}\cap{gold}", gold)
    assert not correct(rf"{whole}\setminus{rest}", gold)
    assert not correct(rf"{gold}\cup{rest}", whole)
    low, high = -cut, cut * 2
    assert not correct(rf"(-\infty,{high}]\cap({low},\infty)", f"({low},{high}]")
    assert not correct(rf"({low},0]\cup(0,{high}]", f"({low},{high}]")


@given(SMALL, st.integers(-9, 9), st.integers(-9, 9), st.sampled_from(["<", ">", r"\le", r"\ge"]))
@examples(40)
def test_inequalities(a: int, b: int, bound: int, sign: str) -> None:
    gold = f"x {sign} {bound}"
    turned = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[sign]
    closed = sign in (r"\le", r"\ge")
    below = sign in ("<", r"\le")
    interval = rf"(-\infty,{bound}{']' if closed else ')'}"
    if not below:
        interval = rf"{'[' if closed else '('}{bound},\infty)"
    assert correct(f"{bound} {turned} x", gold)
    assert correct(interval, gold)
    assert correct(gold, interval)
    assert not correct(f"{a}x{b:+} {sign} {a * bound + b}", gold)
    assert not correct(f"{a}x {sign} {a * bound}", gold)
    assert not correct(f"x-{a} {sign} {bound - a}", gold)
    assert not correct(f"x {sign} {bound + 1}", interval)


@given(st.integers(-9, 9), st.integers(-9, 9))
@examples(30)
def test_pairs_are_intervals_only_if_they_increase(a: int, b: int) -> None:
    assert not correct(r"\emptyset", f"({a},{b})")
    assert not correct(f"({a},{b})", r"\emptyset")
    assert not correct(f"{min(a, b)}<x<{max(a, b) + 1}", f"({max(a, b) + 1},{min(a, b)})")


@given(st.sampled_from("ABCDEFGHIJ"), st.sampled_from("ABCDEFGHIJ"), st.integers(1, 99))
@examples(60)
def test_choices(gold: str, other: str, number: int) -> None:
    for form in ("({}) {}", "{}. {}", "{}: {}", r"\text{{({})}} {}", r"({})\ \frac{{1}}{{{}}}"):
        answer = form.format(other, number)
        assert correct(answer, gold) is (gold == other)
        assert correct(answer, f"({gold})") is (gold == other)
    for form in ("{} or {}", "({}) or ({})", "{}, {}", "{} and {}", "{}. 3 {}. 4"):
        assert gold == other or not correct(form.format(gold, other), gold)


@given(st.sampled_from("fghFGHIVPxyuN"), st.integers(0, 9))
@examples(30)
def test_values_of_functions(letter: str, number: int) -> None:
    gold = f"{letter}({number})+q"
    assert correct(f"q+{letter}({number})", gold)
    assert not correct(f"q+{number}{letter}", gold)
    assert not correct(f"q+{letter}({number + 1})", gold)


def test_looking_for_work_is_quick() -> None:
    texts = [
        r"\sqrt{" + "9" * 900 + "}",
        "+".join(["x"] * 290),
        "12^{1/" + "9" * 400 + "}",
        r"\sqrt[100]{12}x",
        "x" * 3 + "(x+1)" * 90,
        "/".join(["x"] * 40),
        "(" * 15 + "x" + "+x)" * 15,
    ]
    for text in texts:
        start = time.process_time()
        tree = parse_math(text).tree
        assert as_finished(tree, tree)
        assert time.process_time() - start < 0.5

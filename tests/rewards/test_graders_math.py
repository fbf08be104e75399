"""Reading mathematics and comparing it: the rule, its limits, and sympy as the oracle."""

from __future__ import annotations

import time

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.rewards.grading.closed_forms import NumericArithmetic
from rllib_dapo.rewards.grading.equality import equal
from rllib_dapo.rewards.grading.grade import grade
from rllib_dapo.rewards.grading.literals import TooLargeError
from rllib_dapo.rewards.grading.parser import parse_math
from rllib_dapo.rewards.grading.rational import NotRationalError, RationalArithmetic
from rllib_dapo.rewards.grading.trees import UnreadableError, allowed, operations

NUMERIC = NumericArithmetic()


def same(answer: str, gold: str) -> bool:
    return equal(parse_math(answer).tree, parse_math(gold).tree, NUMERIC)


# -- Reading


@pytest.mark.parametrize(
    "text",
    [
        *("1/2x", "2 3", "x 2", "a^b^c", r"\sin x/2", "x!!", "1 = 2 = 3", "(1,2]+3", "x+", "+"),
        *(r"\int_0^1 x dx", r"\sum_{k=1}^n k", r"\lim_{x\to0}x", r"\frac{d}{dx", r"\prod k", "x'"),
        *(r"\frac{1}{0}", r"\{x | x > 0\}", "(0,1", "[3)", r"2\frac{5}{3}", "cats", "x_{}", "∫"),
        *(
            r"\infty+1",
            r"\{1\}+2",
            r"(0,1)\cup 3",
            "__import__('os')",
            "x.y",
            "f'(x)",
            "",
            "_",
            "^2",
        ),
    ],
)
def test_what_is_no_value_is_not_read(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse_math(text)


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 500 + "1", "{" * 500 + "1", r"\sqrt" * 500 + "2", r"\frac" * 500, "x" + "/x" * 250),
        *("x+" * 700 + "x", "2^{" * 100 + "2", "9" * 1500 + "x", r"\sin" * 400 + "x", "|" * 500),
        *(r"\{" * 400, r"\{\pm" * 300, r"(\pm" * 300, "-" * 600 + "x"),
    ],
)
def test_what_is_too_deep_or_long_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises((TooLargeError, UnreadableError)):
        parse_math(text)
    assert time.process_time() - start < 0.2


@pytest.mark.parametrize(
    ("text", "others"),
    [
        (
            r"\frac{\sqrt{2}}{2}",
            ["√2/2", "sqrt(2)/2", r"\dfrac{\sqrt 2}2", r"\left(\sqrt2\right)/2"],
        ),
        (r"2\pi x^2", ["2πx²", "2 * pi * x**2", r"2\cdot\pi\times x^{2}", r"2\,\pi\, x^2"]),
        (r"\{1,2\}", [r"\left\{1, 2\right\}", r"\lbrace 1;2\rbrace"]),
        ("0.5x", [r"\frac12x", r"\frac{1}{2}x", "½x", r"\tfrac{1}{2} x"]),
        (r"7/3", [r"2\frac{1}{3}", r"2\frac13", r"\frac{7}{3}"]),
        (r"1234x", ["1,234x", r"1{,}234x", r"1\,234x"]),
        (r"|x|", [r"\left|x\right|", r"\lvert x\rvert", "abs(x)"]),
        ("x<=1", [r"x \le 1", r"1\ge x", "x ≤ 1", r"x\leqslant 1"]),
        (r"\arcsin x", [r"\sin^{-1}(x)", "asin(x)"]),
        ("x^10", ["x^{10}", "x**10"]),
    ],
)
def test_one_value_in_many_spellings(text: str, others: list[str]) -> None:
    for other in others:
        assert parse_math(other) == parse_math(text)


# -- The rule


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x^2+2x+1", set()),
        ("2/3 + x", set()),
        ("x+2+3", {"sum of numbers"}),
        (r"2 \cdot 3 x", {"product of numbers"}),
        (r"\frac{4x}{2}", {"quotient of numbers"}),
        (r"\frac{2x}{4}", set()),
        ("2^{10}", {"power of numbers"}),
        ("2^n", {"exponential"}),
        (r"\sqrt{12}", {"root"}),
        (r"\sqrt{\frac{4}{9}}", {"exact root"}),
        ("8^{1/3}", {"exact root"}),
        ("i^2", {"i", "power of numbers"}),
        (r"\sin x + \ln x", {"trigonometry", "log"}),
        (r"\{1, 2+3\}", {"sum of numbers"}),
        (r"\begin{pmatrix}1&2\\3&|x|\end{pmatrix}", {"absolute value"}),
    ],
)
def test_what_is_left_to_be_done(text: str, found: set[str]) -> None:
    assert operations(parse_math(text).tree) == found


def test_an_answer_leaves_nothing_to_be_done_that_the_ground_truth_does_not() -> None:
    pairs = [("2+3+x", "5+x"), ("x+y-y", "x"), (r"\sqrt{4}x", "2x"), (r"\sqrt{x}\sqrt{x}", "x")]
    for answer, gold in pairs:
        assert not allowed(parse_math(answer).tree, parse_math(gold).tree)
        assert allowed(parse_math(gold).tree, parse_math(gold).tree)
    assert allowed(parse_math(r"\ln\sqrt{3}").tree, parse_math(r"\frac{1}{2}\ln 3").tree)


# -- Comparing

X, Y = sympy.symbols("x y")
_LEAVES = st.sampled_from([X, Y, sympy.Integer(1), sympy.Integer(-3), sympy.Rational(2, 7)])


def _grow(inner: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
    return st.one_of(
        st.tuples(inner, inner).map(lambda ab: ab[0] + ab[1]),
        st.tuples(inner, inner).map(lambda ab: ab[0] * ab[1]),
        st.tuples(inner, st.integers(2, 3)).map(lambda an: an[0] ** an[1]),
    )


POLYNOMIALS = st.recursive(_LEAVES, _grow, max_leaves=6)


@given(POLYNOMIALS)
@examples(60)
def test_sympy_and_we_agree_that_forms_are_equal(expression: sympy.Expr) -> None:
    tree = parse_math(sympy.latex(expression)).tree
    for form in (sympy.expand(expression), sympy.factor(expression), expression + X - X):
        other = parse_math(sympy.latex(form)).tree
        assert equal(other, tree, RationalArithmetic())
        assert equal(other, tree, NUMERIC)


@given(POLYNOMIALS, POLYNOMIALS)
@examples(60)
def test_sympy_and_we_agree_whether_two_are_equal(a: sympy.Expr, b: sympy.Expr) -> None:
    trees = [parse_math(sympy.latex(e)).tree for e in (a, b)]
    truth = sympy.expand(a - b) == 0
    assert equal(trees[0], trees[1], RationalArithmetic()) is truth
    assert equal(trees[0], trees[1], NUMERIC) is truth


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"),
        (r"\sin 3x", r"3\sin x-4\sin^3 x"),
        (r"\sqrt[3]{2+\sqrt{5}}+\sqrt[3]{2-\sqrt{5}}", "1"),
        (r"\ln 6", r"\ln 2+\ln 3"),
        (r"\cos\frac{\pi}{5}", r"\frac{1+\sqrt{5}}{4}"),
        (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
        (r"\tan x", r"\frac{\sin x}{\cos x}"),
        (r"e^{x+1}", r"e\cdot e^x"),
        (r"\lfloor\pi\rfloor", "3"),
        ("x^{1/3}", r"\sqrt[3]{x}"),
        (r"(0,\sqrt{2})\cup[\sqrt{2},2)", "(0,2)"),
        (r"\sqrt{2}x+y=1", r"2x+\sqrt{2}y=\sqrt{2}"),
    ],
)
def test_equal_values_that_look_different(a: str, b: str) -> None:
    assert same(a, b)
    assert same(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\sqrt{x^2}", "x"),
        (r"\sqrt{2}", "1.41421356237309504880168872420969807856967187537694"),
        ("x", "x+0." + "0" * 80 + "1"),
        (r"\sqrt{2}x", r"\sqrt{2}x+0." + "0" * 80 + "1"),
        (r"\ln x^2", r"2\ln x"),
        ("x^{1000}", "x^{1001}"),
        ("2^{4000}", "2^{4001}"),
        (r"\frac{1}{x-x}", r"\frac{2}{x-x}"),
        (r"\sqrt{2}x<1", r"-\sqrt{2}x<-1"),
        (r"[0,\sqrt{2})", r"[0,\sqrt{2}]"),
        ("e^{-100}", "e^{-101}"),
        (r"\log 2", r"\ln 2"),
    ],
)
def test_different_values_that_look_equal(a: str, b: str) -> None:
    assert not same(a, b)
    assert not same(b, a)


def test_large_powers_cost_nothing() -> None:
    huge = "9" * 250
    start = time.process_time()
    assert grade(rf"Answer: x^{{{huge}}}+1", rf"1+x^{{{huge}}}").matched_by == "symbolic"
    assert not grade(rf"Answer: x^{{{huge}}}", f"x^{{{huge[1:]}}}").correct
    assert time.process_time() - start < 0.5


def test_rational_arithmetic_knows_its_limits() -> None:
    for text in (r"\sqrt{2}", "2^n", "n!", r"\sin x"):
        with pytest.raises(NotRationalError):
            RationalArithmetic().same(parse_math(text).tree, parse_math("x").tree)

"""Answers turned into integers by rule: letters, the paper's example, random forms read back."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.cli.transform.question import RefusalError
from rllib_dapo.cli.transform.rules import transform_answer

PLAIN = "Let $x$ and $y$ be real numbers. Find the answer."
COMPLEX = "Let $z$ be a complex number. Find $z$."


def test_the_papers_example() -> None:
    problem = (
        "Let $x$ and $y$ be real numbers such that $x^2+y^2-22x-16y+113=0$."
        " Determine the smallest possible value of $x$."
    )
    found = transform_answer(problem, r"$11-2\sqrt{6}$")
    assert found.answer == 19
    assert found.question == (
        r"The original answer is in the form $k-m\sqrt{n}$, where $k$ and $m$ are positive"
        r" integers and $n$ is a square-free integer greater than 1. Please find the value of"
        " $k+m+n$."
    )


def test_complex_numbers_need_a_problem_about_them() -> None:
    assert transform_answer(COMPLEX, "3-4i").answer == 7
    assert transform_answer(COMPLEX, r"1+i\sqrt{3}").answer == 4
    assert transform_answer(COMPLEX, r"\frac{1+2i}{5}").answer == 8
    assert "imaginary unit" in transform_answer(COMPLEX, "3-4i").question


def test_letters_of_the_problem_are_left_alone() -> None:
    found = transform_answer("Given $k$, $m$ and $n$, and a point p.", r"11-2\sqrt{6}")
    assert r"$q-r\sqrt{s}$" in found.question
    assert "$10n$" in transform_answer("A circle of diameter $d$.", "1.5").question
    assert r"$p\times 10^q$" in transform_answer("Given k, m and n.", r"2.5\times 10^7").question
    everything = " ".join("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    with pytest.raises(RefusalError, match="no letters"):
        transform_answer(everything, r"11-2\sqrt{6}")


def test_a_letter_that_may_be_a_unit_is_refused() -> None:
    assert transform_answer("How far?", "5m").answer == 5
    with pytest.raises(RefusalError, match="unit or a letter"):
        transform_answer("A square of side $m$.", "5m")


SQUARE_FREE = [n for n in range(2, 200) if all(n % (d * d) for d in range(2, 15))]
positive = st.integers(1, 10**6)
signs = st.sampled_from(["+", "-"])


@given(positive, positive, st.sampled_from(SQUARE_FREE), positive, signs, signs)
@example(11, 2, 6, 1, "", "-")
@examples(300)
def test_sums_with_a_root(k: int, m: int, n: int, d: int, first: str, second: str) -> None:
    assume(gcd(k, m, d) == 1)
    lead = "-" if first == "-" else ""
    root = rf"{m if m > 1 else ''}\sqrt{{{n}}}"
    text = f"{lead}{k}{second}{root}"
    if d > 1:
        text = rf"\frac{{{text}}}{{{d}}}"
    found = transform_answer(PLAIN, text)
    assert found.answer == k + (m if m > 1 else 0) + n + (d if d > 1 else 0)
    assert found.template is not None
    assert found.template.filled() == text
    assert transform_answer(PLAIN, found.template.filled()) == found


@given(st.integers(-(10**9), 10**9), st.integers(2, 10**9))
@examples(200)
def test_fractions(top: int, bottom: int) -> None:
    value = Fraction(top, bottom)
    assume(value.denominator > 1)
    sign = "-" if value < 0 else ""
    text = rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    found = transform_answer(PLAIN, text)
    assert found.answer == abs(value.numerator) + value.denominator
    assert found.template is not None
    assert found.template.filled() == text
    if gcd(top, bottom) > 1:
        with pytest.raises(RefusalError):
            transform_answer(PLAIN, rf"\frac{{{top}}}{{{bottom}}}")


@given(st.lists(st.fractions(-50, 50, max_denominator=40), min_size=2, max_size=4))
@examples(200)
def test_points(values: list[Fraction]) -> None:
    def show(value: Fraction) -> str:
        sign, size = ("-" if value < 0 else ""), abs(value)
        return (
            str(value)
            if size.denominator == 1
            else rf"{sign}\frac{{{size.numerator}}}{{{size.denominator}}}"
        )

    text = "(" + ",".join(map(show, values)) + ")"
    found = transform_answer(PLAIN, text)
    parts = [int(v) if v.denominator == 1 else abs(v.numerator) + v.denominator for v in values]
    assert found.answer == sum(parts)
    assert found.template is not None
    assert found.template.filled() == text


@given(st.integers(-(10**9), 10**9), st.integers(1, 9))
@examples(200)
def test_decimals(number: int, places: int) -> None:
    digits = str(abs(number)).rjust(places + 1, "0")
    text = f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    found = transform_answer(PLAIN, text)
    if number % 10**places == 0:
        assert (found.form, found.answer) == ("integer", number // 10**places)
    else:
        assert (found.form, found.answer) == ("decimal", number)
        assert f"exactly {places} digit" in found.question
        assert f"${10**places}d$" in found.question


@given(st.integers(1, 10**12), st.integers(2, 16))
@examples(200)
def test_bases(number: int, base: int) -> None:
    digits, rest = "", number
    while rest:
        digits = "0123456789ABCDEF"[rest % base] + digits
        rest //= base
    assume(digits[0].isdigit())
    assert transform_answer(PLAIN, f"{digits}_{{{base}}}").answer == number


@given(
    st.dictionaries(st.integers(1, 9), st.integers(-99, 99).filter(bool), min_size=1),
    st.integers(-99, 99),
)
@examples(200)
def test_polynomials(coefficients: dict[int, int], constant: int) -> None:
    terms = [f"{c:+d}x^{{{p}}}" for p, c in sorted(coefficients.items(), reverse=True)]
    if constant:
        terms.append(f"{constant:+d}")
    found = transform_answer(PLAIN, "".join(terms).removeprefix("+"))
    assert (found.form, found.answer) == ("polynomial", sum(coefficients.values()) + constant)


PIECES = [
    *("1", "2", "3", "12", "0", ".", "+", "-", "/", "(", ")", "[", "]", "{", "}", ",", ":", "^"),
    *("\\frac", "\\sqrt", "\\pi", "i", "x", "\\{", "\\}", "\\infty", "\\cup", "\\text{", "_", " "),
    *("\\sqrt{2}", "\\frac{1}{2}", "^\\circ", "\\%", "\\$", "\\cdot", "e", "!", "\\\\", "&", "½"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@examples(3000)
def test_whatever_is_read_can_be_read_back(text: str) -> None:
    try:
        found = transform_answer(COMPLEX, text)
    except RefusalError:
        return
    if found.template is None or found.form in ("set", "matrix"):
        return
    again = transform_answer(COMPLEX, found.template.filled())
    assert again.template == found.template
    assert again.answer == found.answer == sum(p.value for p in found.template.parts)


@given(st.text(max_size=80))
@examples(500)
def test_any_text_is_transformed_or_refused(text: str) -> None:
    try:
        assert isinstance(transform_answer(text, text).answer, int)
    except RefusalError:
        return

"""Answers turned into integers by rule: a table of forms, each transformed or refused."""

from __future__ import annotations

import pytest

from rllib_dapo.cli.transform import question as refusal
from rllib_dapo.cli.transform.question import RefusalError
from rllib_dapo.cli.transform.rules import transform_answer
from rllib_dapo.rewards.grading.grade import grade

PLAIN = "Let $x$ and $y$ be real numbers. Find the answer."

# answer, kind, new answer, what the question must contain
TRANSFORMED = [
    # already integers: kept
    ("18", "integer", 18, ""),
    ("$18$", "integer", 18, ""),
    ("-7", "integer", -7, ""),
    ("1,234", "integer", 1234, ""),
    ("0", "integer", 0, ""),
    ("x = 5", "integer", 5, ""),
    (r"\boxed{42}", "integer", 42, ""),
    ("12 apples", "integer", 12, ""),
    # with a unit
    (r"45^\circ", "integer_with_unit", 45, ", in degrees,"),
    (r"34 \text{ cm}", "integer_with_unit", 34, ", in centimetres,"),
    (r"75\%", "integer_with_unit", 75, ", as a percentage,"),
    (r"-\$5", "integer_with_unit", -5, ", in dollars,"),
    (r"5 \text{ m}^2", "integer_with_unit", 5, ", in square metres,"),
    # fractions
    (r"\frac{3}{4}", "fraction", 7, r"$\frac{m}{n}$"),
    (r"-\frac34", "fraction", 7, r"$-\frac{m}{n}$"),
    (r"\dfrac{22}{7}", "fraction", 29, r"$\frac{m}{n}$"),
    ("1/2", "fraction", 3, "coprime"),
    (r"2\frac{1}{3}", "fraction", 10, r"$\frac{m}{n}$"),
    ("3 4/5", "fraction", 24, r"$\frac{m}{n}$"),
    (r"\frac{5}{3}\text{ hours}", "fraction", 8, ", in hours,"),
    (r"12\frac12\%", "fraction", 27, ", as a percentage,"),
    (r"0.1\overline{6}", "repeating_decimal", 7, r"$\frac{m}{n}$"),
    # decimals
    ("0.75", "decimal", 75, "exactly 2 digits after the decimal point"),
    ("-0.5", "decimal", -5, "$10d$"),
    (r"\$1,234.50", "decimal", 123450, ", in dollars,"),
    (r"12.5\%", "decimal", 125, ", as a percentage,"),
    (r"3.2\times 10^5", "scientific", 37, "$10m+n$"),
    (r"6 \times 10^{-3}", "scientific", 3, "$m+n$"),
    ("4.5e33", "scientific", 78, "$10m+n$"),
    ("-1.25E-4", "scientific", -129, "$100m+n$"),
    ("6e+3", "scientific", 9, "$m+n$"),
    # roots
    (r"11-2\sqrt{6}", "root_sum", 19, r"form $k-m\sqrt{n}$"),
    (r"-1+\sqrt2", "root_sum", 3, r"$-m+\sqrt{n}$"),
    (r"\sqrt{2}+\sqrt{3}", "root_sum", 5, "different"),
    (r"5\sqrt{3}\text{ inches}", "root", 8, ", in inches,"),
    (r"3\sqrt[3]{4}", "root", 7, "cube of a prime"),
    (r"\frac{3\sqrt{2}}{4}", "root_fraction", 9, r"$\frac{k\sqrt{m}}{n}$"),
    (r"\frac{10}{3}\sqrt{3}", "root_fraction", 16, r"$\frac{k\sqrt{m}}{n}$"),
    (r"\sqrt{3}/2", "root_fraction", 5, r"$\frac{\sqrt{m}}{n}$"),
    (r"\frac{1+\sqrt{5}}{2}", "root_sum_fraction", 8, r"$\frac{k+\sqrt{m}}{n}$"),
    (r"(1+\sqrt5)/2", "root_sum_fraction", 8, r"$\frac{k+\sqrt{m}}{n}$"),
    (r"\frac12+\frac{\sqrt5}{2}", "root_sum_fraction", 8, r"$\frac{k+\sqrt{m}}{n}$"),
    (r"-\frac{1+\sqrt5}{2}", "root_sum_fraction", 8, r"$\frac{-k-\sqrt{m}}{n}$"),
    (r"\frac{6-2\sqrt{7}}{3}", "root_sum_fraction", 18, "greatest common divisor"),
    # pi
    (r"12\pi", "pi", 12, r"$n\pi$"),
    (r"\pi", "pi", 1, r"$n\pi$"),
    (r"9\pi-18", "pi", 27, r"$m\pi-n$"),
    (r"1,000\pi \text{ cm}^2", "pi", 1000, ", in square centimetres,"),
    (r"\frac{3\pi}{4}", "pi_fraction", 7, r"$\frac{m\pi}{n}$"),
    (r"\frac{\pi^2}{6}", "pi_fraction", 7, r"$\frac{m\pi^2}{n}$"),
    # several numbers
    ("(3,-4)", "tuple", -1, "$(m,n)$"),
    (r"\left(\frac12, 3\right)", "tuple", 6, r"$(\frac{k}{m},n)$"),
    (r"(0,-\sqrt{2},1)", "tuple", 3, r"-\sqrt{m}"),
    ("[1,2)", "interval", 3, "$[m,n)$"),
    (r"(-\infty,3]", "interval", 3, r"$(-\infty,n]$"),
    (r"\left[-\sqrt{2},\sqrt{2}\right]", "interval", 4, r"$[-\sqrt{m},\sqrt{n}]$"),
    (r"(-\infty,-2]\cup[5,\infty)", "interval_union", 3, r"(-\infty,m]\cup [n,\infty)"),
    (r"\{1,2,-5\}", "set", -2, "sum of its elements"),
    (r"\{1,\frac12\}", "set", 5, r"elements is in the form $\frac{m}{n}$"),
    (r"\begin{pmatrix} 1 \\ -2 \end{pmatrix}", "matrix", -1, "column vector"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "matrix", 10, "a matrix"),
    ("3:4", "ratio", 7, "$m:n$"),
    # others
    ("x^2-3x+7", "polynomial", 5, "polynomial in $x$"),
    ("132_7", "base", 72, "base 10"),
    ("1A_{16}", "base", 26, "written in base 16"),
    (r"3:45 \text{ p.m.}", "time_of_day", 945, "minutes from midnight"),
    ("12:00 a.m.", "time_of_day", 0, "minutes from midnight"),
    ("12:30 PM", "time_of_day", 750, "minutes from midnight"),
    ("2^{10}", "power", 10, "$2^{n}$"),
    ("10!", "factorial", 10, "$n!$"),
    (r"\ln 2", "logarithm", 2, r"$\ln n$"),
]

REFUSED = [
    (r"\frac{2}{4}", refusal.NOT_SIMPLIFIED),
    (r"\frac{84}{2}", refusal.NOT_SIMPLIFIED),
    ("84/2", refusal.NOT_SIMPLIFIED),
    (r"2\sqrt{8}", refusal.NOT_SIMPLIFIED),
    (r"\sqrt{4}", refusal.NOT_SIMPLIFIED),
    (r"\frac{2+4\sqrt{3}}{6}", refusal.NOT_SIMPLIFIED),
    (r"3\frac{5}{4}", refusal.NOT_SIMPLIFIED),
    ("4:6", refusal.NOT_SIMPLIFIED),
    (r"\{1,1\}", refusal.NOT_SIMPLIFIED),
    ("2!", refusal.NOT_SIMPLIFIED),
    ("x^2+x^2", refusal.NOT_SIMPLIFIED),
    ("012_3", refusal.NOT_SIMPLIFIED),
    (r"0.\overline{9}", refusal.NOT_SIMPLIFIED),
    (r"\frac{1}{\sqrt2}", refusal.IRRATIONAL_DENOMINATOR),
    (r"\frac{4}{\pi}", refusal.IRRATIONAL_DENOMINATOR),
    (r"\sqrt{2+\sqrt3}", refusal.UNSUPPORTED_ROOT),
    (r"\sqrt[5]{2}", refusal.UNSUPPORTED_ROOT),
    ("2+3", refusal.NOT_EVALUATED),
    (r"7\cdot 8", refusal.NOT_EVALUATED),
    (r"\sqrt2\sqrt3", refusal.NOT_EVALUATED),
    (r"2^{3}\cdot 5", refusal.NOT_EVALUATED),
    (r"2(1+\sqrt{3})", refusal.NOT_EVALUATED),
    (r"3/4\pi", refusal.SEVERAL_READINGS),
    (r"2\frac{\sqrt{3}}{3}", refusal.SEVERAL_READINGS),
    (r"12\frac{1}{2}\sqrt{3}", refusal.SEVERAL_READINGS),
    (r"2\frac{1}{3}\pi", refusal.SEVERAL_READINGS),
    ("3:45", refusal.SEVERAL_READINGS),
    (r"\left(3,\frac{\pi}{2}\right)", refusal.SEVERAL_READINGS),
    (r"[3,5]\cup[1,2]", refusal.SEVERAL_READINGS),
    ("1,-2", refusal.SEVERAL_ANSWERS),
    (r"\pm 3", refusal.SEVERAL_ANSWERS),
    (r"1\pm\sqrt{2}", refusal.SEVERAL_ANSWERS),
    ("7 or 8", refusal.SEVERAL_ANSWERS),
    (r"60^\circ, 120^\circ", refusal.SEVERAL_ANSWERS),
    ("(1,2),(3,4)", refusal.SEVERAL_ANSWERS),
    ("x=1 or x=2", refusal.SEVERAL_ANSWERS),
    ("x>3", refusal.RELATION),
    ("2x+3y=6", refusal.RELATION),
    ("y=2x+3", refusal.RELATION),
    ("n^2+1", refusal.SYMBOLIC),
    ("2xy", refusal.WORDS),
    (r"\frac{1}{x}", refusal.SYMBOLIC),
    ("x", refusal.SYMBOLIC),
    ("3-4i", refusal.SYMBOLIC),
    ("a_{12}", refusal.SYMBOLIC),
    ("3e", refusal.SYMBOLIC),
    (r"\text{Yes}", refusal.WORDS),
    ("(B)", refusal.WORDS),
    ("34 llamas", refusal.WORDS),
    (r"\text{(A) }5", refusal.WORDS),
    (r"\infty", refusal.UNBOUNDED),
    ("undefined", refusal.UNBOUNDED),
    (r"(-\infty,\infty)", refusal.UNBOUNDED),
    ("[2,1]", refusal.UNKNOWN_FORM),
    (r"5\sqrt{3})", refusal.UNKNOWN_FORM),
    (r"\frac{1}{2}}", refusal.UNKNOWN_FORM),
    ("129_7", refusal.UNKNOWN_FORM),
    (r"\arctan 2", refusal.UNKNOWN_FORM),
    (r"\log_2 3", refusal.UNKNOWN_FORM),
    (r"\binom{5}{2}", refusal.UNKNOWN_FORM),
    ("__import__('os').system('true')", None),
    ("1" * 40 + r"\pi", refusal.TOO_LARGE),
    (r"\sqrt{999999999999}", refusal.TOO_LARGE),
    ("(" * 100 + "1" + ")" * 100, refusal.TOO_LARGE),
    (r"\sqrt{" * 40 + "2" + "}" * 40, refusal.TOO_LARGE),
    ("9" * 301, refusal.TOO_LARGE),
]


@pytest.mark.parametrize(("answer", "form", "integer", "words"), TRANSFORMED)
def test_forms_that_are_known(answer: str, form: str, integer: int, words: str) -> None:
    found = transform_answer(PLAIN, answer)
    assert (found.form, found.answer) == (form, integer)
    assert words in found.question
    assert bool(found.question) == (form != "integer")


@pytest.mark.parametrize(("answer", "reason"), REFUSED)
def test_forms_that_are_refused(answer: str, reason: str | None) -> None:
    with pytest.raises(RefusalError) as caught:
        transform_answer(PLAIN, answer)
    assert reason is None or caught.value.reason == reason


def test_the_new_answer_is_graded_as_such() -> None:
    for answer, _, integer, _ in TRANSFORMED:
        new = transform_answer(PLAIN, answer).answer
        assert grade(f"Answer: {new}", str(integer)).correct

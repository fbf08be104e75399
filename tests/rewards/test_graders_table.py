"""The table of verdicts: what each grader says of an answer to a ground truth.

Cases 1 to 13b of what breaks in systems like this one, and every kind behind them.
"""

from __future__ import annotations

import pytest
from verdicts_of_numbers import NUMBERS, R, W

from rllib_dapo.rewards.grading.grade import grade, grade_all

# completion, ground truth, robust verdict, strict verdict
VALUES = [
    # text
    (r"Answer: \text{Yes}", "yes", R, W),
    ("Answer: (B)", "B", R, W),
    ("Answer: C", "B", W, W),
    ("Answer: seat", "east", W, W),
    ("Answer: no solution", "no solution", R, R),
    ("Answer: Alice, Bob", "Alice, Bob", R, R),
    # closed forms
    (r"Answer: \sqrt 3 \pi", "√3π", R, W),
    (r"Answer: \sqrt{2}/2", r"\frac{1}{\sqrt2}", R, W),
    (r"Answer: \frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt2}", R, W),
    (r"Answer: $\dfrac{\sqrt 2}{2}$.", r"\frac{1}{\sqrt2}", R, W),
    ("Answer: sqrt(2)/2", r"\frac{1}{\sqrt2}", R, W),
    ("Answer: √2/2", r"\frac{1}{\sqrt2}", R, W),
    (r"Answer: 2^{-1/2}", r"\frac{1}{\sqrt2}", R, W),
    (r"Answer: \sqrt{0.5}", r"\frac{1}{\sqrt2}", R, W),
    (r"Answer: x = \frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt2}", R, W),
    ("Answer: 0.7071", r"\frac{1}{\sqrt2}", W, W),
    ("Answer: 0.70710678118654752440084436210484903928", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: \frac{\sqrt{2}}{3}", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: -\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: \sin 45^\circ", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: \sin\frac{\pi}{4}", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: \int_0^1 \frac{dx}{\sqrt{2}}", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: \frac{1}{\sqrt{1+1}}", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: \frac{1}{\sqrt{2}} = \frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: \frac{1}{\sqrt{2}} or \frac{1}{\sqrt{3}}", r"\frac{1}{\sqrt2}", W, W),
    (r"Answer: 3\sqrt{2}", r"\sqrt{18}", R, W),
    (r"Answer: \sqrt{9}\sqrt{2}", r"3\sqrt{2}", W, W),
    (r"Answer: \sqrt[3]{-2}", r"-\sqrt[3]{2}", R, W),
    (r"Answer: \sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}", W, W),
    (r"Answer: \sqrt{3+2\sqrt{3}}", r"1+\sqrt{2}", W, W),
    (r"Answer: 1.5\pi", r"\frac{3\pi}{2}", R, W),
    (r"Answer: \pi \cdot 3", r"3\pi", R, W),
    (r"Answer: 3\pi \text{ cm}^2", r"3\pi", R, R),
    (r"Answer: 3\pi \text{ cm}^2", r"3\pi \text{ cm}", W, R),
    ("Answer: 9.42", r"3\pi", W, W),
    (r"Answer: 1{,}234\pi", r"1,234\pi", R, W),
    (r"Answer: \frac{1}{2}\ln 3", r"\ln\sqrt{3}", R, W),
    (r"Answer: \log_2 9", r"2\log_2 3", R, W),
    (r"Answer: \ln 3", r"\log 3", W, W),
    (r"Answer: e^{2}", r"\exp(2)", R, W),
    (r"Answer: e \cdot e", "e^2", W, W),
    (r"Answer: 2\frac{1}{3}\pi", r"\frac{7\pi}{3}", R, W),
    (r"Answer: 2\frac{1}{3}\pi", r"\frac{2\pi}{3}", W, W),
    # numbers not worked out, as ground truths
    ("Answer: 1024", "2^{10}", R, W),
    ("Answer: 2^{10}", "2^{10}", R, R),
    ("Answer: 4^5", "2^{10}", R, W),
    ("Answer: 1025", "2^{10}", W, W),
    ("Answer: 1000 + 24", "2^{10}", W, W),
    (r"Answer: \int_0^{1024} 1dx", "2^{10}", W, W),
    ("Answer: 2", r"\sqrt{4}", R, W),
    ("Answer: 120", "5!", R, W),
    ("Answer: 10", r"\binom{5}{2}", R, W),
    ("Answer: 9^{9^{9^9}}", "2^{10}", W, W),
    # polynomials and other expressions
    ("Answer: x^{2} + 1", "x^2+1", R, W),
    ("Answer: (x+1)^2", "x^2+2x+1", W, W),
    ("Answer: x**2 + 2*x + 1", "x^2+2x+1", R, W),
    ("Answer: (x+1)(x+1)", "x^2+2x+1", W, W),
    ("Answer: 1+2x+x²", "x^2+2x+1", R, W),
    ("Answer: x^2+2x+1", "(x+1)^2", W, W),
    ("Answer: x^2+2x+2", "x^2+2x+1", W, W),
    ("Answer: t^2+2t+1", "x^2+2x+1", W, W),
    ("Answer: x^2+x+x+1", "x^2+2x+1", W, W),
    ("Answer: x^2+2x+3-2", "x^2+2x+1", W, W),
    ("Answer: x^2+2x+1=0", "x^2+2x+1", W, W),
    ("Answer: x+1", "x+6/3-1", R, W),
    (r"Answer: \int (2x+2) dx", "x^2+2x", W, W),
    (r"Answer: \frac{d}{dx} x^2", "2x", W, W),
    ("Answer: 2x", "x", W, W),
    (r"Answer: \frac{x}{x+1}", r"1-\frac{1}{x+1}", R, W),
    (r"Answer: \frac{1}{2x}", "1/(2x)", R, W),
    ("Answer: 1/2x", r"\frac{1}{2}x", W, W),
    (r"Answer: \sqrt{x^2}", "x", W, W),
    (r"Answer: |x|", "x", W, W),
    (r"Answer: 6 \cdot 3^{n-1}", r"2 \cdot 3^n", R, W),
    (r"Answer: \frac{n^2+n}{2}", r"\frac{n(n+1)}{2}", R, W),
    (r"Answer: \sin^2 x", r"1-\cos^2 x", R, W),
    (r"Answer: 2\sin x\cos x", r"\sin 2x", R, W),
    (r"Answer: \sin x", r"\cos x", W, W),
    ("Answer: a_2 + a_1", "a_1 + a_2", R, W),
    # complex numbers
    ("Answer: 4i + 3", "3+4i", R, W),
    ("Answer: 3 - 4i", "3+4i", W, W),
    ("Answer: 5", "3+4i", W, W),
    ("Answer: 3+2i+2i", "3+4i", W, W),
    ("Answer: (2+i)^2", "3+4i", W, W),
    ("Answer: -i", r"\frac{1}{i}", R, W),
    # points and tuples
    (r"Answer: $\left( 3, \dfrac{\pi}{2} \right)$", r"(3, \frac{\pi}{2})", R, W),
    ("Answer: (3, 4)", "(3,4)", R, R),
    ("Answer: (3.0, 8/2)", "(3,4)", W, W),
    ("Answer: (3.0, 04)", "(3,4)", R, W),
    ("Answer: (4, 3)", "(3,4)", W, W),
    ("Answer: (3, 4, 5)", "(3,4)", W, W),
    ("Answer: 3, 4", "(3,4)", W, W),
    ("Answer: (1/2, 0.5)", r"\left(\frac12,\frac12\right)", R, W),
    ("Answer: (3, 2+2)", "(3,4)", W, W),
    ("Answer: (1,2), (3,4)", "(3,4),(1,2)", R, W),
    (
        r"Answer: \begin{pmatrix} 1 & 0.5 \\ 0 & 1 \end{pmatrix}",
        r"\begin{pmatrix}1&\frac12\\0&1\end{pmatrix}",
        R,
        W,
    ),
    (r"Answer: \begin{pmatrix} 1 & 0 \end{pmatrix}", r"\begin{pmatrix}1\\0\end{pmatrix}", W, W),
    # sets and lists
    (r"Answer: \{2, 1\}", r"\{1,2\}", R, W),
    ("Answer: 2, 1", r"\{1,2\}", R, W),
    ("Answer: 1 and 2", "1, 2", R, W),
    ("Answer: x = 2 or x = 3", "x=2, x=3", R, R),
    ("Answer: 1, 2, 3", "1, 2", W, W),
    ("Answer: 1", "1, 2", W, W),
    ("Answer: 1, 1", "1, 2", W, W),
    ("Answer: 1, 1+1", "1, 2", W, W),
    (r"Answer: 1-\sqrt{5}, 1+\sqrt{5}", r"1\pm\sqrt{5}", R, W),
    (r"Answer: \frac{2\pm\sqrt{20}}{2}", r"1\pm\sqrt{5}", W, W),
    (r"Answer: 1+\sqrt{5}", r"1\pm\sqrt{5}", W, W),
    (r"Answer: \varnothing", r"\emptyset", R, W),
    # intervals
    ("Answer: [0, 1)", "[0,1)", R, R),
    ("Answer: [0,1)", "(0,1)", W, W),
    ("Answer: [0, 1.0]", "[0,1]", R, W),
    (r"Answer: x \in [0, 1]", "[0,1]", R, W),
    (r"Answer: (-\infty, \infty)", r"\mathbb{R}", R, W),
    (r"Answer: (2,\infty) \cup (-\infty,1]", r"(-\infty,1]\cup(2,\infty)", R, W),
    (r"Answer: (-\infty,1]\cup[2,\infty)", r"(-\infty,1]\cup(2,\infty)", W, W),
    (r"Answer: \mathbb{R}\setminus\{0\}", r"(-\infty,0)\cup(0,\infty)", R, W),
    (r"Answer: [0, \frac{\sqrt{8}}{2}]", r"[0,\sqrt2]", W, W),
    (r"Answer: [0,1]\cup[1,\sqrt{8}]", r"[0,2\sqrt2]", W, W),
    # equations and inequalities
    ("Answer: y = 2x + 1", "2x+1", R, R),
    ("Answer: y = 2x + 1", "y=2x+1", R, R),
    ("Answer: y = 1 + 2x", "y=2x+1", R, W),
    ("Answer: 2x + 1", "y=2x+1", R, R),
    ("Answer: 2x - y + 1 = 0", "y=2x+1", R, W),
    ("Answer: 2y = 4x + 2", "y=2x+1", W, W),
    ("Answer: x = 2y + 1", "y=2x+1", W, W),
    ("Answer: y = 2x - 1", "y=2x+1", W, W),
    ("Answer: 0 = 0", "y=2x+1", W, W),
    ("Answer: y = y", "y=2x+1", W, W),
    ("Answer: f(x) = 2x + 1", "f(x)=1+2x", R, W),
    ("Answer: x^2 + y^2 = 4", "x^2+y^2-4=0", R, W),
    ("Answer: y=3, x=2", "x=2, y=3", R, W),
    ("Answer: x=3, y=2", "x=2, y=3", W, W),
    ("Answer: 2 < x", "x>2", R, W),
    (r"Answer: x \geq 2", "x>2", W, W),
    ("Answer: -x < -2", "x>2", R, W),
    ("Answer: x < 2", "x>2", W, W),
    (r"Answer: 0 < x \le 1", r"0<x\leq 1", R, W),
    ("Answer: x < 1 and x > 2", r"x<1 \text{ or } x>2", W, W),
    # hostile, where the ground truth is no number
    ("Answer: 9**9**9**9", "x+1", W, W),
    ("Answer: __import__('os').system('true')", "x+1", W, W),
    ("Answer: x+1+0*exec('1')", "x+1", W, W),
    (r"Answer: \boxed{x+1", "x+1", W, W),
    ("Answer: x+1+" + "(" * 500, "x+1", W, W),
]


@pytest.mark.parametrize(("text", "gold", "robust", "strict"), [*NUMBERS, *VALUES])
def test_verdicts(text: str, gold: str, robust: bool, strict: bool) -> None:
    assert grade(text, gold).correct is robust
    assert grade(text, gold, "strict").correct is strict


def test_all_at_once_as_one_by_one() -> None:
    texts, golds, robust, strict = zip(*NUMBERS, *VALUES, strict=True)
    assert tuple(v.correct for v in grade_all(texts, golds)) == robust
    assert tuple(v.correct for v in grade_all(texts, golds, "strict")) == strict


def test_the_table_is_as_large_as_promised() -> None:
    assert len(NUMBERS) + len(VALUES) >= 150


@pytest.mark.parametrize("gold", sorted({gold for _, gold, _, _ in [*NUMBERS, *VALUES]}))
def test_every_ground_truth_is_right_as_it_stands(gold: str) -> None:
    for text in (f"Answer: {gold}", rf"\boxed{{{gold}}}", f"Answer: ${gold}$"):
        assert grade(text, gold).correct

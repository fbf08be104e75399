r"""The prompts for the language model: the paper's four steps, and the independent check.

The model does not rewrite the problem but writes the sentences to add to it, because a model
that copies a problem may lose a condition. The four steps are the form of the answer, these
sentences, the computation of the integer, and the integer.
"""

from __future__ import annotations

HEADINGS = ("## Form", "## Added question", "## Computation", "## Integer")
"""The headings of the four steps in a completion, in this order."""

_INSTRUCTIONS = r"""You get a mathematics problem and its correct answer. The answer is not an
integer. Extend the problem so that its answer becomes one integer that a program can compare.

Work in four steps, each under its heading, and write nothing after the last one.

## Form
Say what kind of object the answer is, and write its general form with letters in place of the
numbers, for example $a+b\sqrt{c}$. Use letters that the problem does not use. Say what must hold
of the letters so that only one choice of them fits: integers, positive, lowest terms, square-free.
If the answer cannot be brought into such a form without doubt (several answers, a proof, a word,
a letter of the problem in it), write only the word REFUSE under this heading and stop.

## Added question
Write the one or two sentences that will be added to the end of the problem, word for word. They
give the form and its conditions and ask for one integer, usually the sum of the letters. They
must not give the answer or any of its numbers away.

## Computation
Take the numbers from the correct answer and compute the integer, step by step.

## Integer
Write the integer alone, in digits.
"""

_EXAMPLES = (
    (
        r"For real $x$ and $y$ with $x^2+y^2-22x-16y+113=0$, what is the smallest possible $x$?",
        r"11-2\sqrt{6}",
        r"""## Form
A number of the form $k-m\sqrt{n}$, with positive integers $k$, $m$, $n$; it is unique when $n$ is
square-free.

## Added question
The original answer is in the form $k-m\sqrt{n}$, where $k$, $m$ and $n$ are positive integers and
$n$ is square-free. Please find the value of $k+m+n$.

## Computation
The answer is $11-2\sqrt{6}$, so $k=11$, $m=2$, $n=6$, and $11+2+6=19$.

## Integer
19""",
    ),
    (
        r"Which point of the line $y=3x-5$ lies nearest to the origin?",
        r"\left(\frac{3}{2},-\frac{1}{2}\right)",
        r"""## Form
A point with rational coordinates, $\left(\frac{p}{q},-\frac{r}{s}\right)$, with positive integers
and both fractions in lowest terms.

## Added question
The original answer is in the form $\left(\frac{p}{q},-\frac{r}{s}\right)$, where $p$, $q$, $r$ and
$s$ are positive integers and both fractions are in lowest terms. Please find the value of
$p+q+r+s$.

## Computation
$p=3$, $q=2$, $r=1$, $s=2$, and $3+2+1+2=8$.

## Integer
8""",
    ),
    (
        r"Show that there are infinitely many primes.",
        r"\text{proved}",
        """## Form
REFUSE""",
    ),
)

_CHECK = r"""Solve the following problem step by step. End with a line of the form "Answer: N",
where N is an integer in digits.

"""


def transformation_prompt(problem: str, answer: str) -> str:
    """The prompt for the four steps."""
    parts = [_INSTRUCTIONS]
    for example_problem, example_answer, output in _EXAMPLES:
        parts.append(_posed(example_problem, example_answer) + output + "\n")
    parts.append(_posed(problem, answer))
    return "\n".join(parts)


def check_prompt(problem: str) -> str:
    """The prompt for the check: the extended problem alone, without any answer."""
    return _CHECK + problem


def _posed(problem: str, answer: str) -> str:
    return f"# Problem\n{problem}\n\n# Correct answer\n{answer}\n\n"

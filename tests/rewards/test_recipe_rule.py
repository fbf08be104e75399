r"""The strict grader is the recipe's rule, recomputed here character by character.

The description (Minerva paper, appendix D, as the DAPO recipe uses it): the last `Answer: …` line
in the last 300 characters; of it what follows the last `=`; fixed pieces replaced; fixed words
cut out wherever they stand; the text between the first two `$`; \text, \textbf, \overline and
\boxed unwrapped; braces for `frac12` and `sqrt2`; no `$`; commas dropped if only digits are left.
The result has to be the same text as the ground truth after the same steps.
"""

from __future__ import annotations

import itertools
import random

import pytest

from rllib_dapo.rewards.grading.grade import grade
from rllib_dapo.rewards.grading.recipe import normalize_strict

REPLACED = [("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", "")]
REPLACED += [
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
]
WORDS = [
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots"),
    *("sue", "points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds"),
    *("meters", "meals", "edges", "students", "childrentickets", "multiples", "\\text{s}"),
    *("\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}"),
    *("\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
]


def unwrapped(text: str, opening: str, *, last: bool = False) -> str:
    done = ""
    while (start := text.find(opening)) >= 0:
        begin = start + len(opening)
        end = text.rfind("}", begin) if last else text.find("}", begin)
        if end < 0:
            break
        done, text = done + text[:start] + text[begin:end], text[end + 1 :]
    return done + text


def braced(text: str, name: str, count: int) -> str:
    done = ""
    while (start := text.find(name)) >= 0:
        end = start + len(name)
        short = text[end : end + count]
        if len(short) == count and short[0] != "{":
            done += text[:end] + "".join("{" + c + "}" for c in short)
            text = text[end + count :]
        else:
            done, text = done + text[:end], text[end:]
    return done + text


def recipe(text: str) -> str:
    text = text[text.rfind("=") + 1 :]
    for old, new in REPLACED:
        text = new.join(text.split(old))
    for word in WORDS:
        text = "".join(text.split(word))
    pieces = text.split("$")
    if len(pieces) > 2:
        text = f"${pieces[1]}$"  # The signs stay until fractions have been braced.
    for opening in ("\\text{", "\\textbf{", "\\overline{"):
        text = unwrapped(text, opening)
    text = unwrapped(text, "\\boxed{", last=True)
    text = braced(braced(text, "frac", 2), "sqrt", 1).replace("$", "")
    digits = text.replace(",", "")
    return digits if digits.isdigit() else text.strip()


def verdict(completion: str, gold: str) -> bool:
    found = None
    window = completion[-300:]
    lowered = window.lower()
    start = 0
    while (at := lowered.find("answer", start)) >= 0:
        start = at + 6
        rest = window[start:].lstrip()
        if not rest.startswith(":"):
            continue
        line = rest[1:].lstrip().split("\n")[0]
        if line:
            found = line
            start = len(window) - len(rest[1:].lstrip()) + len(line)
    return found is not None and recipe(found) == recipe(gold)


NUMBERS = ["34", "1234", "1,234", "-5", "0", "034", "12.5", "34.", "+7"]
LAYOUTS = [
    *("{}", "${}$", "$${}$$", "**{}**", "`{}`", r"\({}\)", r"\[{}\]", r"\boxed{{{}}}", "({})"),
    *(
        r"$\boxed{{{}}}$",
        r"\text{{{}}}",
        r"\textbf{{{}}}",
        "x = {}",
        "5 = {}",
        "{}.",
        "${}$.",
        "a {}",
    ),
    *(
        "{}{{,}}",
        r"{}\,",
        r"{}\;",
        r"\${}",
        '"{}"',
        "{},",
        "an {}",
        r"{}\!",
        r"\mathrm{{{}}}",
        "{} ",
    ),
]
UNITS = [
    *(
        "",
        " cm",
        " cm^2",
        r"\text{ cm}",
        r"\text{ cm}^2",
        r"\text{ m}",
        " m",
        " units",
        " square units",
    ),
    *(
        " dollars",
        " cents",
        " degrees",
        r"^\circ",
        r"^{\circ}",
        r"\%",
        "%",
        " ways",
        " people",
        " km",
    ),
    *(
        " inches",
        " inch",
        " miles",
        " mph",
        " hours",
        " hour",
        " points",
        r"\text{ and } 3",
        " foot",
    ),
    *(r"\mathrm{th}", " students", r"\text{ ways}", r"\ \text{units}", " apples", r" \text{ m}^3"),
]
OTHERS = [r"\frac12", r"\frac{1}{2}", r"\frac{1}2", r"\dfrac12", r"\sqrt2", r"\sqrt{2}", "x=2, x=3"]
OTHERS += [r"\frac ab", "always", r"1,\!234", "seat", r"\overline{12}", r"\text{Yes}", "(1, 2)"]
TEXTS = [
    layout.format(number) + unit
    for number, layout, unit in itertools.product(NUMBERS, LAYOUTS, UNITS)
]


def test_normalised_texts_are_the_same() -> None:
    for text in [*TEXTS, *OTHERS, *(f"${text}$" for text in OTHERS)]:
        assert normalize_strict(text) == recipe(text), text


def test_verdicts_are_the_same() -> None:
    draw = random.Random(7)
    golds = [
        "34",
        "1234",
        "-5",
        "0",
        "12.5",
        r"\frac{1}{2}",
        r"\sqrt{2}",
        "34 cm",
        r"34^\circ",
        "1,234",
    ]
    completions = ["Answer: {}", "answer:{}", "So.\n**Answer:** {}", "Answer: 1\nAnswer: {}\nDone."]
    completions += ["Answer:\n{}", "The answer is {}", "Answer: {} and Answer: {}", "ANSWER :  {}"]
    agreed = {True: 0, False: 0}
    for text in [*TEXTS, *OTHERS]:
        for gold in draw.sample(golds, 3):
            completion = "x" * draw.choice([0, 250, 400]) + draw.choice(completions).format(
                text, text
            )
            expected = verdict(completion, gold)
            assert grade(completion, gold, "strict").correct is expected, (completion, gold)
            agreed[expected] += 1
    assert sum(agreed.values()) > 20_000
    assert agreed[True] > 800


def test_random_texts_are_normalised_the_same() -> None:
    draw = random.Random(11)
    pieces = ["1", "2", ",", ".", "$", "=", " ", "{", "}", "\\", "a ", "an ", r"\text{", r"\boxed{"]
    pieces += [
        "frac",
        "sqrt",
        "cm",
        "units",
        r"\$",
        "mbox",
        ".$",
        '"',
        r"\dots",
        "{,}",
        r"\ ",
        "^2",
    ]
    for _ in range(5_000):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 12)))
        assert normalize_strict(text) == recipe(text), text


@pytest.mark.parametrize(
    ("answer", "gold", "correct"),
    [
        *(("34 cm", "34", True), ("34 m", "34", False), (r"34\text{ m}", "34 cm", True)),
        *(("$$34$$", "34", False), (r"1\,234", "1234", False), (r"1,\!234", "1234", True)),
        *(("34 inch", "34", False), ("34 inches", "34", True), ("5 = 34", "34", True)),
        *(("al34ways", "al34", True), ("34%", "34", False), ("34 people", "34", False)),
    ],
)
def test_habits_of_the_recipe(answer: str, gold: str, correct: bool) -> None:
    assert grade(f"Answer: {answer}", gold, "strict").correct is correct

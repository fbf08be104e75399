r"""Rules for answers of a fixed shape: decimals, bases, times, ratios, powers, polynomials etc.

Each rule takes the answer's text without its unit, the unit in words (None without a unit) and
the problem's text. It returns None if the answer does not have the rule's shape, and raises
`RefusalError` if the answer has the shape but cannot be asked about.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import gcd

from rllib_dapo.cli.transform.question import (
    NOT_SIMPLIFIED,
    SEVERAL_READINGS,
    SYMBOLIC,
    TOO_LARGE,
    UNKNOWN_FORM,
    RefusalError,
    Transformed,
    ask,
    ask_for_parts,
    free_letters,
)
from rllib_dapo.cli.transform.scalar_form import from_fraction, scalar_template
from rllib_dapo.cli.transform.template import AnswerPart, Piece, Template

MAX_PLACES = 12
"""The largest number of digits after the decimal point that is read."""

_DECIMAL = re.compile(r"([+-]?)([0-9]{0,15})\.([0-9]+)\Z")
_REPEATING = re.compile(r"([+-]?)([0-9]{0,9})\.([0-9]{0,9})\\overline\{([0-9]{1,9})\}\Z")
_SCIENTIFIC = re.compile(
    r"([+-]?)([0-9])(?:\.([0-9]{1,12}))?\s*\\(?:times|cdot)\s*10\^(?:\{([+-]?[0-9]{1,4})\}|([0-9]))\Z"
)
_BASE = re.compile(r"([0-9][0-9A-Fa-f]{0,59})_(?:\{([0-9]{1,2})\}|([0-9]))\Z")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*(?:\\text\s*\{)?\s*([ap])\.?\s?m\.?\s*\}?\Z", re.I)
_RATIO = re.compile(r"[0-9]{1,15}(?:\s*:\s*[0-9]{1,15}){1,3}\Z")
_POWER = re.compile(r"([0-9]{1,15})\^(?:\{([0-9]{1,9})\}|([0-9]))\Z")
_FACTORIAL = re.compile(r"([0-9]{1,6})!\Z")
_LOGARITHM = re.compile(r"\\ln\s*(?:\{([0-9]{1,15})\}|\(([0-9]{1,15})\)|([0-9]{1,15}))\Z")
_MONOMIAL = re.compile(r"([+-]?)([0-9]{0,15})(?:([a-z])(?:\^(?:\{([0-9]{1,3})\}|([0-9])))?)?")


def decimal(text: str, unit: str | None, problem: str) -> Transformed | None:
    """For `12.50`, ask for the digits before and after the decimal point as one integer, 1250."""
    match = _DECIMAL.match(text)
    if match is None:
        return None
    places = len(match[3])
    if places > MAX_PLACES:
        raise RefusalError(TOO_LARGE, f"{places} digits after the decimal point")
    number = int((match[2] or "0") + match[3]) * (-1 if match[1] == "-" else 1)
    letter = free_letters(1, problem, "d")[0]
    digits = "1 digit" if places == 1 else f"{places} digits"
    return ask(
        "decimal",
        f"is a decimal number ${letter}$ with exactly {digits} after the decimal point",
        f"find the value of ${10**places}{letter}$",
        number,
        unit,
    )


def repeating_decimal(text: str, unit: str | None, problem: str) -> Transformed | None:
    r"""For `0.1\overline{6}`, ask for the parts of the fraction that it equals."""
    match = _REPEATING.match(text)
    if match is None:
        return None
    sign, whole, start, cycle = match.groups()
    shift = 10 ** len(start)
    value = Fraction(int((whole or "0") + start), shift)
    value += Fraction(int(cycle), shift * (10 ** len(cycle) - 1))
    template = scalar_template(from_fraction(-value if sign == "-" else value))
    if len(template.parts) == 1:
        raise RefusalError(NOT_SIMPLIFIED, "a repeating decimal that is an integer")
    return ask_for_parts("repeating_decimal", template, problem, unit)


def scientific(text: str, unit: str | None, problem: str) -> Transformed | None:
    r"""For `3.2\times 10^5`, ask for the digits of the first factor plus the exponent, 32 + 5."""
    match = _SCIENTIFIC.match(text)
    if match is None:
        return None
    sign, digit, decimals = match[1], match[2], match[3] or ""
    if digit == "0":
        raise RefusalError(NOT_SIMPLIFIED, "a first factor below 1")
    if decimals == "" and digit == "1":
        raise RefusalError(NOT_SIMPLIFIED, "a power of 10 times 1")
    places, exponent = len(decimals), int(match[4] or match[5])
    factor = int(digit + decimals) * (-1 if sign == "-" else 1)
    digits = {0: "no digit", 1: "exactly 1 digit"}.get(places, f"exactly {places} digits")
    m, n = free_letters(2, problem)
    scaled = m if places == 0 else f"{10**places}{m}"
    return ask(
        "scientific",
        f"is in the form ${m}\\times 10^{n}$, where $1\\le|{m}|<10$, ${m}$ has {digits} after the"
        f" decimal point and ${n}$ is an integer",
        f"find the value of ${scaled}+{n}$",
        factor + exponent,
        unit,
    )


def base(text: str, unit: str | None, problem: str) -> Transformed | None:
    """For `132_7`, ask for the same number in base 10."""
    del unit, problem
    match = _BASE.match(text)
    if match is None:
        return None
    radix = int(match[2] or match[3])
    if not 2 <= radix <= 16:
        raise RefusalError(UNKNOWN_FORM, f"the base {radix}")
    digits = match[1].upper()
    if any("0123456789ABCDEF".index(digit) >= radix for digit in digits):
        raise RefusalError(UNKNOWN_FORM, f"a digit that base {radix} does not have")
    if digits[0] == "0" and len(digits) > 1:
        raise RefusalError(NOT_SIMPLIFIED, "a leading 0")
    return ask(
        "base",
        f"is an integer written in base {radix}",
        "write the same integer in base 10",
        int(digits, radix),
    )


def time_of_day(text: str, unit: str | None, problem: str) -> Transformed | None:
    """For `3:45 p.m.`, ask for the number of minutes from midnight."""
    del unit, problem
    match = _TIME.match(text)
    if match is None:
        return None
    hour, minute = int(match[1]), int(match[2])
    if not 1 <= hour <= 12 or minute > 59:
        raise RefusalError(UNKNOWN_FORM, "not a time on a 12-hour clock")
    minutes = (hour % 12 + 12 * (match[3].lower() == "p")) * 60 + minute
    return ask(
        "time_of_day",
        "is a time of day",
        "find the number of minutes from midnight (12:00 a.m.) to that time",
        minutes,
    )


def ratio(text: str, unit: str | None, problem: str) -> Transformed | None:
    """For `3:4`, ask for the sum of the terms."""
    if not _RATIO.match(text):
        return None
    printed_terms = [term.strip() for term in text.split(":")]
    terms = [int(term) for term in printed_terms]
    if len(printed_terms[1]) == 2 and terms[0] <= 24 and terms[1] <= 59:
        raise RefusalError(SEVERAL_READINGS, "it may be a time or a ratio")
    if 0 in terms or gcd(*terms) > 1 or any(t[0] == "0" for t in printed_terms):
        raise RefusalError(NOT_SIMPLIFIED, "a ratio not in lowest terms")
    pieces: list[Piece] = [AnswerPart(terms[0])]
    for term in terms[1:]:
        pieces += [":", AnswerPart(term)]
    template = Template(tuple(pieces), coprime=(tuple(range(len(terms))),))
    return ask_for_parts("ratio", template, problem, unit)


def power(text: str, unit: str | None, problem: str) -> Transformed | None:
    """For `2^{10}`, state the base and ask for the exponent, 10."""
    match = _POWER.match(text)
    if match is None:
        return None
    radix, exponent = int(match[1]), int(match[2] or match[3])
    if radix < 2 or exponent < 2:
        raise RefusalError(NOT_SIMPLIFIED, f"the power {text}")
    template = Template((f"{radix}^{{", AnswerPart(exponent), "}"))
    return ask_for_parts("power", template, problem, unit)


def factorial(text: str, unit: str | None, problem: str) -> Transformed | None:
    """For `10!`, ask for the number before the exclamation mark, 10."""
    match = _FACTORIAL.match(text)
    if match is None:
        return None
    if int(match[1]) < 3:
        raise RefusalError(NOT_SIMPLIFIED, f"the factorial {text}")
    return ask_for_parts("factorial", Template((AnswerPart(int(match[1])), "!")), problem, unit)


def logarithm(text: str, unit: str | None, problem: str) -> Transformed | None:
    r"""For `\ln 2`, ask for the number whose logarithm it is, 2."""
    match = _LOGARITHM.match(text)
    if match is None:
        return None
    number = int(match[1] or match[2] or match[3])
    if number < 2:
        raise RefusalError(NOT_SIMPLIFIED, f"the logarithm of {number}")
    return ask_for_parts("logarithm", Template(("\\ln ", AnswerPart(number))), problem, unit)


def polynomial(text: str, unit: str | None, problem: str) -> Transformed | None:
    """For `x^2-3x+2`, ask for the sum of the coefficients.

    The letter must occur by itself in the problem. Otherwise it may not be the polynomial's
    variable.
    """
    monomials = _monomials(text.replace(" ", ""))
    letters = {match[3] for match in monomials if match[3]}
    if not letters or letters == {"i"}:
        return None
    if len(letters) > 1 or letters & set("eid"):
        raise RefusalError(SYMBOLIC, f"the letters {', '.join(sorted(letters))}")
    letter = letters.pop()
    if len(text.lstrip("+- ")) == 1:
        raise RefusalError(SYMBOLIC, f"the letter {letter} alone")
    if unit is not None:
        raise RefusalError(SYMBOLIC, f"the letter {letter} beside a unit")
    if not re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", problem):
        raise RefusalError(SYMBOLIC, f"the letter {letter}, which the problem does not name")
    return ask(
        "polynomial",
        f"is a polynomial in ${letter}$ with integer coefficients",
        "find the sum of its coefficients",
        _sum_of_coefficients(monomials),
    )


def _monomials(compact: str) -> list[re.Match[str]]:
    """Match a polynomial's terms from left to right; the list is empty for any other text."""
    monomials: list[re.Match[str]] = []
    position = 0
    while position < len(compact):
        match = _MONOMIAL.match(compact, position)
        assert match is not None  # noqa: S101 - the pattern matches the empty string
        if not (match[2] or match[3]) or (position and not match[1]):
            return []
        monomials.append(match)
        position = match.end()
    return monomials


def _sum_of_coefficients(monomials: list[re.Match[str]]) -> int:
    coefficients: dict[int, int] = {}
    for match in monomials:
        exponent = int(match[4] or match[5] or 1) if match[3] else 0
        coefficient = int(match[2] or 1) * (-1 if match[1] == "-" else 1)
        if exponent in coefficients or coefficient == 0 or (match[3] and exponent == 0):
            raise RefusalError(NOT_SIMPLIFIED, "a polynomial whose like terms are not collected")
        coefficients[exponent] = coefficient
    return sum(coefficients.values())

"""Read numbers as people write them, as exact fractions. Nothing is ever evaluated.

`parse_number` accepts one literal: an integer, a decimal, a fraction of two integers, a mixed
number or scientific notation. A currency sign may stand before it, and a unit from a fixed list
behind it. Everything else, however simple (`2+3`, `2^3`, `84/2`), is not a literal, because a
policy that copies the question must not be rewarded for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from rllib_dapo.rewards.grading.nouns import split_noun
from rllib_dapo.rewards.grading.units import CURRENCIES, canonical_unit

MAX_DIGITS = 1_000
"""The longest number that is read, in characters."""
MAX_EXPONENT = 1_000
"""The largest decimal exponent that is read. 10**1000 is an integer of 3,300 bits, which is still
quick to compare."""


class TooLargeError(ValueError):
    """The text exceeds a limit such as `MAX_DIGITS` or `MAX_EXPONENT`, so it is not read."""


@dataclass(frozen=True, slots=True)
class Number:
    r"""An exact value and its unit.

    Attributes:
        value: the number in front of the unit; `42\%` has the value 42.
        unit: its canonical name (`"%"`, `"dollar"`, `"centimetre"`), or None.
        noun: the words of what was counted, as in `34 llamas`; they are stemmed.
    """

    value: Fraction
    unit: str | None = None
    noun: frozenset[str] = frozenset()

    def equals_gold(self, gold: Number) -> bool:
        r"""Return whether this answer is the `gold` value. The comparison is not symmetric.

        Either side may leave the unit out, but two different units are never equal. Against one
        gold value a percentage has only one reading, never two: it is a fraction of one (0.42 for
        `42\%`) if the gold value lies strictly between 0 and 1 and has no unit, and the bare
        number (42) otherwise.
        """
        if self.unit and gold.unit and self.unit != gold.unit:
            return False
        if gold.noun and self.unit:
            return False
        if self.noun and (gold.unit or (gold.noun and not self.noun & gold.noun)):
            return False
        if self.unit == "%" and gold.unit is None and 0 < abs(gold.value) < 1:
            return self.value / 100 == gold.value
        return self.value == gold.value


# Every quantifier is followed by something that it cannot match itself, so a failed match costs
# one pass, and no input makes these patterns backtrack beyond linear time.
_INT = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_TEX_ARGUMENT = rf"(?:\{{\s*([+-]?{_INT})\s*\}}|\s*([0-9]))"
_TEX_FRACTION = rf"\\[dtc]?frac\s*{_TEX_ARGUMENT}\s*{_TEX_ARGUMENT}"
_NUMBER = re.compile(
    rf"(?:(?P<whole>{_INT})\s*)?(?P<tex>{_TEX_FRACTION})"
    rf"|(?:(?P<whole2>{_INT})\s+)?(?P<top>{_INT})\s*/\s*(?P<bottom>{_INT})"
    rf"|(?P<integer>{_INT})?(?:\.(?P<decimals>[0-9]*))?(?:[eE](?P<exponent>[+-]?[0-9]+))?"
)
_POWER_OF_TEN = re.compile(
    r"\s*(?:\\times|×|\\cdot|·|\*|[xX](?=\s*10\s*(?:\^|\*\*)))\s*10\s*(?:\^|\*\*)\s*"
    r"(?:[{(]\s*([+-]?[0-9]+)\s*[})]|([+-]?[0-9]+))"
)
_REPEATING = re.compile(
    r"(?P<integer>[0-9]*)\.(?P<decimals>[0-9]*)\\(?:overline|bar|dot)\s?"
    r"(?:\{(?P<repeated>[0-9]{1,100})\}|(?P<digit>[0-9]))"
)
_SIGN = re.compile(r"[+-]?\s?")
_CURRENCY = re.compile(r"(\\\$|\$|€|£|¥)?\s?")
_GROUP = re.compile(r"(?<=[0-9])(?:,?\\[,;!: ]\s?|\{,\}\s?|[\u2009\u202f])(?=[0-9]{3}(?![0-9]))")
_SPACED = re.compile(r"[-+]?[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9]|,[0-9]|\s*/|\s[0-9])")


def thousands(text: str, separator: str) -> str:
    r"""Replace what LaTeX puts between groups of three digits (`\,`) by `separator`."""
    text = _GROUP.sub(separator, text)
    if " " in text and (spaced := _SPACED.match(text)):
        # Only at the beginning: behind a comma or another number it may be an item of a list.
        text = spaced.group().replace(" ", separator) + text[spaced.end() :]
    return text


def parse_number(text: str, *, trusted: bool = False) -> Number | None:
    r"""Read the whole of `text` as one literal.

    Args:
        text: a text without math delimiters or emphasis; see `extract.clean`.
        trusted: whether the text is a ground truth. In one, `84/2` and `15 \times 10^3` are
            worked out; in an answer they count as not evaluated. Scientific notation whose
            first factor is from 1 to below 10, as in `1.5 \times 10^3`, is a value in both.

    Returns:
        The number, or None if `text` is not a literal.

    Raises:
        TooLargeError: the number has too many digits, or too large an exponent.
        ZeroDivisionError: the text is trusted, and a fraction in it has the denominator 0.
    """
    text = thousands(text.strip(), ",")
    sign, position = _read_sign(text, 0)
    currency = _CURRENCY.match(text, position)
    assert currency is not None  # noqa: S101 - the pattern matches the empty string
    position = currency.end()
    if sign == "" and currency.group(1):
        sign, position = _read_sign(text, position)
    match = _REPEATING.match(text, position) or _NUMBER.match(text, position)
    if match is None or match.end() == position:
        return None
    if match.end() - position > MAX_DIGITS:
        raise TooLargeError(f"a number has more than {MAX_DIGITS} characters")
    value = _repeating(match) if match.re is _REPEATING else _value(match, trusted=trusted)
    if value is None:
        return None
    position = match.end()
    if power := _POWER_OF_TEN.match(text, position):
        if not trusted and (not 1 <= value < 10 or match.group().strip("0123456789.")):
            return None  # 20 × 10³ and 1/2 × 10³ are products to be worked out.
        value *= _power_of_ten(power.group(1) or power.group(2))
        position = power.end()
    unit = canonical_unit(text[position:])
    if unit is None:
        return None
    if currency.group(1):
        if unit not in ("", CURRENCIES[currency.group(1)]):
            return None
        unit = CURRENCIES[currency.group(1)]
    return Number(-value if sign == "-" else value, unit or None)


def _read_sign(text: str, position: int) -> tuple[str, int]:
    match = _SIGN.match(text, position)
    assert match is not None  # noqa: S101 - the pattern matches the empty string
    return match.group().strip(), match.end()


def _value(match: re.Match[str], *, trusted: bool) -> Fraction | None:
    if match["tex"]:
        arguments = [g for g in match.groups()[2:6] if g is not None]
        return _fraction(match["whole"], arguments[0], arguments[1], trusted=trusted)
    if match["top"]:
        return _fraction(match["whole2"], match["top"], match["bottom"], trusted=trusted)
    if not match["integer"] and not match["decimals"]:
        return None  # A point or an exponent alone is not a number.
    decimals = match["decimals"] or ""
    value = Fraction(_int((match["integer"] or "") + decimals), 10 ** len(decimals))
    return value * _power_of_ten(match["exponent"]) if match["exponent"] else value


def _repeating(match: re.Match[str]) -> Fraction:
    r"""Return the value of 0.1\overline{6}: the sum of a geometric series."""
    decimals, repeated = match["decimals"], match["repeated"] or match["digit"]
    head = Fraction(int((match["integer"] or "0") + decimals), 10 ** len(decimals))
    return head + Fraction(int(repeated), 10 ** len(decimals) * (10 ** len(repeated) - 1))


def _fraction(whole: str | None, top: str, bottom: str, *, trusted: bool) -> Fraction | None:
    if _int(bottom) == 0:
        if trusted:
            raise ZeroDivisionError("it divides by zero")
        return None
    value = Fraction(_int(top), _int(bottom))
    if whole is not None:
        # 2 1/3 is 7/3, never 2 times 1/3. 2 5/3 and 2 -1/3 are not mixed numbers.
        return _int(whole) + value if 0 < value < 1 else None
    if value.denominator == 1 and _int(bottom) != 1 and not trusted:
        return None  # 84/2 leaves a division to be done.
    return value


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _power_of_ten(exponent: str) -> Fraction:
    if len(exponent) > 6 or abs(int(exponent)) > MAX_EXPONENT:
        raise TooLargeError(f"an exponent is beyond ±{MAX_EXPONENT}")
    return Fraction(10) ** int(exponent)


def parse_counted(text: str, *, trusted: bool = False) -> Number | None:
    """Read a number like `parse_number`, which may have the noun of what was counted behind it.

    Raises:
        TooLargeError, ZeroDivisionError: see `parse_number`.
    """
    number = parse_number(text, trusted=trusted)
    if number is not None and (trusted or number.unit or not text[-1:].isalpha()):
        return number
    if (split := split_noun(text)) is None:
        return number
    number = parse_number(split[0], trusted=trusted)
    return None if number is None or number.unit else replace(number, noun=split[1])

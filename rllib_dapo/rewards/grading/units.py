"""The units that may follow a number. The list is fixed, so an unknown word is never dropped.

If every word could be dropped, `34 thousand`, `34 more than x` and `34 or 35` would all read as 34.
"""

from __future__ import annotations

import re

from rllib_dapo.rewards.grading.si_units import physical_unit

CURRENCIES = {"\\$": "dollar", "$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen"}
"""The currency signs that may stand before a number, and the unit that each stands for."""

_SYMBOLS = {
    "%": "%",
    "\\%": "%",
    "°": "degree",
    "^\\circ": "degree",
    "^{\\circ}": "degree",
    "\\circ": "degree",
    "€": "euro",
    "\\$": "dollar",
    "m": "metre",
    "cm": "centimetre",
    "mm": "millimetre",
    "km": "kilometre",
    "g": "gram",
    "kg": "kilogram",
    "mg": "milligram",
    "l": "litre",
    "L": "litre",
    "ml": "millilitre",
    "mL": "millilitre",
    "s": "second",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "min": "minute",
    "sec": "second",
    "in": "inch",
    "ft": "foot",
    "yd": "yard",
    "mi": "mile",
    "lb": "pound",
    "lbs": "pound",
    "oz": "ounce",
    "mph": "mile per hour",
    "kmh": "kilometre per hour",
    "km/h": "kilometre per hour",
    "m/s": "metre per second",
    "USD": "dollar",
}
_IRREGULAR = {
    "feet": "foot",
    "inches": "inch",
    "meter": "metre",
    "meters": "metre",
    "centimeter": "centimetre",
    "centimeters": "centimetre",
    "millimeter": "millimetre",
    "millimeters": "millimetre",
    "kilometer": "kilometre",
    "kilometers": "kilometre",
    "liter": "litre",
    "liters": "litre",
    "milliliter": "millilitre",
    "milliliters": "millilitre",
    "percent": "%",
    "per cent": "%",
    "percentage points": "percentage point",
    "miles per hour": "mile per hour",
    "kilometers per hour": "kilometre per hour",
    "meters per second": "metre per second",
}
_MEASURES = [
    "degree",
    "radian",
    "metre",
    "centimetre",
    "millimetre",
    "kilometre",
    "gram",
    "kilogram",
    "milligram",
    "litre",
    "millilitre",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
    "yard",
    "mile",
    "pound",
    "ounce",
    "gallon",
    "dollar",
    "cent",
    "euro",
    "acre",
    "foot",
    "inch",
    "mile",
]
# These words only say what was counted. No two of them can be confused, so they are dropped.
_COUNTING = [
    "unit",
    "units",
    "way",
    "ways",
    "time",
    "times",
    "person",
    "people",
    "student",
    "students",
    "child",
    "children",
    "digit",
    "digits",
    "point",
    "points",
    "integer",
    "integers",
    "solution",
    "solutions",
    "edge",
    "edges",
    "side",
    "sides",
    "item",
    "items",
    "apple",
    "apples",
    "egg",
    "eggs",
    "book",
    "books",
    "page",
    "pages",
    "coin",
    "coins",
    "marble",
    "marbles",
    "ball",
    "balls",
    "card",
    "cards",
    "number",
    "numbers",
    "value",
    "values",
]
# "times" is safe: in "34 times x" the text after the number is "times x", which is no unit.
_NAMES: dict[str, str] = (
    dict.fromkeys(_COUNTING, "")
    | {word: word for word in _MEASURES}
    | {word + "s": word for word in _MEASURES}
    | _IRREGULAR
)

_WRAPPER = re.compile(r"\\(?:text|textrm|mathrm|mbox|rm)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"(?:\s|\\[,;:! ]|~|\\quad|[\u2009\u202f])+")
_POWER = re.compile(r"(?:\^\s?\{\s?([23])\s?\}|\^\s?([23])|([²³]))\Z")
_ABBREVIATED = re.compile(r"(?<=[a-z])\.\Z")  # The letter matters: 3.14... is not 3.14.
_PREFIX = re.compile(r"(square|sq\.?|cubic|cu\.?)\s")


def canonical_unit(text: str) -> str | None:
    """Find the unit that `text`, which follows a number, names.

    Returns:
        A canonical name such as `"metre^2"`. It is `""` if `text` is empty or a counting word, and
        None if `text` is not a known unit. What precedes it is then not a plain number.
    """
    if not text:
        return ""
    whole = _SPACE.sub(" ", text)
    text = _SPACE.sub(" ", _WRAPPER.sub(r" \1 ", text)).strip()
    text = _ABBREVIATED.sub("", text)
    text = (
        text.removeprefix("-") if text.startswith("-d") else text
    )  # The text is -degree, as in 34-degree.
    power = ""
    if match := _PREFIX.match(text):
        power = "^2" if match[1].startswith("s") else "^3"
        text = text[match.end() :]
    elif match := _POWER.search(text):
        digit = match[1] or match[2] or {"²": "2", "³": "3"}[match[3]]
        power, text = "^" + digit, text[: match.start()].strip()
        if not text:
            return None  # 34^2 is a power, and has no unit.
    if not text:
        return "" if not power else None
    name = _SYMBOLS.get(text)
    if name is None:
        name = _NAMES.get(text.lower())
    if name is None:
        return physical_unit(whole)
    if power and name in ("%", "degree"):
        return None
    return name + power if name or not power else name

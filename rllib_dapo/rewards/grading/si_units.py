r"""Read units of physics, such as `kJ`, `km/s`, `\mathrm{erg\,s^{-1}}` and `N \cdot m`.

The symbols are a fixed list, as in `units`: an unknown letter is never taken for a unit.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_PREFIXED: Final = {
    **dict.fromkeys(("J", "W", "eV", "Pa", "Hz", "V", "N"), "kMGTmµn"),
    **dict.fromkeys(("A", "C", "F", "T", "H", "Ω", "K", "mol", "cal", "S", "Wb", "rad"), "kmµnp"),
    **dict.fromkeys(("pc", "yr"), "kMG"),
    **{"m": "kcdmµnf", "g": "kmµ", "s": "mµnp", "L": "mµ", "l": "mµ", "bar": "m"},
}
_PLAIN: Final = frozenset(
    "erg dyn dyne G atm torr Torr mmHg amu u AU au ly sr Å cd lm lx Bq Gy Sv kat h hr min day days"  # noqa: SIM905
    " arcsec ohm rpm rev".split()
)
_SYMBOLS: Final = (
    _PLAIN
    | set(_PREFIXED)
    | {prefix + symbol for symbol, prefixes in _PREFIXED.items() for prefix in prefixes}
) - {"pm"}  # a time of day
# Each of these alone is a variable, a number word or a time of day rather than a unit.
_NEVER_ALONE: Final = frozenset({"u", "h", "rev", "au", "G", "days"})
_SPELLING: Final = (
    (re.compile(r"\\(?:text|textrm|mathrm|mbox|rm)\s?\{((?:[^{}]|\{[^{}]*\})*)\}"), r" \1 "),
    (re.compile(r"\\mu(?![A-Za-z])|μ"), "µ"),
    (re.compile(r"\\(?:Omega|ohm)(?![A-Za-z])|\bohms?\b"), "Ω"),
    (re.compile(r"\\(?:AA|r\{A\})(?![A-Za-z])|\\mathring\{A\}"), "Å"),
    (re.compile(r"\\(?:cdot|times)(?![A-Za-z])|[·*.]"), " "),
    (re.compile(r"(?<=µ)\s+"), ""),
    (re.compile(r"\^\s?\{\s?([-+]?[0-9])\s?\}"), r"^\1"),
)
_FACTOR = re.compile(r"\s*(/?)\s*(\(?)\s*([A-Za-zµΩÅ]{1,5})(?:\^([-+]?[0-9]))?\s*(\)?)")
_SAME: Final = {"m s^-1": "metre per second", "km h^-1": "kilometre per hour"}
_LONGEST: Final = 80


def physical_unit(text: str) -> str | None:
    r"""Return a canonical name of a unit of physics, such as `kg m s^-2`, or None.

    Args:
        text: what follows a number, with the space between them.
    """
    if len(text) > _LONGEST:
        return None
    set_off = text[:1].isspace() or text.startswith("\\")
    for pattern, plain in _SPELLING:
        text = pattern.sub(plain, text)
    text = " ".join(text.split())
    powers: Counter[str] = Counter()
    position, below, inside = 0, False, False
    while position < len(text):
        match = _FACTOR.match(text, position)
        if match is None or match[3] not in _SYMBOLS:
            return None
        below = bool(match[1]) or below
        powers[match[3]] += int(match[4] or 1) * (-1 if below else 1)
        inside = bool(match[2]) or (inside and not match[5])
        below = below and inside  # all that is in parentheses behind a slash
        position = match.end()
    if not powers or (len(powers) == 1 and not _may_stand_alone(*powers, set_off=set_off)):
        return None
    name = " ".join(f"{s}^{p}" if p != 1 else s for s, p in sorted(powers.items()) if p)
    return _SAME.get(name, name) or None


def _may_stand_alone(symbol: str, *, set_off: bool) -> bool:
    """Return whether a single symbol is a unit: not 34K, but 34 K and 34 kJ."""
    return symbol not in _NEVER_ALONE and (set_off or len(symbol) > 1)

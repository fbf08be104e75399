r"""Compare texts by the DAPO recipe's rule, to the letter.

The rule goes back to the Minerva paper (Lewkowycz et al. 2022, appendix D). It takes what follows
the last `=`, cuts fixed words and commands out of it, wherever they stand, and unwraps `$`,
`\text{}` and `\boxed{}`. It knows no words and no numbers: `ways` is cut out of `always`, and
`5 = 34` is 34.
"""

from __future__ import annotations

import re
from typing import Final

# Each pair is replaced everywhere, in this order.
_REPLACED: Final = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
# Each of these is cut out everywhere, in this order.
_CUT: Final = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units"),
    *("\\ldots", "sue", "points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm"),
    *("pounds", "meters", "meals", "edges", "students", "childrentickets", "multiples"),
    *("\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}"),
    *("\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_BETWEEN_DOLLARS = re.compile(r".*?\$(.*?)\$.*")
_WRAPPED = (
    re.compile(r"\\text\{(.*?)\}"),
    re.compile(r"\\textbf\{(.*?)\}"),
    re.compile(r"\\overline\{(.*?)\}"),
    re.compile(r"\\boxed\{(.*)\}"),
)
_FRACTION = re.compile(r"frac([^{])(.)")
_ROOT = re.compile(r"sqrt([^{])")


def normalize_strict(text: str) -> str:
    r"""Return the recipe's form of an answer or of a ground truth.

    Example: `x = \text{about } 1,234 cm` gives `about1,234`.
    """
    if text.isascii() and text.isdigit():
        return text  # Most ground truths are integers, to which no rule applies.
    text = text.split("=")[-1]
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for word in _CUT:
        text = text.replace(word, "")
    text = _BETWEEN_DOLLARS.sub(r"$\1$", text)
    for wrapper in _WRAPPED:
        text = wrapper.sub(r"\1", text)
    text = _FRACTION.sub(r"frac{\1}{\2}", text)
    text = _ROOT.sub(r"sqrt{\1}", text).replace("$", "")
    bare = text.replace(",", "")
    return (bare if bare.isdigit() else text).strip()

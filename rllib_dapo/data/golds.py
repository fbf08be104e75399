r"""Read a ground truth: the final answer alone, out of whatever the column holds.

A column may hold the answer itself, a worked solution that ends in `#### answer` or has the
answer in a `\boxed{}`, a mapping with the answer in it, a list of one answer, or a chat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from rllib_dapo.data.chats import as_chat
from rllib_dapo.data.load_report import GoldKind
from rllib_dapo.data.row_values import RowError, decode, is_missing, plain
from rllib_dapo.errors import DataError
from rllib_dapo.rewards.grading.extract import last_box
from rllib_dapo.rewards.grading.grade import Gold, parse_gold

_INNER_KEYS = ("ground_truth", "answer", "target", "value")  # inside an answer that is a dict
_SOLUTIONS = ("solution", "messages")  # columns of worked solutions, with the answer in a box

PLACEHOLDERS = frozenset(
    "proof prove proven proofrequired proofneeded proofomitted proofquestion notfound"  # noqa: SIM905
    " answernotfound noanswer noanswerfound noanswergiven noanswerprovided noanswerneeded"
    " nofinalanswer na none null nil nan nat unknown notavailable notapplicable notprovided"
    " notgiven notspecified unspecified unavailable missing missinganswer empty blank tbd tba"
    " todo tobedetermined placeholder omitted answer youranswer finalanswer theanswer"
    " answerhere insertanswerhere seesolution seethesolution seeabove seebelow seeattached"
    " seeexplanation seeimage seefigure seetext ref".split()
)
"""Texts that stand where an answer is missing, without spaces, signs and capitals."""

_SIGNS_ONLY = re.compile(r"[\s?.…\-–—_*#/\\]+")
_NOUN_IN_BRACKETS = re.compile(
    r"(?P<number>[-+−]?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?: ?/ ?\d+)?%?)"
    r"\s+\((?P<noun>[^\W\d_]{3}[^()\d+*=<>^{}\\$]*)\)\.?"
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NAMES = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp gcd lcm max"  # noqa: SIM905
    " min mod sqrt frac text textbf mathrm mathbf left right pi inf sup lim det cm mm km kg mg"
    " ml hr hrs".split()
)


def read_gold(value: Any, key: str, *, named: bool = False) -> str:
    """The ground truth of a row, as text.

    Args:
        value: what the column holds.
        key: the column.
        named: whether the user named this column, and so said that it holds answers.

    Raises:
        RowError: there is no ground truth that an answer could equal.
    """
    if isinstance(value, str) and re.match(r"\s*(?:\{\s*['\"]|\[\s*['\"{])", value):
        decoded = plain(decode(value))
        value = decoded if isinstance(decoded, (Mapping, list, tuple)) else value
    chat = as_chat(value) if not isinstance(value, str) else None
    if chat is not None:
        if chat[-1]["role"] != "assistant":
            raise RowError(key, "found a chat without an answer; name another answer_key")
        value = chat[-1]["content"]
    if isinstance(value, Mapping):
        inner = next((k for k in _INNER_KEYS if k in value), None)
        if inner is None:
            raise RowError(
                key,
                f"found a mapping with {', '.join(map(repr, value)) or 'nothing'} for a ground"
                f" truth; it needs one of {', '.join(_INNER_KEYS)}",
                _shown(value),
            )
        return read_gold(plain(value[inner]), f"{key}.{inner}", named=named)
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise RowError(
                key,
                f"found {len(value)} ground truths ({value!r:.60}); give exactly one",
                _shown(value),
            )
        return read_gold(plain(value[0]), key, named=named)
    if is_missing(value):
        raise RowError(key, "found nothing for a ground truth; remove the row or fill it in")
    if isinstance(value, Decimal):
        value = format(value, "f")
    if isinstance(value, str):
        value = _final_answer(value, key, named)
        _refuse_placeholder(value, key)
    try:
        return parse_gold(value).text
    except DataError as error:
        raise RowError(
            key, f"{error}; give a ground truth that can be compared", _shown(value)
        ) from error


def gold_kind(answer: str) -> GoldKind:
    """What the graders can do with a ground truth that `read_gold` returned."""
    gold = parse_gold(answer)
    if is_integer(gold):
        return "integer"
    if gold.number is not None:
        return "number"
    if re.fullmatch(r"\W*(?:text|textbf|mathrm|mathbf)?\W*[A-Za-z]\W*", answer):
        return "letter"
    words = sum(len(word) > 2 for word in _words(gold.plain))  # AB + CD is a value
    return "text" if gold.tree is None or words >= 2 else "value"


def is_integer(gold: Gold) -> bool:
    """Whether a ground truth is an integer without a unit."""
    return (
        gold.number is not None and gold.number.unit is None and gold.number.value.denominator == 1
    )


def _final_answer(text: str, key: str, named: bool) -> str:
    """The answer at the end of a worked solution; a bare answer is returned as it is."""
    solution, mark, answer = text.rpartition("####")
    if mark and (not solution or solution[-1].isspace()):
        return _without_noun(answer.strip())
    if "\\boxed" in text or "\\fbox" in text:
        return _without_noun((last_box(text) or "").strip())
    is_solution = key.rpartition(".")[2].lower() in _SOLUTIONS
    # The user who named the column may mean a short text; else words make it a solution.
    if is_solution and len(_words(text)) > (8 if named else 2):
        raise RowError(
            key,
            f"found no \\boxed answer in the solution {text[:40]!r}…; name another answer_key",
            _shown(text),
        )
    return _without_noun(text.strip())


def _without_noun(answer: str) -> str:
    """`9` for `9 (apples)`: a number with the noun that it counts in brackets is the number."""
    found = _NOUN_IN_BRACKETS.fullmatch(answer)
    if found is None or found["noun"].split()[0].lower() in _NAMES:
        return answer
    return found["number"]


def _refuse_placeholder(answer: str, key: str) -> None:
    inner = re.sub(r"\\(?:text|textbf|mathrm|mathbf|boxed)\b", "", answer)
    core = re.sub(r"[\W_]+", "", inner).lower()
    if core in PLACEHOLDERS or (answer.strip() and _SIGNS_ONLY.fullmatch(answer)):
        raise RowError(
            key,
            f"found {answer[:60]!r}, which stands for a missing answer and is none; remove the row,"
            " fill it in or set on_bad_row: skip",
            _shown(answer),
        )


def _words(text: str) -> list[str]:
    """The plain words of a text: no commands, functions or single letters."""
    return [word for word in _WORD.findall(text) if word.lower() not in _NAMES]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else text[:119] + "…"

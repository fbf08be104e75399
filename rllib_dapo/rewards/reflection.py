"""Count the phrases with which a completion checks, reflects or backtracks (§4.4 of DAPO).

The paper sees such behaviour emerge in training and gives no measure of it. This measure counts
fixed phrases in English and Chinese. It is cheap and the same for every run, but it misses
whatever is worded otherwise, so its curve says more than a single value.

A phrase on the list seldom means anything else in a solution. Words that problems and proofs use
in their plain sense are left out: "wait" inside a sentence, "check", "verify", "mistake",
"alternatively", "contradiction", and, by themselves, 等等 ("and so on") and 不对 (with which
不对称, asymmetric, begins).
"""

from __future__ import annotations

CHECKING = (
    # The writer turns to what is already written.
    "let me check", "let's check", "let us check", "i should check", "check my work",
    "check my answer", "check the answer", "check this result",
    "let me verify", "let's verify", "let us verify", "i should verify", "to verify this",
    "verify the answer", "verify my answer", "verify this result",
    "let me confirm", "let's confirm", "let me make sure", "let's make sure",
    "double check", "double-check", "recheck", "re-check", "sanity check",
    "让我检查", "我们检查", "检查一下", "再检查", "重新检查", "让我验证", "我们验证", "来验证",
    "验证一下", "验算", "核对一下", "再确认", "确认一下",
)  # fmt: skip
"""Phrases of checking: the writer goes over an earlier step or the result."""

REFLECTING = (
    # "wait" counts as an interjection only: before a comma, an ellipsis or a dash.
    "wait,", "wait...", "wait…", "wait —", "wait –", "wait!", "wait a minute", "wait a moment",
    "wait a second", "but wait", "oh wait", "no wait",
    "hold on", "hmm", "hmmm", "on second thought", "let me think again", "let me reconsider",
    "let's reconsider", "let me rethink", "let's rethink", "let me re-examine",
    "let me reexamine", "let me re-evaluate", "let me reevaluate", "let me reflect",
    "is this correct?", "is that correct?", "is this right?", "is that right?",
    "that can't be right", "this can't be right", "that doesn't seem right",
    "this doesn't seem right", "that's not right", "this is not right",
    "did i make a mistake", "i made a mistake", "i made an error", "i must have made",
    "i was wrong", "am i missing",
    # 等等 counts as an interjection only: the first person or a doubt follows it.
    "等等,不", "等等,我", "等等,让我", "等等,这", "等一下", "不对,", "不对.", "不对!", "不太对",
    "再想想", "再想一想", "重新考虑", "重新思考", "重新审视", "反思", "我错了", "我犯了",
    "算错了", "弄错了", "搞错了",
)  # fmt: skip
"""Phrases of reflecting: the writer doubts or thinks over what is already written."""

BACKTRACKING = (
    "let me try again", "let's try again", "let me start over", "let's start over",
    "start again from", "let me go back", "let's go back", "going back to the", "backtrack",
    "let me redo", "let's redo", "let me recalculate", "let's recalculate", "let me recompute",
    "let's recompute", "try another approach", "try another way", "try a different approach",
    "try a different way", "this approach doesn't work", "this approach does not work",
    "this doesn't work", "that doesn't work",
    "从头再来", "从头开始", "重新开始", "重新计算", "重新来", "换一种方法", "换一种思路",
    "换个思路", "换个方法", "换一个思路", "这条路走不通", "行不通", "回头看", "回溯",
)  # fmt: skip
"""Phrases of backtracking: the writer gives up a step or a whole attempt for another."""

PHRASES = (*CHECKING, *REFLECTING, *BACKTRACKING)

_FIRST_WITHOUT_SPACES = "\u2e80"  # Chinese, Japanese and Korean begin here.

# People and tokenizers write these characters in several ways; here they become one.
_SAME = str.maketrans({"’": "'", "‘": "'", "，": ",", "。": ".", "！": "!", "？": "?", "‐": "-"})


def count_reflections(text: str) -> int:
    """Count the phrases of `PHRASES` in a text.

    Capitals, the width of spaces and line breaks do not matter. A phrase must match whole words.
    Of phrases that overlap ("but wait" and "wait," in "but wait, …") only one counts. Each phrase
    is searched for as a fixed string, so the time is linear in the length of the text.
    """
    plain = " ".join(text.lower().translate(_SAME).split())
    spans = sorted(
        (start, start + len(phrase)) for phrase in PHRASES for start in _places(plain, phrase)
    )
    count = end = 0
    for start, stop in spans:
        count += start >= end
        end = max(end, stop)
    return count


def _places(text: str, phrase: str) -> list[int]:
    """Return the places at which a phrase begins and is not part of longer words."""
    places = []
    start = text.find(phrase)
    while start >= 0:
        stop = start + len(phrase)
        if not (_joined(text, start) or _joined(text, stop)):
            places.append(start)
        start = text.find(phrase, stop)
    return places


def _joined(text: str, place: int) -> bool:
    """Return whether a place is inside a word. Chinese has no spaces, so it never is there."""
    return 0 < place < len(text) and _in_word(text[place - 1]) and _in_word(text[place])


def _in_word(character: str) -> bool:
    return character == "_" or (character.isalnum() and character < _FIRST_WITHOUT_SPACES)

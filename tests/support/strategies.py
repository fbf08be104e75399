"""Hypothesis strategies and small builders shared by the tests of the pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from rllib_dapo.types import Completion, FinishReason, Group, ProblemRef, Prompt, TokenBatch

VOCABULARY = 11

# No deadline: other processes share the machine. Derandomised: a gate that fails must
# fail again. `examples(500)` by hand searches further.


def examples(count: int) -> settings:
    """Settings for a property test of `count` examples."""
    return settings(max_examples=count, deadline=None, derandomize=True)


def finite(bound: float = 10.0) -> st.SearchStrategy[float]:
    return st.floats(-bound, bound, allow_nan=False, width=32)


def rewards(min_size: int = 2, max_size: int = 16) -> st.SearchStrategy[list[float]]:
    """Rewards of one group: arbitrary, of two values, or all equal."""
    sizes = {"min_size": min_size, "max_size": max_size}
    return st.one_of(
        st.lists(finite(), **sizes),
        st.lists(st.sampled_from([-1.0, 1.0]), **sizes),
        st.builds(lambda r, n: [r] * n, finite(), st.integers(min_size, max_size)),
    )


def make_batch(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    old_logprobs: Sequence[Sequence[float]] | None = None,
    advantages: Sequence[float] | None = None,
    loss_mask: Sequence[bool] | None = None,
    groups: Sequence[int] | None = None,
) -> TokenBatch:
    """A batch of (prompt, completion) rows; what is not given is filled in plainly."""
    ids = [token for prompt, completion in rows for token in (*prompt, *completion)]
    old = old_logprobs if old_logprobs is not None else [[-1.0] * len(r) for _, r in rows]
    count = len(rows)
    return TokenBatch(
        token_ids=np.array(ids, np.int64),
        prompt_lengths=np.array([len(p) for p, _ in rows], np.int64),
        completion_lengths=np.array([len(r) for _, r in rows], np.int64),
        old_logprobs=np.array([x for row in old for x in row], np.float32),
        advantages=np.array([1.0] * count if advantages is None else advantages, np.float32),
        loss_mask=np.array([True] * count if loss_mask is None else loss_mask, np.bool_),
        groups=np.array(range(count) if groups is None else groups, np.int64),
        weights_versions=np.array([i // 2 for i, (_, r) in enumerate(rows) for _ in r], np.int64),
        importance_weights=np.ones(sum(len(r) for _, r in rows), np.float32),
        reference_logprobs=np.zeros(sum(len(r) for _, r in rows), np.float32),
    )


@st.composite
def token_batches(
    draw: st.DrawFn, min_rows: int = 0, max_rows: int = 7, max_length: int = 6
) -> TokenBatch:
    """Batches with uneven, also empty, completions, some of them masked."""
    tokens = st.integers(0, VOCABULARY - 1)
    row = st.tuples(st.lists(tokens, min_size=1, max_size=4), st.lists(tokens, max_size=max_length))
    rows = draw(st.lists(row, min_size=min_rows, max_size=max_rows))
    count = len(rows)

    def per_row(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return make_batch(
        rows,
        old_logprobs=[rng.normal(-2.4, 0.3, len(r)).tolist() for _, r in rows],
        advantages=per_row(finite(3.0)),
        loss_mask=per_row(st.booleans()),
        groups=per_row(st.integers(0, 3)),
    )


def rows_of(batch: TokenBatch) -> list[tuple[Any, ...]]:
    """Every sequence as a plain tuple of all that belongs to it."""
    rows = []
    token, completion = 0, 0
    for i in range(len(batch)):
        p, r = int(batch.prompt_lengths[i]), int(batch.completion_lengths[i])
        ids = tuple(batch.token_ids[token : token + p + r].tolist())
        old = tuple(batch.old_logprobs[completion : completion + r].tolist())
        rest = (float(batch.advantages[i]), bool(batch.loss_mask[i]), int(batch.groups[i]))
        rows.append((ids[:p], ids[p:], old, *rest))
        token, completion = token + p + r, completion + r
    return rows


def make_group(
    position: int,
    scores: Sequence[float],
    *,
    correct: Sequence[bool] | None = None,
    lengths: Sequence[int] | None = None,
    failure: str | None = None,
    finish_reason: FinishReason = "stop",
    text: str = "1+2=?",
) -> Group:
    """A group of answers with these scores; `correct` is `score > 0` unless given."""
    verdicts = correct if correct is not None else [s is not None and s > 0 for s in scores]
    sizes = lengths if lengths is not None else [1] * len(scores)
    completions = tuple(
        Completion(
            token_ids=np.full(size, 3, np.int64),
            logprobs=np.full(size, -0.5, np.float32),
            text="3",
            finish_reason=finish_reason,
            score=score,
            correct=verdict,
        )
        for score, verdict, size in zip(scores, verdicts, sizes, strict=True)
    )
    ref = ProblemRef(position=position, index=position % 5, seed=position)
    return Group(ref, Prompt(np.array([1, 2], np.int64), text), completions, 0, failure)

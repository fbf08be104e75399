"""Turns a whole data set into one with integer answers: read, transform, write, count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from rllib_dapo.cli.transform.by_model import ModelOptions, transform_by_model
from rllib_dapo.cli.transform.journal import REJECTED, Journal, TransformReport
from rllib_dapo.cli.transform.question import UNREADABLE, RefusalError, Transformed
from rllib_dapo.cli.transform.rules import transform_answer
from rllib_dapo.cli.transform.source_rows import Source, SourceRow
from rllib_dapo.cli.transform.text_engine import TextEngine

KEPT, RULE, MODEL = "kept", "rule", "model"
"""How an accepted row came about; the column `method`."""


def transform_dataset(
    source: Source,
    out: Path,
    *,
    model: str | None = None,
    engine: Callable[[], TextEngine] | None = None,
    options: ModelOptions | None = None,
    batch_size: int = 256,
    restart: bool = False,
    progress: Callable[[Iterable[Any], int, int], Iterable[Any]] | None = None,
) -> TransformReport:
    """Turn the answers of a data set into integers.

    Args:
        source: the input.
        out: the output, `.jsonl` or `.parquet`; rejected rows go to `*.rejected.jsonl`.
        model: the name of the model for the rows that no rule knows; None rejects these.
        engine: loads the model; it is called only if there is work left.
        options: how the model is asked.
        batch_size: rows per batch; a killed run repeats at most the last batch.
        restart: discard what an earlier run left.
        progress: wraps the batches. It gets the batches, the number of rows of the input, and
            the number of rows that an earlier run has settled.

    Raises:
        DataError: the input cannot be read.
        SettingError: the output belongs to another input or other options.
    """
    options = options or ModelOptions()
    rows, digest = source.fingerprint()
    identity = {
        "input": digest,
        "model": model,
        **({} if model is None else {f"model {k}": v for k, v in asdict(options).items()}),
    }
    with closing(Journal(out, identity, restart=restart)) as journal:
        before = journal.rows_done
        if not journal.finished:
            texts = engine() if engine is not None and before < rows else None
            batches: Iterable[Any] = _batches(islice(source.rows(), before, None), batch_size)
            for batch in progress(batches, rows, before) if progress else batches:
                journal.append(_results(batch, texts, options))
            journal.finish()
        return TransformReport(journal.counts, rows, before, journal.out, journal.rejected)


def _batches(rows: Iterator[SourceRow], size: int) -> Iterator[list[SourceRow]]:
    while batch := list(islice(rows, size)):
        yield batch


def _results(
    rows: Sequence[SourceRow], engine: TextEngine | None, options: ModelOptions
) -> list[tuple[str, dict[str, Any]]]:
    """Transform a batch; returns for each row what the journal keeps of it."""
    results = [_by_rule(row) for row in rows]
    methods = [_method(result) for result in results]
    if engine is not None:
        left = [i for i, row in enumerate(rows) if methods[i] == REJECTED and row.error is None]
        pairs = [(rows[i].text, rows[i].answer) for i in left]
        for i, result in zip(left, transform_by_model(engine, pairs, options), strict=True):
            results[i] = result
            methods[i] = MODEL if isinstance(result, Transformed) else REJECTED
    return [
        (f"{method}/{result.form}", _accepted(row, result, method))
        if isinstance(result, Transformed)
        else (f"{method}/{result.reason}", _rejected(row, result))
        for row, result, method in zip(rows, results, methods, strict=True)
    ]


def _by_rule(row: SourceRow) -> Transformed | RefusalError:
    if row.error is not None:
        return RefusalError(UNREADABLE, row.error)
    try:
        return transform_answer(row.text, row.answer)
    except RefusalError as error:
        return error


def _method(result: Transformed | RefusalError) -> str:
    if isinstance(result, RefusalError):
        return REJECTED
    return RULE if result.question else KEPT


def _accepted(row: SourceRow, result: Transformed, method: str) -> dict[str, Any]:
    return {
        "problem": row.with_question(result.question),
        "answer": str(result.answer),
        "form": result.form,
        "method": method,
        "source": row.source,
        "original_problem": row.problem,
        "original_answer": row.answer,
    }


def _rejected(row: SourceRow, refusal: RefusalError) -> dict[str, Any]:
    return {
        "source": row.source,
        "reason": refusal.reason,
        "detail": refusal.detail,
        "original_problem": row.problem,
        "original_answer": row.answer,
    }

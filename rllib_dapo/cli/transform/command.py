"""`rllib transform-dataset`: its arguments, its progress bar and its summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rllib_dapo.cli.transform.journal import TransformReport
from rllib_dapo.errors import DataError

_BATCH_WITHOUT_MODEL = 256


def transform_dataset(
    dataset: Annotated[str, typer.Argument(metavar="IN", help="A file, a folder or a hub id.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .jsonl or .parquet")],
    problem_key: Annotated[str | None, typer.Option(help="Column that holds the problem.")] = None,
    answer_key: Annotated[str | None, typer.Option(help="Column that holds the answer.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of the data set, such as train.")] = None,
    subset: Annotated[str | None, typer.Option(help="Subset of a data set on the hub.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only this many rows.")] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew and overwrite OUT.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Language model for answers that no rule knows.")
    ] = None,
    samples: Annotated[int, typer.Option(help="How often the model tries a row.")] = 2,
    check_samples: Annotated[
        int, typer.Option(help="Independent solutions that check it; 0: none.")
    ] = 4,
    check_agreement: Annotated[int, typer.Option(help="How many of them must agree.")] = 2,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0: greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Probability mass to sample from.")] = 0.95,
    max_tokens: Annotated[int, typer.Option(help="Longest output, in tokens.")] = 2048,
    max_model_len: Annotated[
        int, typer.Option(help="Prompt and output together, in tokens.")
    ] = 8192,
    dtype: Annotated[str, typer.Option(help="Number format of the model.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that the model gets at once.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
) -> None:
    """Turn a data set's answers into integers, so that a rule can grade them."""
    from rllib_dapo.cli.transform import dataset as transformation
    from rllib_dapo.cli.transform.by_model import ModelOptions
    from rllib_dapo.cli.transform.source_rows import Source

    options = ModelOptions(samples, check_samples, check_agreement, temperature, top_p, max_tokens)

    def engine() -> Any:
        from rllib_dapo.cli.transform.text_engine import vllm_texts

        assert model is not None  # noqa: S101 - called with a model only
        return vllm_texts(
            model,
            max_length=max_model_len,
            dtype=dtype,
            seed=seed,
            trust_remote_code=trust_remote_code,
        )

    try:
        report = transformation.transform_dataset(
            Source(dataset, problem_key, answer_key, split, subset, limit),
            out,
            model=model,
            engine=engine if model is not None else None,
            options=options,
            batch_size=batch_size if model is not None else _BATCH_WITHOUT_MODEL,
            restart=restart,
            progress=_with_bar,
        )
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command continues where this one stopped.", err=True)
        raise typer.Exit(130) from None
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror or error}); once it can, the same command"
            " continues where this one stopped"
        ) from error
    _print_summary(report)


def _with_bar(batches: Iterable[Any], rows: int, before: int) -> Iterator[Any]:
    """Pass the batches on and show a bar of rows, if there is a terminal."""
    from tqdm import tqdm

    with tqdm(total=rows, initial=before, unit="row", disable=None) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch))


def _print_summary(report: TransformReport) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for name in ("outcome", "form or reason"):
        table.add_column(name)
    for name in ("rows", "share"):
        table.add_column(name, justify="right")
    order = {"kept": 0, "rule": 1, "model": 2, "rejected": 3}
    keys = sorted(report.counts, key=lambda k: (order[k.split("/")[0]], -report.counts[k], k))
    for number, key in enumerate(keys):
        method, _, what = key.partition("/")
        last = number + 1 == len(keys) or not keys[number + 1].startswith(method)
        count = report.counts[key]
        table.add_row(method, what, f"{count:,}", f"{count / report.rows:.1%}", end_section=last)
    rejected = sum(n for key, n in report.counts.items() if key.startswith("rejected"))
    console = Console(highlight=False)
    console.print(table)
    if report.rows_before:
        console.print(f"{report.rows_before:,} rows were settled by an earlier run.")
    console.print(f"{report.rows - rejected:,} rows in {report.out}", soft_wrap=True)
    console.print(f"{rejected:,} rows in {report.rejected}", soft_wrap=True)

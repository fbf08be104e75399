"""The files of a transformation, written so that a killed run can go on.

Accepted and rejected rows are appended in batches; a small state file, replaced atomically
after each batch, says how many bytes of both and how many rows of the input are settled.
Whatever was written beyond that is cut off when a run goes on, so every row is written once.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from rllib_dapo.cli.transform.parquet_file import jsonl_to_parquet
from rllib_dapo.errors import SettingError

SUFFIXES = (".jsonl", ".parquet")
_VERSION = 1


class Journal:
    """Appends rows to OUT and to its sibling `*.rejected.jsonl`.

    Args:
        out: the output, `.jsonl` or `.parquet` (written when all rows are there).
        identity: what must be the same for a run to go on: the input's hash, the options.
        restart: throw away what an earlier run left.

    Raises:
        SettingError: the output cannot be written, belongs to something else, or another
            process is writing it.
    """

    def __init__(self, out: Path, identity: Mapping[str, Any], *, restart: bool = False) -> None:
        if out.suffix.lower() not in SUFFIXES:
            raise SettingError(f"out={str(out)!r}: use a name that ends in {', '.join(SUFFIXES)}")
        self.out = out
        self.rejected = out.with_name(out.stem + ".rejected.jsonl")
        self._is_parquet = out.suffix.lower() == ".parquet"
        self._accepted = out.with_name(out.name + ".partial.jsonl") if self._is_parquet else out
        self._state_file = out.with_name(out.name + ".state.json")
        self._identity = dict(identity)
        self.counts: Counter[str] = Counter()
        self.rows_done = 0
        self.finished = False
        self._files: list[BinaryIO] = []
        self._sizes: tuple[int, ...] = (0, 0)
        out.parent.mkdir(parents=True, exist_ok=True)
        if not restart:
            self._check_state()
        self._open(restart=restart)

    def append(
        self,
        accepted: Sequence[Mapping[str, Any]],
        rejected: Sequence[Mapping[str, Any]],
        counts: Mapping[str, int],
    ) -> None:
        """Write a batch, all of it or (if this process dies) none."""
        for file, rows in zip(self._files, (accepted, rejected), strict=True):
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self.counts.update(counts)
        self.rows_done += len(accepted) + len(rejected)
        self._save()

    def finish(self) -> None:
        """Mark the output as complete; of a Parquet output, write it."""
        if self._is_parquet and not self.finished:
            jsonl_to_parquet(self._accepted, self.out)
        self.finished = True
        self._save()
        if self._is_parquet:
            self._accepted.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files:
            file.close()

    def _check_state(self) -> None:
        if not self._state_file.exists():
            for path in (self.out, self.rejected, self._accepted):
                if path.exists():
                    raise SettingError(
                        f"out={str(self.out)!r}: {path} exists and was not left by an unfinished"
                        " run; choose another name, or overwrite it with --restart",
                        "out",
                    )
            return
        state = self._read_state()
        begun = state["identity"]
        for name in {**begun, **self._identity}:
            if begun.get(name) != self._identity.get(name):
                raise SettingError(
                    f"out={str(self.out)!r} was begun with {_named(name, begun)}, now there is"
                    f" {_named(name, self._identity)}; go on with the same, choose another name,"
                    " or begin anew with --restart",
                    "out",
                )
        self.rows_done, self.finished = state["rows_done"], state["finished"]
        self.counts.update(state["counts"])
        if not self.finished:
            self._sizes = tuple(state["bytes"])
        elif not self.out.exists():
            raise SettingError(
                f"out={str(self.out)!r}: the run is finished, but the file is gone; begin anew with"
                " --restart",
                "out",
            )

    def _read_state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state_file.read_text(encoding="utf-8"))
            if state["version"] == _VERSION:
                return state
            found = f"version {state['version']!r}"
        except (ValueError, KeyError, TypeError) as error:
            found = f"{type(error).__name__}: {error}"
        raise SettingError(
            f"out={str(self.out)!r}: {self._state_file} cannot be read ({found}); begin anew with"
            " --restart",
            "out",
        )

    def _open(self, *, restart: bool) -> None:
        if self.finished:
            return
        for path, size in zip((self._accepted, self.rejected), self._sizes, strict=True):
            try:
                file = path.open("ab")
            except OSError as error:
                raise SettingError(
                    f"out={str(self.out)!r}: {path} cannot be written ({error.strerror})", "out"
                ) from error
            self._files.append(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.__exit__(None, None, None)
                raise SettingError(
                    f"out={str(self.out)!r}: another process is writing {path}; let it finish",
                    "out",
                ) from error
            if os.fstat(file.fileno()).st_size < size:
                self.__exit__(None, None, None)
                raise SettingError(
                    f"out={str(self.out)!r}: {path} is shorter than the {size} bytes that were"
                    " written to it; begin anew with --restart",
                    "out",
                )
            file.truncate(size)
        if restart and self._is_parquet:
            self.out.unlink(missing_ok=True)
        self._save()

    def _save(self) -> None:
        sizes = [os.fstat(file.fileno()).st_size for file in self._files]
        state = {
            "version": _VERSION,
            "identity": self._identity,
            "rows_done": self.rows_done,
            "finished": self.finished,
            "counts": dict(self.counts),
            "bytes": sizes,
        }
        temporary = self._state_file.with_name(self._state_file.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(state, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._state_file)


def _named(name: str, identity: Mapping[str, Any]) -> str:
    return f"{name} {identity.get(name)!r:.24}"

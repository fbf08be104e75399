"""The process from which the workers of a `WorkerPool` are forked, and the workers.

It runs as a script of its own and so has none of the trainer's modules, threads, devices or
open files. It loads what a comparison needs once and then forks a worker in milliseconds,
so that killing a worker that hangs costs little. It ends with its parent, and ends all workers.

    python -P pool_server.py CONTROL_FD SECONDS MEMORY_MIB

On the control socket, `F` with a socket asks for a worker on it and `B` for the death of
the worker whose pid (8 bytes) follows; the server answers each with that pid. A worker
receives requests (4 bytes of length, then two trees as JSON) and answers each with one byte.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import types
from pathlib import Path
from typing import Any, NoReturn

SAME, DIFFERENT, OVER_LIMIT = b"=", b"!", b"m"
READY = b"r"
PID = struct.Struct("!q")
LENGTH = struct.Struct("!i")


def main() -> None:
    """Serve the control socket until the parent closes it."""
    control = socket.socket(fileno=int(sys.argv[1]))
    seconds, memory = float(sys.argv[2]), int(sys.argv[3]) << 20
    _load()
    gc.freeze()
    control.sendall(READY)
    workers: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 + PID.size, 1)
        if message[:1] == b"F":
            pid = _fork(control, descriptors[0], seconds, memory)
            workers.add(pid)
        elif message[:1] == b"B":
            (pid,) = PID.unpack(message[1:])
            workers.discard(pid)
            _kill(pid)
        else:
            break
        control.sendall(PID.pack(pid))
    for pid in workers:
        _kill(pid)


def _load() -> None:
    """Load what a comparison needs, without the package's own `__init__`, which loads Ray."""
    folder = Path(__file__).parent
    for name, path in (
        ("rllib_dapo", folder.parent.parent),
        ("rllib_dapo.rewards", folder.parent),
        ("rllib_dapo.rewards.grading", folder),
    ):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    trial = [["root", "2", ["num", "8"]], ["*", ["num", "2"], ["root", "2", ["num", "2"]]]]
    if _judge(json.dumps(trial).encode()) != SAME:
        _arithmetic()  # raises what is wrong
        raise RuntimeError("the square root of 8 is not twice that of 2")


def _fork(control: socket.socket, descriptor: int, seconds: float, memory: int) -> int:
    pid = os.fork()
    if pid == 0:
        control.close()
        _work(socket.socket(fileno=descriptor), seconds, memory)
    os.close(descriptor)
    return pid


def _kill(pid: int) -> None:
    """End a worker and reap it; until it is reaped, no other process can get its pid."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _work(connection: socket.socket, seconds: float, memory: int) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_AS, memory)
    while head := _read(connection, LENGTH.size):
        # If no process is left to kill this one, the kernel does.
        _limit(resource.RLIMIT_CPU, math.ceil(time_used() + seconds) + 1)
        verdict = _judge(_read(connection, *LENGTH.unpack(head)))
        with contextlib.suppress(OSError):
            connection.sendall(verdict)
        if verdict == OVER_LIMIT:
            break
    os._exit(0)


def time_used() -> float:
    """CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, hard))


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _judge(request: bytes) -> bytes:
    from rllib_dapo.rewards.grading.equality import equal

    try:
        answer, gold = (_tuples(tree) for tree in json.loads(request))
        return SAME if equal(answer, gold, _arithmetic()) else DIFFERENT
    except (MemoryError, OverflowError):
        return OVER_LIMIT
    except Exception:  # noqa: BLE001 - an expression that raises has no value
        return DIFFERENT


@functools.cache
def _arithmetic() -> Any:  # an `Arithmetic`, which is imported only after `_load`
    from rllib_dapo.rewards.grading.closed_forms import NumericArithmetic

    return NumericArithmetic()


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    main()

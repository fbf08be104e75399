"""Experiment files: the YAML of RLlib's old `rllib train file`, or Python.

    my-experiment:
        run: DAPO
        env: arithmetic
        stop: {training_iteration: 20}
        config: {lr: 1e-4}

Nothing here needs Ray. Every error names the file and the line.
"""

from __future__ import annotations

import math
import runpy
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from rllib_dapo.cli import search_space
from rllib_dapo.cli.yaml_lines import Document, KeyPath, parse, parse_file
from rllib_dapo.errors import ExperimentFileError, SettingError
from rllib_dapo.metrics import renamed


@dataclass(frozen=True)
class Experiment:
    """One experiment for Tune. The names of the fields are the keys of the file.

    Args:
        run: the name of the algorithm, or its class (from a Python file).
        config: the settings of the algorithm; varied values have the form of `search_space`.
        stop: metric (nested ones as `evaluation/accuracy`) -> the value to stop at.
        source: the name of the file, for messages.
        lines: the line of each key, as its path below the experiment's name.
        flags: the settings (dotted names) that came from the command line, not from the file.
    """

    name: str
    run: str | type[Any] = "DAPO"
    config: Mapping[str, Any] = field(default_factory=dict)
    stop: Mapping[str, float] = field(default_factory=dict)
    num_samples: int = 1
    storage_path: str | None = None
    checkpoint_config: Mapping[str, Any] = field(default_factory=dict)
    time_budget_s: float | None = None
    max_failures: int = 0
    max_concurrent_trials: int | None = None
    restore: str | None = None
    log_to_file: bool | str = False
    metric: str | None = None
    mode: str | None = None
    scheduler: str | None = None
    scheduler_config: Mapping[str, Any] = field(default_factory=dict)
    source: str = "command line"
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)
    flags: frozenset[str] = frozenset()

    @property
    def run_name(self) -> str:
        """The name of the algorithm."""
        return self.run if isinstance(self.run, str) else self.run.__name__

    @property
    def is_dapo(self) -> bool:
        """Whether the algorithm is DAPO or a subclass of it."""
        names = [self.run] if isinstance(self.run, str) else [k.__name__ for k in self.run.__mro__]
        return "DAPO" in names

    def located(self, message: str, setting: str | None = None, key: str | None = None) -> str:
        """`message` after the place that it is about: a line of the file, or a flag.

        Args:
            message: what is wrong.
            setting: the dotted name of the setting that is wrong.
            key: or the key of the experiment that is wrong, such as `run`.
        """
        if setting and setting in self.flags:
            return f"--set {setting}: {message}"
        path: KeyPath = (key,) if key else ()
        if setting:
            parts = setting.split(".")
            path = ("config", *(int(part) if part.isdigit() else part for part in parts))
        while path and path not in self.lines:
            path = path[:-1]
        line = self.lines.get(path)
        return f"{self.source}:{line}: {message}" if line else f"{self.source}: {message}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


Check = tuple[Callable[[Any], bool], str]
_TEXT: Check = (_is_text, "text")
_COUNT: Check = (_is_count, "a whole number, 0 or more")
_AMOUNT: Check = (lambda v: _is_count(v) and v > 0, "a whole number, 1 or more")
_MAPPING: Check = (_is_mapping, "a mapping (key: value)")
_BOOL: Check = (lambda v: isinstance(v, bool), "true or false")
_ORDER: Check = (lambda v: v in ("min", "max"), "min or max")

_EXPERIMENT: dict[str, Check] = {
    "run": _TEXT,
    "env": _TEXT,
    "stop": _MAPPING,
    "config": _MAPPING,
    "num_samples": (lambda v: v == -1 or (_is_count(v) and v > 0), "1 or more, or -1 (no end)"),
    "storage_path": _TEXT,
    "checkpoint_config": _MAPPING,
    "time_budget_s": (_is_positive, "a number of seconds above 0"),
    "max_failures": (lambda v: v == -1 or _is_count(v), "0 or more, or -1 (no end)"),
    "max_concurrent_trials": _AMOUNT,
    "restore": _TEXT,
    "log_to_file": (lambda v: isinstance(v, bool) or _is_text(v), "true, false or a file name"),
    "metric": _TEXT,
    "mode": _ORDER,
    "scheduler": _TEXT,
    "scheduler_config": _MAPPING,
}
_CHECKPOINT: dict[str, Check] = {
    "checkpoint_frequency": _COUNT,
    "checkpoint_at_end": _BOOL,
    "num_to_keep": _AMOUNT,
    "checkpoint_score_attribute": _TEXT,
    "checkpoint_score_order": _ORDER,
}
# Counters that every algorithm reports; a name that is close to one of them is a typing error.
_STOP_KEYS = ("training_iteration", "time_total_s", "num_env_steps_sampled_lifetime")
_IN_CHECKPOINT = "write `checkpoint_config: {{{}: ...}}`".format
# Keys of earlier RLlib versions and keys that people write by mistake, with the remedy.
_MOVED = {
    "algo": "write `run`",
    "algorithm": "write `run`",
    "local_dir": "write `storage_path`",
    "checkpoint_freq": _IN_CHECKPOINT("checkpoint_frequency"),
    "checkpoint_at_end": _IN_CHECKPOINT("checkpoint_at_end"),
    "keep_checkpoints_num": _IN_CHECKPOINT("num_to_keep"),
    "checkpoint_score_attr": _IN_CHECKPOINT("checkpoint_score_attribute"),
    "resources_per_trial": "the algorithm asks for what its config says: set "
    "num_env_runners, num_learners, num_gpus_per_learner, ... under `config`",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else "known here: " + ", ".join(names)


def flat_stop(
    stop: Mapping[Any, Any], fail: Callable[[tuple[Any, ...], str], NoReturn]
) -> dict[str, float]:
    """Stop criteria in Tune's form, with nested metrics as `a/b`.

    `fail(path, message)` must raise. It is called for a value that is not a number, and for a
    name that looks like a misspelt counter, because Tune would then never stop.
    """
    flat: dict[str, float] = {}
    for path, value in _leaves(stop):
        name = "/".join(map(str, path))
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            fail(path, f"stop at `{name}`: {value!r} is not a number")
        if present := renamed(name):
            fail(path, f"the metric `{name}` is now called `{present}`; write that name")
        near = get_close_matches(name, _STOP_KEYS, n=1, cutoff=0.9)
        if near and name not in _STOP_KEYS:
            fail(path, f"no result is called `{name}`; did you mean `{near[0]}`?")
        flat[name] = value
    return flat


def _leaves(tree: Mapping[Any, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


class _Reader:
    """Checks one document and makes experiments from it."""

    def __init__(self, document: Document, source: str) -> None:
        self.document, self.source = document, source

    def fail(self, path: KeyPath, message: str) -> NoReturn:
        raise ExperimentFileError(f"{self.source}:{self.document.line(path)}: {message}")

    def experiments(self) -> list[Experiment]:
        data = self.document.data
        if not isinstance(data, dict) or not data:
            found = "nothing" if not data else f"a {type(data).__name__}"
            self.fail((), f"found {found}; an experiment file is `name: {{run: DAPO, ...}}`")
        return [self.experiment(name, spec) for name, spec in data.items()]

    def experiment(self, name: Any, spec: Any) -> Experiment:
        if name in _EXPERIMENT:
            self.fail((name,), f"`{name}` stands where the name of an experiment belongs; put a "
                      "line `my-experiment:` above and indent the rest")  # fmt: skip
        if not isinstance(name, str) or not name.strip() or "/" in name or name in (".", ".."):
            self.fail((name,), f"{name!r} cannot name a folder of results; use letters and dashes")
        if not isinstance(spec, dict):
            self.fail((name,), f"experiment `{name}` is {spec!r}; give it run, stop and config")
        self.check(spec, _EXPERIMENT, (name,))
        self.check(spec.get("checkpoint_config") or {}, _CHECKPOINT, (name, "checkpoint_config"))
        values = {k: v for k, v in spec.items() if k != "env" and v is not None}
        values["config"] = self.config(spec, (name,))

        def fail(key: tuple[Any, ...], message: str) -> NoReturn:
            self.fail((name, "stop", *key), message)

        values["stop"] = flat_stop(values.get("stop", {}), fail)
        lines = {p[1:]: line for p, line in self.document.lines.items() if p[:1] == (name,)}
        if "env" in spec:
            lines["config", "env"] = lines["env",]
        return Experiment(name=name, source=self.source, lines=lines, **values)

    def check(self, spec: Mapping[Any, Any], known: Mapping[str, Check], path: KeyPath) -> None:
        for key, value in spec.items():
            if key not in known:
                moved = _MOVED.get(str(key)) if known is _EXPERIMENT else None
                hint = moved or nearest(str(key), known)
                if known is _EXPERIMENT and not moved:
                    hint += " (settings of the algorithm go under `config`)"
                self.fail((*path, key), f"unknown key `{key}`; {hint}")
            good, wanted = known[key]
            if value is not None and not good(value):
                self.fail((*path, key), f"`{key}` is {value!r}; it must be {wanted}")

    def config(self, spec: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        config = dict(spec.get("config") or {})
        env = spec.get("env")
        if env is not None:
            if config.get("env", env) != env:
                self.fail((*path, "env"), f"env is {env!r} here and {config['env']!r} under "
                          "`config`; keep one")  # fmt: skip
            config["env"] = env
        try:
            search_space.find(config)
        except SettingError as error:
            at = error.setting.split(".") if error.setting else []
            steps = (int(step) if step.isdigit() else step for step in at)
            self.fail((*path, "config", *steps), str(error))
        return config


def parse_experiments(text: str, source: str) -> list[Experiment]:
    """Read the experiments in a YAML text.

    Raises:
        ExperimentFileError: the text is wrong; the message gives `source`, the line, what was
            found and the remedy.
    """
    return _Reader(parse(text, source), source).experiments()


def load_experiments(path: str | Path) -> list[Experiment]:
    """Read an experiment file: `.yaml`, `.yml` or `.py`.

    Raises:
        ExperimentFileError: the file is wrong; the message gives its name, the line, what was
            found and the remedy.
    """
    path = Path(path).expanduser()
    if path.suffix not in (".yaml", ".yml", ".py"):
        raise ExperimentFileError(f"{path}: an experiment file ends in .yaml, .yml or .py")
    if not path.is_file():
        raise ExperimentFileError(f"{path}: no such file; `rllib example list` lists the examples")
    if path.suffix == ".py":
        return [_load_python(path)]
    return _Reader(parse_file(path), str(path)).experiments()


def _load_python(path: Path) -> Experiment:
    """Run a file that defines `config` and, if its author wants, `stop` and `name`."""
    try:
        names = runpy.run_path(str(path), run_name="rllib_experiment")
    # Any exception of the user's code, SystemExit included, is an error in that file.
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1].lineno if frames else getattr(error, "lineno", None) or 1
        raise ExperimentFileError(f"{path}:{line}: {type(error).__name__}: {error}") from error
    config = names.get("config")
    if config is None or not hasattr(config, "to_dict") or not getattr(config, "algo_class", None):
        found = "nothing" if config is None else f"a {type(config).__name__}"
        raise ExperimentFileError(
            f"{path}: `config` is {found}; define `config = DAPOConfig()...` at the top level"
        )
    stop = names.get("stop") or {}

    def fail(key: tuple[Any, ...], message: str) -> NoReturn:
        raise ExperimentFileError(f"{path}: {message}")

    if not isinstance(stop, dict):
        fail((), f"`stop` is {stop!r}; it must be a dictionary, metric -> number")
    return Experiment(
        name=str(names.get("name") or path.stem),
        run=config.algo_class,
        config=config.to_dict(),
        stop=flat_stop(stop, fail),
        source=str(path),
    )

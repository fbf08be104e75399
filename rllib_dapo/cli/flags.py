"""What the command line changes in an experiment. A flag that was not given changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.stop_criteria import flat_stop
from rllib_dapo.cli.yaml_lines import parse
from rllib_dapo.errors import ExperimentFileError


@dataclass(frozen=True)
class Flags:
    """The flags of `rllib train`, as typed; None and () where not given.

    Args:
        stop: JSON; takes the place of the file's whole `stop`.
        checkpoint_score_attr: a metric, with `min-` before it where less is better.
        scheduler_config: JSON.
        settings: `key=value`, dotted keys; values as in YAML.
    """

    stop: str | None = None
    checkpoint_freq: int | None = None
    checkpoint_at_end: bool | None = None
    keep_checkpoints_num: int | None = None
    checkpoint_score_attr: str | None = None
    storage_path: str | None = None
    num_samples: int | None = None
    scheduler: str | None = None
    scheduler_config: str | None = None
    settings: tuple[str, ...] = ()


def with_flags(experiment: Experiment, flags: Flags) -> Experiment:
    """The experiment with what the flags say.

    Raises:
        ExperimentFileError: names the flag, what was found and the remedy.
    """
    if flags.num_samples == 0:
        raise ExperimentFileError("--num-samples 0 runs nothing; write 1 or more, or -1 (no end)")
    changes: dict[str, Any] = {
        "storage_path": flags.storage_path,
        "num_samples": flags.num_samples,
        "scheduler": flags.scheduler,
    }
    if flags.scheduler_config is not None:
        changes["scheduler_config"] = mapping(flags.scheduler_config, "--scheduler-config")
    elif flags.scheduler is not None:
        # The file's arguments belong to the file's scheduler.
        changes["scheduler_config"] = {}
    if flags.stop is not None:
        changes["stop"] = flat_stop(mapping(flags.stop, "--stop"), _fail_stop)
    changes["checkpoint_config"] = {**experiment.checkpoint_config, **_checkpoint(flags)}
    if flags.settings:
        changes["config"], changes["flags"] = _with_settings(experiment.config, flags.settings)
    return replace(experiment, **{k: v for k, v in changes.items() if v is not None})


def from_command_line(
    run: str,
    env: str | None,
    config: str | None,
    name: str | None,
    flags: Flags,
    restore: str | None = None,
) -> Experiment:
    """An experiment without a file.

    Raises:
        ExperimentFileError: names the flag, what was found and the remedy.
    """
    settings = mapping(config, "--config") if config is not None else {}
    if env is not None:
        settings["env"] = env
    title = name or run
    if "/" in title or title in (".", "..") or not title.strip():
        raise ExperimentFileError(f"--experiment-name {title!r} cannot name a folder of results")
    return with_flags(Experiment(name=title, run=run, config=settings, restore=restore), flags)


def mapping(text: str, flag: str) -> dict[str, Any]:
    """The mapping that a flag's JSON (or YAML) stands for.

    Raises:
        ExperimentFileError: it is none.
    """
    data = parse(text, flag).data
    if not isinstance(data, dict):
        raise ExperimentFileError(f"{flag}: {text!r} is no mapping; write '{{\"name\": value}}'")
    return data


def _fail_stop(path: tuple[Any, ...], message: str) -> NoReturn:
    raise ExperimentFileError(f"--stop: {message}")


def _checkpoint(flags: Flags) -> dict[str, Any]:
    """The part of `checkpoint_config` that flags give."""
    given: dict[str, Any] = {
        "checkpoint_frequency": flags.checkpoint_freq,
        "checkpoint_at_end": flags.checkpoint_at_end,
        "num_to_keep": flags.keep_checkpoints_num,
    }
    if flags.checkpoint_score_attr is not None:
        attribute = flags.checkpoint_score_attr
        given["checkpoint_score_attribute"] = attribute.removeprefix("min-")
        given["checkpoint_score_order"] = "min" if attribute.startswith("min-") else "max"
    return {key: value for key, value in given.items() if value is not None}


def _with_settings(
    config: Mapping[str, Any], settings: tuple[str, ...]
) -> tuple[dict[str, Any], frozenset[str]]:
    """A copy of `config` with `key=value` settings, and the keys that were set.

    Raises:
        ExperimentFileError: not `key=value`, or the key leads into a value that has no keys.
    """
    changed = dict(config)
    names = set()
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not all(name.split(".")):
            raise ExperimentFileError(f"--set {setting}: write --set key=value")
        value = parse(text, f"--set {name}").data
        *outer, last = name.split(".")
        level = changed
        for part in outer:
            inner = level.get(part, {})
            if not isinstance(inner, dict):
                raise ExperimentFileError(f"--set {name}: `{part}` is {inner!r}, without keys")
            # Copied on the way: the experiment given stays as it is.
            level[part] = dict(inner)
            level = level[part]
        level[last] = value
        names.add(name)
    return changed, frozenset(names)

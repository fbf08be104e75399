"""Checks each setting against its type and bounds, and the settings against each other.

Nothing here needs the model, the environment, the data or the cluster; `algorithm.preflight`
checks what does. Every message names the setting, its value and the remedy.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from rllib_dapo.errors import SettingError, refuse
from rllib_dapo.settings.choices import Remedy
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.settings.names import setting_kinds, written_name
from rllib_dapo.settings.run import RunSettings

_SAID_BY_THE_REMEDY = (
    "greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number",
    "literal_error", "bool_type",
)  # fmt: skip
"""Errors of pydantic to which its own message adds nothing."""


_MEANT = {
    "True": ("on", "always"),
    "False": ("off", "never", "none"),
    "None": ("none",),
}
"""The words that YAML's true, false and null may stand for, the likeliest first."""


def check_settings(settings: RunSettings) -> None:
    """Refuse impossible settings.

    Raises:
        SettingError: a setting has the wrong type, is out of its bounds, or contradicts
            another one.
    """
    for name in setting_kinds():
        check_value(name, getattr(settings, name), settings)
    _check_stops(settings)
    _check_minibatch(settings)
    _check_whole_groups(settings)
    _check_schedule(settings)
    _check_importance(settings)
    _check_sharding(settings)
    if settings.soft_overlong_punishment and not settings.in_evaluation:  # not part of it
        check_soft_overlong(
            max_length=settings.max_completion_length, cache=settings.soft_overlong_cache
        )
    _check_async_level(settings)
    _check_staleness(settings)
    _check_gpus_of_an_engine(settings)
    _check_colocation(settings)


# -- One setting -----------------------------------------------------------------------------


def check_value(name: str, value: Any, settings: DAPOSettings | None = None) -> None:
    """Check a value against the type and the bounds of the setting of this name.

    Args:
        name: the setting; functions that take its value as an argument check it with this, too.
        value: the value to check.
        settings: the settings whose values the remedies quote; the defaults unless given.

    Raises:
        SettingError: the value does not fit.
    """
    try:
        # Tune's samplers give numpy's numbers.
        _adapter(name).validate_python(value.item() if isinstance(value, np.generic) else value)
    except ValidationError as error:
        shown, settings = written_name(name), settings or RunSettings()
        complaint = _complaint(shown, setting_kinds()[name], value, error, settings)
        raise SettingError(f"{shown}={value!r}: {complaint}", shown) from error


def word_for(name: str, value: Any) -> Any:
    """Return the word that a value in a YAML file stands for, or the value as it is.

    Without quotes, YAML reads on, yes, off and no as true and false, and null and ~ as nothing.
    Where the setting is one of some words, the words are meant: `progress: off` is `off`,
    `chat: no` is `never`, and `importance_sampling: null` is `none`.
    """
    words = get_args(setting_kinds()[name]) if name in setting_kinds() else ()
    return next((word for word in _MEANT.get(repr(value), ()) if word in words), value)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(setting_kinds()[name], config=ConfigDict(strict=True))


def _complaint(
    name: str, kind: Any, value: Any, error: ValidationError, settings: DAPOSettings
) -> str:
    """Say what is wrong with the value of a setting, and what to write instead."""
    first = error.errors()[0]
    parts = []
    if first["type"] not in _SAID_BY_THE_REMEDY:
        inside = first["loc"] if isinstance(next(iter(first["loc"]), None), int) else ()
        subject = name + "".join(f"[{step!r}]" for step in inside) if inside else "it"
        parts.append(first["msg"].replace("Input should", f"{subject} must", 1))
    if kind is bool:
        parts.append("use true or false")
    elif get_origin(kind) is Literal:
        parts.append(f"use one of {', '.join(map(str, get_args(kind)))}")
    else:
        remedies = [m for m in getattr(kind, "__metadata__", ()) if isinstance(m, Remedy)]
        parts += [remedy.text.format(settings=settings) for remedy in remedies]
    if any(isinstance(e["input"], bool) and e["type"] == "string_type" for e in error.errors()):
        parts.append("YAML reads on, off, yes and no as true or false: put the word in quotes")
    return "; ".join(parts)


# -- Stops ------------------------------------------------------------------------------------


def _check_stops(settings: RunSettings) -> None:
    """A stop is a text of at least one character that no worked example contains."""
    strings = [settings.stop] if isinstance(settings.stop, str) else settings.stop
    for string in strings:
        if not string:
            refuse("stop", settings.stop, "an empty text cannot be found; leave it out")
        for number, shot in enumerate(settings.few_shot):
            if string in shot.get("answer", ""):
                refuse(
                    "stop",
                    settings.stop,
                    f"few_shot[{number}] has {string!r} inside its answer, so a completion in this "
                    "form would be cut before its end; use another stop",
                )
    if settings.include_stop_str_in_output and not strings:
        refuse(
            "include_stop_str_in_output",
            True,
            "there is no stop text to keep; set `stop`, or leave it out",
        )


# -- Several settings -------------------------------------------------------------------------


def _check_minibatch(settings: RunSettings) -> None:
    """A batch is a whole number of minibatches, and each learner has a part of each."""
    completions, size = settings.completions_per_batch, settings.minibatch_size
    batch = f"(groups_per_batch={settings.groups_per_batch} times group_size={settings.group_size})"
    if size > completions:
        refuse("minibatch_size", size, f"use 1 to {completions} completions {batch}")
    if completions % size:
        remedy = f"it must divide the {completions} completions of a batch {batch}"
        refuse("minibatch_size", size, remedy)
    if settings.num_learners > size:
        refuse("num_learners", settings.num_learners, f"use at most minibatch_size={size}")


def _check_whole_groups(settings: RunSettings) -> None:
    """Minibatches of whole groups, and what needs them."""
    size, group = settings.minibatch_size, settings.group_size
    if settings.minibatch_by == "group":
        if size % group:
            below = size - size % group
            refuse(
                "minibatch_size",
                size,
                f"minibatch_by='group' draws whole groups of group_size={group} completions; use "
                f"a multiple of it, such as {below or group}",
            )
        return
    if settings.loss_aggregation == "group_token_mean" and size < settings.completions_per_batch:
        refuse(
            "loss_aggregation",
            "group_token_mean",
            f"the mean of each group needs whole groups, but minibatch_size={size} of "
            f"{settings.completions_per_batch} completions are drawn one by one; set "
            "`minibatch_by: group`",
        )


def _check_schedule(settings: RunSettings) -> None:
    """A cosine ends after the warm-up."""
    end = settings.lr_decay_iterations
    if settings.lr_schedule == "cosine" and (end is None or end <= settings.warmup_iterations):
        refuse(
            "lr_decay_iterations",
            end,
            "with lr_schedule='cosine' give the iteration at which `lr` has fallen all the way, "
            f"after warmup_iterations={settings.warmup_iterations}",
        )


def _check_importance(settings: RunSettings) -> None:
    """Importance weights and the mask need the learner's own old log-probabilities."""
    if settings.old_logprobs == "learner":
        return
    remedy = (
        "this compares the engine with the learner; set old_logprobs='learner'. With 'engine' the "
        "ratio of the loss starts from the engine's own probabilities and needs no correction"
    )
    if settings.importance_sampling != "none":
        refuse("importance_sampling", settings.importance_sampling, remedy)
    if settings.importance_mask_above is not None:
        refuse("importance_mask_above", settings.importance_mask_above, remedy)


def _check_sharding(settings: RunSettings) -> None:
    """Sharding needs learners to shard over."""
    if settings.shard_model and settings.num_learners < 2:
        refuse(
            "shard_model",
            True,
            f"num_learners={settings.num_learners} leaves nothing to share; set `num_learners` to "
            "2 or more, or `shard_model` to false",
        )


def check_soft_overlong(*, max_length: int, cache: int) -> None:
    """Eq. 13 needs 0 < L_cache ≤ L_max.

    Args:
        max_length: L_max, the setting `max_completion_length`.
        cache: L_cache, the setting `soft_overlong_cache`.

    Raises:
        SettingError: the penalty is not defined for these numbers.
    """
    if cache <= 0:
        refuse(
            "soft_overlong_cache",
            cache,
            "the interval over which the punishment grows needs at least 1 token; the paper uses a "
            "fifth of max_completion_length (4096 of 20480). To train without the punishment, "
            "switch it off instead of setting its interval to 0",
        )
    if cache > max_length:
        refuse(
            "soft_overlong_cache",
            cache,
            f"it is longer than max_completion_length={max_length}, so even an empty completion "
            "would be punished; lower soft_overlong_cache (the paper uses a fifth of "
            "max_completion_length) or raise max_completion_length",
        )


def _check_async_level(settings: RunSettings) -> None:
    """The engine and the learner of one process cannot work at the same time."""
    # RLlib's own copy for evaluation has no runners: the engines of training do the work.
    if settings.async_level and not settings.num_env_runners and not settings.in_evaluation:
        refuse(
            "async_level",
            settings.async_level,
            "num_env_runners=0 leaves engine and learner in one process, where they take turns; "
            "set `num_env_runners` to 1 or more, or `async_level` to 0",
        )


def _check_staleness(settings: RunSettings) -> None:
    """Completions that go on under new weights have tokens of older ones."""
    if settings.unfinished_groups == "continue" and not settings.max_staleness:
        refuse(
            "max_staleness",
            0,
            "unfinished_groups='continue' lets completions go on under new weights, so groups have "
            "older tokens; use 1 or more, or another `unfinished_groups`",
        )


def _check_gpus_of_an_engine(settings: RunSettings) -> None:
    """A runner reserves as many GPUs as its engine is spread over."""
    gpus, size = settings.num_gpus_per_env_runner, settings.tensor_parallel_size
    if gpus and size > 1 and gpus != size:
        refuse(
            "tensor_parallel_size",
            size,
            f"an engine spread over {size} GPUs needs as many; num_gpus_per_env_runner={gpus}: "
            "set both to the same number",
        )


def _check_colocation(settings: RunSettings) -> None:
    """Engines and learners that share GPUs need GPUs, and take turns on them."""
    if not settings.colocate:
        return
    if not (settings.num_gpus_per_env_runner or settings.num_gpus_per_learner):
        refuse(
            "colocate",
            True,
            "shares GPUs between engines and learners, but num_gpus_per_env_runner=0 and "
            "num_gpus_per_learner=0: set them (fractions such as 0.5 share one GPU), or `colocate` "
            "to false",
        )
    if settings.async_level:
        refuse(
            "colocate",
            True,
            "engines that sleep while the learner trains cannot sample meanwhile "
            f"(async_level={settings.async_level}); turn one of them off",
        )

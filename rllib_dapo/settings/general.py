"""The class of all DAPO settings, with those of the model, prompts, rewards and evaluation.

The settings of rollouts and of the learner are in `rollout.py` and `learner.py`. Each setting is
defined once, as a field. Its annotation has the type, the bounds and the remedy; the docstring
below it has the meaning, the unit and the paper's value. The checks (`checks.py`), the keywords
of `DAPOConfig.training` and docs/settings.md are made from these definitions.

The defaults of the objective are the paper's. The default sizes fit the embedded model on a
machine with two cores; `tuned_examples/dapo_qwen2.5_32b_aime.yaml` has the paper's sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from rllib_dapo.settings.choices import (
    FINITE,
    ChatMode,
    Count,
    ProgressMode,
    Remedy,
    RewardFailure,
    Tokens,
)
from rllib_dapo.settings.learner import LearnerSettings
from rllib_dapo.settings.rollout import RolloutSettings

LARGEST_WEIGHT = 1e6
"""The largest weight, in absolute value, of a component of the reward."""


@dataclass(kw_only=True, eq=False, repr=False)
class DAPOSettings(RolloutSettings, LearnerSettings):
    """All settings that DAPO adds to RLlib's `AlgorithmConfig`."""

    # -- The model ----------------------------------------------------------------------

    language_model: Annotated[
        str, Remedy("name a language model as text: `embedded`, a folder, or a hub id")
    ] = "embedded"
    """The causal language model to train: `embedded` (it ships with the package and needs no
    network), a Hugging Face folder, or a hub id. It is written `model` in YAML and in
    `training(model=…)`, because RLlib uses the attribute `model` otherwise. Paper:
    Qwen2.5-32B."""

    restore_weights_from: Annotated[
        str | None, Remedy("give the folder of a checkpoint, or null to start from `model`")
    ] = None
    """A folder with a checkpoint of DAPO whose weights the policy starts from, and nothing else of
    it: data, limits and optimizer are those of this run, and it begins at iteration 0. `model`
    must be that of the run that saved it, and stays the reference of `kl_coeff`. The key
    `restore` of an experiment continues a run instead. Paper: none."""

    trust_remote_code: bool = False
    """Run Python code that comes with the model. With `false`, a model that needs such code is
    refused."""

    max_prompt_length: Tokens = 64
    """In tokens. A problem with a longer prompt is left out and counted; no prompt is cut.
    Paper's recipe: 2048."""

    max_completion_length: Tokens = 64
    """L_max of Eq. 13, in tokens. Sampling stops at this length, and a completion without its EOS
    by then counts as truncated. Paper: 20480 (16384 expected plus 4096 of soft punishment)."""

    # -- The prompt ---------------------------------------------------------------------

    prompt_template: str = "plain"
    """How a problem becomes the user's text: the name of a template (`plain`, `dapo`, `boxed`),
    or a text of your own with `{problem}` in it."""

    system_prompt: str | None = None
    """A system message before the problem; only chat models have one."""

    few_shot: Sequence[dict[str, str]] = ()
    """Worked examples before the problem: a list of mappings with `problem` and `answer`."""

    chat: ChatMode = "auto"
    """Whether prompts go through the tokenizer's chat template. `auto` uses the template if the
    tokenizer has one."""

    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Variables for the chat template, for instance `{enable_thinking: false}`. A template that
    writes today's date needs the day here, such as `{strftime_now: '2026-07-01'}`, so that a
    resumed run poses the same prompts."""

    # -- Rewards ------------------------------------------------------------------------

    soft_overlong_punishment: bool = True
    """Add Eq. 13 to the reward: a penalty that grows as a completion nears the limit. Paper:
    true."""

    soft_overlong_cache: int = 16
    """L_cache of Eq. 13, in tokens: the penalty grows from 0 to -1 over this many tokens before
    `max_completion_length`. Paper: 4096."""

    overlong_filtering: bool = False
    """Take truncated completions out of the loss, numerator and denominator alike (Section 3.4).
    They still count in their group's mean and standard deviation. Paper: used alone as an
    ablation; its final recipe uses the soft punishment instead."""

    format_reward: Annotated[
        float,
        Ge(-LARGEST_WEIGHT),
        Le(LARGEST_WEIGHT),
        Remedy(f"use a finite number up to ±{LARGEST_WEIGHT:g}, such as 0.5"),
    ] = 0.0
    """The weight of a component of the reward that is 1 for a completion that ended by itself and
    in which the environment found a final answer, and 0 otherwise. Paper: none."""

    reward_functions: Sequence[dict[str, Any]] = ()
    """Functions of your own that add to the reward: a list of mappings with `function` (an import
    path, `package.module:name`), `weight` (1 unless given; with 0 the value is only logged),
    `name`, and `columns` (columns of the data set that it gets by name). See docs/rewards.md."""

    reward_failure: RewardFailure = "drop_group"
    """What happens when a reward function raises, takes too long or gives no number. `error`
    stops the run. `drop_group` drops the group and counts it. `zero` puts 0 for the missing value
    and counts it."""

    reward_timeout_s: Annotated[
        float, Gt(0), FINITE, Remedy("use a finite number of seconds above 0")
    ] = 60.0
    """In seconds: how long one reward function may take for the completions of one problem."""

    # -- Evaluation and display -----------------------------------------------------------

    evaluation_samples: Count = 4
    """The number of completions per held-out problem, k of avg@k and pass@k. Paper: 32."""

    evaluation_temperature: Annotated[float, Ge(0), Remedy("use 0 (greedy) or more")] = 1.0
    """The sampling temperature in evaluation; 0 is greedy. Paper: 1.0."""

    evaluation_top_p: Annotated[float, Gt(0), Le(1), Remedy("use a number above 0, up to 1")] = 1.0
    """Nucleus sampling in evaluation. Paper: 0.7."""

    evaluate_before_training: bool = True
    """Evaluate the untrained model first (when `evaluation_interval` is set), so that the curve
    has a beginning. The first iteration reports the result as `initial_evaluation`."""

    progress: ProgressMode = "auto"
    """Show the progress of sampling within an iteration. `auto` shows it in a terminal and under
    `rllib train`, `on` always draws a bar, and `off` shows nothing."""

    wait_for_resources: bool = False
    """Start although the cluster has fewer CPUs or GPUs than the run needs, for clusters that
    grow on demand. With `false`, such a run is refused, since it would wait for ever."""

"""Every setting of DAPO, where it is defined: meaning, unit, default, the paper's value.

Here and in `rollout_settings.py` and `learner_settings.py`, which this class inherits.

RLlib's own settings keep their names and are used where they fit: `lr`, `grad_clip`,
`num_epochs`, `minibatch_size` (here: completions per optimizer step; paper: 512), `seed`,
`num_env_runners`, `num_learners`, `evaluation_interval`, `evaluation_duration` (problems).

Defaults of the objective are the paper's. Defaults of sizes fit the embedded model on a
machine with two cores; `tuned_examples/dapo_qwen2.5_32b_aime.yaml` has the paper's sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from rllib_dapo.settings.choices import ChatMode, ProgressMode, RewardFailure
from rllib_dapo.settings.learner import LearnerSettings
from rllib_dapo.settings.rollout import RolloutSettings


class DAPOSettings(RolloutSettings, LearnerSettings):
    """The settings that DAPO adds to RLlib's `AlgorithmConfig`."""

    # -- The model ----------------------------------------------------------------------

    language_model: str = "embedded"
    """The causal language model to train: `embedded` (ships with the package, needs no
    network), a Hugging Face folder, or a hub id. Written `model` in YAML and in
    `training(model=…)`: RLlib has another use for the attribute. Paper: Qwen2.5-32B."""

    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off: such models are refused."""

    max_prompt_length: int = 64
    """Tokens; a longer prompt is left out and counted, never cut. Paper's recipe: 2048."""

    max_completion_length: int = 64
    """Tokens, L_max of Eq. 13: sampling stops here, and an answer without its EOS by then
    is truncated. Paper: 20480 (16384 expected plus 4096 of soft punishment)."""

    # -- The prompt ---------------------------------------------------------------------

    prompt_template: str = "plain"
    """How a problem becomes the user's text: the name of a template (`plain`, `dapo`,
    `boxed`) or a text of your own with `{problem}` in it."""

    system_prompt: str | None = None
    """A system message before the problem; chat models only."""

    few_shot: Sequence[dict[str, str]] = ()
    """Worked examples before the problem: dictionaries with `problem` and `answer`."""

    chat: ChatMode = "auto"
    """Whether prompts go through the tokenizer's chat template: `auto` does if it has one."""

    # -- Rewards ------------------------------------------------------------------------

    soft_overlong_punishment: bool = True
    """Add Eq. 13 to the reward: a penalty that grows as an answer nears the limit."""

    soft_overlong_cache: int = 16
    """Tokens, L_cache of Eq. 13: the penalty grows from 0 to -1 over the last so many
    tokens before `max_completion_length`. Paper: 4096."""

    overlong_filtering: bool = False
    """Take truncated answers out of the loss, numerator and denominator alike (Section
    3.4). They still count in their group's mean and standard deviation. Paper: used alone
    as an ablation; its final recipe uses the soft punishment instead."""

    format_reward: float = 0.0
    """Weight of a component that is 1 for an answer that ended by itself and in which the
    environment found a final answer, else 0. Paper: none."""

    reward_functions: Sequence[dict[str, Any]] = ()
    """Functions of your own to add to the reward: dictionaries with `function` (an import
    path, `package.module:name`), `weight` (1 unless given; 0 only logs) and `name`. See
    docs/rewards.md."""

    reward_failure: RewardFailure = "drop_group"
    """When a reward function raises, takes too long or gives no number: `error` stops,
    `drop_group` drops the group and counts, `zero` puts 0 for the missing value and counts."""

    reward_timeout_s: float = 60.0
    """Seconds that one reward function may take for the answers to one problem."""

    # -- Evaluation and display -----------------------------------------------------------

    evaluation_samples: int = 4
    """Answers per held-out problem, k of avg@k and pass@k. Paper: 32."""

    evaluation_temperature: float = 1.0
    """Sampling temperature in evaluation; 0 is greedy. Paper: 1.0."""

    evaluation_top_p: float = 1.0
    """Nucleus sampling in evaluation. Paper: 0.7."""

    evaluate_before_training: bool = True
    """Evaluate the untrained model first (when `evaluation_interval` is set), so that the
    curve has a beginning; reported with the first iteration as `initial_evaluation`."""

    progress: ProgressMode = "auto"
    """Show progress while an iteration samples: `auto` does so in a terminal and under
    `rllib train`; `on` always draws a bar; `off` never."""

    wait_for_resources: bool = False
    """Start although the cluster lacks the CPUs or GPUs asked for now (clusters that grow
    by themselves). Off: that is refused, since such a run would wait for ever."""


SETTING_CLASSES = (DAPOSettings, RolloutSettings, LearnerSettings)
"""Where settings are defined, in the order in which they are listed."""


def setting_names() -> tuple[str, ...]:
    """The names of all settings, in the order of `SETTING_CLASSES` and their definition."""
    return tuple(name for kind in SETTING_CLASSES for name in kind.__annotations__)


def setting_types() -> dict[str, Any]:
    """The annotated type of each setting."""
    return get_type_hints(DAPOSettings)

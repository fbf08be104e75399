"""A group in the clothes that RLlib's EnvRunner API asks for."""

from __future__ import annotations

from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_dapo.types import Completion, Group


def as_episodes(group: Group) -> list[SingleAgentEpisode]:
    """One episode per answer: prompt text, answer text, reward; token ids as extra outputs."""
    return [_episode(group, completion) for completion in group.completions]


def _episode(group: Group, completion: Completion) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        observations=[group.prompt.text, ""],
        actions=[completion.text],
        rewards=[completion.score + completion.extra_reward],
        infos=[{}, completion.info],
        terminated=not completion.truncated,
        truncated=completion.truncated,
        extra_model_outputs={
            "token_ids": [completion.token_ids],
            "action_logp": [completion.logprobs],
        },
        len_lookback_buffer=0,
    )

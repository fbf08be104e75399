"""An RLlib EnvRunner with a vLLM engine inside.

It is given references to problems, poses them, has the engine answer each G times, lets
the environment and the user's reward functions score the answers, and hands back groups as
they finish. The sampled token ids travel; text is made for scoring only and never tokenised
again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rllib_dapo.data.stream import ProblemStream
from rllib_dapo.engine.base import FinishedRequest, InferenceEngine, SampledAnswer
from rllib_dapo.errors import EngineError
from rllib_dapo.model import load_tokenizer, model_facts
from rllib_dapo.prompting import make_renderer
from rllib_dapo.reflection import count_reflections
from rllib_dapo.reward_functions.composition import PlayedAnswer, RewardComposer
from rllib_dapo.sampling_job import (
    RunnerReply,
    SamplingJob,
    answer_seed,
    training_sampling,
)
from rllib_dapo.threads import use_threads
from rllib_dapo.types import Completion, Group, ProblemRef, Prompt

if TYPE_CHECKING:
    from rllib_dapo.dapo_config import DAPOConfig

_NO_TOKENS = np.zeros(0, dtype=np.int64)


class DAPOEnvRunner(EnvRunner, Checkpointable):
    """Samples groups of answers, as RLlib's local runner or as a remote actor."""

    def __init__(self, *, config: DAPOConfig, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        # With remote runners, the local one only answers RLlib's questions about spaces.
        self._has_engine = bool(self.worker_index) or not self.num_workers
        self._facts = model_facts(
            self.config.language_model, trust_remote_code=self.config.trust_remote_code
        )
        self._tokenizer = load_tokenizer(
            self._facts.path, trust_remote_code=self.config.trust_remote_code
        )
        self._renderer = make_renderer(self.config)
        self._rewards = RewardComposer.from_config(self.config) if self._has_engine else None
        self._engine: InferenceEngine | None = None
        self._open: dict[str, tuple[ProblemRef, Prompt]] = {}
        self._evaluating = False
        self._stream: ProblemStream | None = None
        self.make_env()
        if self._has_engine:
            self.make_module()

    # -- What RLlib asks of an EnvRunner -------------------------------------------------

    def make_env(self) -> None:
        """Build the training and the evaluation environment."""
        from rllib_dapo.registration import make_env

        self.env = make_env(self.config.env, self.config.env_config)
        evaluation = self.config.get_evaluation_config_object() or self.config
        self._evaluation_env = make_env(evaluation.env, evaluation.env_config)

    def make_module(self) -> None:
        """Start the engine; it takes the place of RLlib's RLModule here."""
        from rllib_dapo.engine.vllm import VLLMEngine

        config = self.config
        use_threads(config.engine_cpu_threads)
        self._engine = VLLMEngine(
            self._facts.path,
            dtype=config.dtype,
            max_model_len=config.max_prompt_length + config.max_response_length,
            stop_token_ids=self._facts.stop_token_ids,
            seed=config.seed or 0,
            trust_remote_code=config.trust_remote_code,
            kv_cache_gib=config.kv_cache_gib,
            engine_kwargs=config.engine_kwargs,
        )

    def assert_healthy(self) -> None:
        """Raise if the runner should have an engine and has none."""
        if self._has_engine and self._engine is None:
            raise EngineError("the runner has no engine: make_module() did not finish")

    def get_spaces(self) -> dict[str, Any]:
        """The text spaces of the environment, as RLlib keys them."""
        spaces = (self.env.observation_space, self.env.action_space)
        return {
            INPUT_ENV_SPACES: spaces,
            INPUT_ENV_SINGLE_SPACES: spaces,
            DEFAULT_MODULE_ID: spaces,
        }

    def sample(self, *, num_episodes: int | None = None, **kwargs: Any) -> list[SingleAgentEpisode]:
        """Sample whole groups as RLlib episodes, for use outside of DAPO's training step.

        Args:
            num_episodes: answers, rounded up to whole groups; None: one group.
            **kwargs: RLlib's; none is used.
        """
        size = self.config.group_size
        if self._stream is None:
            inner = self.env.unwrapped
            self._stream = ProblemStream(
                getattr(inner, "num_problems", None),
                (self.config.seed or 0) + self.worker_index,
                getattr(inner, "mixture", None),
            )
        refs = tuple(self._stream.take(-(-(num_episodes or size) // size)))
        job = SamplingJob(refs, size, training_sampling(self.config), seed=refs[0].seed)
        reply = self.collect(job)
        groups = list(reply.groups)
        while reply.unfinished:
            reply = self.collect(None)
            groups += reply.groups
        if reply.error is not None:
            raise EngineError(reply.error)
        return [_as_episode(group, c) for group in groups for c in group.completions]

    def get_metrics(self) -> Any:
        """RLlib's hook; DAPO's metrics are made where all groups come together."""
        return self.metrics.reduce()

    def stop(self) -> None:
        """Close the environments and free the engine."""
        for env in (self.env, self._evaluation_env):
            env.close()
        if self._rewards is not None:
            self._rewards.close()
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    # -- State ----------------------------------------------------------------------------

    def get_state(
        self,
        components: Any = None,
        *,
        not_components: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The version of the weights; the weights themselves are the learner's to keep."""
        version = self._engine.weights_version if self._engine is not None else 0
        return {WEIGHTS_SEQ_NO: version}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over new weights, if there are some in the state.

        Any version is accepted, older ones too: a restored run goes back.
        """
        if COMPONENT_RL_MODULE not in state or self._engine is None:
            return
        modules = state[COMPONENT_RL_MODULE]
        if isinstance(modules, ray.ObjectRef):  # shared memory: arrays are views of it
            modules = ray.get(modules)
        self._engine.load_weights(modules[DEFAULT_MODULE_ID], int(state.get(WEIGHTS_SEQ_NO, 0)))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        """RLlib's hook for checkpoints."""
        return (), {"config": self.config}

    # -- Sampling ---------------------------------------------------------------------------

    def collect(self, job: SamplingJob | None, *, seconds: float = 1.0) -> RunnerReply:
        """Begin a job (or go on with the last one) and work on it for a while.

        Work is counted in engine steps, all in this call: a job's answers do not depend on
        how it is cut into calls.

        Args:
            job: new problems; None to go on.
            seconds: return after so long with what is finished by then.
        """
        groups: list[Group] = []
        try:
            engine = self._running_engine()
            use_threads(self.config.engine_cpu_threads)
            if job is not None:
                groups += self._begin(engine, job)
            until = time.monotonic() + seconds
            while engine.num_unfinished:
                for request in engine.step():
                    groups.append(self._score(request))  # one by one: a later one may raise
                if time.monotonic() >= until:  # after a step: a busy machine still gets on
                    break
            return RunnerReply(tuple(groups), engine.num_unfinished)
        except Exception as error:  # noqa: BLE001 - the driver decides; RLlib would sleep and exit
            return RunnerReply(tuple(groups), 0, f"{type(error).__name__}: {error}")

    def _running_engine(self) -> InferenceEngine:
        if self._engine is None:
            raise EngineError("this runner has no engine: the remote runners have them")
        return self._engine

    def _begin(self, engine: InferenceEngine, job: SamplingJob) -> list[Group]:
        """Pose a job's problems; returns those that cannot be posed as failed groups."""
        engine.abort_all()
        self._open.clear()
        self._evaluating = job.evaluation
        failed = []
        for ref in job.refs:
            try:
                prompt = self._pose(ref)
            except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
                failed.append(self._failed(ref, f"{type(error).__name__}: {error}"))
                continue
            request_id = str(ref.position)
            self._open[request_id] = (ref, prompt)
            engine.submit(
                request_id,
                prompt.token_ids.tolist(),
                job.group_size,
                job.sampling,
                seed=answer_seed(job, ref),
            )
        return failed

    def _pose(self, ref: ProblemRef) -> Prompt:
        env = self._evaluation_env if self._evaluating else self.env
        observation, info = env.reset(seed=ref.seed, options=ref.options)
        return self._renderer.render(info.get("messages", observation))

    def _failed(self, ref: ProblemRef, reason: str, prompt: Prompt | None = None) -> Group:
        empty = Prompt(token_ids=_NO_TOKENS, text="") if prompt is None else prompt
        version = self._engine.weights_version if self._engine is not None else 0
        return Group(ref, empty, (), version, failure=reason)

    def _score(self, request: FinishedRequest) -> Group:
        """Let the environment, then the reward functions, score all answers to one problem.

        Evaluation counts right answers only, so the functions are not called there.

        Raises:
            RewardError: a function failed and `reward_failure` is `error`, or too many hang.
        """
        ref, prompt = self._open.pop(request.request_id)
        try:
            played = [self._play(ref, answer) for answer in request.answers]
        except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
            return self._failed(ref, f"{type(error).__name__}: {error}", prompt)
        version = self._running_engine().weights_version
        if self._rewards is None or self._evaluating:
            return Group(ref, prompt, tuple(p.completion for p in played), version)
        composed = self._rewards.compose(played)
        completions = () if composed.failure is not None else composed.completions
        return Group(ref, prompt, completions, version, composed.failure, composed.failures)

    def _play(self, ref: ProblemRef, answer: SampledAnswer) -> PlayedAnswer:
        """One episode: the same reset, one step with the answer's text."""
        env = self._evaluation_env if self._evaluating else self.env
        problem, _ = env.reset(seed=ref.seed, options=ref.options)
        text = self._tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        _, reward, _, _, info = env.step(text)
        score = float("nan") if reward is None else float(reward)
        completion = Completion(
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            text=text,
            finish_reason=answer.finish_reason,
            score=score,
            correct=bool(info.get("correct", score > 0)),
            info={k: v for k, v in info.items() if isinstance(v, (str, int, float, bool))},
            reflections=count_reflections(text),
            versions=answer.versions,
        )
        return PlayedAnswer(str(problem), completion, info)


def _as_episode(group: Group, completion: Completion) -> SingleAgentEpisode:
    """One answer as RLlib keeps episodes: prompt text, answer text, reward."""
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

"""An RLlib EnvRunner with a vLLM engine inside.

The runner receives references to problems and poses each problem. Its engine samples G completions
of each, the environment scores them, and the runner returns each group when it is finished.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import ray
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.stops import Stops
from rllib_dapo.data.stream import ProblemStream
from rllib_dapo.errors import EngineError, refuse
from rllib_dapo.model.device import use_threads
from rllib_dapo.model.facts import load_tokenizer, model_facts
from rllib_dapo.rewards.calls import RewardCalls
from rllib_dapo.rewards.composition import RewardComposer
from rllib_dapo.rollout.completion_pipeline import CompletionPipeline, FinishedGroup
from rllib_dapo.rollout.constructor_retry import retry_restart
from rllib_dapo.rollout.engine.base import FinishedRequest, InferenceEngine
from rllib_dapo.rollout.sampling_job import (
    RunnerReply,
    SamplingJob,
    completion_seed,
    training_sampling,
)
from rllib_dapo.rollout.text_episodes import (
    TextEpisodes,
    as_episodes,
    failed_group,
    make_env_of,
)
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import Group, ProblemRef, Prompt

SCORERS = 4
"""The number of groups scored at once. With several, slow groups do not hold up the others."""


class DAPOEnvRunner(EnvRunner, Checkpointable):
    """Samples groups of completions, as RLlib's local runner or as a remote actor."""

    def __init__(self, *, config: RunSettings, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        # With remote runners, the local one only answers RLlib's questions about spaces.
        self._has_engine = bool(self.worker_index) or not self.num_workers
        trust = self.config.trust_remote_code
        self._facts = model_facts(self.config.language_model, trust_remote_code=trust)
        tokenizer = load_tokenizer(self._facts.path, trust_remote_code=trust)
        self._evaluation: RunSettings = self.config.get_evaluation_config_object() or self.config
        settings = (self.config, self._evaluation)
        # Training and evaluation share one event loop, in which clients of coroutines live.
        calls = RewardCalls()
        self._rewards = [
            RewardComposer.from_settings(s, calls) for s in settings if self._has_engine
        ]
        renderers = [PromptRenderer.from_settings(s) for s in settings]
        self._stops = Stops.from_settings(self.config, renderers[0])
        self._episodes = TextEpisodes(
            self._environment,
            self._another_environment,
            renderers,
            tokenizer,
            self._stops,
            self._rewards,
        )
        self._engine: InferenceEngine | None = None
        self._pipeline: CompletionPipeline | None = None
        self._in_flight: dict[str, tuple[ProblemRef, Prompt]] = {}
        self._requests = 0
        self._stream: ProblemStream | None = None
        self.make_env()
        if self._has_engine:
            with retry_restart():
                self.make_module()

    # -- What RLlib asks of an EnvRunner -------------------------------------------------

    def make_env(self) -> None:
        """Build the training and the evaluation environment."""
        self.env = self._make_env(evaluation=False)
        self._evaluation_env = self._make_env(evaluation=True)

    def make_module(self) -> None:
        """Start the engine; it takes the place of RLlib's RLModule here."""
        from rllib_dapo.rollout.engine.vllm import VLLMEngine, colocate_refusal

        config = self.config
        if config.colocate and (reason := colocate_refusal(config.engine_kwargs)):
            refuse("colocate", True, reason)
        use_threads(config.engine_cpu_threads)
        self._engine = VLLMEngine(
            self._facts.path,
            dtype=config.dtype,
            max_model_len=max(
                s.max_prompt_length + s.max_completion_length for s in (config, self._evaluation)
            ),
            stop_token_ids=self._stops.token_ids,
            stop=self._stops.strings,
            skip_special_tokens=self._stops.skip_special_tokens,
            seed=config.seed or 0,
            trust_remote_code=config.trust_remote_code,
            kv_cache_gib=config.kv_cache_gib,
            tensor_parallel_size=config.tensor_parallel_size,
            sleep_mode=config.colocate,
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
            num_episodes: the number of completions, rounded up to whole groups; None samples one
                group.
            **kwargs: RLlib's; none is used.
        """
        size = self.config.group_size
        if self._stream is None:
            inner = self.env.unwrapped
            self._stream = ProblemStream(
                getattr(inner, "num_problems", None),
                (self.config.seed or 0) + self.worker_index,
                getattr(inner, "mixture", None),
                bool(getattr(inner, "shuffle", True)),
            )
        refs = tuple(self._stream.take(-(-(num_episodes or size) // size)))
        job = SamplingJob(refs, size, training_sampling(self.config), seed=refs[0].seed)
        reply = self.collect(job)
        groups = list(reply.groups)
        while reply.unfinished and not (reply.error or reply.broken):
            reply = self.collect(None)
            groups += reply.groups
        if reason := reply.error or reply.broken:
            raise EngineError(reason)
        return [episode for group in groups for episode in as_episodes(group)]

    def get_metrics(self) -> Any:
        """RLlib's hook; the driver computes DAPO's own metrics, from the groups of all runners."""
        return self.metrics.reduce()

    def stop(self) -> None:
        """Close the environments and free the engine."""
        for env in (self.env, self._evaluation_env):
            env.close()
        for rewards in self._rewards:
            rewards.close()
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        self._episodes.close()
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
        """The version of the weights. The weights themselves are part of the learner's state."""
        return {WEIGHTS_SEQ_NO: self._weights_version}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over new weights, if the state has any.

        Every version is accepted, also an older one, because a restored run goes back.
        """
        if COMPONENT_RL_MODULE not in state or self._engine is None:
            return
        modules = state[COMPONENT_RL_MODULE]
        if isinstance(modules, ray.ObjectRef):  # shared memory: arrays are views of it
            modules = ray.get(modules)
        weights, version = modules[DEFAULT_MODULE_ID], int(state.get(WEIGHTS_SEQ_NO, 0))
        self._running_pipeline().between_steps(lambda engine: engine.load_weights(weights, version))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        """RLlib's hook for checkpoints."""
        return (), {"config": self.config}

    # -- Sampling ---------------------------------------------------------------------------

    def collect(self, job: SamplingJob | None, *, seconds: float = 1.0) -> RunnerReply:
        """Accept the problems of a job, and return the groups that have finished.

        Args:
            job: further problems, or None.
            seconds: how long to wait at most; the call returns sooner if something is finished.
        """
        groups: list[Group] = []
        try:
            pipeline = self._running_pipeline()
            if job is not None:
                groups += self._begin(pipeline, job)
            if self._in_flight:
                groups += self._ready(pipeline.collect(0.0 if groups else seconds))
        except EngineError as error:  # the driver decides what follows; RLlib would sleep and exit
            return self._reply(groups, broken=str(error))
        except Exception as error:  # noqa: BLE001 - the driver decides, as above
            return self._reply(groups, error=f"{type(error).__name__}: {error}")
        return self._reply(groups)

    def call_engine(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine between two of its steps.

        Args:
            method: the name of the method; dotted if it belongs to a part (`weights.start`).
            *arguments: the arguments of the method. What the method raises is raised here.
        """
        call = attrgetter(method)
        return self._running_pipeline().between_steps(lambda engine: call(engine)(*arguments))

    def withdraw(self) -> None:
        """Abort all problems that are in flight."""
        pipeline = self._running_pipeline()
        requests = list(self._in_flight)
        pipeline.between_steps(lambda engine: engine.abort(requests))
        self._in_flight.clear()

    def _reply(
        self, groups: list[Group], *, error: str | None = None, broken: str | None = None
    ) -> RunnerReply:
        pipeline, engine = self._pipeline, self._engine
        if pipeline is None or engine is None:
            return RunnerReply(tuple(groups), 0, error=error, broken=broken)
        return RunnerReply(
            tuple(groups),
            len(self._in_flight),
            pipeline.steps,
            pipeline.busy_s,
            engine.capacity,
            error,
            broken,
        )

    def _running_pipeline(self) -> CompletionPipeline:
        """The pipeline, which is made when it is first needed, and again for another engine."""
        if self._engine is None:
            raise EngineError("this runner has no engine: the remote runners have them")
        if self._pipeline is None or self._pipeline.engine is not self._engine:
            self._in_flight.clear()
            self._pipeline = CompletionPipeline(
                self._engine,
                self._score,
                own_threads=self.num_workers > 0,
                cpu_threads=self.config.engine_cpu_threads,
                scorers=SCORERS,
            )
        return self._pipeline

    def _begin(self, pipeline: CompletionPipeline, job: SamplingJob) -> list[Group]:
        """Pose the problems of a job; returns failed groups for those that cannot be posed."""
        failed, requests = [], []
        for ref in job.refs:
            try:
                prompt = self._episodes.pose(ref)
            except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
                failed.append(failed_group(ref, error, self._weights_version))
                continue
            self._requests += 1
            request_id = str(self._requests)
            self._in_flight[request_id] = (ref, prompt)
            requests.append((request_id, prompt.token_ids.tolist(), completion_seed(job, ref)))

        def submit(engine: InferenceEngine) -> None:
            if job.weights_version not in (None, engine.weights_version):
                raise EngineError(
                    f"asked to sample with weights of version {job.weights_version}, but has "
                    f"version {engine.weights_version}"
                )
            for request_id, token_ids, seed in requests:
                engine.submit(request_id, token_ids, job.group_size, job.sampling, seed=seed)

        pipeline.between_steps(submit)
        return failed

    def _score(self, request: FinishedRequest) -> Group | None:
        known = self._in_flight.get(request.request_id)
        if known is None:  # the problem was withdrawn
            return None
        return self._episodes.group(*known, request.completions, self._weights_version)

    def _ready(self, answered: list[FinishedGroup]) -> list[Group]:
        """Take finished groups out of the problems in flight; withdrawn ones are left out."""
        return [group for request_id, group in answered if self._in_flight.pop(request_id, None)]

    def _environment(self, ref: ProblemRef) -> Any:
        return self._evaluation_env if ref.evaluation else self.env

    def _another_environment(self, ref: ProblemRef) -> Any:
        return self._make_env(evaluation=ref.evaluation)

    def _make_env(self, *, evaluation: bool) -> Any:
        return make_env_of(self._evaluation if evaluation else self.config)

    @property
    def _weights_version(self) -> int:
        return self._engine.weights_version if self._engine is not None else 0

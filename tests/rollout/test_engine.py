"""The real vLLM engine against the same model in transformers and in the learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference_model import EOS, answer_logprobs, embedded_model, fresh_embedded_model

from rllib_dapo.data.stops import Stops
from rllib_dapo.errors import EngineError
from rllib_dapo.model.facts import load_tokenizer, model_path
from rllib_dapo.rollout.engine.base import SampledCompletion, Sampling

pytestmark = pytest.mark.timeout(180)

EXACT = 1e-4  # nats; float32 on both sides
TEXTS = ["12+35-7=?\n", "1+1=?\n", "99-8+41=?\n"]


@pytest.fixture
def engine(session_runner, initial_weights) -> Any:
    """The engine of the shared runner, with the initial weights."""
    engine = session_runner._engine
    engine.abort_all()
    engine.load_weights(initial_weights, 0)
    return engine


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(model_path("embedded"), trust_remote_code=False)
    return [tokenizer.encode(text) for text in TEXTS]


def sample(
    engine: Any,
    prompts: list[list[int]],
    *,
    seed: int = 1,
    n: int = 4,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 64,
) -> list[tuple[SampledCompletion, ...]]:
    """The answers to each prompt."""
    for i, prompt in enumerate(prompts):
        sampling = Sampling(temperature, top_p, max_tokens)
        engine.submit(str(i), prompt, n, sampling, seed=1_000 * seed + 100 * i)
    answers = {}
    while engine.num_in_flight:
        answers |= {request.request_id: request.completions for request in engine.step()}
    return [answers[str(i)] for i in range(len(prompts))]


def gap(
    model: Any,
    prompts: list[list[int]],
    sampled: list[tuple[SampledCompletion, ...]],
    **distribution,
) -> float:
    """The largest difference between the engine's log-probabilities and a model's."""
    return max(
        np.abs(answer_logprobs(model, prompt, a.token_ids, **distribution) - a.logprobs).max()
        for prompt, answers in zip(prompts, sampled, strict=True)
        for a in answers
    )


def ids(sampled: list[tuple[SampledCompletion, ...]]) -> list[list[int]]:
    return [a.token_ids.tolist() for answers in sampled for a in answers]


def state_of(model: Any) -> dict[str, Any]:
    return {f"causal_lm.{k}": v.detach().numpy() for k, v in model.state_dict().items()}


def perturb(model: Any, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


# -- Parity -------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.4])
def test_logprobs_are_those_of_the_model_at_the_sampling_temperature(engine, prompts, temperature):
    sampled = sample(engine, prompts, temperature=temperature)
    assert gap(embedded_model(), prompts, sampled, temperature=temperature) < EXACT
    other = gap(embedded_model(), prompts, sampled, temperature=temperature + 0.3)
    assert other > 100 * EXACT


def test_logprobs_below_top_p_1_are_those_of_the_nucleus(engine, prompts):
    sampled = sample(engine, prompts, n=8, temperature=1.3, top_p=0.6)
    assert gap(embedded_model(), prompts, sampled, temperature=1.3, top_p=0.6) < EXACT
    assert gap(embedded_model(), prompts, sampled, temperature=1.3) > 100 * EXACT


def test_prompt_logprobs_are_those_of_the_model(engine, prompts):
    text = [*prompts[0], *sample(engine, prompts[:1], n=1)[0][0].token_ids.tolist()]
    expected = answer_logprobs(embedded_model(), text[:1], text[1:])
    np.testing.assert_allclose(engine.prompt_logprobs(text), expected, atol=EXACT)


def test_after_each_of_many_syncs_the_engine_has_the_models_weights(engine, prompts):
    """Tied embeddings are among them: the same tensor is the engine's lm_head too."""
    model = fresh_embedded_model()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for version in range(1, 21):
        perturb(model, 2e-3, seed=version)
        engine.load_weights(state_of(model), version)
        assert engine.weights_version == version
        if version in (1, 20):
            sampled = sample(engine, prompts, seed=version)
            assert gap(model, prompts, sampled) < EXACT
            assert gap(embedded_model(), prompts, sampled) > 100 * EXACT


def test_the_learners_state_is_what_the_engine_takes(engine, prompts):
    """By the names the learner group hands out, and with weights it has trained."""
    from learners import make_learner
    from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

    learner = make_learner("embedded", packing=False)  # `gap` calls the model with plain rows
    model = learner.module[DEFAULT_MODULE_ID].causal_lm
    perturb(model, 5e-3, seed=7)
    state = learner.get_state(components=COMPONENT_RL_MODULE, inference_only=True)
    engine.load_weights(state[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID], 3)
    assert gap(model, prompts, sample(engine, prompts)) < EXACT


def test_older_weights_are_accepted_too(engine, prompts, initial_weights):
    model = fresh_embedded_model()
    perturb(model, 5e-3, seed=1)
    engine.load_weights(state_of(model), 9)
    engine.load_weights(initial_weights, 4)
    assert engine.weights_version == 4
    assert gap(embedded_model(), prompts, sample(engine, prompts)) < EXACT


def test_new_weights_forget_prefixes_computed_with_the_old_ones(engine, initial_weights):
    """A prompt of more than one block of the cache, seen before the weights change."""
    cache = engine._llm.llm_engine.vllm_config.cache_config
    assert cache.enable_prefix_caching
    long = [engine._llm.get_tokenizer().encode("12+34-5+67-8+90-" * 10 + "1=?\n")]
    assert len(long[0]) > cache.block_size
    sample(engine, long)
    model = fresh_embedded_model()
    perturb(model, 1e-2, seed=2)
    engine.load_weights(state_of(model), 1)
    assert gap(model, long, sample(engine, long)) < EXACT


# -- Weights that do not fit --------------------------------------------------------------


def refuses_to_sample(engine: Any, prompts: list[list[int]]) -> None:
    with pytest.raises(EngineError, match="weights are a mixture"):
        engine.submit("x", prompts[0], 1, Sampling(1.0, 1.0, 4), seed=0)


def unfit(weights: dict[str, Any], how: str) -> dict[str, Any]:
    changed = dict(weights)
    if how == "shape":
        changed["causal_lm.model.norm.weight"] = np.ones(7, np.float32)
    elif how == "unknown name":
        changed["causal_lm.model.layers.0.no_such.weight"] = np.ones(7, np.float32)
    elif how == "no lm_head":  # tied: the engine would keep its old one
        del changed["causal_lm.lm_head.weight"]
    else:
        del changed["causal_lm.model.layers.2.self_attn.q_proj.weight"]
    return changed


@pytest.mark.parametrize("how", ["shape", "unknown name", "no lm_head", "no q_proj"])
def test_weights_that_do_not_fit_are_an_error_until_complete_ones_arrive(
    engine, prompts, initial_weights, how
):
    with pytest.raises(EngineError, match="version 5 do not fit"):
        engine.load_weights(unfit(initial_weights, how), 5)
    refuses_to_sample(engine, prompts)
    engine.load_weights(initial_weights, 6)
    assert engine.weights_version == 6
    assert gap(embedded_model(), prompts, sample(engine, prompts)) < EXACT


@pytest.mark.parametrize("how", ["shape", "unknown name"])
def test_an_engine_recovers_from_an_update_that_failed_half_way(
    engine, prompts, initial_weights, how, monkeypatch
):
    """As the first set, which nothing is compared with, would."""
    monkeypatch.setattr(engine.weights, "_shapes", None)
    with pytest.raises(EngineError, match="version 5 do not fit"):
        engine.load_weights(unfit(initial_weights, how), 5)
    refuses_to_sample(engine, prompts)
    engine.load_weights(initial_weights, 6)
    assert gap(embedded_model(), prompts, sample(engine, prompts)) < EXACT


def test_without_the_tied_lm_head_parity_is_lost(engine, prompts, initial_weights, monkeypatch):
    """What the parity tests are for: a sync by `named_parameters` leaves the head behind."""
    model = fresh_embedded_model()
    perturb(model, 1e-2, seed=3)
    monkeypatch.setattr(engine.weights, "_shapes", None)
    engine.load_weights(unfit(state_of(model), "no lm_head"), 5)
    assert gap(model, prompts, sample(engine, prompts)) > 100 * EXACT


@pytest.mark.parametrize("changes", [1, 3])
def test_running_answers_go_on_with_new_weights_and_each_token_knows_its_own(
    engine, prompts, initial_weights, changes
):
    """Cut at each change, every stretch has the log-probabilities of the weights it names."""
    models = [embedded_model()]
    for i, prompt in enumerate(prompts):
        engine.submit(str(i), prompt, 4, Sampling(1.0, 1.0, 64), seed=1_000 * i)
    finished = {}
    for version in range(1, changes + 1):
        for _ in range(5):
            finished |= {request.request_id: request.completions for request in engine.step()}
        model = fresh_embedded_model()
        perturb(model, 1e-2, seed=version)
        models.append(model)
        engine.load_weights(state_of(model), version)
    while engine.num_in_flight:
        finished |= {request.request_id: request.completions for request in engine.step()}
    stretches = 0
    for i, prompt in enumerate(prompts):
        for answer in finished[str(i)]:
            ends = [*(start for start, _ in answer.versions[1:]), len(answer.token_ids)]
            for (start, version), end in zip(answer.versions, ends, strict=True):
                expected = answer_logprobs(models[version], prompt, answer.token_ids)
                np.testing.assert_allclose(
                    answer.logprobs[start:end], expected[start:end], atol=EXACT
                )
                stretches += 1
    assert stretches > len(prompts) * 4 * changes / 2  # answers really were cut
    engine.load_weights(initial_weights, 0)


def test_a_withdrawn_request_leaves_the_others_alone(engine, prompts):
    alone = sample(engine, prompts[1:2], seed=0)
    for i, prompt in enumerate(prompts[:2]):
        engine.submit(str(i), prompt, 4, Sampling(1.0, 1.0, 64), seed=0)
    engine.step()
    engine.abort(["0", "unknown"])
    assert engine.num_in_flight == 1
    finished = []
    while engine.num_in_flight:
        finished += engine.step()
    assert [request.request_id for request in finished] == ["1"]
    assert ids([finished[0].completions]) == ids(alone)


# -- Sampling -----------------------------------------------------------------------------


def test_the_same_seed_samples_the_same_answers_and_another_seed_others(engine, prompts):
    first, again, other = (ids(sample(engine, prompts, seed=seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert len({tuple(answer) for answer in first}) > len(first) // 2  # answers of a group differ


def test_greedy_answers_are_the_most_probable_tokens(engine, prompts):
    (answers,) = sample(engine, prompts[:1], n=1, temperature=0.0)
    text = torch.tensor([[*prompts[0], *answers[0].token_ids.tolist()]])
    logits = embedded_model()(input_ids=text).logits[0, len(prompts[0]) - 1 : -1]
    assert logits.argmax(-1).tolist() == answers[0].token_ids.tolist()


def test_an_answer_that_ends_itself_keeps_its_eos_and_has_one_logprob_a_token(engine, prompts):
    answers = [a for group in sample(engine, prompts, n=8) for a in group]
    ended = [a for a in answers if a.finish_reason == "stop"]
    assert ended
    for answer in ended:
        assert answer.token_ids[-1] == EOS
        assert EOS not in answer.token_ids[:-1]
        assert answer.logprobs.shape == answer.token_ids.shape
        assert (answer.logprobs <= 0).all()


@pytest.mark.parametrize("strings", [["1"], ["=", "+"], ["-", "23", "3"]])
def test_a_stop_string_ends_an_answer_with_the_token_that_completes_it(
    engine, prompts, strings, monkeypatch
):
    """The ids and log-probabilities up to there are those of the same answers without stops."""
    tokenizer = load_tokenizer(model_path("embedded"), trust_remote_code=False)
    free = [a for group in sample(engine, prompts, n=8) for a in group]
    monkeypatch.setattr(engine, "_stop", strings)
    stopped = [a for group in sample(engine, prompts, n=8) for a in group]
    ended = 0
    for whole, answer in zip(free, stopped, strict=True):
        texts = [
            tokenizer.decode(whole.token_ids[:n], skip_special_tokens=True)
            for n in range(len(whole.token_ids) + 1)
        ]
        hits = [n for n, text in enumerate(texts) if any(s in text for s in strings)]
        length = hits[0] if hits else len(whole.token_ids)
        assert answer.token_ids.tolist() == whole.token_ids[:length].tolist()
        np.testing.assert_allclose(answer.logprobs, whole.logprobs[:length], atol=EXACT)
        assert answer.finish_reason == ("stop" if hits else whole.finish_reason)
        ended += bool(hits)
        text = Stops((EOS,), tuple(strings)).text(tokenizer, answer.token_ids)
        assert not any(s in text for s in strings)
        assert texts[length].startswith(text)
    assert ended


def test_a_stop_id_ends_an_answer_and_stays_in_it(engine, prompts, monkeypatch):
    free = [a for group in sample(engine, prompts, n=8) for a in group]
    stop = int(free[0].token_ids[len(free[0].token_ids) // 2])
    monkeypatch.setattr(engine, "_stop_token_ids", [EOS, stop])
    stopped = [a for group in sample(engine, prompts, n=8) for a in group]
    assert any(a.token_ids[-1] == stop for a in stopped)
    for whole, answer in zip(free, stopped, strict=True):
        hits = np.flatnonzero(whole.token_ids == stop)
        length = hits[0] + 1 if len(hits) else len(whole.token_ids)
        assert answer.token_ids.tolist() == whole.token_ids[:length].tolist()
        np.testing.assert_allclose(answer.logprobs, whole.logprobs[:length], atol=EXACT)
        assert answer.finish_reason == ("stop" if len(hits) else whole.finish_reason)


def test_an_answer_cut_at_the_limit_says_so(engine, prompts):
    for answer in (a for group in sample(engine, prompts, max_tokens=2) for a in group):
        cut = EOS not in answer.token_ids
        assert answer.finish_reason == ("length" if cut else "stop")
        assert len(answer.token_ids) == 2 or not cut
    answers = [a for group in sample(engine, prompts, max_tokens=2) for a in group]
    assert any(a.finish_reason == "length" for a in answers)


def test_generation_config_of_the_model_folder_has_no_say(engine):
    """Only the requests' own parameters count; the folder's would be the default ones."""
    assert engine._llm.llm_engine.model_config.generation_config == "vllm"
    defaults = engine._llm.get_default_sampling_params()
    assert (defaults.top_k, defaults.top_p, defaults.temperature) == (0, 1.0, 1.0)
    assert (defaults.repetition_penalty, defaults.min_p) == (1.0, 0.0)

"""The options of the objective and of memory, through a whole update of the learner."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learners import gradient, make_learner, parameters, update
from ray.rllib.core import DEFAULT_MODULE_ID
from reference_model import LENGTHS, answer_logprobs, batch_of, random_rows
from strategies import rows_of
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def noisy(policy) -> Any:
    """Sampled by an engine whose log-probabilities are off by 0.3 on average."""
    return batch_of(policy, random_rows(LENGTHS), noise=0.4)


def exact_logprobs(policy: Any, batch: Any) -> np.ndarray[Any, Any]:
    """What the learner must find, end to end."""
    return np.concatenate(
        [answer_logprobs(policy, p, a) for p, a, *_ in rows_of(batch) if a]
    ).astype(np.float32)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return float((a - b).abs().max()) <= tolerance * float(b.abs().max())


# -- Who sampled ----------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [10_000, 20])
def test_old_logprobs_of_the_learner_make_every_ratio_one(tiny_model, policy, noisy, budget):
    learner = make_learner(
        tiny_model, lr=0.0, old_logprobs="learner", max_tokens_per_microbatch=budget
    )
    fresh = replace(noisy, weights_versions=np.zeros(len(noisy.old_logprobs), np.int64))
    report = update(learner, fresh)
    assert report["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert report["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    gaps = np.abs(exact_logprobs(policy, noisy) - noisy.old_logprobs)
    assert report["engine_gap_mean"] == pytest.approx(gaps.mean(), abs=1e-5)
    assert report["engine_gap_max"] == pytest.approx(gaps.max(), abs=1e-5)
    assert report["engine_gap_p99"] == pytest.approx(
        np.quantile(gaps, 0.99, method="higher"), rel=0.05
    )


def test_old_logprobs_stay_those_before_the_first_step(tiny_model, noisy):
    """With several steps a batch the ratio leaves 1 after the first."""
    learner = make_learner(tiny_model, lr=0.01, old_logprobs="learner")
    assert abs(update(learner, noisy, epochs=3)["ratio_mean"] - 1.0) > 1e-3


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_importance_sampling_weighs_the_gradient(tiny_model, policy, noisy, level):
    """The gradient is that of tokens weighed by min(learner / engine, cap), written out."""
    cap = 1.2
    new = exact_logprobs(policy, noisy)
    log_ratio = (new - noisy.old_logprobs).astype(np.float64)
    owner = np.repeat(np.arange(len(noisy)), noisy.completion_lengths)
    if level == "sequence":
        log_ratio = np.bincount(owner, log_ratio, minlength=len(noisy))[owner]
    weights = np.minimum(np.exp(log_ratio), cap)

    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    place, objective = 0, 0.0
    for prompt, completion, _, advantage, *_ in rows_of(noisy):
        if not completion:
            continue
        ids = torch.tensor([[*prompt, *completion]])
        table = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        for t, token in enumerate(completion):
            # At a ratio of 1 the gradient of the objective is A times that of log pi.
            objective = objective + weights[place + t] * advantage * table[t, token]
        place += len(completion)
    (-objective / place).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])

    settings = {"old_logprobs": "learner", "importance_sampling": level, "importance_cap": cap}
    learner = make_learner(tiny_model, lr=0.0, **settings)
    assert close(gradient(learner, noisy), expected, 1e-4)
    report = update(learner, noisy)
    truncated = np.exp(log_ratio) > cap
    assert 0 < truncated.mean() < 1
    assert report["importance_truncated_share"] == pytest.approx(truncated.mean())


def test_extreme_ratios_leave_numerator_and_denominator(tiny_model, policy, noisy):
    """As if these tokens carried no loss: the same gradient as with the others alone."""
    limit = 1.3
    ratio = np.exp(exact_logprobs(policy, noisy) - noisy.old_logprobs)
    outside = (ratio > limit) | (ratio < 1 / limit)
    settings = {"old_logprobs": "learner", "importance_mask_above": limit}
    learner = make_learner(tiny_model, lr=0.0, **settings)
    got = gradient(learner, noisy)
    report = update(learner, noisy)
    assert 0 < outside.mean() < 1
    assert report["importance_masked_share"] == pytest.approx(outside.mean())
    assert report["masked_token_share"] == pytest.approx(outside.mean())
    assert report["tokens_trained"] == (~outside).sum()

    unmasked = make_learner(tiny_model, lr=0.0, old_logprobs="learner")
    prepare = unmasked._prepare
    weights = np.where(outside, 0.0, 1.0).astype(np.float32)
    unmasked._prepare = lambda batch: replace(prepare(batch), importance_weights=weights)
    assert close(got, gradient(unmasked, noisy))
    assert not close(got, gradient(make_learner(tiny_model, lr=0.0), noisy), 1e-2)


def test_a_token_that_the_engine_could_not_have_sampled_is_masked_first(tiny_model, noisy):
    poisoned = replace(noisy, old_logprobs=noisy.old_logprobs.copy())
    poisoned.old_logprobs[2] = -math.inf
    settings = {"old_logprobs": "learner", "importance_sampling": "sequence"}
    report = update(make_learner(tiny_model, **settings), poisoned)
    assert all(math.isfinite(value) for value in report.values())
    assert report["tokens_trained"] == sum(LENGTHS) - LENGTHS[0]


# -- The reference policy --------------------------------------------------------------------


@pytest.mark.parametrize("lora", [{}, {"lora_rank": 4}], ids=["all weights", "lora"])
def test_the_kl_penalty_holds_the_policy_near_the_untrained_model(tiny_model, batch, lora):
    reports = {}
    for coefficient in (1e-9, 1.0):
        learner = make_learner(tiny_model, lr=2e-3, kl_coeff=coefficient, **lora)
        reports[coefficient] = [update(learner, batch)["reference_kl"] for _ in range(8)]
    free, held = (np.array(kl) for kl in reports.values())
    assert free[0] == held[0] == pytest.approx(0.0, abs=1e-8)  # before the first step
    assert free[-1] > free[1] > 0.0
    assert held[-1] < 0.5 * free[-1]


def test_the_reference_stays_the_untrained_model(tiny_model, policy, batch):
    learner = make_learner(tiny_model, lr=0.02, kl_coeff=0.1)
    for _ in range(3):
        update(learner, batch)
    found = learner._logprobs(batch, learner._reference.forward)
    assert found == pytest.approx(exact_logprobs(policy, batch), abs=1e-4)
    own = learner._logprobs(batch, learner.module[DEFAULT_MODULE_ID].forward_train)
    assert np.abs(own - found).max() > 1e-2


# -- The sequence ratio ------------------------------------------------------------------------


def test_one_ratio_for_a_sequence_clips_it_as_a_whole(tiny_model, batch):
    """GSPO's clip range is far narrower: with DAPO's nothing of these is clipped."""
    wide = update(make_learner(tiny_model, lr=0.0, ratio_level="sequence"), batch)
    token = update(make_learner(tiny_model, lr=0.0), batch)
    narrow = {"ratio_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}
    tight = update(make_learner(tiny_model, lr=0.0, **narrow), batch)
    share = {
        name: report["clip_share_low"] + report["clip_share_high"]
        for name, report in (("wide", wide), ("token", token), ("tight", tight))
    }
    assert share["wide"] < share["token"] < share["tight"]


# -- Memory and precision ----------------------------------------------------------------------


def test_gradient_checkpointing_does_not_change_the_gradient(tiny_model, batch):
    plain = gradient(make_learner(tiny_model, lr=0.0), batch)
    again = gradient(make_learner(tiny_model, lr=0.0, gradient_checkpointing=True), batch)
    assert close(again, plain)


def test_bfloat16_computes_nearly_the_same_on_float32_weights(tiny_model, batch):
    learner = make_learner(tiny_model, lr=1e-3, compute_dtype="bfloat16")
    before = parameters(learner).clone()
    half = gradient(learner, batch)
    assert parameters(learner).dtype == half.dtype == torch.float32
    assert not torch.equal(parameters(learner), before)
    full = gradient(make_learner(tiny_model, lr=0.0), batch)
    assert not close(half, full, 1e-4)
    cosine = torch.nn.functional.cosine_similarity(half, full, dim=0)
    assert cosine > 0.98


# -- LoRA ------------------------------------------------------------------------------------


def test_lora_trains_adapters_only_and_gives_the_engine_merged_weights(tiny_model, batch):
    learner = make_learner(tiny_model, lr=0.01, lora_rank=4)
    module = learner.module[DEFAULT_MODULE_ID]
    frozen = {n: p.clone() for n, p in module.named_parameters() if not p.requires_grad}
    assert frozen
    first = update(learner, batch)["loss"]
    for _ in range(5):
        last = update(learner, batch)["loss"]
    assert last < first
    assert all(torch.equal(dict(module.named_parameters())[n], p) for n, p in frozen.items())

    merged = module.get_state(inference_only=True)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    tensors = {n.removeprefix("causal_lm."): torch.tensor(v) for n, v in merged.items()}
    assert set(tensors) == set(plain.state_dict())
    plain.load_state_dict(tensors)
    found = learner._logprobs(batch, module.forward_train)
    assert found == pytest.approx(exact_logprobs(plain, batch), abs=1e-4)


def test_a_restored_lora_learner_goes_on_exactly_where_it_was(tiny_model, batch):
    whole, first, second = (make_learner(tiny_model, lora_rank=4) for _ in range(3))
    for _ in range(4):
        update(whole, batch, steps=2)
    for _ in range(2):
        update(first, batch, steps=2)
    second.set_state(first.get_state())
    for _ in range(2):
        update(second, batch, steps=2)
    assert torch.equal(parameters(second), parameters(whole))
    assert not torch.equal(parameters(second), parameters(first))
    state = first.get_state()["rl_module"][DEFAULT_MODULE_ID]
    assert all("lora_" in name for name in state)  # the base is in the model's own folder


# -- State -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [{}, {"lora_rank": 4}], ids=["all weights", "lora"])
@pytest.mark.parametrize("inference_only", [True, False])
def test_a_state_is_a_snapshot_that_training_does_not_change(
    tiny_model, batch, lora, inference_only
):
    learner = make_learner(tiny_model, lr=0.01, **lora)
    update(learner, batch)
    module = learner.module[DEFAULT_MODULE_ID]
    state = module.get_state(inference_only=inference_only)
    before = {name: array.copy() for name, array in state.items()}
    update(learner, batch)
    assert all(np.array_equal(state[name], before[name]) for name in state)
    after = module.get_state(inference_only=inference_only)
    assert any(not np.array_equal(state[name], after[name]) for name in state)


# -- Inspection --------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", [True, False])
def test_forward_gives_the_logits_after_each_row(tiny_model, policy, packing):
    module = make_learner(tiny_model, packing=packing).module[DEFAULT_MODULE_ID]
    rows = [[3, 4, 5, 6], [7, 8]]
    batch = {
        "input_ids": torch.tensor([rows[0], [*rows[1], 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    }
    with torch.no_grad():
        got = module.forward_inference(batch)["action_dist_inputs"]
        expected = [policy(input_ids=torch.tensor([row])).logits[0, -1] for row in rows]
    torch.testing.assert_close(got, torch.stack(expected), rtol=0, atol=1e-5)

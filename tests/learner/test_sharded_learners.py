"""Two learners with half of the model each train, save and restore as one does."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripted_engine
from learner_groups import NAMES, TOLERANCE, Reference, learner_group, scenarios
from learners import learner_config, report_of
from ray import cloudpickle
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from reference_model import batch_of, random_rows
from scripted_engine import mixed, scripted_runner

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.learner.batch_io import to_multi_agent_batch
from rllib_dapo.model.batching import concatenate, split_for_ranks
from rllib_dapo.types import TokenBatch

# Collectives wait half an hour for a partner that does not come.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# So small a budget that learners have unequal numbers of micro-batches.
SHARDED = {"shard_model": True, "max_tokens_per_microbatch": 24}


def weights_of(group: Any) -> dict[str, np.ndarray[Any, Any]]:
    """As the engines and checkpoints get them."""
    state = group.get_state(
        components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True
    )
    return state[COMPONENT_LEARNER][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]


def assert_same(got: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert type(got[name]) is np.ndarray
        np.testing.assert_allclose(got[name], array, rtol=0, atol=tolerance, err_msg=name)


def train(group: Any, shares: list[TokenBatch], steps: int = 1) -> dict[str, float]:
    """One update of any group."""
    data: dict[str, Any] = {"batches": [to_multi_agent_batch(share) for share in shares]}
    if group.is_local:
        data = {"batch": to_multi_agent_batch(concatenate(shares))}
    elif len(group) == 1:
        data = {"batches": [to_multi_agent_batch(concatenate(shares))]}
    results = group.update(**data, num_total_minibatches=steps, num_epochs=1)
    return report_of(results[0])


@pytest.fixture(scope="module")
def later(policy) -> list[list[TokenBatch]]:
    """Batches for after a checkpoint; one optimizer step each, so any number may share them."""
    return [
        split_for_ranks(batch_of(policy, random_rows([5, 2, 7, 1], seed=seed)), 2)
        for seed in (20, 21, 22)
    ]


@pytest.fixture(scope="module")
def history(ray_session, tiny_model, policy, later, tmp_path_factory) -> dict[str, Any]:
    """All that is asked of one pair of learners, in the order of its life."""
    reference, seen = Reference(tiny_model), {}
    pair = learner_group(tiny_model, 2, **SHARDED)
    try:
        seen["start"] = weights_of(pair)
        for name, (shares, steps) in scenarios(policy).items():
            expected_report = reference.update(shares, steps)
            report = train(pair, shares, steps)
            seen[name] = (weights_of(pair), weights_of(reference.group), report, expected_report)
        seen["skipped"] = skipped_update(pair, policy)
        seen["path"] = pair.save_to_path(str(tmp_path_factory.mktemp("sharded") / "group"))
        seen["state"] = pair.get_state()
        seen["ranks"] = slices_of(pair)
        for shares in later:
            train(pair, shares)
        seen["went_on"] = weights_of(pair)
        pair.restore_from_path(seen["path"])
        seen["restored"] = weights_of(pair)
        for shares in later:
            train(pair, shares)
        seen["restored_went_on"] = weights_of(pair)
        # And what one learner has after the first of these batches, in two.
        one = learner_group(tiny_model, 0)
        one.restore_from_path(seen["path"])
        train(one, later[0])
        pair.restore_from_path(one.save_to_path(str(tmp_path_factory.mktemp("one") / "group")))
        for shares in later[1:]:
            train(pair, shares)
            train(one, shares)
        seen["from_one"], seen["one"] = weights_of(pair), weights_of(one)
        # The same by `set_state`; RLlib would pass over weights of a smaller number.
        state = dict(seen["state"][COMPONENT_LEARNER], weights_seq_no=0)
        pair.set_state({COMPONENT_LEARNER: state})
        seen["set"] = pair.get_state()
        with pytest.raises(TrainingError, match=r"model\.norm\.weight"):
            pair.set_state({COMPONENT_LEARNER: {COMPONENT_RL_MODULE: {DEFAULT_MODULE_ID: {
                name: value for name, value in seen["start"].items() if "model.norm" not in name
            }}}})  # fmt: skip
    finally:
        pair.shutdown()
    return seen


def slices_of(group: Any) -> list[dict[str, Any]]:
    """Numbers of elements in each learner, and its classes."""

    def slices(learner: Any) -> dict[str, Any]:  # inner, so that it travels by value
        params = list(learner._params.values())
        module = learner.module["default_policy"]
        model = module.causal_lm
        return {
            "own": sum(p.to_local().numel() for p in params),
            "all": sum(p.numel() for p in params),
            "class": type(module).__name__,
            "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        }

    return [result.get() for result in group.foreach_learner(slices)]


def skipped_update(pair: Any, policy: Any) -> dict[str, Any]:
    """One learner has completions whose loss is not finite."""
    before = weights_of(pair)
    shares = split_for_ranks(batch_of(policy, random_rows([4, 4, 4, 4])), 2)
    advantages = np.full(len(shares[1]), np.inf, np.float32)
    report = train(pair, [shares[0], replace(shares[1], advantages=advantages)])
    return {"before": before, "after": weights_of(pair), "report": report}


# -- Training -------------------------------------------------------------------------------


def test_each_learner_has_half_and_the_state_all_of_the_model(history, policy):
    for rank in history["ranks"]:
        assert rank["all"] * 0.45 < rank["own"] < rank["all"] * 0.55
        assert rank["class"] == "DAPOTorchRLModule"
        assert rank["tied"]
    loaded = {f"causal_lm.{name}": t.numpy() for name, t in policy.state_dict().items()}
    assert_same(history["start"], loaded, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_two_shards_have_the_weights_of_one_learner(history, name):
    got, expected, _, _ = history[name]
    assert_same(got, expected, TOLERANCE)


def test_the_weights_really_move(history):
    key = "causal_lm.model.embed_tokens.weight"
    moved = [
        history[a][1][key] - history[b][1][key] for a, b in zip(NAMES[1:], NAMES, strict=False)
    ]
    assert all(np.abs(m).max() > 20 * TOLERANCE for m in moved)


@pytest.mark.parametrize("name", NAMES)
def test_two_shards_report_what_one_learner_reports(history, name):
    """The gradient's norm among it: half of it if the gradients were averaged."""
    _, _, got, expected = history[name]
    for key in set(expected) - {"tokens_per_s"}:
        assert got[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key


def test_the_gradient_was_clipped(history):
    """To a norm of 1; where all tokens are beyond the clip range there is none."""
    assert sum(history[name][3]["grad_norm"] > 1.5 for name in NAMES) >= 5


def test_a_step_that_one_learner_must_skip_is_skipped_by_both(history):
    skipped = history["skipped"]
    assert skipped["report"]["updates_skipped"] == 1
    assert_same(skipped["after"], skipped["before"], 0.0)


# -- States ---------------------------------------------------------------------------------


def test_the_state_is_that_of_a_learner_without_shards(history, tiny_model, later):
    one = learner_group(tiny_model, 0)
    train(one, later[0])
    own, got = one.get_state()[COMPONENT_LEARNER], history["state"][COMPONENT_LEARNER]
    assert set(got) == set(own)
    (own_adam,), (adam,) = (list(s["optimizer"].values()) for s in (own, got))
    assert adam["module_id"] == own_adam["module_id"]
    assert list(adam["state"]["state"]) == list(own_adam["state"]["state"])
    for number, values in own_adam["state"]["state"].items():
        for key, value in values.items():
            found = adam["state"]["state"][number][key]
            assert type(found) is type(value)
            assert np.shape(found) == np.shape(value)
    assert set(adam["state"]["param_groups"][0]) == set(own_adam["state"]["param_groups"][0])


def test_two_shards_restored_go_on_exactly_where_they_were(history):
    assert_same(history["restored"], history["skipped"]["after"], 0.0)
    assert_same(history["restored_went_on"], history["went_on"], 0.0)


@pytest.mark.parametrize("number", [0, 2])
def test_a_checkpoint_of_two_shards_goes_on_without_shards(history, tiny_model, later, number):
    group = learner_group(tiny_model, number)
    try:
        group.restore_from_path(history["path"])
        assert_same(weights_of(group), history["restored"], 0.0)
        for shares in later:
            train(group, shares)
        assert_same(weights_of(group), history["went_on"], TOLERANCE)
    finally:
        group.shutdown()


def test_a_state_of_one_learner_goes_on_in_two_shards(history):
    assert_same(history["from_one"], history["one"], TOLERANCE)
    assert_same(history["one"], history["went_on"], TOLERANCE)


def test_a_whole_state_given_to_shards_comes_back(history):
    got, expected = (history[key][COMPONENT_LEARNER] for key in ("set", "state"))
    assert_same(
        got[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID],
        expected[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID],
        0.0,
    )
    ((got,), (expected,)) = (list(s["optimizer"].values()) for s in (got, expected))
    for number, values in expected["state"]["state"].items():
        for key, value in values.items():
            np.testing.assert_array_equal(got["state"]["state"][number][key], value)


def test_the_checkpoint_is_written_once_and_has_whole_weights(history):
    path = Path(history["path"])
    written = sorted(str(f.relative_to(path)) for f in path.rglob("*state*"))
    module = "learner/rl_module/default_policy/module_state.pkl"
    assert written == [
        module,
        "learner/rl_module/module_state.pkl",
        "learner/state.pkl",
        "state.pkl",
    ]
    group, weights = (
        pickle.loads((path / name).read_bytes())  # noqa: S301 - written a moment ago
        for name in ("state.pkl", module)
    )
    assert group == {}
    assert_same(weights, history["restored"], 0.0)


# -- The whole algorithm --------------------------------------------------------------------


def test_an_algorithm_with_shards_goes_on_in_one_learner(ray_session, tiny_model, tmp_path):
    small = {
        "model": str(tiny_model), "group_size": 4, "groups_per_batch": 4, "minibatch_size": 16,
        "warmup_iterations": 0, "progress": "off", **scripted_engine.NO_MODEL,
    }  # fmt: skip

    # The learners' processes cannot import what lies beside the tests.
    cloudpickle.register_pickle_by_value(scripted_engine)

    def build(**settings: Any) -> Any:
        config = learner_config(tiny_model).env_runners(env_runner_cls=scripted_runner(mixed))
        return config.update_from_dict({**small, **settings}).build_algo()

    first = build(num_learners=2, **SHARDED)
    try:
        first.train()
        first.save_to_path(str(tmp_path / "run"))
        first.train()
        expected = weights_of(first.learner_group)
    finally:
        first.stop()
    second = build()
    second.restore_from_path(str(tmp_path / "run"))
    assert second.iteration == 1
    restored = weights_of(second.learner_group)
    second.train()
    assert_same(weights_of(second.learner_group), expected, TOLERANCE)
    key = "causal_lm.model.norm.weight"
    assert np.abs(expected[key] - restored[key]).max() > 20 * TOLERANCE
    second.stop()


@pytest.mark.parametrize("number", [0, 1])
def test_one_learner_alone_is_refused_for_shards(tiny_model, number):
    config = learner_config(tiny_model, shard_model=True).learners(num_learners=number)
    with pytest.raises(SettingError, match="set `num_learners` to 2"):
        config.validate()


# -- With everything else on ------------------------------------------------------------------

EVERYTHING = {
    "lora_rank": 4,
    "kl_coeff": 0.1,
    "old_logprobs": "learner",
    "importance_sampling": "token",
    "gradient_checkpointing": True,
    "loss_aggregation": "group_token_mean",
}


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "all weights"])
def test_adapters_reference_and_importance_weights_work_in_shards(
    ray_session, tiny_model, policy, lora
):
    """The reference policy is the adapted model without adapters, or a second sharded one."""
    settings = EVERYTHING if lora else {**EVERYTHING, "lora_rank": None}
    reference = Reference(tiny_model, **settings)
    pair = learner_group(tiny_model, 2, **SHARDED, **settings)
    try:
        start = weights_of(pair)
        for shares, steps in scenarios(policy).values():
            expected = reference.update(shares, steps)
            got = train(pair, shares, steps)
            for key in ("loss", "grad_norm", "reference_kl", "engine_gap_max"):
                assert got[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key
        assert expected["reference_kl"] > 1e-4
        trained = weights_of(pair)
        assert_same(trained, weights_of(reference.group), TOLERANCE)
        assert any(np.abs(trained[name] - start[name]).max() > 20 * TOLERANCE for name in start)
        whole, gathered = (
            group.get_state()[COMPONENT_LEARNER][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
            for group in (reference.group, pair)
        )
        assert all("lora_" in name for name in gathered) == lora
        assert_same(gathered, whole, TOLERANCE)
    finally:
        pair.shutdown()

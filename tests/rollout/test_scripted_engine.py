"""The scripted engine keeps the engines' contract, against a simulation token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.errors import EngineError, SettingError
from rllib_dapo.rollout.engine.base import InferenceEngine, SampledCompletion, Sampling
from rllib_dapo.rollout.engine.scripted import CompletionLengths, ScriptedEngine, StepTime

EOS = 1
WORDS = range(3, 99)
LENGTHS = CompletionLengths(median=6, sigma=0.8, endless=0.1)
LIMIT = 20


def make_engine(lengths: CompletionLengths = LENGTHS, **settings) -> InferenceEngine:
    return ScriptedEngine(lengths, words=WORDS, eos=EOS, **settings)


def submit(engine: InferenceEngine, name: str, *, n: int = 4, seed: int = 0, limit=LIMIT) -> None:
    engine.submit(name, [5, 6], n, Sampling(1.0, 1.0, limit), seed=seed)


def drain(engine: InferenceEngine) -> dict[str, tuple[SampledCompletion, ...]]:
    finished = {}
    while engine.num_in_flight:
        for request in engine.step():
            assert request.request_id not in finished
            finished[request.request_id] = request.completions
    return finished


def ids(answers: tuple[SampledCompletion, ...]) -> list[list[int]]:
    return [answer.token_ids.tolist() for answer in answers]


def alone(seed: int, n: int) -> tuple[SampledCompletion, ...]:
    engine = make_engine()
    submit(engine, "x", n=n, seed=seed)
    return drain(engine)["x"]


# -- Answers ------------------------------------------------------------------------------


@examples(60)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    capacity=st.integers(1, 9),
    tokens_per_step=st.integers(1, 7),
)
def test_what_runs_beside_an_answer_does_not_change_it(sizes, capacity, tokens_per_step):
    engine = make_engine(capacity=capacity, tokens_per_step=tokens_per_step)
    for i, n in enumerate(sizes):
        submit(engine, str(i), n=n, seed=100 * i)
    finished = drain(engine)
    assert len(finished) == len(sizes)
    for i, n in enumerate(sizes):
        assert ids(finished[str(i)]) == ids(alone(100 * i, n))


def test_answer_i_is_the_first_answer_to_the_seed_plus_i():
    assert ids(alone(seed=40, n=3)) == [ids(alone(40 + i, 1))[0] for i in range(3)]


def test_answers_of_a_group_differ_and_so_do_groups_of_other_seeds():
    answers = [tuple(a) for seed in (0, 50, 100) for a in ids(alone(seed, 16)) if len(a) > 2]
    assert len(answers) > 30
    assert len(set(answers)) == len(answers)


def test_an_answer_ends_with_its_only_eos_or_is_cut_at_the_limit():
    answers = alone(seed=3, n=300)
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}
    for answer in answers:
        *body, last = answer.token_ids.tolist()
        assert EOS not in body
        assert (last == EOS) == (answer.finish_reason == "stop")
        assert len(answer.token_ids) == LIMIT or answer.finish_reason == "stop"
        assert set(body) <= set(WORDS)


def test_each_token_has_the_log_probability_of_a_uniform_draw():
    (answer,) = alone(seed=0, n=1)
    assert answer.logprobs.dtype == np.float32
    np.testing.assert_allclose(answer.logprobs, [-math.log(96)] * len(answer.token_ids), rtol=1e-6)
    np.testing.assert_allclose(
        make_engine().prompt_logprobs([4, 5, 6]), [-math.log(96)] * 2, rtol=1e-6
    )


# -- Lengths ------------------------------------------------------------------------------


@pytest.mark.parametrize("endless", [0.0, 0.2])
def test_lengths_have_the_median_the_spread_and_the_endless_share_that_they_are_told(endless):
    lengths = CompletionLengths(median=2000, sigma=0.8, endless=endless)
    rng = np.random.default_rng(0)
    drawn = np.array([lengths.draw(rng) for _ in range(20_000)])
    ending = drawn[np.isfinite(drawn)]
    assert np.median(ending) == pytest.approx(2000, rel=0.03)
    assert np.log(ending).std() == pytest.approx(0.8, rel=0.03)
    assert np.isinf(drawn).mean() == pytest.approx(endless, abs=0.01)
    longer = 0.5 * math.erfc(math.log(8192 / 2000) / (0.8 * math.sqrt(2)))  # of those that end
    assert (drawn > 8192).mean() == pytest.approx(endless + (1 - endless) * longer, abs=0.01)


def test_without_spread_all_answers_have_one_length():
    rng = np.random.default_rng(0)
    assert {CompletionLengths(median=7).draw(rng) for _ in range(20)} == {7.0}


@pytest.mark.parametrize(
    ("name", "value"), [("median", 0.0), ("sigma", -0.1), ("endless", 1.1), ("median", math.nan)]
)
def test_impossible_lengths_are_refused_by_name(name, value):
    with pytest.raises(SettingError, match=f"{name}="):
        CompletionLengths(**{"median": 5.0, name: value})


@pytest.mark.parametrize("name", ["capacity", "tokens_per_step"])
def test_an_engine_that_could_never_compute_is_refused(name):
    with pytest.raises(SettingError, match=f"{name}=0"):
        make_engine(**{name: 0})


# -- Scheduling and versions, against a simulation token by token ----------------------------


@dataclass
class Simulated:
    """One answer of the reference: computed a token at a time, with the token's version."""

    name: str
    length: int
    versions: list[int] = field(default_factory=list)


def simulate(
    sizes: list[int], capacity: int, changes: dict[int, int]
) -> tuple[list[set[str]], list[float], dict[str, list[list[int]]]]:
    """Requests done in each step, seconds of each step, versions of each token."""
    queue = [
        Simulated(str(i), len(answer.token_ids))
        for i, n in enumerate(sizes)
        for answer in alone(100 * i, n)
    ]
    answers = list(queue)
    running: list[Simulated] = []
    version, done, seconds = 0, [], []
    while queue or running:
        version = changes.get(len(done), version)
        while queue and len(running) < capacity:
            running.append(queue.pop(0))
        seconds.append(2.0 + 0.5 * len(running))
        for answer in running:
            answer.versions.append(version)
        running = [a for a in running if len(a.versions) < a.length]
        unfinished = {a.name for a in (*queue, *running)}
        before = set().union(*done)
        done.append({a.name for a in answers} - unfinished - before)
    versions: dict[str, list[list[int]]] = {}
    for answer in answers:
        versions.setdefault(answer.name, []).append(answer.versions)
    return done, seconds, versions


def token_versions(answer: SampledCompletion) -> list[int]:
    starts = [*answer.versions, (len(answer.token_ids), -1)]
    return [version for (start, version), (end, _) in pairwise(starts) for _ in range(start, end)]


@examples(80)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    capacity=st.integers(1, 8),
    changes=st.dictionaries(st.integers(0, 25), st.integers(1, 3), max_size=6),
)
def test_order_time_and_versions_are_those_of_a_simulation_token_by_token(sizes, capacity, changes):
    slept: list[float] = []
    engine = make_engine(capacity=capacity, step_time=StepTime(2.0, 0.5), sleep=slept.append)
    for i, n in enumerate(sizes):
        submit(engine, str(i), n=n, seed=100 * i)
    done, versions = [], {}
    while engine.num_in_flight:
        if len(done) in changes:
            engine.load_weights({}, changes[len(done)])
            assert engine.weights_version == changes[len(done)]
        finished = engine.step()
        done.append({request.request_id for request in finished})
        for request in finished:
            versions[request.request_id] = [token_versions(a) for a in request.completions]
            for answer in request.completions:
                stretches = [version for _, version in answer.versions]
                assert all(a != b for a, b in pairwise(stretches))
    assert (done, slept, versions) == simulate(sizes, capacity, changes)


def test_no_more_than_its_capacity_runs_and_the_first_come_run_first():
    slept: list[float] = []
    engine = make_engine(
        CompletionLengths(median=5), capacity=8, step_time=StepTime(0.0, 1.0), sleep=slept.append
    )
    for i in range(5):
        submit(engine, str(i))
    finished = []
    while engine.num_in_flight:
        finished += [request.request_id for request in engine.step()]
    assert finished == ["0", "1", "2", "3", "4"]
    assert slept == [8.0] * 10 + [4.0] * 5


def test_new_weights_mark_only_the_tokens_that_follow():
    engine = make_engine(CompletionLengths(median=5), capacity=1)
    submit(engine, "first", n=2)
    engine.step()
    engine.step()
    engine.load_weights({}, 7)
    running, waiting = drain(engine)["first"]
    assert running.versions == ((0, 0), (2, 7))
    assert waiting.versions == ((0, 7),)


def test_updates_without_end_leave_no_memory_behind():
    engine = make_engine(CompletionLengths(median=3))
    for version in range(1, 50):
        submit(engine, "x")
        engine.load_weights({}, version)
        engine.step()
        engine.load_weights({}, version + 1000)
        assert {a.versions for a in drain(engine)["x"]} == {((0, version), (1, version + 1000))}
    assert len(engine._versions) <= 3


# -- Withdrawn requests -----------------------------------------------------------------------


def test_a_withdrawn_request_leaves_the_others_alone_and_gives_its_place_up():
    engine = make_engine(CompletionLengths(median=LIMIT), capacity=4)
    submit(engine, "0", seed=0)
    submit(engine, "1", seed=100)
    engine.step()
    engine.abort(["0", "unknown"])
    assert engine.num_in_flight == 1
    steps = 0
    finished = []
    while engine.num_in_flight:
        finished += engine.step()
        steps += 1
    assert steps == LIMIT  # it did not wait for the one withdrawn
    assert [request.request_id for request in finished] == ["1"]
    expected = make_engine(CompletionLengths(median=LIMIT))
    submit(expected, "1", seed=100)
    assert ids(finished[0].completions) == ids(drain(expected)["1"])


def test_a_withdrawn_request_may_be_asked_again_with_the_same_answers():
    engine = make_engine()
    submit(engine, "x", seed=9)
    engine.step()
    engine.abort(["x"])
    submit(engine, "x", seed=9)
    assert ids(drain(engine)["x"]) == ids(alone(9, 4))


def test_after_everything_is_withdrawn_steps_do_nothing_and_take_no_time():
    slept: list[float] = []
    engine = make_engine(capacity=2, step_time=StepTime(1.0), sleep=slept.append)
    submit(engine, "0")
    submit(engine, "1")
    engine.abort_all()
    assert (engine.num_in_flight, engine.step(), slept) == (0, [], [])


def test_the_id_of_an_unfinished_request_is_refused():
    engine = make_engine()
    submit(engine, "x")
    with pytest.raises(EngineError, match="request_id='x' is in flight"):
        submit(engine, "x")

"""The embedded base model: what is shipped, what it can do, what it was taught."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import make
import measure
import numpy as np
import pytest
import torch
from recipe import BASE, CLEAN, example, guessed, slipped, worked
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, Qwen2ForCausalLM

from rllib_dapo.envs.arithmetic import ArithmeticEnv, Sum, sum_at
from rllib_dapo.model.facts import model_path

FOLDER = Path(model_path("embedded"))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM.from_pretrained(FOLDER)


@pytest.fixture(scope="module", autouse=True)
def _few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, 2))
    yield
    torch.set_num_threads(before)


def test_the_folder_is_complete_and_small():
    names = {p.name for p in FOLDER.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    } <= names
    assert sum(p.stat().st_size for p in FOLDER.iterdir() if p.is_file()) < 8e6


def test_config_says_what_the_engine_and_the_learner_rely_on(model, tokenizer):
    config = AutoConfig.from_pretrained(FOLDER)
    assert config.architectures == ["Qwen2ForCausalLM"]
    assert config.tie_word_embeddings
    assert config.max_position_embeddings == 512
    assert config.dtype == torch.float32
    assert config.vocab_size == len(tokenizer) == 99
    assert config.bos_token_id is None
    assert (config.eos_token_id, config.pad_token_id) == (1, 0)
    said = model.generation_config.to_diff_dict()
    said.pop("transformers_version")
    assert said == {"eos_token_id": 1, "pad_token_id": 0}


def test_output_and_input_embeddings_are_one_tensor(model):
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_one_token_per_character_and_an_exact_round_trip(tokenizer):
    text = make.CHARACTERS + "  12+35-7=?\n\n Don't  a..b --> \n" + make.CHARACTERS[::-1]
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert len(set(tokenizer.encode(make.CHARACTERS))) == len(make.CHARACTERS) == 96
    for character in make.CHARACTERS:
        assert tokenizer.encode(character) == [3 + make.CHARACTERS.index(character)]


def test_special_tokens_and_no_template(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer.bos_token is None
    assert tokenizer.chat_template is None
    assert tokenizer.encode("Answer: 4<eos>")[-1] == 1
    assert tokenizer.decode([25, 1], skip_special_tokens=True) == "5"


def test_the_shipped_tokenizer_is_the_one_the_script_builds(tokenizer):
    built = make.build_tokenizer()
    assert built.get_vocab() == tokenizer.get_vocab()
    assert built.encode("1+2=?\n") == tokenizer.encode("1+2=?\n")


def test_it_is_a_base_model_with_the_ability_in_it(model, tokenizer):
    got = measure.measure(model, tokenizer, problems=64, samples=8, seed=3)
    assert 0.15 <= got.accuracy <= 0.40
    assert got.pass_at_k >= 0.75  # of 8 completions; of 16 it is in the README
    assert 0.01 <= got.truncated <= 0.20
    assert got.careful_steps >= 0.97  # at most three of 128 steps


def test_the_measurement_sees_the_difference_between_models(tokenizer):
    torch.manual_seed(0)
    blank = make.build_model(99, 0, 1)
    got = measure.measure(blank, tokenizer, problems=8, samples=2)
    assert got.accuracy == got.pass_at_k == got.careful_steps == 0.0
    assert got.truncated > 0.5


@pytest.mark.parametrize("mixture", [CLEAN, BASE])
def test_only_training_problems_are_taught(mixture):
    drawn = [example(i, 5, mixture) for i in range(2000)]
    assert all(e.problem.split == "train" for e in drawn)
    assert all(e.prompt == e.problem.text + "\n" for e in drawn)
    held_out = {sum_at(i, split="validation").text for i in range(2000)}
    assert held_out.isdisjoint(e.problem.text for e in drawn)


def test_careful_completions_are_correct_line_by_line():
    for index in range(1000):
        drawn = example(index, 5, CLEAN)
        env = ArithmeticEnv(split="train")
        env.reset(options={"index": index})
        assert drawn.correct
        assert env.step(drawn.completion)[4]["correct"]
        *lines, last = drawn.completion.split("\n")
        for line in lines:
            step = re.fullmatch(r"(?:Check: )?(\d+)([+-])(\d+)=(\d+)", line)
            assert step is not None, line
            a, sign, b, c = step.groups()
            assert int(c) == (int(a) + int(b) if sign == "+" else int(a) - int(b)), line
        assert last == f"Answer: {drawn.problem.answer}"


def test_the_environment_and_the_recipe_agree_on_what_is_correct():
    env = ArithmeticEnv(split="train")
    for index in range(1000):
        drawn = example(index, 5, BASE)
        env.reset(options={"index": index})
        assert env.step(drawn.completion)[4]["correct"] == drawn.correct


def test_the_mixture_has_every_kind_in_it_in_its_share():
    drawn = [example(i, 5, BASE) for i in range(4000)]
    share = {s: np.mean([e.style == s for e in drawn]) for s in ("guess", "hasty", "worked")}
    assert share["guess"] == pytest.approx(BASE.guess, abs=0.03)
    assert share["hasty"] == pytest.approx(BASE.hasty, abs=0.03)
    assert 0.2 <= np.mean([e.correct for e in drawn]) <= 0.4
    too_long = np.mean([len(e.completion) >= measure.MAX_NEW_TOKENS for e in drawn])
    assert 0.03 <= too_long <= 0.12
    for correct in (True, False):  # both kinds come short and long
        lengths = [len(e.completion) for e in drawn if e.correct == correct]
        assert min(lengths) < 15
        assert max(lengths) > 64


def test_examples_depend_on_index_and_seed_alone():
    again = [example(i, 7, BASE) for i in (3, 1, 2)]
    assert again == [example(3, 7, BASE), example(1, 7, BASE), example(2, 7, BASE)]
    assert [example(i, 7, BASE) for i in range(20)] != [example(i, 8, BASE) for i in range(20)]


def test_a_slip_is_wrong_and_never_negative():
    rng = np.random.default_rng(0)
    for value in [0, 1, 7, 11, 40, 99, 100, 198, 297] * 20:
        wrong = slipped(value, rng)
        assert wrong != value
        assert wrong >= 0


def test_a_slipped_chain_never_falls_below_zero():
    rng = np.random.default_rng(0)
    for _ in range(200):
        text, value = worked(Sum((10, 9, 1), ("-", "-")), rng, slip=0.9, checks=3)
        assert value >= 0
        assert not re.search(r"=-", text)
        assert text.endswith(f"Answer: {value}")


def test_luck_makes_a_guess_correct():
    rng = np.random.default_rng(0)
    problem = sum_at(0, split="train")
    assert {guessed(problem, rng, lucky=1.0) for _ in range(9)} == {problem.answer}


def test_packed_rows_hold_whole_examples_that_do_not_see_each_other():
    batch = next(make.rows(BASE, 1))
    first = example(0, 1, BASE)
    text = first.prompt + first.completion
    size, prompt = len(text) + 1, len(first.prompt)
    ids = [3 + make.CHARACTERS.index(c) for c in text] + [1]
    assert batch.ids[0, :size].tolist() == ids
    targets = batch.targets[0, :size].tolist()
    assert targets == [-100] * (prompt - 1) + ids[prompt:] + [-100]
    assert batch.positions[0, :size].tolist() == list(range(size))
    assert batch.positions[0, size] == 0
    assert not batch.mask[0, 0, size, :size].any()
    assert batch.mask[0, 0, size - 1, :size].all()
    assert not batch.mask[0, 0, 0, 1:].any()


def test_batches_repeat_under_one_seed():
    first, second = next(make.rows(BASE, 4)), next(make.rows(BASE, 4))
    for field in dataclasses.fields(make.Rows):
        assert torch.equal(getattr(first, field.name), getattr(second, field.name))


def test_training_is_reproducible():
    stages = (make.Stage(CLEAN, 2, 1e-3, warmup=1), make.Stage(BASE, 1, 1e-3, warmup=1))
    made = []
    for _ in range(2):
        torch.manual_seed(9)
        model = make.build_model(99, 0, 1)
        before = model.lm_head.weight.detach().clone()
        make.train(model, stages, 9)
        assert not torch.equal(before, model.lm_head.weight)
        made.append(model.state_dict())
    assert all(torch.equal(made[0][k], made[1][k]) for k in made[0])

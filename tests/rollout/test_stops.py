"""What ends a completion, and which text rewards see of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_model import save_tiny_model
from strategies import examples

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.stops import Stops, cut_at
from rllib_dapo.envs.spaces import UnicodeText
from rllib_dapo.errors import SettingError
from rllib_dapo.model.facts import load_tokenizer, model_facts
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.single_step import MultiTurnError

CHATML = (
    "{% for m in messages %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def config(**settings: Any) -> DAPOConfig:
    return DAPOConfig().environment("rllib_dapo/Arithmetic-v0").update_from_dict(settings)


def stops(**settings: Any) -> Stops:
    made = config(**settings)
    return Stops.from_settings(made, PromptRenderer.from_settings(made))


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose turns end with a token that is neither its EOS nor in its configuration."""
    folder = save_tiny_model(tmp_path_factory.mktemp("chat_model"))
    tokenizer = load_tokenizer.__wrapped__(str(folder), trust_remote_code=False)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<answer>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


# -- Text ---------------------------------------------------------------------------------


@examples(200)
@given(st.text("ab\n", max_size=12), st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3))
def test_the_text_ends_where_a_stop_is_first_complete(text: str, strings: list[str]) -> None:
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(s) for s in strings)]
    kept, without = (cut_at(text, strings, include=i) for i in (True, False))
    if not ends:
        assert kept == without == text
        return
    assert kept == text[: ends[0]]
    longest = max((s for s in strings if kept.endswith(s)), key=len)
    assert without + longest == kept


@pytest.mark.parametrize(("skip", "text"), [(True, "34"), (False, "<answer>34<answer>")])
def test_special_tokens_are_seen_when_asked_for_but_not_the_end_or_padding(chat_model, skip, text):
    made = stops(model=str(chat_model), skip_special_tokens=skip)
    tokenizer = load_tokenizer(str(chat_model), trust_remote_code=False)
    tag, end = tokenizer.convert_tokens_to_ids(["<answer>", "<|im_end|>"])
    body = [tag, *tokenizer.encode("34"), tag]
    pad = tokenizer.pad_token_id
    for ids in (body, [*body, end], [*body, tokenizer.eos_token_id], [*body, pad, end]):
        assert made.text(tokenizer, np.array(ids)) == text
    assert made.text(tokenizer, np.array([], np.int64)) == ""


# -- Which stops there are ----------------------------------------------------------------


def test_the_chat_templates_end_of_turn_is_a_stop(chat_model):
    tokenizer = load_tokenizer(str(chat_model), trust_remote_code=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    facts = model_facts(str(chat_model), trust_remote_code=False)
    assert end not in facts.stop_token_ids  # no other place names it
    assert end in stops(model=str(chat_model)).token_ids
    assert end not in stops(model=str(chat_model), chat="never").token_ids
    by_name = stops(model=str(chat_model), chat="never", stop=["<|im_end|>", "=?"])
    assert end in by_name.token_ids
    assert by_name.strings == ("=?",)


def test_an_end_of_turn_that_is_plain_text_is_named_in_a_warning(chat_model, monkeypatch, caplog):
    tokenizer = load_tokenizer(str(chat_model), trust_remote_code=False)
    plain = "{% for m in messages %}{{ m.content }}=?{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", plain)
    with caplog.at_level(logging.WARNING, "rllib_dapo"):
        stops(model=str(chat_model), stop=["=?"])
        assert not caplog.records
        stops(model=str(chat_model))
    assert "add `stop: ['=?']`" in caplog.text


def test_without_settings_only_the_models_own_ids_end_a_completion():
    facts = model_facts("embedded", trust_remote_code=False)
    assert stops().token_ids == facts.stop_token_ids
    assert stops().strings == ()
    assert set(stops(stop_token_ids=[5, 7]).token_ids) == {*facts.stop_token_ids, 5, 7}
    assert stops(stop="+").strings == ("+",)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stop": [""]}, "an empty text"),
        ({"stop": ""}, "an empty text"),
        ({"stop": ["½"]}, "cannot write this text"),
        ({"stop": ["1<eos>"]}, "set skip_special_tokens=false"),
        ({"stop": {"training_iteration": 3}}, "beside `config`"),
        ({"stop": [False]}, "put the word in quotes"),
        ({"stop_token_ids": [1_000_000]}, "use ids from 0 to"),
        ({"stop_token_ids": [-1]}, "0 or more"),
        ({"stop_token_ids": ["<eos>"]}, "list of token ids"),
        ({"include_stop_str_in_output": True}, "set `stop`"),
        ({"stop": ["+"], "few_shot": [{"problem": "1", "answer": "1+1"}]}, r"few_shot\[0\]"),
    ],
)
def test_stops_that_cannot_be_are_refused(settings, said):
    with pytest.raises(SettingError, match=said) as caught:
        config(**settings).validate()
    assert next(iter(settings)) in str(caught.value)


# -- Environments of several turns --------------------------------------------------------


class Turns(gym.Env[str, str]):
    """Ends after its first step in the way asked for, or goes on."""

    observation_space = action_space = UnicodeText()

    def __init__(self, terminated: bool = False, truncated: bool = False) -> None:
        self._ends = terminated, truncated

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return "1+1=?", {}

    def step(self, action: str) -> Any:
        if action == "never":
            return "go on", 0.0, False, False, {}
        return "go on", 0.0, *self._ends, {}


def test_an_environment_that_goes_on_is_refused_by_name_before_engines_start():
    made = DAPOConfig().environment(Turns)
    with pytest.raises(MultiTurnError, match=r"env='Turns'.*single step"):
        ProblemSource(made)


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_an_episode_may_end_either_way(how):
    ProblemSource(DAPOConfig().environment(Turns, env_config={how: True}))


def test_an_environment_that_goes_on_later_ends_the_run(monkeypatch):
    """Some end only with certain completions; their groups must not be dropped in silence."""
    from rllib_dapo.rollout.engine.base import SampledCompletion
    from rllib_dapo.rollout.text_episodes import TextEpisodes
    from rllib_dapo.types import ProblemRef

    class Says:
        def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
            return "never"

    env, made = Turns(terminated=True), config()
    renderer = PromptRenderer.from_settings(made)
    episodes = TextEpisodes(lambda ref: env, lambda ref: env, [renderer] * 2, Says(), stops(), [])
    sampled = [SampledCompletion(np.array([5]), np.zeros(1, np.float32), "stop")]
    with pytest.raises(MultiTurnError, match="Turns"):
        episodes.group(ProblemRef(0, 0, 0), episodes.pose(ProblemRef(0, 0, 0)), sampled, 0)

"""`rllib plan`: what a run would take, without starting it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rllib_dapo.cli import budget
from rllib_dapo.cli.main import app
from rllib_dapo.model.size import LayerActivations, ModelSize

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tuned_examples" / "dapo_qwen2.5_32b_aime.yaml"
GIB = 2**30

QWEN_32B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 5120,
    "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
    "intermediate_size": 27648, "vocab_size": 152064, "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def qwen_32b(tmp_path: Path) -> Path:
    """A folder with the configuration of Qwen2.5-32B and nothing else."""
    folder = tmp_path / "qwen2.5-32b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN_32B), encoding="utf-8")
    return folder


def _plan(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_paper_s_recipe_agrees_with_the_hand_calculation(qwen_32b: Path) -> None:
    """The numbers are those that docs/scaling.md derives by hand."""
    code, output = _plan(
        RECIPE, "--set", f"model={qwen_32b}", "--gpu-memory-gib", 80, "--prompt-tokens", 150,
        "--completion-tokens", 5000, "--keep-rate", 0.5, "--runner-tokens-per-s", 3000,
        "--learner-tflops", 350, "--network-gib-per-s", 10, "--json",
    )  # fmt: skip
    assert code == 0
    plan = json.loads(output)["dapo-qwen2.5-32b-aime"]
    learner = plan["learner"]
    assert plan["parameters"] == 32_763_876_352
    assert learner["weights"] == learner["gradients"] == 4 * 32_763_876_352 / 32
    assert learner["AdamW's moments"] == 8 * 32_763_876_352 / 32
    # 64 layers keep a bfloat16 hidden state of 5,120 values for each of 32,768 tokens, and
    # one layer is computed again: 338,088 bytes a token.
    assert learner["activations"] == 32_768 * (64 * 5120 * 2 + 338_088)
    assert learner["peak"] / GIB == pytest.approx(54.5, abs=0.1)
    assert plan["engine"]["weights"] == 2 * 32_763_876_352 / 4
    assert plan["engine"]["token"] == 2 * 2 * 64 * 8 * 128 / 4
    step = plan["step"]
    assert step["tokens_sampled"] == 512 / 0.5 * 16 * 5000
    assert step["updates"] == 16
    assert step["sync"] == 2 * 32_763_876_352
    assert step["flops"] == 32_763_876_352 * 512 * 16 * 5150 * 8  # one forward pass more
    seconds = plan["seconds"]
    assert seconds["sampling"] == pytest.approx(step["tokens_sampled"] / (16 * 3000))
    assert seconds["step"] == pytest.approx(
        seconds["sampling"] + seconds["learning"] + seconds["weight sync"]
    )
    assert [tuple(actor[:2]) for actor in plan["actors"]] == [
        ("driver", 1),
        ("env runner (engine)", 16),
        ("learner", 32),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["gradient_checkpointing=false"], "a learner needs .* `gradient_checkpointing: true`"),
        (["shard_model=false", "num_learners=1"], "a learner needs .* GiB and has 80.0 GiB"),
        (
            ["tensor_parallel_size=1", "num_gpus_per_env_runner=1", "dtype=float32"],
            "an engine's weights .*`tensor_parallel_size`",
        ),
        (["max_tokens_per_microbatch=200000"], r"`max_tokens_per_microbatch: \d+`"),
    ],
)
def test_what_cannot_fit_is_refused_with_what_to_change(
    qwen_32b: Path, changes: list[str], message: str
) -> None:
    flags = [part for change in changes for part in ("--set", change)]
    code, output = _plan(RECIPE, "--set", f"model={qwen_32b}", *flags, "--gpu-memory-gib", 80)
    assert code == 2
    assert re.search(message, output.replace("\n", " "))


def test_a_remedy_that_is_named_works(qwen_32b: Path) -> None:
    fits = ["--set", f"model={qwen_32b}", "--gpu-memory-gib", 80]
    assert _plan(RECIPE, *fits, "--set", "gradient_checkpointing=false")[0] == 2
    assert _plan(RECIPE, *fits, "--set", "gradient_checkpointing=true")[0] == 0


def test_every_shipped_file_is_planned_in_tables(qwen_32b: Path) -> None:
    for path in sorted((ROOT / "tuned_examples").rglob("*.yaml")):
        code, output = _plan(path, "--set", f"model={qwen_32b}")
        assert code == 0, output
        for title in ("actors", "one learner", "one engine", "one step"):
            assert title in output


def test_the_data_is_not_read_and_the_cache_on_cpus_is_checked(qwen_32b: Path) -> None:
    code, output = _plan(RECIPE, "--set", f"model={qwen_32b}", "--set", "kv_cache_gib=0.5",
                         "--set", "num_gpus_per_env_runner=0")  # fmt: skip
    assert code == 2
    assert "kv_cache_gib=0.5" in output


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, output = _plan(RECIPE, "--set", f"model={tmp_path / 'none'}")
    assert code == 2
    assert "--set model" in output
    assert "no such folder" in output


def test_other_algorithms_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text("cartpole: {run: PPO, env: CartPole-v1}\n", encoding="utf-8")
    code, output = _plan(file)
    assert code == 2
    assert "only DAPO can be planned" in output


SIZE = ModelSize(
    parameters=1_000_000, layers=4, largest_layer=200_000, outside_layers=200_000, hidden=64,
    vocabulary=1000, kv_values=512,
)  # fmt: skip
LAYER = LayerActivations(per_token=3000.0, fixed=0)


@given(
    shards=st.sampled_from([1, 2, 4, 8]),
    tokens=st.integers(1, 100_000),
    half=st.booleans(),
    checkpointing=st.booleans(),
    reference=st.booleans(),
)
def test_memory_only_grows_with_what_is_kept(
    shards: int, tokens: int, half: bool, checkpointing: bool, reference: bool
) -> None:
    layout = budget.LearnerLayout(SIZE.parameters, shards, reference, half, checkpointing, tokens)
    memory = budget.learner_memory(layout, SIZE, LAYER)

    def peak(**changes: object) -> float:
        changed = budget.replace(layout, **changes)  # type: ignore[attr-defined]
        return budget.learner_memory(changed, SIZE, LAYER)["peak"]

    assert peak(microbatch_tokens=tokens + 1) >= memory["peak"]
    assert peak(trained=SIZE.parameters // 10) < memory["peak"]
    assert peak(reference=True) >= memory["peak"]
    held = sum(memory[name] for name in ("weights", "gradients", "AdamW's moments"))
    assert held == 16 * SIZE.parameters / shards


@given(gib=st.floats(0.001, 3), tokens=st.integers(200, 200_000), half=st.booleans())
def test_every_remedy_fits_and_no_larger_micro_batch_does(
    gib: float, tokens: int, half: bool
) -> None:
    layout = budget.LearnerLayout(SIZE.parameters, 1, False, half, False, tokens)
    longest = 100
    remedies = budget.learner_remedies(layout, SIZE, lambda _: LAYER, longest, gib * GIB)
    for remedy in remedies:
        if not remedy.startswith("`max_tokens"):
            continue
        best = int(remedy.split(": ")[1].strip("`"))

        def peak(count: int) -> float:
            changed = budget.replace(layout, microbatch_tokens=count)  # type: ignore[attr-defined]
            return budget.learner_memory(changed, SIZE, LAYER)["peak"]

        assert longest <= best < tokens
        assert peak(best) <= gib * GIB < peak(best + 1) or best + 1 == tokens

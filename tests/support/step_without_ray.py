"""One optimizer step with losses and model alone; run as a program, which refuses Ray and vLLM."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

REFUSED = {"ray", "vllm", "gymnasium"}


class Refuse(MetaPathFinder):
    """Makes modules look as if they were not installed."""

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Refuse())

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402

import rllib_dapo  # noqa: E402
import rllib_dapo.losses  # noqa: E402
import rllib_dapo.model  # noqa: E402
from rllib_dapo.learner.microbatch import MicrobatchLayout  # noqa: E402
from rllib_dapo.losses.aggregation import kept_lengths, loss_totals, loss_weights  # noqa: E402
from rllib_dapo.losses.clipped_objective import weighted_loss  # noqa: E402
from rllib_dapo.losses.token_objective import token_objective  # noqa: E402
from rllib_dapo.model.batching import select  # noqa: E402
from rllib_dapo.model.forward import completion_logprobs  # noqa: E402
from rllib_dapo.model.packed_attention import use_packed_attention  # noqa: E402
from rllib_dapo.model.sharding import clip_gradient_norm  # noqa: E402
from rllib_dapo.settings.learner import LearnerSettings  # noqa: E402
from rllib_dapo.types import TokenBatch  # noqa: E402

PROMPTS = [[5, 6, 7], [5, 6, 7], [8, 9], [8, 9], [5, 6, 7]]
COMPLETIONS = [[11, 12, 1], [13], [14, 15, 16, 17, 1], [18, 1], [19, 20]]
ADVANTAGES = [1.0, -0.5, 0.7, -1.2, 0.3]
KEPT = [True, True, True, True, False]
GAP = 0.3  # log π_old is this far below and above log π_θ, by turns, so some ratios are clipped
LR, DECAY, LIMIT = 1e-2, 0.1, 0.5


def new_model() -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, initializer_range=0.3,
        tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def adamw(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)


def plain_logprobs(model: Any) -> list[torch.Tensor]:
    """Of each completion, one forward pass of transformers for each row."""
    result = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        logits = model(input_ids=torch.tensor([prompt + completion])).logits
        table = logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        result.append(table.gather(1, torch.tensor(completion)[:, None])[:, 0])
    return result


def old_logprobs(model: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        rows = plain_logprobs(model)
    return [row + GAP * (-1) ** torch.arange(len(row)) for row in rows]


def plain_step(model: Any) -> float:
    """Eqs. 9 to 12 of the paper as they are written, by transformers and torch alone."""
    optimizer, old = adamw(model), old_logprobs(model)
    total = sum(len(c) for c, kept in zip(COMPLETIONS, KEPT, strict=True) if kept)
    loss = torch.zeros(())
    for new, before, advantage, kept in zip(
        plain_logprobs(model), old, ADVANTAGES, KEPT, strict=True
    ):
        ratio = (new - before).exp()
        clipped = ratio.clamp(1 - 0.2, 1 + 0.28)
        objective = torch.minimum(ratio * advantage, clipped * advantage)
        loss = loss - kept * objective.sum() / total
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
    optimizer.step()
    return float(loss.detach())


def our_step(model: Any) -> float:
    """The same by `losses` and `model`: packed rows with shared prompts in micro-batches."""
    batch = token_batch(old_logprobs(model))
    use_packed_attention(model)
    optimizer, settings = adamw(model), LearnerSettings()
    layout = MicrobatchLayout(12, packing=True, share_prompts=True, pad_id=0)
    kept = kept_lengths(
        batch.completion_lengths, batch.loss_mask, np.ones(len(batch.old_logprobs), np.bool_)
    )
    totals = loss_totals(kept, batch.groups, 2)
    weights = loss_weights("token_mean", kept, batch.groups, totals, max_length=8)
    parts, total = layout.split(batch), 0.0
    assert len(parts) > 1
    for rows in parts:
        part = select(batch, rows)
        inputs = layout.tensors(part, "cpu")
        token_weights = torch.from_numpy(np.repeat(weights[rows], part.completion_lengths))
        logprobs, entropy = completion_logprobs(
            model, inputs["model_inputs"], inputs["predictors"], inputs["targets"]
        )
        tokens = token_objective(
            settings,
            logprobs=logprobs,
            entropy=entropy,
            old_logprobs=inputs["old_logprobs"],
            reference_logprobs=inputs["reference_logprobs"],
            advantages=inputs["advantages"],
            importance_weights=inputs["importance_weights"],
            kept=token_weights > 0,
            sequence_ids=inputs["sequence_ids"],
            num_sequences=inputs["num_sequences"],
        )
        loss = weighted_loss(tokens.objective, token_weights.float())
        loss.backward()
        total += float(loss.detach())
    clip_gradient_norm(model.parameters(), LIMIT)
    optimizer.step()
    return total


def token_batch(old: list[torch.Tensor]) -> TokenBatch:
    count = sum(map(len, COMPLETIONS))
    rows = [p + c for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    return TokenBatch(
        token_ids=np.concatenate(rows),
        prompt_lengths=np.array([len(p) for p in PROMPTS]),
        completion_lengths=np.array([len(c) for c in COMPLETIONS]),
        old_logprobs=torch.cat(old).numpy(),
        advantages=np.array(ADVANTAGES, np.float32),
        loss_mask=np.array(KEPT),
        groups=np.array([0, 0, 1, 1, 0]),
        weights_versions=np.zeros(count, np.int64),
        importance_weights=np.ones(count, np.float32),
        reference_logprobs=np.zeros(count, np.float32),
    )


def main() -> None:
    torch.set_num_threads(1)
    before, plain, ours = new_model(), new_model(), new_model()
    expected, got = plain_step(plain), our_step(ours)
    assert abs(expected) > 0.01
    assert abs(got - expected) < 1e-5, (got, expected)
    moved = 0.0
    for old, want, have in zip(
        before.parameters(), plain.parameters(), ours.parameters(), strict=True
    ):
        # Adam divides by the gradient: where that is tiny, rounding shows in the step.
        torch.testing.assert_close(have, want, rtol=0, atol=0.05 * LR)
        moved = max(moved, float((want - old).detach().abs().max()))
    assert moved > 0.5 * LR
    loaded = REFUSED & {name.partition(".")[0] for name in sys.modules}
    assert not loaded, loaded
    assert rllib_dapo.__version__


if __name__ == "__main__":
    main()

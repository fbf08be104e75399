"""A Hugging Face causal language model as an RLlib RLModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from rllib_dapo.ops.logprobs import token_logprobs_and_entropy

# Logits that exist at once, in numbers: 64 MiB in float32.
_LOGITS_AT_ONCE = 16 * 2**20


class DAPOTorchRLModule(TorchRLModule):
    """The policy: token by token, the distribution of the next token.

    `model_config` holds `path`, `temperature`, `trust_remote_code` and `entropy_grad`. The
    language model is `self.causal_lm`; the state therefore has its own parameter names
    behind `causal_lm.`, tied ones included.
    """

    def setup(self) -> None:
        """Load the model, in float32: master weights of the optimizer.

        Raises:
            RuntimeError: the model cannot be loaded.
        """
        from transformers import AutoModelForCausalLM

        try:
            self.causal_lm = AutoModelForCausalLM.from_pretrained(
                self.model_config["path"],
                dtype=torch.float32,
                trust_remote_code=self.model_config["trust_remote_code"],
            )
        except AttributeError as error:  # RLModuleSpec.build would swallow it
            raise RuntimeError(f"model={self.model_config['path']!r}: {error}") from error
        # Dropout would make the ratio to the sampling policy a random number.
        self.causal_lm.eval()

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        """Log-probabilities and entropies of response tokens.

        Args:
            batch: the fields of `ops.batching.PaddedRows` as tensors.
            **kwargs: RLlib's; none is used.

        Returns:
            `action_logp` float32[T] and `entropy` float32[T], in the order of `targets`.
        """
        output = self.causal_lm.base_model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            position_ids=batch["position_ids"],
            use_cache=False,
        )
        hidden = output.last_hidden_state.flatten(0, 1)[batch["predictors"]]
        head = self.causal_lm.get_output_embeddings()
        logprobs, entropy = token_logprobs_and_entropy(
            hidden,
            head.weight,
            batch["targets"],
            temperature=self.model_config["temperature"],
            chunk_tokens=max(1, _LOGITS_AT_ONCE // head.weight.shape[0]),
            with_entropy_grad=self.model_config["entropy_grad"],
            bias=getattr(head, "bias", None),
        )
        return {Columns.ACTION_LOGP: logprobs, "entropy": entropy}

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        """Logits [B, V] of the token that follows each row of `input_ids` [B, L].

        For inspection: answers are sampled by the inference engine.
        """
        output = self.causal_lm(
            input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask")
        )
        return {Columns.ACTION_DIST_INPUTS: output.logits[:, -1]}

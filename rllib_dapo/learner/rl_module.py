"""A Hugging Face causal language model as an RLlib RLModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from rllib_dapo.model.causal_lm import load_causal_lm
from rllib_dapo.model.forward import completion_logprobs, next_token_logits
from rllib_dapo.model.lora import add_lora
from rllib_dapo.model.lora_state import LoRALayout, adapter_state, check_adapter_state, merged_state
from rllib_dapo.model.packed_attention import use_packed_attention
from rllib_dapo.model.sharded_state import full_state, load_full_state
from rllib_dapo.model.sharding import is_first, is_sharded
from rllib_dapo.types import CAUSAL_LM_PREFIX


class DAPOTorchRLModule(TorchRLModule):
    """The policy: for each token, the distribution of the next one.

    `model_config` holds the settings named in `DAPOConfig._model_config_auto_includes`. The
    language model is `self.causal_lm`, so the names in the state are its own parameter names
    after `causal_lm.`, tied ones included.
    """

    def setup(self) -> None:
        """Load the model in float32, since its weights are those that the optimizer updates.

        Raises:
            RuntimeError: the model cannot be loaded.
            SettingError: the model does not support a setting.
        """
        config = self.model_config
        self.causal_lm: Any = load_causal_lm(
            config["path"],
            trust_remote_code=config["trust_remote_code"],
            gradient_checkpointing=config["gradient_checkpointing"],
            # The first learner gives the others their slices of a sharded model.
            weights=not config["shard_model"] or is_first(),
        )
        if config["packing"]:
            use_packed_attention(self.causal_lm)
        self.adapters: LoRALayout | None = None
        if config["lora_rank"] is not None:
            self.adapters = add_lora(
                self.causal_lm,
                rank=config["lora_rank"],
                alpha=config["lora_alpha"],
                target_modules=config["lora_target_modules"],
                seed=config["seed"],
            )

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        """Compute log-probabilities and entropies of completion tokens.

        Args:
            batch: what `microbatch.MicrobatchLayout.tensors` returned.
            **kwargs: RLlib's; none is used.

        Returns:
            `action_logp` float32[T] and `entropy` float32[T], in the order of `targets`.
        """
        logprobs, entropy = completion_logprobs(
            self.causal_lm,
            batch["model_inputs"],
            batch["predictors"],
            batch["targets"],
            temperature=self.model_config["temperature"],
            compute_dtype=self.model_config["compute_dtype"],
            with_entropy_grad=self.model_config["entropy_grad"],
        )
        return {Columns.ACTION_LOGP: logprobs, "entropy": entropy}

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        """Compute the logits of the token that follows each row, for inspection.

        Args:
            batch: `input_ids` int64[B, L], and where rows have different lengths
                `attention_mask` int64[B, L], 1 for tokens and 0 for padding on the right.
            **kwargs: RLlib's; none is used.

        Returns:
            `action_dist_inputs` [B, V].
        """
        ids = batch["input_ids"]
        mask = batch.get("attention_mask", torch.ones_like(ids))
        packed = self.model_config["packing"]
        logits = next_token_logits(self.causal_lm, ids, mask, packed=packed)
        return {Columns.ACTION_DIST_INPUTS: logits}

    # -- State ----------------------------------------------------------------------------

    def get_state(
        self,
        components: Any = None,
        *,
        not_components: Any = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the weights as arrays, by name.

        For a sharded model this is a collective call, and the weights are on rank 0 only.

        Args:
            components: RLlib's; ignored, because the module has no components.
            not_components: RLlib's; ignored for the same reason.
            inference_only: True returns the weights of the plain model, adapters added in,
                which an engine loads. False returns what training changes, for checkpoints.
            **kwargs: RLlib's; none is used.
        """
        state: dict[str, Tensor] = self.causal_lm.state_dict()
        if is_sharded(self.causal_lm):
            # A checkpoint of a model with adapters needs only the adapters.
            only = None if inference_only or self.adapters is None else self.adapters.shapes
            state = full_state(self.causal_lm, keep=is_first(), only=only)
        if self.adapters is not None and state:
            choose = merged_state if inference_only else adapter_state
            state = choose(state, self.adapters)
        return {
            # Arrays must be copies: training goes on while others read them.
            f"{CAUSAL_LM_PREFIX}{name}": tensor.detach().to("cpu", copy=True).numpy()
            for name, tensor in state.items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state(inference_only=False)` returned.

        Raises:
            SettingError: the state belongs to a model with other adapters.
            TrainingError: the state belongs to another model.
        """
        tensors = {
            name.removeprefix(CAUSAL_LM_PREFIX): torch.as_tensor(value)
            for name, value in state.items()
        }
        if self.adapters is not None:
            check_adapter_state(tensors, self.adapters)
        load_full_state(self.causal_lm, tensors, only=tensors if self.adapters else None)

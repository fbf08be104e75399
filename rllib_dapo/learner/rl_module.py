"""A Hugging Face causal language model as an RLlib RLModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from rllib_dapo.losses.logprobs import token_logprobs_and_entropy, tokens_at_once
from rllib_dapo.model.causal_lm import compute_context, load_causal_lm
from rllib_dapo.model.collectives import is_first
from rllib_dapo.model.lora import add_lora
from rllib_dapo.model.lora_state import LoRALayout, adapter_state, check_adapter_state, merged_state
from rllib_dapo.model.packed_attention import packed_inputs, use_packed_attention
from rllib_dapo.model.packing import PackedRows
from rllib_dapo.model.sharded_state import full_state, load_full_state
from rllib_dapo.model.sharding import is_sharded, run_as_forward
from rllib_dapo.settings.choices import ComputeDtype
from rllib_dapo.types import CAUSAL_LM_PREFIX


class DAPOTorchRLModule(TorchRLModule):
    """The policy: token by token, the distribution of the next token.

    `model_config` holds the settings named in `DAPOConfig._model_config_auto_includes`. The
    language model is `self.causal_lm`; the state therefore has its own parameter names
    behind `causal_lm.`, tied ones included.
    """

    def setup(self) -> None:
        """Load the model, in float32: master weights of the optimizer.

        Raises:
            RuntimeError: the model cannot be loaded.
            SettingError: it cannot do what is asked of it.
        """
        config = self.model_config
        self.causal_lm: Any = load_causal_lm(
            config["path"],
            trust_remote_code=config["trust_remote_code"],
            attn_implementation=None,
            gradient_checkpointing=config["gradient_checkpointing"],
            # The learners' slices of a sharded model come from the first one.
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
        """Log-probabilities and entropies of completion tokens.

        Args:
            batch: what `microbatch.MicrobatchLayout.tensors` made.
            **kwargs: RLlib's; none is used.

        Returns:
            `action_logp` float32[T] and `entropy` float32[T], in the order of `targets`.
        """
        return run_as_forward(self.causal_lm, lambda: self._token_logprobs(batch))

    def _token_logprobs(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        # A sharded model gathers its weights in the format it computes in.
        sharded = is_sharded(self.causal_lm)
        dtype: ComputeDtype = "float32" if sharded else self.model_config["compute_dtype"]
        head = self.causal_lm.get_output_embeddings()
        with compute_context(dtype, head.weight.device.type):
            output = self.causal_lm.base_model(**batch["model_inputs"])
        hidden = output.last_hidden_state.flatten(0, 1)[batch["predictors"]]
        if dtype == "bfloat16":  # residual streams stay float32; the head is a matrix product too
            hidden = hidden.to(torch.bfloat16)
        logprobs, entropy = token_logprobs_and_entropy(
            hidden,
            head.weight,
            batch["targets"],
            temperature=self.model_config["temperature"],
            chunk_tokens=tokens_at_once(head.weight.shape[0]),
            with_entropy_grad=self.model_config["entropy_grad"],
            bias=getattr(head, "bias", None),
        )
        return {Columns.ACTION_LOGP: logprobs, "entropy": entropy}

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        """Logits of the token that follows each row; for inspection, as the engine samples.

        Args:
            batch: `input_ids` int64[B, L], and `attention_mask` of the same shape, 1 for
                tokens and 0 for padding on the right, where rows have different lengths.
            **kwargs: RLlib's; none is used.

        Returns:
            `action_dist_inputs` [B, V].
        """
        ids = batch["input_ids"]
        mask = batch.get("attention_mask", torch.ones_like(ids))
        if not self.model_config["packing"]:
            output = self.causal_lm.base_model(input_ids=ids, attention_mask=mask)
            rows, last = torch.arange(len(ids)), mask.sum(1) - 1
            hidden = output.last_hidden_state[rows, last]
        else:
            tokens, kept = ids.cpu().numpy(), mask.cpu().numpy().astype(bool)
            lengths = kept.sum(1)
            packed = PackedRows(
                input_ids=tokens[kept][None],
                position_ids=np.broadcast_to(np.arange(ids.shape[1]), ids.shape)[kept][None],
                predictors=np.cumsum(lengths) - 1,
                targets=np.zeros(0, np.int64),
                lengths=lengths,
                gather=None,
                scatter=None,
            )
            output = self.causal_lm.base_model(**packed_inputs(packed, ids.device))
            hidden = output.last_hidden_state[0, torch.from_numpy(packed.predictors)]
        return {Columns.ACTION_DIST_INPUTS: self.causal_lm.get_output_embeddings()(hidden)}

    # -- State ----------------------------------------------------------------------------

    def get_state(
        self,
        components: Any = None,
        *,
        not_components: Any = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The weights as arrays, by name.

        Of a sharded model a collective call, with the weights on rank 0 only.

        Args:
            components: RLlib's; a module has none.
            not_components: likewise.
            inference_only: True: those of the plain model, adapters added in, which is what
                an engine loads. False: those that training changes, for checkpoints.
            **kwargs: RLlib's; none is used.
        """
        state: dict[str, Tensor] = self.causal_lm.state_dict()
        if is_sharded(self.causal_lm):
            # Of a model with adapters a checkpoint needs no more than these.
            only = None if inference_only or self.adapters is None else self.adapters.shapes
            state = full_state(self.causal_lm, keep=is_first(), only=only)
        if self.adapters is not None and state:
            choose = merged_state if inference_only else adapter_state
            state = choose(state, self.adapters)
        return {
            # A copy: training goes on while others hold what they were given.
            f"{CAUSAL_LM_PREFIX}{name}": tensor.detach().to("cpu", copy=True).numpy()
            for name, tensor in state.items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state(inference_only=False)` returned.

        Raises:
            SettingError: it is the state of a model with other adapters.
            TrainingError: it is the state of another model.
        """
        tensors = {
            name.removeprefix(CAUSAL_LM_PREFIX): torch.as_tensor(value)
            for name, value in state.items()
        }
        if self.adapters is not None:
            check_adapter_state(tensors, self.adapters)
        load_full_state(self.causal_lm, tensors, only=tensors if self.adapters else None)

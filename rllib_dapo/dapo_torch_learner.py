"""The DAPO update inside RLlib's TorchLearner.

    TokenBatch --minibatches--> one optimizer step each
               --microbatches, pad_rows--> forward, loss, backward; gradients add up

The loss weights are made from the global minibatch (all micro-batches of all learners), so
no split changes the gradient. RLlib's loop, optimizer registry, state and metrics are used
as they are; its minibatch iterator is not, since it repeats rows to fill the last minibatch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.policy.sample_batch import MultiAgentBatch
from torch import Tensor

from rllib_dapo.errors import TrainingError
from rllib_dapo.learner_metrics import UpdateMetrics
from rllib_dapo.model import model_facts
from rllib_dapo.ops.batching import microbatches, minibatches, pad_rows, select
from rllib_dapo.ops.loss import (
    decoupled_clip_objective,
    loss_normalizer,
    loss_weights,
    weighted_loss,
)
from rllib_dapo.rl_batch import from_multi_agent_batch, to_multi_agent_batch
from rllib_dapo.threads import use_threads
from rllib_dapo.types import TokenBatch


class DAPOTorchLearner(TorchLearner):
    """Trains the policy on token batches."""

    def build(self) -> None:
        """Build module and optimizer, and what one update needs beside them."""
        super().build()
        facts = model_facts(
            self.config.language_model, trust_remote_code=self.config.trust_remote_code
        )
        self._pad_id = facts.pad_token_id
        self._skipped_in_a_row = 0
        self._update_metrics = UpdateMetrics(self.device)
        self._before_first_step = True
        self._sampling_version = 0
        self._update_started = 0.0

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """AdamW, with decoupled weight decay on all parameters, as in the recipe."""
        config = config or self.config
        params = self.get_parameters(self._module[module_id])
        optimizer = torch.optim.AdamW(
            params, lr=config.lr, betas=(0.9, config.adam_beta2), weight_decay=config.weight_decay
        )
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=config.lr
        )

    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Set this rollout step's learning rate: linear warm-up, then constant.

        The step is counted by RLlib's own number of update calls, which is part of the
        learner's state: a restored run goes on in the schedule.
        """
        warmup = self.config.warmup_iterations
        factor = min(1.0, (self._weights_seq_no + 1) / warmup) if warmup else 1.0
        for optimizer in self._optimizer_parameters:
            self._set_optimizer_lr(optimizer, self.config.lr * factor)
        use_threads(self.config.learner_cpu_threads)
        # What the engines were given last carries this number (RLlib counts it up next).
        self._sampling_version = self._weights_seq_no
        self._before_first_step = True
        self._update_metrics.reset()
        self._update_started = time.perf_counter()

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Report the means over all tokens of all updates and all learners."""
        lr = next(self._get_optimizer_lr(o) for o in self._optimizer_parameters)
        seconds = time.perf_counter() - self._update_started
        for key, value in self._update_metrics.result(self._world_size, seconds).items():
            self.metrics.log_value((DEFAULT_MODULE_ID, key), value, window=1)
        self.metrics.log_value((DEFAULT_MODULE_ID, "lr"), lr, window=1)

    def _create_iterator_if_necessary(
        self,
        *,
        training_data: Any,
        num_total_minibatches: int = 0,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        **kwargs: Any,
    ) -> Iterator[MultiAgentBatch]:
        """Minibatches that take each response exactly once per epoch.

        `num_total_minibatches` is their number per epoch, fixed by the algorithm so that
        all learners take the same number of steps.
        """
        batch = from_multi_agent_batch(training_data.batch)
        # One generator per rollout step: a restored run draws what it would have drawn.
        rng = np.random.default_rng([self.config.seed or 0, self._weights_seq_no])
        steps = max(num_total_minibatches, 1)
        for _ in range(num_epochs):
            parts = minibatches(batch, steps, rng)
            if self._world_size > 1:  # a learner short of rows still takes part in each step
                parts += [select(batch, np.zeros(0, np.int64))] * (steps - len(parts))
            for part in parts:
                yield to_multi_agent_batch(part)

    def _uncompiled_update(
        self, batch: dict[str, Any], **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
        """One optimizer step on one minibatch."""
        minibatch = from_multi_agent_batch(batch)
        usable = _drop_unusable(minibatch)
        weights = self._token_weights(usable)
        for optimizer in self._optimizer_parameters:
            optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.device)
        for rows in microbatches(usable.lengths, self.config.max_tokens_per_microbatch):
            loss += self._backward(select(usable, rows), weights[rows])
        self._sum_gradients_over_learners()
        self._step(loss)
        self._update_metrics.add_minibatch(minibatch, usable)
        return {}, {DEFAULT_MODULE_ID: loss}, {}

    @property
    def _world_size(self) -> int:
        return max(1, int(self.config.num_learners))

    def _make_modules_ddp_if_necessary(self) -> None:
        """Leave the module unwrapped.

        DistributedDataParallel averages gradients per backward pass; the denominator here is
        global already, and learners may have different numbers of micro-batches. One sum
        per optimizer step (`_sum_gradients_over_learners`) is exact and cannot deadlock.
        """

    def _sum_gradients_over_learners(self) -> None:
        """Add up the learners' gradients; every learner calls this once per step."""
        if self._world_size == 1:
            return
        for param in self._params.values():
            if param.grad is None:  # no row of this minibatch is here
                param.grad = torch.zeros_like(param)
            torch.distributed.all_reduce(param.grad)

    def _token_weights(self, minibatch: TokenBatch) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The weight of each response's tokens, from the minibatch of all learners."""
        aggregation = self.config.loss_aggregation
        own = loss_normalizer(aggregation, minibatch.response_lengths, minibatch.loss_mask)
        total = torch.tensor(own, dtype=torch.int64, device=self.device)
        if self._world_size > 1:
            torch.distributed.all_reduce(total)
        return loss_weights(
            aggregation,
            minibatch.response_lengths,
            minibatch.loss_mask,
            normalizer=int(total.item()),
        )

    def _backward(self, rows: TokenBatch, weights: Any) -> Tensor:
        """Forward and backward of one micro-batch; returns its share of the loss."""
        padded = pad_rows(rows, self._pad_id)
        lengths = rows.response_lengths
        arrays = {
            **{field.name: getattr(padded, field.name) for field in fields(padded)},
            "old_logprobs": rows.old_logprobs,
            "advantages": np.repeat(rows.advantages, lengths),
            "token_weights": np.repeat(weights, lengths).astype(np.float32),
            "on_policy": np.repeat(rows.weights_versions == self._sampling_version, lengths),
        }
        batch = {name: torch.from_numpy(a).to(self.device) for name, a in arrays.items()}
        fwd_out = self.module[DEFAULT_MODULE_ID].forward_train(batch)
        loss = self.compute_loss_for_module(
            module_id=DEFAULT_MODULE_ID, config=self.config, batch=batch, fwd_out=fwd_out
        )
        loss.backward()
        return loss.detach()

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Tensor], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """RLlib's hook: minus the decoupled-clip objective (Eq. 12) of one micro-batch.

        Args:
            module_id: RLlib's; there is one module.
            config: the DAPO configuration.
            batch: `PaddedRows` as tensors, and per response token float32[T] `old_logprobs`,
                `advantages` and `token_weights` (0 takes a token out), and bool[T]
                `on_policy`, sampled by the weights this update began with.
            fwd_out: what `DAPOTorchRLModule._forward_train` returned.

        Returns:
            A scalar; over all micro-batches of all learners they add up to the loss.
        """
        logprobs, entropy = fwd_out[Columns.ACTION_LOGP], fwd_out["entropy"]
        kept = batch["token_weights"] > 0
        clipped = decoupled_clip_objective(
            logprobs,
            batch["old_logprobs"],
            batch["advantages"],
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            token_mask=kept,
        )
        objective = clipped.objective
        if config.entropy_coeff:
            objective = objective + config.entropy_coeff * entropy
        self._update_metrics.add_tokens(
            clipped=clipped,
            logprobs=logprobs.detach(),
            old_logprobs=batch["old_logprobs"],
            entropy=entropy.detach(),
            kept=kept,
            unchanged=batch["on_policy"] if self._before_first_step else None,
        )
        return weighted_loss(objective, batch["token_weights"])

    def _step(self, loss: Tensor) -> None:
        """Clip the gradient and step, or skip a step that would spoil the weights.

        Raises:
            TrainingError: too many steps in a row had to be skipped.
        """
        params = list(self._params.values())
        # No limit still measures the norm.
        limit = self.config.grad_clip if self.config.grad_clip is not None else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(params, limit)
        finite = bool(torch.isfinite(norm)) and bool(torch.isfinite(loss))
        self._update_metrics.add_step(loss, norm, skipped=not finite)
        self._before_first_step = False
        if finite:
            self._skipped_in_a_row = 0
            for optimizer in self._optimizer_parameters:
                optimizer.step()
            return
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self.config.max_skipped_updates:
            raise TrainingError(
                f"{self._skipped_in_a_row} updates in a row had a loss ({float(loss)}) or gradient "
                f"norm ({float(norm)}) that is not finite (max_skipped_updates="
                f"{self.config.max_skipped_updates}). Lower `lr`, set `grad_clip`, or look at "
                "`engine_gap_max` for a mismatch between engine and learner."
            )


def _drop_unusable(batch: TokenBatch) -> TokenBatch:
    """Mask whole responses with a log-probability that is not finite.

    The engine could not have sampled such a token, so nothing is known of that answer.
    """
    finite = np.isfinite(batch.old_logprobs)
    if finite.all():
        return batch
    owner = np.repeat(np.arange(len(batch)), batch.response_lengths)
    mask = batch.loss_mask.copy()
    mask[owner[~finite]] = False
    logprobs = np.where(finite, batch.old_logprobs, 0.0).astype(np.float32)
    return replace(batch, old_logprobs=logprobs, loss_mask=mask)

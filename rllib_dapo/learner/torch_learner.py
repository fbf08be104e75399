"""The DAPO update inside RLlib's TorchLearner.

    TokenBatch --prepare--> old, reference log-probabilities and importance weights
               --minibatches--> one optimizer step each
               --MicrobatchLayout--> forward, loss, backward; gradients add up

The loss weights are computed from the global minibatch (all micro-batches of all learners),
so no split changes the gradient. RLlib's loop, optimizer registry, state and metrics are used
unchanged. Its minibatch iterator is not used, because it repeats rows to fill the last
minibatch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.policy.sample_batch import MultiAgentBatch
from torch import Tensor

from rllib_dapo.errors import TrainingError
from rllib_dapo.learner.batch_io import (
    from_multi_agent_batch,
    save_token_batch,
    to_multi_agent_batch,
)
from rllib_dapo.learner.distributed_learner import DistributedTorchLearner
from rllib_dapo.learner.lr_schedule import learning_rate_factor
from rllib_dapo.learner.metrics import UpdateMetrics, UpdateState
from rllib_dapo.learner.microbatch import MicrobatchLayout
from rllib_dapo.learner.preparation import ReferencePolicy, drop_unusable, recompute
from rllib_dapo.losses.aggregation import kept_lengths, loss_totals, loss_weights
from rllib_dapo.losses.clipped_objective import weighted_loss
from rllib_dapo.losses.token_objective import token_objective
from rllib_dapo.model.batching import (
    group_minibatches,
    idle_row,
    minibatches,
    ragged_indices,
    select,
)
from rllib_dapo.model.device import use_threads
from rllib_dapo.model.facts import model_facts
from rllib_dapo.model.sharding import clip_gradient_norm
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import FloatArray, IntArray, TokenBatch

Forward = Callable[[dict[str, Any]], dict[str, Tensor]]
_NO_ROWS = np.zeros(0, np.int64)


class DAPOTorchLearner(DistributedTorchLearner):
    """Trains the policy on token batches.

    Attributes:
        weight_sender: this learner's connection to the engines, which
            `algorithm.weight_sync.sender` makes and uses; None where weights go another way.
    """

    weight_sender: Any = None

    # -- Building ---------------------------------------------------------------------------

    def build(self) -> None:
        """Build module and optimizer, the layout of micro-batches and the reference policy."""
        super().build()
        config = self.config
        facts = model_facts(config.language_model, trust_remote_code=config.trust_remote_code)
        self._layout = MicrobatchLayout(
            config.max_tokens_per_microbatch,
            packing=config.packing,
            share_prompts=config.share_prompts,
            pad_id=facts.pad_token_id,
        )
        self._reference = self._make_reference() if config.kl_coeff else None
        self._skipped_in_a_row = 0
        self._begin_update()

    def _make_reference(self) -> ReferencePolicy:
        if self.config.lora_rank is not None:
            return ReferencePolicy(adapted=self.module[DEFAULT_MODULE_ID])
        return ReferencePolicy(frozen=self._make_module()[DEFAULT_MODULE_ID])

    def configure_optimizers_for_module(
        self, module_id: str, config: RunSettings | None = None
    ) -> None:
        """RLlib's hook: AdamW with decoupled weight decay on all trained parameters.

        The paper's recipe does the same.
        """
        config = config or self.config
        params = [p for p in self.get_parameters(self._module[module_id]) if p.requires_grad]
        optimizer = torch.optim.AdamW(
            params, lr=config.lr, betas=(0.9, config.adam_beta2), weight_decay=config.weight_decay
        )
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=config.lr
        )

    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """RLlib's hook: take over the moments of a checkpoint, but not its settings.

        A restored run, and a trial that takes over another one, may have another learning rate
        or weight decay.
        """
        optimizers = list(self._optimizer_parameters)
        settings = [
            {key: value for key, value in group.items() if key != "params"}
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]
        super()._set_optimizer_state(state)
        groups = (group for optimizer in optimizers for group in optimizer.param_groups)
        for group, own in zip(groups, settings, strict=True):
            group.update(own)

    # -- One call of `update` -----------------------------------------------------------------

    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """RLlib's hook: set the learning rate of this rollout step.

        RLlib's own number of update calls counts the steps. It is part of the learner's
        state, so a restored run continues in the schedule.
        """
        config = self.config
        factor = learning_rate_factor(
            self._weights_seq_no,
            warmup=config.warmup_iterations,
            schedule=config.lr_schedule,
            decay_steps=config.lr_decay_iterations,
            end_factor=config.lr_end_factor,
        )
        for optimizer in self._optimizer_parameters:
            self._set_optimizer_lr(optimizer, config.lr * factor)
        use_threads(config.learner_cpu_threads)
        self._begin_update()

    def _begin_update(self) -> None:
        # The weights that were sent to the engines last have this number; RLlib increases it
        # after the update.
        self._update_state = UpdateState(self._weights_seq_no, UpdateMetrics(self.device))

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """RLlib's hook: report the means over all tokens of all learners."""
        if self.config.colocate and torch.cuda.is_available():
            torch.cuda.empty_cache()  # Colocated engines wake up now and need the memory.
        lr = next(self._get_optimizer_lr(o) for o in self._optimizer_parameters)
        state = self._update_state
        seconds = time.perf_counter() - state.started
        for key, value in state.metrics.result(self._collectives, seconds).items():
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
        """RLlib's hook: prepare the batch, and cut it into minibatches.

        Each completion is in exactly one minibatch of an epoch. `num_total_minibatches` is
        their number per epoch; the algorithm fixes it so that all learners take the same
        number of steps.
        """
        batch = self._prepare(from_multi_agent_batch(training_data.batch))
        return self._minibatches(batch, max(num_total_minibatches, 1), num_epochs)

    def _minibatches(
        self, batch: TokenBatch, steps: int, num_epochs: int
    ) -> Iterator[MultiAgentBatch]:
        """Yield the minibatches of all epochs, at most `steps` per epoch.

        All learners yield the same number.
        """
        # There is one generator per rollout step, so a restored run draws the same numbers.
        rng = np.random.default_rng([self.config.seed or 0, self._weights_seq_no])
        by_group = self.config.minibatch_by == "group"
        num_groups = self._num_groups(batch) if by_group else 0
        for _ in range(num_epochs):
            if by_group:
                parts = group_minibatches(batch, num_groups, steps, rng)
            else:
                parts = minibatches(batch, steps, rng)
                # A learner with fewer rows than steps must still take part in each step.
                if self._collectives.size > 1:
                    parts += [select(batch, _NO_ROWS)] * (steps - len(parts))
            for part in parts:
                yield to_multi_agent_batch(part)

    # -- Before the first step ----------------------------------------------------------------

    def _prepare(self, batch: TokenBatch) -> TokenBatch:
        """Fill in what must be computed before the weights change."""
        batch = drop_unusable(batch)
        if self.config.old_logprobs == "learner":
            own = self._logprobs(batch, self.module[DEFAULT_MODULE_ID].forward_train)
            recomputed = recompute(self.config, batch, own)
            state = self._update_state
            state.metrics.add_recomputed(recomputed)
            in_loss = np.repeat(batch.loss_mask, batch.completion_lengths)
            gaps = np.abs(own - batch.old_logprobs)[state.on_policy(batch) & in_loss]
            state.metrics.add_gaps(torch.from_numpy(gaps).to(self.device))
            batch = recomputed.batch
        if self._reference is not None:
            logprobs = self._logprobs(batch, self._reference.forward)
            batch = replace(batch, reference_logprobs=logprobs)
        return batch

    @torch.no_grad()
    def _logprobs(self, batch: TokenBatch, forward: Forward) -> FloatArray:
        """Return float32[T], the log-probability of each completion token."""
        logprobs = np.zeros_like(batch.old_logprobs)
        for rows in self._microbatches(batch):
            out = forward(self._layout.tensors(self._part(batch, rows), self.device))
            if len(rows):
                values = out[Columns.ACTION_LOGP].float().cpu().numpy()
                logprobs[ragged_indices(batch.completion_lengths, rows)] = values
        return logprobs

    # -- One optimizer step -------------------------------------------------------------------

    def _uncompiled_update(
        self, batch: dict[str, Any], **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
        """RLlib's hook: one optimizer step on one minibatch.

        A minibatch without a token in the loss, on any learner, takes no step: the optimizer
        would still decay the weights and move them by the momentum of earlier steps.
        """
        minibatch = from_multi_agent_batch(batch)
        kept = kept_lengths(
            minibatch.completion_lengths, minibatch.loss_mask, minibatch.importance_weights > 0
        )
        totals = self._loss_totals(minibatch, kept)
        self._update_state.metrics.add_minibatch(minibatch, int(kept.sum()))
        for optimizer in self._optimizer_parameters:
            optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.device)
        if not totals[0]:  # the totals are those of all learners, so that they agree
            self._update_state.metrics.add_empty_step()
            return {}, {DEFAULT_MODULE_ID: loss}, {}
        weights = self._token_weights(minibatch, kept, totals)
        for rows in self._microbatches(minibatch):
            loss += self._backward(minibatch, rows, weights)
        self._sum_gradients_over_learners()
        self._step(loss, minibatch)
        return {}, {DEFAULT_MODULE_ID: loss}, {}

    def _microbatches(self, batch: TokenBatch) -> list[IntArray]:
        """Return the row numbers of each forward pass.

        Where the model is sharded, all learners make the same number of passes, some of them
        without rows.
        """
        parts = self._layout.split(batch)
        if self.config.shard_model:  # Each pass gathers weights, a collective call of all learners.
            passes = self._collectives.largest(max(len(parts), 1))
            parts += [_NO_ROWS] * (passes - len(parts))
        return parts

    def _part(self, batch: TokenBatch, rows: IntArray) -> TokenBatch:
        """Return the rows of one forward pass, or an idle row where there are none."""
        return select(batch, rows) if len(rows) else idle_row(self._layout.pad_id)

    def _num_groups(self, batch: TokenBatch) -> int:
        """Return the number of groups of a batch of which each learner has a share."""
        return self._collectives.largest(int(batch.groups.max(initial=-1)) + 1)

    def _loss_totals(self, minibatch: TokenBatch, kept: IntArray) -> IntArray:
        """Return the `loss_totals` of the minibatch of all learners."""
        own = loss_totals(kept, minibatch.groups, self._num_groups(minibatch))
        totals = self._collectives.sum(torch.from_numpy(own).to(self.device))
        return np.asarray(totals.cpu().numpy(), dtype=np.int64)

    def _token_weights(self, minibatch: TokenBatch, kept: IntArray, totals: IntArray) -> FloatArray:
        """Return float32[T], the loss weight of each completion token."""
        weights = loss_weights(
            self.config.loss_aggregation,
            kept,
            minibatch.groups,
            totals,
            max_length=self.config.max_completion_length,
        )
        per_token = np.repeat(weights, minibatch.completion_lengths)
        return np.where(minibatch.importance_weights > 0, per_token, 0.0).astype(np.float32)

    def _backward(self, minibatch: TokenBatch, rows: IntArray, weights: FloatArray) -> Tensor:
        """Compute forward and backward pass of one micro-batch; return its share of the loss."""
        part = self._part(minibatch, rows)
        own = weights[ragged_indices(minibatch.completion_lengths, rows)]
        own = own if len(rows) else np.zeros(1, np.float32)
        on_policy = self._update_state.on_policy(part)
        batch = self._layout.tensors(part, self.device) | {
            "token_weights": torch.from_numpy(own).to(self.device),
            "on_policy": torch.from_numpy(on_policy).to(self.device),
        }
        fwd_out = self.module[DEFAULT_MODULE_ID].forward_train(batch)
        loss = self.compute_loss_for_module(
            module_id=DEFAULT_MODULE_ID, config=self.config, batch=batch, fwd_out=fwd_out
        )
        loss.backward()
        return loss.detach()

    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: RunSettings,
        batch: dict[str, Any],
        fwd_out: dict[str, Tensor],
    ) -> Tensor:
        """RLlib's hook: minus the objective (Eq. 12 with the settings' options) of a micro-batch.

        Args:
            module_id: RLlib's; there is one module.
            config: the settings of the run.
            batch: what `MicrobatchLayout.tensors` returned, and for each completion token
                `token_weights` float32[T] (0 takes a token out) and `on_policy` bool[T],
                whether the weights with which this update began sampled it.
            fwd_out: what `DAPOTorchRLModule._forward_train` returned.

        Returns:
            A scalar. Over all micro-batches of all learners these add up to the loss.
        """
        logprobs, entropy = fwd_out[Columns.ACTION_LOGP], fwd_out["entropy"]
        tokens = token_objective(
            config,
            logprobs=logprobs,
            entropy=entropy,
            old_logprobs=batch["old_logprobs"],
            reference_logprobs=batch["reference_logprobs"],
            advantages=batch["advantages"],
            importance_weights=batch["importance_weights"],
            kept=batch["token_weights"] > 0,
            sequence_ids=batch["sequence_ids"],
            num_sequences=batch["num_sequences"],
        )
        state = self._update_state
        measures_gap = config.old_logprobs == "engine" and not state.steps
        state.metrics.add_tokens(
            tokens,
            logprobs=logprobs.detach(),
            entropy=entropy.detach(),
            unchanged=batch["on_policy"] if measures_gap else None,
        )
        return weighted_loss(tokens.objective, batch["token_weights"])

    def _step(self, loss: Tensor, minibatch: TokenBatch) -> None:
        """Clip the gradient and step, or skip a step that would spoil the weights.

        Raises:
            TrainingError: too many steps in a row had to be skipped.
        """
        params = list(self._params.values())
        norm = clip_gradient_norm(params, self.config.grad_clip)
        # All learners must agree to step or skip, also where only one of them has a bad loss.
        finite = self._collectives.all(bool(torch.isfinite(norm)) and bool(torch.isfinite(loss)))
        self._update_state.metrics.add_step(loss, norm, skipped=not finite)
        self._update_state.steps += 1
        if finite:
            self._skipped_in_a_row = 0
            for optimizer in self._optimizer_parameters:
                optimizer.step()
            return
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self.config.max_skipped_updates:
            path = self._save_for_inspection(minibatch)
            raise TrainingError(
                f"{self._skipped_in_a_row} updates in a row had a loss ({float(loss)}) or gradient "
                f"norm ({float(norm)}) that is not finite (max_skipped_updates="
                f"{self.config.max_skipped_updates}). Lower `lr`, set `grad_clip`, or look at "
                f"`engine_gap_max` for a mismatch between engine and learner. The last minibatch "
                f"is in {path} (rllib_dapo.learner.batch_io.load_token_batch reads it)."
            )

    def _save_for_inspection(self, minibatch: TokenBatch) -> Path:
        """Write this learner's part of a minibatch into the run's folder."""
        folder = Path(self.config.learner_config_dict.get("failure_dir", "."))
        rank = torch.distributed.get_rank() if self._collectives.size > 1 else 0
        return save_token_batch(minibatch, folder / f"non_finite_minibatch_{rank}.npz")

"""The DAPO update inside RLlib's TorchLearner.

    TokenBatch --prepare--> old, reference log-probabilities and importance weights
               --minibatches--> one optimizer step each
               --MicrobatchLayout--> forward, loss, backward; gradients add up

The loss weights are made from the global minibatch (all micro-batches of all learners), so
no split changes the gradient. RLlib's loop, optimizer registry, state and metrics are used
as they are; its minibatch iterator is not, since it repeats rows to fill the last minibatch.
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
from rllib_dapo.learner.batch_file import save_token_batch
from rllib_dapo.learner.behaviour import drop_unusable, recompute
from rllib_dapo.learner.distributed_learner import DistributedTorchLearner
from rllib_dapo.learner.lr_schedule import learning_rate_factor
from rllib_dapo.learner.metrics import UpdateMetrics
from rllib_dapo.learner.microbatch import MicrobatchLayout
from rllib_dapo.learner.reference_policy import ReferencePolicy
from rllib_dapo.learner.rl_batch import from_multi_agent_batch, to_multi_agent_batch
from rllib_dapo.losses.aggregation import kept_lengths, loss_totals, loss_weights
from rllib_dapo.losses.objective import weighted_loss
from rllib_dapo.losses.policy_loss import token_objective
from rllib_dapo.model.batching import idle_row, minibatches, ragged_indices, select
from rllib_dapo.model.facts import model_facts
from rllib_dapo.model.sharding import clip_gradient_norm
from rllib_dapo.model.threads import use_threads
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
        """Build module and optimizer, and what one update needs beside them."""
        super().build()
        config = self.config
        facts = model_facts(config.language_model, trust_remote_code=config.trust_remote_code)
        self._layout = MicrobatchLayout(
            config.max_tokens_per_microbatch,
            packing=config.packing,
            share_prompts=config.share_prompts,
            pad_id=facts.pad_token_id,
        )
        self._reference = ReferencePolicy(self) if config.kl_coeff else None
        self._update_metrics = UpdateMetrics(self.device)
        self._skipped_in_a_row = 0
        self._before_first_step = True
        self._sampling_version = 0
        self._num_groups = 0
        self._update_started = 0.0

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """AdamW, with decoupled weight decay on all trained parameters, as in the recipe."""
        config = config or self.config
        params = [p for p in self.get_parameters(self._module[module_id]) if p.requires_grad]
        optimizer = torch.optim.AdamW(
            params, lr=config.lr, betas=(0.9, config.adam_beta2), weight_decay=config.weight_decay
        )
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=config.lr
        )

    # -- One call of `update` -----------------------------------------------------------------

    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Set this rollout step's learning rate.

        The step is counted by RLlib's own number of update calls, which is part of the
        learner's state: a restored run goes on in the schedule.
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
        # What the engines were given last carries this number (RLlib counts it up next).
        self._sampling_version = self._weights_seq_no
        self._before_first_step = True
        self._update_metrics.reset()
        self._update_started = time.perf_counter()

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Report the means over all tokens of all updates and all learners."""
        if self.config.colocate and torch.cuda.is_available():
            torch.cuda.empty_cache()  # the engines that wake up now need the room
        lr = next(self._get_optimizer_lr(o) for o in self._optimizer_parameters)
        seconds = time.perf_counter() - self._update_started
        for key, value in self._update_metrics.result(self._together, seconds).items():
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
        """Minibatches that take each completion exactly once per epoch.

        `num_total_minibatches` is their number per epoch, fixed by the algorithm so that
        all learners take the same number of steps.
        """
        batch = self._prepare(from_multi_agent_batch(training_data.batch))
        # One generator per rollout step: a restored run draws what it would have drawn.
        rng = np.random.default_rng([self.config.seed or 0, self._weights_seq_no])
        steps = max(num_total_minibatches, 1)
        for _ in range(num_epochs):
            parts = minibatches(batch, steps, rng)
            if self._together.size > 1:  # a learner short of rows still takes part in each step
                parts += [select(batch, np.zeros(0, np.int64))] * (steps - len(parts))
            for part in parts:
                yield to_multi_agent_batch(part)

    # -- Before the first step ----------------------------------------------------------------

    def _prepare(self, batch: TokenBatch) -> TokenBatch:
        """Fill in what this learner must compute while its weights are those of the rollout."""
        batch = drop_unusable(batch)
        self._num_groups = self._together.largest(int(batch.groups.max(initial=-1)) + 1)
        if self.config.old_logprobs == "learner":
            own = self._logprobs(batch, self.module[DEFAULT_MODULE_ID].forward_train)
            recomputed = recompute(self.config, batch, own)
            self._update_metrics.add_recomputed(recomputed)
            kept = np.repeat(batch.loss_mask, batch.completion_lengths)
            fresh = (batch.weights_versions == self._sampling_version) & kept
            gaps = np.abs(own - batch.old_logprobs)[fresh]
            self._update_metrics.add_gaps(torch.from_numpy(gaps).to(self.device))
            batch = recomputed.batch
        if self._reference is not None:
            logprobs = self._logprobs(batch, self._reference.forward)
            batch = replace(batch, reference_logprobs=logprobs)
        return batch

    @torch.no_grad()
    def _logprobs(self, batch: TokenBatch, forward: Forward) -> FloatArray:
        """float32[T], log-probability of each completion token, without gradient."""
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
        """One optimizer step on one minibatch."""
        minibatch = from_multi_agent_batch(batch)
        kept = kept_lengths(
            minibatch.completion_lengths, minibatch.loss_mask, minibatch.importance_weights > 0
        )
        weights = self._token_weights(minibatch, kept)
        for optimizer in self._optimizer_parameters:
            optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.device)
        for rows in self._microbatches(minibatch):
            loss += self._backward(minibatch, rows, weights)
        self._sum_gradients_over_learners()
        self._update_metrics.add_minibatch(minibatch, int(kept.sum()))
        self._step(loss, minibatch)
        return {}, {DEFAULT_MODULE_ID: loss}, {}

    def _microbatches(self, batch: TokenBatch) -> list[IntArray]:
        """Row numbers of each forward pass, as many as the other learners have if they wait."""
        parts = self._layout.split(batch)
        if self.config.shard_model:  # each pass gathers weights, which takes all learners
            passes = self._together.largest(max(len(parts), 1))
            parts += [_NO_ROWS] * (passes - len(parts))
        return parts

    def _part(self, batch: TokenBatch, rows: IntArray) -> TokenBatch:
        """The rows of one forward pass; one that weighs nothing where there are none."""
        return select(batch, rows) if len(rows) else idle_row(self._layout.pad_id)

    def _token_weights(self, minibatch: TokenBatch, kept: IntArray) -> FloatArray:
        """float32[T], the weight in the loss of each completion token, from all learners."""
        totals = loss_totals(kept, minibatch.groups, self._num_groups)
        totals = self._together.sum(torch.from_numpy(totals).to(self.device)).cpu().numpy()
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
        """Forward and backward of one micro-batch; returns its share of the loss."""
        part = self._part(minibatch, rows)
        own = weights[ragged_indices(minibatch.completion_lengths, rows)]
        own = own if len(rows) else np.zeros(1, np.float32)
        fresh = part.weights_versions == self._sampling_version
        batch = self._layout.tensors(part, self.device) | {
            "token_weights": torch.from_numpy(own).to(self.device),
            "on_policy": torch.from_numpy(fresh).to(self.device),
        }
        fwd_out = self.module[DEFAULT_MODULE_ID].forward_train(batch)
        loss = self.compute_loss_for_module(
            module_id=DEFAULT_MODULE_ID, config=self.config, batch=batch, fwd_out=fwd_out
        )
        loss.backward()
        return loss.detach()

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """RLlib's hook: minus the objective (Eq. 12 with the settings' options) of a micro-batch.

        Args:
            module_id: RLlib's; there is one module.
            config: the DAPO configuration.
            batch: what `MicrobatchLayout.tensors` made, and per completion token float32[T]
                `token_weights` (0 takes a token out) and bool[T] `on_policy`, sampled by
                the weights this update began with.
            fwd_out: what `DAPOTorchRLModule._forward_train` returned.

        Returns:
            A scalar; over all micro-batches of all learners they add up to the loss.
        """
        tokens = token_objective(config, batch, fwd_out)
        compare = self._before_first_step and config.old_logprobs == "engine"
        self._update_metrics.add_tokens(
            tokens,
            logprobs=fwd_out[Columns.ACTION_LOGP].detach(),
            entropy=fwd_out["entropy"].detach(),
            unchanged=batch["on_policy"] if compare else None,
        )
        return weighted_loss(tokens.objective, batch["token_weights"])

    def _step(self, loss: Tensor, minibatch: TokenBatch) -> None:
        """Clip the gradient and step, or skip a step that would spoil the weights.

        Raises:
            TrainingError: too many steps in a row had to be skipped.
        """
        params = list(self._params.values())
        norm = clip_gradient_norm(params, self.config.grad_clip)
        # Of one mind, also about a loss that only one learner has.
        finite = self._together.all(bool(torch.isfinite(norm)) and bool(torch.isfinite(loss)))
        self._update_metrics.add_step(loss, norm, skipped=not finite)
        self._before_first_step = False
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
                f"is in {path} (rllib_dapo.learner.batch_file.load_token_batch reads it)."
            )

    def _save_for_inspection(self, minibatch: TokenBatch) -> Path:
        """Write this learner's part of a minibatch into the run's folder."""
        folder = Path(self.config.learner_config_dict.get("failure_dir", "."))
        rank = torch.distributed.get_rank() if self._together.size > 1 else 0
        return save_token_batch(minibatch, folder / f"non_finite_minibatch_{rank}.npz")

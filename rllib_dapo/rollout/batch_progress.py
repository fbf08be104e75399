"""How far a batch is, and what to say when it gets no further."""

from __future__ import annotations

from dataclasses import dataclass

from rllib_dapo.rollout.group_filter import REMEDIES


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is, for progress bars, metrics and messages.

    Attributes:
        kept: groups kept so far, carried ones included (can exceed `wanted`).
        wanted: groups of a full batch, N.
        dropped: groups dropped so far, by verdict.
        carried: groups among the kept that earlier batches left over.
        asked: problems newly asked for this batch.
        resolved: groups that came back, kept or dropped; the carried ones are not in it.
        in_flight: problems asked for, in this batch or before, and not resolved.
        limit: problems that may be asked for.
    """

    kept: int
    wanted: int
    dropped: dict[str, int]
    carried: int
    asked: int
    resolved: int
    in_flight: int
    limit: int


def shortfall(progress: Progress, last_failure: str | None) -> str:
    """Why a batch is not full: counts by reason, the commonest one's remedy, the settings.

    Args:
        progress: of a batch whose limit is reached.
        last_failure: how the last group failed, if any did.
    """
    dropped = progress.dropped
    reasons = ", ".join(f"{count} {verdict}" for verdict, count in dropped.items() if count)
    commonest = max(REMEDIES, key=lambda verdict: dropped.get(verdict, 0))
    remedy = f" Mostly {commonest}: {REMEDIES[commonest]}." if reasons else ""
    failure = f" Last failure: {last_failure}." if last_failure else ""
    rounds = progress.limit / progress.wanted
    return (
        f"dynamic sampling kept {progress.kept} of {progress.wanted} groups and has asked for "
        f"{progress.asked} problems, all that max_sampling_rounds={rounds:g} allows "
        f"(times groups_per_batch={progress.wanted}); of {progress.resolved} groups sampled it "
        f"dropped {reasons or 'none'}.{remedy}{failure} Or raise max_sampling_rounds, lower "
        "groups_per_batch, or set at_sampling_limit to 'train_on_partial' or 'skip'."
    )

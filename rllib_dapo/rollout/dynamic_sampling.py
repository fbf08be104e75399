"""Dynamic sampling: request problems until N groups carry a signal (§3.2 and Eq. 11 of DAPO).

This file holds control flow only; it uses neither Ray nor an engine. There are no rounds: further
problems are requested as soon as the groups that came back show that they are needed, while others
are still in flight.

    sampler = DynamicSampler(wanted=512, max_problems=30 * 512)
    while not sampler.done:
        if count := sampler.demand:
            refs = problems.take(count)
            sampler.expect(refs)
            ask(refs)
        for group in arrived():                 # any order
            sampler.add(group)
    groups, surplus = sampler.result()

What is requested and what is trained on follows from the groups in the order in which
`RequestedProblems` releases them. With each released group the number of problems that should
have been requested is computed anew:

    target = max(target, released + problems_needed(N - kept among them, rate, margin))

The batch is full when N kept groups have been released, those from the buffer included, and
these are the batch. A problem that was once shown to be needed is requested even if the same
group also fills the batch: had the other groups arrived later, it would have been requested.
So, with the order `problem`, the requested problems, the batch and finally the surplus follow
from the problems and their completions alone. The price is that one long completion at the
front holds back what is requested next.

No group is lost: every requested problem ends in the batch, in the surplus, in the counts of
what was dropped, or is in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rllib_dapo.errors import SamplingError
from rllib_dapo.rollout.demand import KeepRate, problems_needed
from rllib_dapo.rollout.group_filter import (
    REMEDIES,
    BatchProgress,
    GroupVerdict,
    classify,
    shortfall,
)
from rllib_dapo.rollout.requested_problems import FillOrder, RequestedProblems
from rllib_dapo.settings.choices import AtLimit
from rllib_dapo.types import Group, ProblemRef

# At most this many batches of problems are requested ahead of the released groups. If the
# estimate of the keep rate is far too low, the surplus is then still bounded.
_LARGEST_LEAD = 4


class DynamicSampler:
    """Decides for one batch which problems to request and which groups to train on.

    The docstring of the module shows the loop around it.

    Args:
        wanted: N, groups of a full batch; at least 1.
        max_problems: how many problems may be requested; at least N.
        enabled: False keeps groups without signal too, so that exactly N problems are enough.
            Failed groups are replaced in either case.
        at_limit: what `result` does when `max_problems` did not suffice: `error` raises,
            `train_on_partial` returns the groups there are, `skip` returns none.
        keep_rate: the estimate from earlier batches, or None. The sampler only reads it; pass
            `observed` to its `learn` when the batch is done.
        order: in which order groups count; see `RequestedProblems`.
        margin: standard deviations of safety in what is requested. A larger margin means less
            waiting for a second request and more surplus; use 0 where surplus is thrown away.

    Attributes:
        duplicates: groups that were ignored because their problem was not in flight.
    """

    def __init__(
        self,
        wanted: int,
        *,
        max_problems: int,
        enabled: bool = True,
        at_limit: AtLimit = "error",
        keep_rate: KeepRate | None = None,
        order: FillOrder = "problem",
        margin: float = 1.0,
    ) -> None:
        self.wanted = wanted
        self.max_problems = max_problems
        self.enabled = enabled
        self.at_limit = at_limit
        self.order = order
        self.margin = margin
        self.duplicates = 0
        self._keep_rate = KeepRate(wanted) if keep_rate is None else keep_rate
        self._requested = RequestedProblems(order)
        self._counts: Counter[GroupVerdict] = Counter()
        self._kept: dict[int, Group] = {}
        self._carried = 0
        self._released = 0  # problems that counted until the batch was full
        self._chosen: list[int] = []  # positions of the kept ones among them, and the carried
        self._target = 0  # how many problems should have been requested
        self._last_failure: str | None = None
        self._raise_target()

    # -- Requests ----------------------------------------------------------------------------

    def carry_over(self, groups: Iterable[Group]) -> None:
        """Take in the groups of the buffer, once, before anything else.

        They are used first. Their verdicts were counted in their own batch.
        """
        for group in sorted(groups, key=lambda group: group.ref.position):
            self._kept[group.ref.position] = group
            self._chosen.append(group.ref.position)
        self._carried = len(self._chosen)
        self._requested.set_aside(self._chosen)
        self._target = 0  # fewer problems are needed than without these groups
        self._raise_target()

    def expect(self, refs: Iterable[ProblemRef], *, earlier: bool = False) -> None:
        """Note which problems have been requested; see `RequestedProblems.add`.

        Args:
            refs: the problems, at later positions than those noted before.
            earlier: True for problems of an earlier batch that are still in flight; they do
                not count towards `max_problems`.

        Raises:
            SamplingError: a problem comes before one that the batch has looked at already.
        """
        self._requested.add(refs, earlier=earlier)

    @property
    def demand(self) -> int:
        """How many further problems to request now; above 0 at times although `full`."""
        if self.full and self.order == "completion":
            return 0
        allowed = self.max_problems - self._requested.requested_anew
        return max(0, min(self._target - len(self._requested), allowed))

    # -- Groups ------------------------------------------------------------------------------

    def add(self, group: Group) -> GroupVerdict | None:
        """Take in a group and say what becomes of it, also after the batch is full.

        Returns:
            The verdict, or None if the group is ignored and counted in `duplicates`, because its
            problem is resolved already or was never noted. A problem that is requested again
            because its runner seemed dead may come back twice, the second time after its batch
            is over.
        """
        position = group.ref.position
        released = self._requested.resolve(position)
        if released is None:
            self.duplicates += 1
            return None
        verdict = classify(group)
        self._counts[verdict] += 1
        if verdict == "failed":
            self._last_failure = group.failure or self._last_failure
        elif verdict == "kept" or not self.enabled:
            self._kept[position] = group
        for ready in released:
            self._count(ready)
        return verdict

    def _count(self, position: int) -> None:
        """Let one released problem count for the batch and for what is requested."""
        if self.full:
            return
        self._released += 1
        if position in self._kept:
            self._chosen.append(position)
        self._raise_target()

    def _raise_target(self) -> None:
        """Compute how many problems should have been requested, by what was released."""
        needed = missing = self.wanted - len(self._chosen)
        if self.enabled:
            needed = problems_needed(missing, self.rate, self.margin)
            needed = min(needed, _LARGEST_LEAD * self.wanted)
        self._target = max(self._target, self._released + needed)

    # -- State -------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True when the batch is complete; what arrives from then on is surplus."""
        return len(self._chosen) >= self.wanted

    @property
    def done(self) -> bool:
        """True when nothing is to be requested, and the batch is full or nothing in flight."""
        return not self.demand and (self.full or not self._requested.in_flight)

    @property
    def in_flight(self) -> tuple[ProblemRef, ...]:
        """Problems requested and not resolved, in problem order."""
        return self._requested.in_flight

    @property
    def counts(self) -> dict[str, int]:
        """Groups by verdict; if not enabled, verdicts are counted without dropping."""
        return {str(verdict): count for verdict, count in self._counts.items()}

    @property
    def observed(self) -> tuple[int, int]:
        """(kept, sampled) groups among the released ones, without buffered and late groups."""
        return len(self._chosen) - self._carried, self._released

    @property
    def rate(self) -> float:
        """Share of groups that are kept: the earlier estimate and `observed` together."""
        return self._keep_rate.rate(*self.observed)

    @property
    def progress(self) -> BatchProgress:
        """A snapshot of how far the batch is filled."""
        reasons: Iterable[GroupVerdict] = REMEDIES if self.enabled else ("failed",)
        return BatchProgress(
            kept=len(self._kept),
            wanted=self.wanted,
            dropped={verdict: self._counts[verdict] for verdict in reasons},
            carried=self._carried,
            asked=self._requested.requested_anew,
            resolved=self._counts.total(),
            in_flight=len(self._requested.in_flight),
            limit=self.max_problems,
        )

    # -- The batch ---------------------------------------------------------------------------

    def result(self) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
        """The batch, which no longer changes, and the `surplus`; both in problem order.

        Raises:
            SamplingError: the batch is not full and `at_limit` is `error`, or it is not done.
        """
        if not self.done:
            raise SamplingError(
                f"the batch is not done: {len(self._chosen)} of {self.wanted} groups are there, "
                f"{len(self.in_flight)} problems in flight and {self.demand} to request"
            )
        if not self.full and self.at_limit == "error":
            raise SamplingError(shortfall(self.progress, self._last_failure))
        return self._in_order(self._batch()), self.surplus()

    def surplus(self) -> tuple[Group, ...]:
        """The kept groups that are in no batch so far, in problem order."""
        return self._in_order(self._kept.keys() - self._batch())

    def _batch(self) -> set[int]:
        """Positions of the batch's groups; none before it is done."""
        if self.full or (self.done and self.at_limit == "train_on_partial"):
            return set(self._chosen[: self.wanted])
        return set()

    def _in_order(self, positions: Iterable[int]) -> tuple[Group, ...]:
        return tuple(self._kept[position] for position in sorted(positions))

"""Dynamic sampling: ask until N groups carry a signal (§3.2 and Eq. 11 of DAPO).

Control flow only, no Ray and no engine. There are no rounds: problems are asked for as soon
as the groups that came back show that more are needed, while others are still answered.

    sampler = DynamicSampler(wanted=512, max_problems=30 * 512)
    while not sampler.done:
        if count := sampler.demand():
            refs = problems.take(count)
            sampler.expect(refs)
            ask(refs)
        for group in arrived():                 # any order
            sampler.add(group)
    groups, surplus = sampler.result()

Groups arrive in an order that depends on timing; what is asked for and what is trained on
must not, or no run could be repeated, and problems with short answers would be preferred. So
with `order="problem"` the sampler looks only at the *resolved prefix*: the asked problems in
the order of their positions, as far as all of them are resolved. They join it one by one, and
with each one the number of problems to have asked for is computed anew:

    target = max(target, prefix + problems_needed(N - kept in prefix, rate(prefix), margin))

The batch is full when the prefix holds N kept groups, the carried ones before it included,
and these are the batch. A problem that the prefix once showed to be needed is asked for even
if the same group also fills the batch: had the others arrived later, it would have been. So
the problems asked, the batch, and once everything asked is finished also the surplus, follow
from the problems and their answers alone. The price: one long answer at the front holds back
what is asked next.

With `order="completion"` groups are looked at as they arrive. Nothing waits for a long answer,
and nothing can be repeated exactly.

In both, no group is lost: every problem asked for ends in the batch, in the surplus, in the
counts of what was dropped, or is `outstanding`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from rllib_dapo.errors import SamplingError, refuse
from rllib_dapo.rollout.batch_progress import Progress, shortfall
from rllib_dapo.rollout.demand import KeepRate, problems_needed
from rllib_dapo.rollout.group_filter import REMEDIES, Verdict, classify
from rllib_dapo.settings.choices import AtLimit
from rllib_dapo.types import Group, ProblemRef

FillOrder = Literal["problem", "completion"]
"""Which kept groups fill the batch: the first by position, or the first to arrive."""

# At most so many batches of problems ahead of the groups looked at. An estimate far too low
# then costs a bounded surplus, and engines have more than enough waiting for them.
_LARGEST_LEAD = 4


class DynamicSampler:
    """The bookkeeping of one batch of groups; see the module for the loop around it.

    Args:
        wanted: N, groups of a full batch.
        max_problems: how many problems may be asked for; at least N.
        enabled: False keeps groups without signal too, so that exactly N problems are
            enough. Failed groups are replaced in either case.
        at_limit: what `result` does when `max_problems` did not suffice: `error` raises,
            `train_on_partial` hands out the groups there are, `skip` hands out none.
        keep_rate: the estimate from earlier batches; None: there is none. It is only read:
            teach it `observed` when the batch is done.
        order: see the module.
        margin: standard deviations of safety in what is asked for. More of them mean less
            waiting for a second request, and more surplus; 0 where surplus is thrown away.

    Raises:
        SettingError: the sampler could never fill a batch.
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
        _check(wanted, max_problems, at_limit)
        self.wanted = wanted
        self.max_problems = max_problems
        self.enabled = enabled
        self.at_limit = at_limit
        self.order = order
        self.margin = margin
        self.duplicates = 0
        self._keep_rate = KeepRate(wanted) if keep_rate is None else keep_rate
        self._asked: list[int] = []  # positions, in problem order
        self._asked_newly = 0
        self._target = 0  # of len(self._asked)
        self._in_flight: dict[int, ProblemRef] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._counts: Counter[str] = Counter()
        self._kept: dict[int, Group] = {}
        self._carried = 0
        self._prefix = 0  # how many of them are resolved without a gap; unused by "completion"
        self._seen = 0  # resolved problems looked at until the batch was full
        self._chosen: list[int] = []  # positions of the kept ones among them, and the carried
        self._last_failure: str | None = None

    # -- Asking ------------------------------------------------------------------------------

    def carry_over(self, groups: Iterable[Group]) -> None:
        """Take in groups left over by earlier batches, before anything else.

        They are used first. Their verdicts were counted in their own batch.
        """
        for group in sorted(groups, key=lambda group: group.ref.position):
            self._verdicts[group.ref.position] = "kept"
            self._kept[group.ref.position] = group
            self._chosen.append(group.ref.position)
        self._carried = len(self._chosen)

    def expect(self, refs: Iterable[ProblemRef], *, earlier: bool = False) -> None:
        """Note which problems are being asked; one that is known already stays as it is.

        Args:
            refs: the problems, at later positions than those noted before.
            earlier: they were asked in an earlier batch and are still in flight: the limit
                does not count them. Note these before the first new one.

        Raises:
            SamplingError: a problem comes before one that the batch has looked at already.
        """
        for ref in refs:
            if ref.position in self._verdicts or ref.position in self._in_flight:
                continue
            if self._prefix and ref.position < self._asked[self._prefix - 1]:
                raise SamplingError(
                    f"problem {ref.position} was noted too late: the batch is already past it; "
                    "note problems in the order of their positions, unfinished ones first"
                )
            self._in_flight[ref.position] = ref
            self._asked.append(ref.position)
            self._asked_newly += not earlier
        self._asked.sort()

    def demand(self) -> int:
        """How many further problems to ask for now; above 0 at times although `full`."""
        if self.full and self.order == "completion":
            return 0
        self._raise_target()
        allowed = self.max_problems - self._asked_newly
        return max(0, min(self._target - len(self._asked), allowed))

    # -- Answers -----------------------------------------------------------------------------

    def add(self, group: Group) -> Verdict | None:
        """Take in a group and say what becomes of it; also after the batch is full.

        Returns:
            The verdict. None: the group is ignored and counted in `duplicates`, because its
            problem is resolved or was never noted. A problem asked again because its runner
            seemed dead may come back twice, the second time after its batch is over.
        """
        position = group.ref.position
        if self._in_flight.pop(position, None) is None:
            self.duplicates += 1
            return None
        self._raise_target()  # of what was looked at so far, should no one have asked
        verdict = classify(group)
        self._verdicts[position] = verdict
        self._counts[verdict] += 1
        if verdict == "failed":
            self._last_failure = group.failure or self._last_failure
        elif verdict == "kept" or not self.enabled:
            self._kept[position] = group
        for ready in [position] if self.order == "completion" else self._joining():
            self._look_at(ready)
        return verdict

    def _joining(self) -> Iterator[int]:
        """Positions that join the resolved prefix now, in order."""
        while self._prefix < len(self._asked) and self._asked[self._prefix] in self._verdicts:
            self._prefix += 1
            yield self._asked[self._prefix - 1]

    def _look_at(self, position: int) -> None:
        """Let one resolved problem count for the batch and for what is asked."""
        if not self.full:
            self._seen += 1
            if position in self._kept:
                self._chosen.append(position)
            self._raise_target()

    def _raise_target(self) -> None:
        """How many problems should have been asked for, by what was looked at."""
        needed = missing = self.wanted - len(self._chosen)
        if self.enabled:
            needed = problems_needed(missing, self.rate, self.margin)
            needed = min(needed, _LARGEST_LEAD * self.wanted)
        self._target = max(self._target, self._seen + needed)

    # -- State -------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True when the batch is complete; what arrives from then on is surplus."""
        return len(self._chosen) >= self.wanted

    @property
    def done(self) -> bool:
        """True when nothing is to be asked for, and the batch is full or nothing in flight."""
        return not self.demand() and (self.full or not self._in_flight)

    @property
    def in_flight(self) -> tuple[ProblemRef, ...]:
        """Problems asked for and not resolved, in problem order."""
        return tuple(self._in_flight[position] for position in sorted(self._in_flight))

    @property
    def counts(self) -> dict[str, int]:
        """Groups by verdict; when not enabled, verdicts are counted without dropping."""
        return dict(self._counts)

    @property
    def observed(self) -> tuple[int, int]:
        """(kept, sampled) groups of those looked at: neither carried ones nor late ones."""
        return len(self._chosen) - self._carried, self._seen

    @property
    def rate(self) -> float:
        """Share of groups that are kept: the earlier estimate and `observed` together."""
        return self._keep_rate.rate(*self.observed)

    @property
    def progress(self) -> Progress:
        """A snapshot."""
        return Progress(
            kept=len(self._kept),
            wanted=self.wanted,
            dropped=self._dropped(),
            carried=self._carried,
            asked=self._asked_newly,
            resolved=self._counts.total(),
            in_flight=len(self._in_flight),
            limit=self.max_problems,
        )

    # -- The batch ---------------------------------------------------------------------------

    def result(self) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
        """The batch, which no longer changes, and the `surplus`; both in problem order.

        Raises:
            SamplingError: the batch is not full, and `at_limit` is `error`; or it is not done.
        """
        if not self.done:
            raise SamplingError(
                f"the batch is not done: {len(self._chosen)} of {self.wanted} groups are there, "
                f"{len(self._in_flight)} problems in flight and {self.demand()} to be asked for"
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

    def _dropped(self) -> dict[str, int]:
        """Counts of what was really dropped."""
        reasons = REMEDIES if self.enabled else ("failed",)
        return {verdict: self._counts[verdict] for verdict in reasons}


def _check(wanted: int, max_problems: int, at_limit: str) -> None:
    """Refuse a sampler that could never fill a batch."""
    if wanted < 1:
        refuse("groups_per_batch", wanted, "a batch needs at least 1 group")
    if max_problems < wanted:
        rounds = max_problems / wanted
        refuse("max_sampling_rounds", rounds, "at least 1 is needed to ask for a batch's problems")
    if at_limit not in ("error", "train_on_partial", "skip"):
        refuse("at_sampling_limit", at_limit, "use 'error', 'train_on_partial' or 'skip'")

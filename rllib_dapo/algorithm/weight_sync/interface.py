"""What the driver knows of a weight sync: it sends the learner's weights to runners.

    learner --WeightSync.send--> engines of the runners --checks--> serve

Whatever way they go, the same holds: the learner says which version they are, an engine serves
them only when a complete set has arrived, and a runner that could not take them is named and
serves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Answers:
    """What runners answered to one call.

    Attributes:
        values: by runner.
        failures: why the others did not answer, by runner.
        lost: of those, the runners that are dead or silent; the rest refused.
    """

    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)


class Runners(Protocol):
    """Some runners with an engine each."""

    def ids(self) -> list[int]:
        """Their numbers; `[LOCAL_RUNNER]` if the engine is in this process."""
        ...

    def handles(self) -> Mapping[int, Any]:
        """Ray's actor handles by number; none of the local one."""
        ...

    def call(self, method: str, *arguments: Any, only: Sequence[int] | None = None) -> Answers:
        """Call a method of their engines at once, between two steps, and wait for all.

        Args:
            method: of `VLLMEngine` or its `weights` (`weights.start`).
            *arguments: object references of Ray arrive as what they refer to.
            only: some of them; None: all.
        """
        ...


@dataclass(frozen=True, slots=True)
class SyncReport:
    """How a sync went.

    Attributes:
        version: of the weights that were sent.
        served: runners that serve them now.
        failed: why others do not, by runner. They refuse to sample, or do not answer: start
            them again.
        gap: mean absolute difference of log-probabilities between learner and engine, nats,
            the largest over the runners; None if this sync was not checked.
    """

    version: int
    served: tuple[int, ...]
    failed: dict[int, str]
    gap: float | None = None


class WeightSync(Protocol):
    """One way for the weights to go."""

    @property
    def transport(self) -> str:
        """`in_process`, `object_store`, `cuda_ipc` or `nccl`."""
        ...

    def send(self, runners: Runners) -> SyncReport:
        """Bring the learner's weights into the engines and wait until they serve.

        Where all runners are lost none serves them, and they wait for the ones started again.

        Raises:
            EngineError: no runner could take them, and one of them refused.
            TrainingError: a learner is lost.
        """
        ...

    def send_again(self, runners: Runners) -> SyncReport | None:
        """Bring the weights of the last `send` to runners that have lost them.

        They are those that the other runners serve, whatever the learner does meanwhile.

        Returns:
            None where they were not kept; such runners get weights with the next `send`.
        """
        ...

"""The last evaluation, which every result carries.

Tune asks every result for the metric that it compares, and progress.csv has the columns of the
first result only. So each result has the evaluation's metrics, also where none was made:
`evaluation/iteration` says after which iteration it was. Before the first one, these are the
numbers of the evaluation before training (iteration 0), or NaN if there was none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.tune.utils.util import unflatten_dict

from rllib_dapo import metrics

_NAMES = tuple(metric.key.partition("/")[2] for metric in metrics.EVALUATION_METRICS)


class LastEvaluation:
    """Remembers the metrics of the last evaluation."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = dict.fromkeys(_NAMES, math.nan)

    def take(self, values: Mapping[str, Any], iteration: int) -> None:
        """Remember an evaluation.

        Args:
            values: its metrics, nested or with `/` between the levels; `evaluate_s`, its time,
                is left out.
            iteration: the number of the iteration after which it was made.
        """
        kept = {key: value for key, value in values.items() if key != "evaluate_s"}
        self._values = {**unflatten_dict(kept), "iteration": float(iteration)}

    def result(self) -> dict[str, Any]:
        """What an iteration's result holds under `evaluation`."""
        return dict(self._values)

    def is_of(self, iteration: int) -> bool:
        """Whether the evaluation was made after this iteration."""
        return bool(self._values["iteration"] == iteration)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return self.result()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint holds."""
        self._values = dict(state)

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

from ray.tune.utils.util import flatten_dict, unflatten_dict

from rllib_dapo import metrics

# The first levels of DAPO's metrics.
_TOP = tuple(sorted({metric.key.partition("/")[0] for metric in metrics.ALL_METRICS}))
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

    def complete(self, result: dict[str, Any], iteration: int) -> None:
        """Make the metrics of a checkpoint such that Tune can score it by each of them.

        Tune looks for `checkpoint_score_attribute` among their keys, so they get flat ones,
        `evaluation/accuracy`, beside the nested ones. A checkpoint whose weights were not
        evaluated has NaN there, which ranks last.

        Args:
            result: the metrics of the checkpoint, which are changed.
            iteration: the number of the iteration after which it was made.
        """
        if metrics.EVALUATION in result and self._values["iteration"] != iteration:
            names = flatten_dict(result[metrics.EVALUATION])
            result[metrics.EVALUATION] = unflatten_dict(dict.fromkeys(names, math.nan))
        result |= flatten_dict({key: result[key] for key in _TOP if key in result})

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return self.result()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint holds."""
        self._values = dict(state)

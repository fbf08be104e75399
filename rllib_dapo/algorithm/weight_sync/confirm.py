"""The last part of every sync: who serves the new weights, and do they agree with the learner."""

from __future__ import annotations

from rllib_dapo.algorithm.weight_sync.checks import SyncChecks
from rllib_dapo.algorithm.weight_sync.interface import Answers, Runners, SyncReport
from rllib_dapo.algorithm.weight_sync.learners import Probe
from rllib_dapo.errors import EngineError


def confirm(
    runners: Runners, loaded: Answers, version: int, probe: Probe | None, checks: SyncChecks
) -> SyncReport:
    """Compare engines with the learner on the probe; take those that differ out of service.

    Args:
        runners: those that were sent weights.
        loaded: which of them took the weights, and why others did not.
        version: of the weights.
        probe: the learner's; None: do not compare.
        checks: how far they may differ.

    Raises:
        EngineError: no runner serves them, and it is not that all of them died.
    """
    served, failed, lost = list(loaded.values), dict(loaded.failures), set(loaded.lost)
    gaps = []
    if probe is not None and served:
        answers = runners.call("prompt_logprobs", probe.token_ids, only=served)
        failed |= answers.failures
        lost |= answers.lost
        for runner, logprobs in answers.values.items():
            gap = checks.gap(probe.logprobs, logprobs)
            gaps.append(gap)
            if complaint := checks.complaint(gap, version):
                failed[runner] = complaint
                runners.call("weights.reject", complaint, only=[runner])
        served = [runner for runner in served if runner not in failed]
    if not served and not lost.issuperset(failed):
        reason = next(why for runner, why in failed.items() if runner not in lost)
        raise EngineError(
            f"none of {len(failed)} runners could take over weights of version {version}: {reason}"
        )
    return SyncReport(version, tuple(served), failed, max(gaps, default=None))

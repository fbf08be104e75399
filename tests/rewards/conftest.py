"""What tests of the graders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from grading_questions import LIMITS, good

from rllib_dapo.rewards.grading.pool import WorkerPool


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """A pool of its own whose workers have started."""
    pool = WorkerPool(LIMITS)
    pool.compare([good(0)])
    yield pool
    pool.close()

"""`losses` and `model` train on a machine that has torch and transformers, but not Ray or vLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support" / "step_without_ray.py"


def test_one_optimizer_step_equals_that_of_transformers():
    """The program refuses Ray, vLLM and gymnasium, and compares the step with a plain one."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr

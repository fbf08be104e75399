"""Make a virtual environment with this project in it; needs nothing but Python 3.11.

python scripts/install.py --venv .venv --extras cpu,dev
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

# PyTorch's wheels for CPUs are not on PyPI. Where pip finds them otherwise (a mirror, a
# file), the index is simply not needed.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# The resolver takes builds of these for CUDA beside a CPU torch; transformers finds them
# and fails on import ("operator torchvision::nms does not exist"). Nothing here needs them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def run(*command: str) -> int:
    """Run a command, shown to the user; returns its exit status."""
    print("$", " ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


def works(python: str, module: str) -> bool:
    """Whether a package imports together with the torch that is there."""
    probe = subprocess.run(
        [python, "-c", f"import {module}"], check=False, capture_output=True, text=True
    )
    return probe.returncode == 0


def install(python: str, extras: str) -> None:
    """Install the project in place.

    Raises:
        SystemExit: pip failed, with what to look at.
    """
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    target = ["--editable", f".[{extras}]"]
    if run(*command, *target) == 0:
        return
    print("pip found no CPU build of torch; trying PyTorch's own index", flush=True)
    if "cpu" in extras.split(",") and run(*command, "--extra-index-url", CPU_INDEX, *target) == 0:
        return
    raise SystemExit(
        f"pip could not install the extras '{extras}'. Its messages are above; the pins are in "
        "setup.cfg. On a machine with a GPU use EXTRA=gpu, elsewhere EXTRA=cpu."
    )


def main() -> None:
    """Create, install, mend, check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--extras", default="cpu")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        raise SystemExit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    python = str(options.venv / "bin" / "python")
    if not Path(python).exists():
        print(f"making {options.venv}; installing takes about two minutes", flush=True)
        venv.create(options.venv, with_pip=True)
    install(python, options.extras)
    broken = [name for name in UNWANTED if not works(python, name)]
    if broken:
        run(python, "-m", "pip", "uninstall", "--yes", "--quiet", *broken)
    if not works(python, "rllib_dapo"):
        raise SystemExit("the package does not import; run `make clean` and try again")


if __name__ == "__main__":
    main()

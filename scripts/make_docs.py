"""Write the tables of docs/ that are made from the code: settings.md and metrics.md.

python scripts/make_docs.py            write them
python scripts/make_docs.py --check    fail if they are not up to date
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path

from rllib_dapo import metrics
from rllib_dapo.settings import general as settings

DOCS = Path(__file__).parent.parent / "docs"

METRICS_HEAD = """# Metrics

Made from `rllib_dapo/metrics.py`. Keys are paths in the result of an iteration
(`result["env_runners"]["accuracy"]`, `stop: {evaluation/accuracy: 0.95}`); TensorBoard shows
them under `ray/tune/`. RLlib adds its own (`timers`, `perf`, counters of trained steps).

"""

SETTINGS_HEAD = """# Settings

Made from `rllib_dapo/settings/`. They are keys of `config:` in a YAML file, and arguments of
`DAPOConfig().training(…)`. RLlib's own settings keep their names; the ones used most:

| setting | default | meaning |
| --- | --- | --- |
| `lr` | 3e-4 | learning rate after warm-up. Paper: 1e-6 |
| `minibatch_size` | 128 | completions per optimizer step; divides a batch. Paper: 512 |
| `num_epochs` | 1 | passes over a batch. Paper: 1 |
| `grad_clip` | 1.0 | bound on the norm of the whole gradient. Paper's recipe: 1.0 |
| `seed` | None | of problems, sampling and minibatches; None is 0 |
| `num_env_runners` | 0 | engines in processes of their own; 0: one in the main process |
| `num_cpus_per_env_runner`, `num_gpus_per_env_runner` | 1, 0 | what each of them gets |
| `num_learners` | 0 | learners in processes of their own; 0: one in the main process |
| `evaluation_interval` | None | evaluate every so many iterations |
| `evaluation_duration` | 128 | held-out problems |
| `evaluation_config` | None | overrides for it: `env_config: {split: validation}` |

"""


def metrics_page() -> str:
    """docs/metrics.md."""
    return METRICS_HEAD + metrics.as_markdown()


def settings_page() -> str:
    """docs/settings.md."""
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for kind in settings.SETTING_CLASSES:
        tree = ast.parse(inspect.getsource(kind))
        body = tree.body[0].body  # type: ignore[attr-defined]
        rows += _rows(body)
    return SETTINGS_HEAD + "\n".join(rows) + "\n"


def _rows(body: list[ast.stmt]) -> list[str]:
    """One row for each setting of a class."""
    rows = []
    for field, doc in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
            name = ast.unparse(field.target)
            default = ast.unparse(field.value) if field.value else ""
            text = " ".join(str(ast.literal_eval(doc.value)).split()).replace("|", "\\|")
            shown = "model" if name == "language_model" else name
            rows.append(f"| `{shown}` | `{default}` | {text} |")
    return rows


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, text in {"metrics.md": metrics_page(), "settings.md": settings_page()}.items():
        path = DOCS / name
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(str(path))
        elif not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"{', '.join(stale)}: not up to date; run `python scripts/make_docs.py`")


if __name__ == "__main__":
    main()

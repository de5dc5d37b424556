"""`python -m tests.benchmarks.one NAME FILE`: one benchmark in this process; its outcomes as lines here and in FILE."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import orjson

from tests.benchmarks.results import line_of

IN_README = (
    "reading",
    "noising",
    "denoising",
    "encoding",
    "near_duplicates",
    "web_archive",
    "training_step",
    "finetuning",
    "trainer",
    "checkpointing",
    "start",
)
"""Files of this folder whose figures README has."""
OTHERS = (
    "packing",
    "pii",
    "language",
    "growth",
    "plan_memory",
    "control_plane",
    "many_inputs",
    "large_store",
    "long_histories",
)
"""Files that ask how large things may grow, or decided between ways to do something."""
BENCHMARKS = (*IN_README, *OTHERS)


def main() -> None:
    """Print every outcome when it is there, and append it to the file."""
    name, path = sys.argv[1:]
    # No benchmark has the modules of another in its memory, or in the processes that it starts.
    benchmark = import_module(f"tests.benchmarks.{name}")
    with Path(path).open("ab") as lines:
        for outcome in benchmark.run():
            print(outcome, flush=True)
            lines.write(orjson.dumps(line_of(name, outcome), option=orjson.OPT_APPEND_NEWLINE))
            lines.flush()


if __name__ == "__main__":
    main()

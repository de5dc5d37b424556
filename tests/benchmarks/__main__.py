"""`python -m tests.benchmarks [NAME ...]`: run the benchmarks, print their ratios."""

from __future__ import annotations

import sys

from tests.benchmarks import encoding, noising, training_step

BENCHMARKS = {"noising": noising, "training_step": training_step, "encoding": encoding}

for name in sys.argv[1:] or BENCHMARKS:
    for comparison in BENCHMARKS[name].run():
        print(comparison, flush=True)

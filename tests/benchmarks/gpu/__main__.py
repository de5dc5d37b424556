"""`python -m tests.benchmarks.gpu [PART ...]`: what the first GPU computes beside the CPU, then how fast.

Every part runs in a process of its own, so that one that breaks off leaves the others. Exits with 1 if a check fails.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import torch

from tests.benchmarks import plan_memory
from tests.benchmarks.gpu.agreement import (
    Check,
    losses_are_scaled,
    objectives_agree,
    optimizers_agree,
    resumed_runs_are_identical,
)
from tests.benchmarks.gpu.throughput import CASES, largest_kernel_difference, measure

KERNEL_TOLERANCE = 2e-2
"""Of bf16 hidden states after three layers."""
MEMORY_CASES = (
    "MLM, stage 0",
    "MLM, stage 2, bf16, average",
    "MLM, stage 3, bf16",
    "MLM with dropout, stage 1",
    "MLM, recomputed, longer",
    "T5, stage 2",
)


def _optimizers(device: torch.device, adamw: bool) -> Iterator[Check]:
    from pipeline.optimizers import OPTIMIZERS

    return optimizers_agree(device, [kind for kind in OPTIMIZERS if (kind == "adamw") == adamw])


def _memory() -> Iterator[Check]:
    cases = {case.name: case for case in plan_memory.CASES}
    for name in MEMORY_CASES:
        predicted, allocated = plan_memory.predict(cases[name]), plan_memory.measure(cases[name])
        what = f"memory of {name}, {predicted >> 20} MiB predicted, {allocated >> 20} MiB allocated"
        yield Check(what, abs(predicted / allocated - 1), plan_memory.TOLERANCE)


PARTS: dict[str, Callable[[torch.device], Iterable[object]]] = {
    "kernels": lambda device: [
        Check("variable-length kernel beside SDPA", largest_kernel_difference(device), KERNEL_TOLERANCE)
    ],
    "objectives": objectives_agree,
    "adamw": lambda device: _optimizers(device, adamw=True),
    "loss_scaling": lambda device: losses_are_scaled(),
    "resuming": lambda device: resumed_runs_are_identical(("fp32", "bf16", "fp16")),
    "memory": lambda device: _memory(),
    "speed": lambda device: (line for case in CASES for line in measure(case, device)),
    "optimizers": lambda device: _optimizers(device, adamw=False),
}
"""In the order in which they run; the last one compiles several kernels first."""


def main() -> None:
    """Run the parts that were asked for, or all."""
    names = sys.argv[1:]
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"There is no part {', '.join(unknown)}; there are {', '.join(PARTS)}.")
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device here; `python -m tests.benchmarks` has what a CPU can show.")
    device = torch.device("cuda", 0)
    if len(names) == 1:
        sys.exit(report(PARTS[names[0]](device)))
    print(torch.cuda.get_device_name(device), "torch", torch.__version__, flush=True)
    broken = []
    for name in names or PARTS:
        started = time.monotonic()
        if subprocess.run([sys.executable, "-m", "tests.benchmarks.gpu", name]).returncode:
            broken.append(name)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    sys.exit(f"These failed: {', '.join(broken)}" if broken else 0)


def report(outcomes: Iterable[object]) -> int:
    """Print all outcomes; returns 1 if a check among them failed."""
    failed = False
    for outcome in outcomes:
        print(outcome, flush=True)
        failed |= isinstance(outcome, Check) and not outcome.passed
    return int(failed)


if __name__ == "__main__":
    main()

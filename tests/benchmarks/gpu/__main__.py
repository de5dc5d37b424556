"""`python -m tests.benchmarks.gpu [PART ...]`: what the first GPU computes beside the CPU, then how fast.

Every part runs in a process of its own, so that one that breaks off leaves the others. Exits with 1 if a check fails.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import torch

from tests.benchmarks.gpu.check import Check
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


def _objectives(device: torch.device) -> Iterable[object]:
    from tests.benchmarks.gpu.agreement import objectives_agree

    return objectives_agree(device)


def _adamw(device: torch.device) -> Iterable[object]:
    from tests.benchmarks.gpu.agreement import optimizers_agree

    return optimizers_agree(device, ["adamw"])


def _optimizers(device: torch.device) -> Iterable[object]:
    from pipeline.optimizers import OPTIMIZERS
    from tests.benchmarks.gpu.agreement import optimizers_agree

    return optimizers_agree(device, [kind for kind in OPTIMIZERS if kind != "adamw"])


def _kernels(device: torch.device) -> Iterable[object]:
    yield Check("variable-length kernel beside SDPA", largest_kernel_difference(device), KERNEL_TOLERANCE)


def _loss_scaling(device: torch.device) -> Iterable[object]:
    from tests.benchmarks.gpu.loss_scaling import losses_are_scaled

    return losses_are_scaled()


def _resuming(device: torch.device) -> Iterable[object]:
    from tests.benchmarks.gpu.resuming import resumed_runs_are_identical

    return resumed_runs_are_identical(("fp32", "bf16", "fp16"))


def _memory(device: torch.device) -> Iterator[object]:
    from tests.benchmarks.plan_memory import CASES as PLANNED
    from tests.benchmarks.plan_memory import TOLERANCE, predict
    from tests.benchmarks.plan_memory import measure as measure_memory

    for case in PLANNED:
        if case.name in MEMORY_CASES:
            predicted, allocated = predict(case), measure_memory(case)
            what = f"memory of {case.name}, {predicted >> 20} MiB predicted, {allocated >> 20} MiB allocated"
            yield Check(what, abs(predicted / allocated - 1), TOLERANCE)


def _speed(device: torch.device) -> Iterator[object]:
    for case in CASES:
        yield from measure(case, device)


PARTS: dict[str, Callable[[torch.device], Iterable[object]]] = {
    "kernels": _kernels,
    "objectives": _objectives,
    "adamw": _adamw,
    "loss_scaling": _loss_scaling,
    "resuming": _resuming,
    "memory": _memory,
    "speed": _speed,
    "optimizers": _optimizers,
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

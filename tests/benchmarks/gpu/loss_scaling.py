"""Dynamic loss scaling in fp16: an overflow skips the update and halves the scale, and training goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from tests.benchmarks.gpu.agreement import Check
from tests.benchmarks.plan_memory import Case, network_and_batch

OVERFLOW = 1e12
"""A factor on the loss that no gradient in fp16 survives."""
NUM_UPDATES = 30


def losses_are_scaled() -> Iterator[Check]:
    """Checks for each ZeRO stage, on the one GPU."""
    import torch.distributed as dist

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for stage in range(4):
            yield from _stage(stage)
    finally:
        dist.destroy_process_group()


def _stage(stage: int) -> Iterator[Check]:
    from cluster.group import Rank
    from pipeline.engine.deepspeed.engine import Engine
    from pipeline.engine.interface import EngineSettings

    case = Case("fp16", ("precision=fp16", f"zero.stage={stage}", "batch.samples=4"))
    model, batch = network_and_batch(case)
    engine = Engine(model, EngineSettings.of(case.config()), Rank(0, 1, 0, 1))
    batch = {name: tensor.to(engine.device) for name, tensor in batch.items()}
    num_predicted = len(batch["targets"])

    def update(factor: float):
        loss = torch.stack(list(engine(**batch)[0].values())).sum() / num_predicted
        engine.backward(loss * factor, last=True)
        return float(loss), engine.update(1e-3)

    first, good = update(1.0)
    for _ in range(8):
        # DeepSpeed forgives single overflows (hysteresis) before it halves the scale.
        _, overflowed = update(OVERFLOW)
    for _ in range(NUM_UPDATES):
        last, recovered = update(1.0)
    engine.close()
    before, after = good.loss_scale or 0.0, overflowed.loss_scale or 0.0
    yield Check(f"fp16, stage {stage}, updates made in spite of an overflow", float(overflowed.applied))
    yield Check(f"fp16, stage {stage}, scale after overflows, of the one before", after / before, 0.5)
    yield Check(f"fp16, stage {stage}, updates skipped afterwards", float(not recovered.applied))
    yield Check(f"fp16, stage {stage}, loss after {NUM_UPDATES} updates, of the first one", last / first, 0.9)

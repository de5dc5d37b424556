"""What saving costs the training loop: in a thread, against the same save inline.

A masked LM of 21 million parameters under ZeRO-2, fp32, one process on two cores. Measured twice: training computes
with one thread, so that the writing thread has a core of its own, as on machines whose GPUs train and whose CPUs idle;
and with two threads, so that whatever the writing thread computes is taken from training.

Stretches of updates, in turn: without a save, and with a synchronous or an asynchronous one before the first update. A
stretch with a save goes on until its checkpoint is committed, so that nothing is left out; its cost is its time less
that of as many updates without.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from models.config import TransformerConfig
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel

SHAPE = TransformerConfig(
    vocab_size=16_000, num_layers=8, hidden_size=512, num_heads=8, intermediate_size=2048, max_positions=128
)
UPDATES, ROUNDS = 3, 9
BATCH, LENGTH = 1, 32


def run() -> list[str]:
    """Seconds that an asynchronous save adds to the loop, as a share of those that a synchronous one adds."""
    os.environ |= {"LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}
    with tempfile.TemporaryDirectory() as scratch:
        return _measure(Path(scratch))


def _measure(directory: Path) -> list[str]:
    import torch.distributed as dist

    from cluster.group import Rank
    from pipeline.checkpoint.saver import CheckpointSaver, Committed
    from pipeline.checkpoint.store import CheckpointStore, apply_retention
    from pipeline.engine.deepspeed.engine import Engine
    from pipeline.engine.interface import EngineSettings
    from tests.pipeline.ranks import make_config
    from tests.pipeline.small_checkpoints import state_at

    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    rank = Rank(0, 1, 0, 1)
    model = MaskedLanguageModel(SHAPE)
    init_weights(model, 1)
    engine = Engine(model, EngineSettings.of(make_config(directory, directory / "none")), rank)
    savers: dict[str, CheckpointSaver] = {}
    for name in ("synchronous", "asynchronous"):
        store = CheckpointStore(directory / name)
        settings = {"model": SHAPE, "tokenizer_json": "{}", "inputs": [], "ema": False}
        retain = partial(apply_retention, store, 1)
        savers[name] = CheckpointSaver(
            store, rank, retain=retain, asynchronous=name == "asynchronous", **settings
        )
    step = 0

    def stretch(saver: CheckpointSaver | None) -> tuple[float, int]:
        nonlocal step
        step += 1
        started, updates, outcomes = time.perf_counter(), 0, []
        if saver is not None:
            saver.save(engine, state_at(step))
        while updates < UPDATES or (saver is not None and not outcomes):
            _update(engine)
            updates += 1
            outcomes += [] if saver is None else saver.finished()
        seconds = time.perf_counter() - started
        if saver is not None:
            saver.wait()
        assert all(isinstance(outcome, Committed) for outcome in outcomes), outcomes
        return seconds, updates

    size = sum(one.numel() for one in model.parameters())
    try:
        return [_compare(stretch, savers, size, threads) for threads in (1, 2)]
    finally:
        dist.destroy_process_group()


def _compare(
    stretch: Callable[[Any], tuple[float, int]], savers: dict[str, Any], parameters: int, threads: int
) -> str:
    """Extra seconds per save, medians over rounds."""
    torch.set_num_threads(threads)
    for saver in (None, *savers.values()):
        stretch(saver)
    plain: list[float] = []
    extra: dict[str, list[float]] = {name: [] for name in savers}
    for _ in range(ROUNDS):
        plain.append(stretch(None)[0] / UPDATES)
        for name, saver in savers.items():
            seconds, updates = stretch(saver)
            extra[name].append(seconds - updates * plain[-1])
    waited, asynchronous = (statistics.median(extra[name]) for name in ("synchronous", "asynchronous"))
    return (
        f"a save adds to updates of {statistics.median(plain):.2f} s, {parameters / 1e6:.0f} M parameters, {threads} of"
        f" 2 cores training: {asynchronous:.3f} s asynchronous, {waited:.3f} s synchronous,"
        f" {asynchronous / waited:.2f} of it"
    )


def _update(engine: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(SHAPE.vocab_size, (BATCH, LENGTH), generator=generator)
    positions = torch.arange(0, ids.numel(), 7)
    losses, _ = engine(input_ids=ids, predicted_positions=positions, targets=ids.flatten()[positions])
    engine.backward(torch.stack(list(losses.values())).sum() / len(positions), last=True)
    engine.update(1e-4)

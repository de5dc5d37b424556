"""What saving costs the training loop: in a thread, against the same save inline.

A masked LM of 34 million parameters under ZeRO-2, fp32, one process, two threads. Three loops of the same updates, in
turn: without saving, with synchronous and with asynchronous saves. The last save is waited for outside of the loop; the
memory for copies is there from the first save of the run on, as in any long run.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from models.config import TransformerConfig
from models.initialization import init_weights
from models.masked_language_model import MaskedLanguageModel
from tests.benchmarks.compare import Share

SHAPE = TransformerConfig(
    vocab_size=16_000, num_layers=8, hidden_size=512, num_heads=8, intermediate_size=2048, max_positions=128
)
SAVES, UPDATES_PER_SAVE, ROUNDS = 3, 6, 3
BATCH, LENGTH = 2, 64


def run() -> list[Share]:
    """Seconds of the loop that asynchronous saves add, as a share of those that synchronous ones add."""
    os.environ |= {"LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as directory:
        return [_measure(Path(directory))]


def _measure(directory: Path) -> Share:
    import torch.distributed as dist

    from cluster.train_group import Rank
    from pipeline.pretrain.checkpoint_store import DirectoryStore
    from pipeline.pretrain.engine import TrainingEngine
    from pipeline.pretrain.kept_checkpoints import Retention
    from pipeline.pretrain.saver import CheckpointSaver, Committed, Contents
    from tests.pipeline.ranks import make_config
    from tests.pipeline.saver_ranks import state_at

    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    rank = Rank(0, 1, 0, 2)
    model = MaskedLanguageModel(SHAPE)
    init_weights(model, 1)
    parameters = sum(one.numel() for one in model.parameters())
    engine = TrainingEngine(model, make_config(directory, directory / "none"), rank)
    contents = Contents(SHAPE, "{}", [], ema=False)
    savers = {
        name: CheckpointSaver(
            DirectoryStore(directory / name),
            rank,
            contents,
            Retention(1),
            asynchronous=name == "asynchronous",
        )
        for name in ("synchronous", "asynchronous")
    }
    step = 0

    def loop(saver: CheckpointSaver | None) -> float:
        nonlocal step
        started = time.perf_counter()
        for _ in range(SAVES):
            for _ in range(UPDATES_PER_SAVE):
                _update(engine)
            step += 1
            if saver is not None:
                saver.save(engine, state_at(step))
                for outcome in saver.finished():
                    assert isinstance(outcome, Committed), outcome
        # What the last save still does beside training is paid for by updates, too.
        if saver is not None:
            for _ in range(UPDATES_PER_SAVE):
                _update(engine)
        seconds = time.perf_counter() - started
        if saver is not None:
            saver.wait()
            for outcome in saver.finished():
                assert isinstance(outcome, Committed), outcome
        return seconds

    return _compare(loop, savers, parameters, directory)


def _compare(loop: Callable[[Any], float], savers: dict[str, Any], parameters: int, directory: Path) -> Share:
    """Extra seconds per save, medians over rounds."""
    for saver in savers.values():
        loop(saver)
    extra: dict[str, list[float]] = {name: [] for name in savers}
    for _ in range(ROUNDS):
        # The loop without saves makes as many updates as the others.
        plain = loop(None) * (SAVES + 1) / SAVES
        for name, saver in savers.items():
            extra[name].append((loop(saver) - plain) / SAVES)
    medians = {name: statistics.median(seconds) for name, seconds in extra.items()}
    size = sum(file.stat().st_size for file in (directory / "synchronous").rglob("*") if file.is_file())
    shutil.rmtree(directory / "synchronous")
    return Share(
        f"time that a save adds to the loop, asynchronous of synchronous, {parameters / 1e6:.0f} M parameters,"
        f" {size / 1e9:.2f} GB, {medians['asynchronous']:.3f} s of {medians['synchronous']:.3f} s",
        medians["asynchronous"] / medians["synchronous"],
        {"synchronous": 1.0},
    )


def _update(engine: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(SHAPE.vocab_size, (BATCH, LENGTH), generator=generator)
    positions = torch.arange(0, ids.numel(), 7)
    losses, _ = engine(input_ids=ids, predicted_positions=positions, targets=ids.flatten()[positions])
    engine.backward(torch.stack(list(losses.values())).sum() / len(positions), last=True)
    engine.update(1e-4)

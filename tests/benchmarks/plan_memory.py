"""The memory that `cloze plan` predicts, beside what real DeepSpeed steps allocate: networks, objectives, ZeRO stages.

On CUDA the measure is `torch.cuda.max_memory_allocated`, on a CPU what all threads had allocated at most (`heap`), each
above what is there once libraries are loaded. On a CPU, what is offloaded lies in the same memory as the rest, and both
are compared together. Several updates are made: the optimizer's state is there only after the first.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.loading import load_config
from pipeline.run.config import PretrainConfig
from tests.benchmarks import heap

TOLERANCE = 0.15
NUM_UPDATES = 3
_MIB = 1 << 20

CONFIG = """
name: memory
data: {stores: [{path: not-there}]}
model: {num_layers: 4, hidden_size: 256, num_heads: 4, intermediate_size: 1024, max_positions: 128, vocab_size: 8192,
        dropout: 0.0, attention_dropout: 0.0}
objective: {kind: mlm}
batch: {sequence_length: 128, samples: 16, micro_batch_size: 4}
steps: 10
optimizer: {lr: 1e-3}
zero: {stage: 1, reduce_bucket_elements: 2000000}
"""
_ENCODER_DECODER = "model.network=encoder_decoder"
_DROPOUT = ("model.dropout=0.1", "model.attention_dropout=0.1")
_OPTIMIZER = "zero.offload_optimizer.device=cpu"
_LARGE_BUCKET = ("zero.reduce_bucket_elements=8000000", "batch.micro_batch_size=1")
_WEIGHTS = "zero.offload_parameters.device=cpu"
_ELMO = (
    "{network: elmo, vocab_size: 8192, cell_size: 512, projection_size: 128,"
    " filters: [[1, 32], [2, 32], [3, 64]], num_layers: 1}"
)


@dataclass(frozen=True, slots=True)
class Case:
    """Something to be predicted and measured."""

    name: str
    overrides: tuple[str, ...] = ()
    workers: int = 1
    elmo: bool = False
    """Whether the network is another kind altogether."""

    def config(self) -> PretrainConfig:
        text = CONFIG
        if self.elmo:
            start, stop = text.index("model:"), text.index("objective:")
            text = f"{text[:start]}model: {_ELMO}\n{text[stop:]}"
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "memory.yaml"
            path.write_text(text)
            return load_config(PretrainConfig, path, (*self.overrides, f"cluster.workers={self.workers}"))


CASES = (
    Case("MLM, stage 0", ("zero.stage=0",)),
    Case("MLM, stage 1", ("zero.stage=1",)),
    Case("MLM, stage 2", ("zero.stage=2",)),
    Case("MLM, stage 3", ("zero.stage=3",)),
    Case("MLM, stage 0, bf16", ("zero.stage=0", "precision=bf16")),
    Case("MLM, stage 1, bf16", ("zero.stage=1", "precision=bf16")),
    Case("MLM, stage 2, bf16, average", ("zero.stage=2", "precision=bf16", "ema.decay=0.99")),
    Case("MLM, stage 3, bf16", ("zero.stage=3", "precision=bf16")),
    Case("MLM with dropout, stage 1", ("zero.stage=1", *_DROPOUT)),
    Case("MLM, recomputed, longer", ("compute.gradient_checkpointing=true", "batch.micro_batch_size=16")),
    Case("MLM, one micro-batch, stage 2", ("zero.stage=2", "batch.samples=4")),
    Case("MLM, stage 2, Lion", ("zero.stage=2", "optimizer.kind=lion")),
    Case("MLM, stage 1, Adagrad", ("zero.stage=1", "optimizer.kind=adagrad")),
    Case("MLM, stage 0, LAMB", ("zero.stage=0", "optimizer.kind=lamb")),
    Case("MLM, stage 0, Adafactor", ("zero.stage=0", "optimizer.kind=adafactor")),
    Case(
        "MLM, stage 0, bf16, StableAdamW", ("zero.stage=0", "precision=bf16", "optimizer.kind=stable_adamw")
    ),
    Case("MLM, stage 0, Muon", ("zero.stage=0", "optimizer.kind=muon")),
    Case("CLM, stage 1", ("model.network=decoder", "objective.kind=clm", "model.norm=pre")),
    Case("ELECTRA, stage 2", ("objective.kind=rtd", "zero.stage=2")),
    Case("BART, stage 1", (_ENCODER_DECODER, "objective.kind=bart_denoising")),
    Case("T5, stage 2", (_ENCODER_DECODER, "objective.kind=t5_span_corruption", "zero.stage=2")),
    Case("ELMo, stage 1", ("objective.kind=bilm",), elmo=True),
    Case("MLM, stage 3, recomputed", ("zero.stage=3", "compute.gradient_checkpointing=true")),
    Case("MLM, stage 3, large bucket", ("zero.stage=3", *_LARGE_BUCKET)),
    Case("MLM, stage 2, optimizer offloaded", ("zero.stage=2", _OPTIMIZER)),
    Case("MLM, stage 3, optimizer offloaded", ("zero.stage=3", _OPTIMIZER)),
    Case("MLM, stage 3, bf16, all offloaded", ("zero.stage=3", "precision=bf16", _OPTIMIZER, _WEIGHTS)),
    *(
        Case(
            f"MLM, stage {stage}, {precision}, 2 ranks", (f"zero.stage={stage}", f"precision={precision}"), 2
        )
        for stage in range(4)
        for precision in ("fp32", "bf16")
    ),
    Case("MLM, stage 3, bf16, average, 2 ranks", ("zero.stage=3", "precision=bf16", "ema.decay=0.99"), 2),
    Case("MLM, stage 3, one micro-batch, 2 ranks", ("zero.stage=3", "batch.samples=8"), 2),
    Case("MLM, stage 3, small bucket, 2 ranks", ("zero.stage=3", "zero.reduce_bucket_elements=300000"), 2),
    Case("MLM, stage 3, large bucket, 2 ranks", ("zero.stage=3", *_LARGE_BUCKET), 2),
    Case("MLM with dropout, stage 3, 2 ranks", ("zero.stage=3", *_DROPOUT), 2),
    Case("MLM, stage 3, recomputed, 2 ranks", ("zero.stage=3", "compute.gradient_checkpointing=true"), 2),
    Case("CLM, stage 3, 2 ranks", ("model.network=decoder", "objective.kind=clm", "zero.stage=3"), 2),
    Case("ELECTRA, stage 3, bf16, 2 ranks", ("objective.kind=rtd", "zero.stage=3", "precision=bf16"), 2),
    Case("T5, stage 3, 2 ranks", (_ENCODER_DECODER, "objective.kind=t5_span_corruption", "zero.stage=3"), 2),
    Case("MLM, stage 2, optimizer offloaded, 2 ranks", ("zero.stage=2", _OPTIMIZER), 2),
    Case("MLM, stage 3, optimizer offloaded, 2 ranks", ("zero.stage=3", _OPTIMIZER), 2),
    Case("MLM, stage 3, all offloaded, 2 ranks", ("zero.stage=3", _OPTIMIZER, _WEIGHTS), 2),
    Case("MLM, stage 2, 4 ranks", ("zero.stage=2",), 4),
    Case("MLM, stage 3, 4 ranks", ("zero.stage=3",), 4),
)


def run() -> Iterator[str]:
    """A line for each case."""
    wrong = 0
    for case in CASES:
        predicted, measured = predict(case), measure(case)
        off = predicted / measured - 1
        wrong += abs(off) > TOLERANCE
        yield (
            f"{case.name}: {predicted / _MIB:.1f} MiB predicted, {measured / _MIB:.1f} MiB measured, {off:+.1%}"
        )
    yield f"{len(CASES) - wrong} of {len(CASES)} within {TOLERANCE:.0%}"


def predict(case: Case) -> int:
    """Bytes that a plan expects PyTorch's allocator to hand out at most; on a CPU those of the host too."""
    import torch

    from pipeline.plan.memory import Machines, Sharding
    from pipeline.plan.network import make_network

    config, on_cuda = case.config(), torch.cuda.is_available()
    network = make_network(config, on_cuda=on_cuda)
    sharding = Sharding(config, network, Machines(1, case.workers, 0, on_cuda))
    return sharding.device().allocated + (0 if on_cuda else sharding.offloaded)


def measure(case: Case) -> int:
    """Bytes that the allocator of the busiest rank handed out at most."""
    from tests.pipeline.ranks import free_port

    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={case.workers}"]
    command += [f"--master-port={free_port()}", "-m", "tests.benchmarks.plan_memory", case.name]
    with tempfile.TemporaryDirectory() as out:
        environment = os.environ | heap.ENVIRONMENT | {"OMP_NUM_THREADS": "1", "CLOZE_MEASURED": out}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        found = [int(path.read_text()) for path in Path(out).iterdir()]
        if done.returncode != 0 or len(found) != case.workers:
            raise RuntimeError(f"{case.name} could not be measured:\n{done.stderr[-4000:]}")
        return max(found)


def _rank(case: Case) -> None:
    """The body of a rank that is measured."""
    import torch
    import torch.distributed as dist

    from cluster.group import Rank

    on_cuda = torch.cuda.is_available()
    torch.set_num_threads(1)
    number, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if on_cuda:
        torch.cuda.set_device(number)
    dist.init_process_group("nccl" if on_cuda else "gloo")
    rank = Rank(rank=number, world_size=ranks, local_rank=number, num_threads=1)
    # PyTorch's allocator hands out cuBLAS's workspace too, which a plan counts with CUDA's context.
    _warm_up(case, rank)
    gc.collect()
    if on_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        _train(case, rank)
        peak = torch.cuda.max_memory_allocated()
    else:
        before, reached = heap.mapped_bytes(), heap.peak_mapped_bytes()
        _train(case, rank)
        peak = heap.peak_mapped_bytes()
        if peak == reached:
            raise RuntimeError(f"{case.name} takes less memory than its start-up; make it larger")
    (Path(os.environ["CLOZE_MEASURED"]) / str(number)).write_text(str(peak - before))


def _warm_up(case: Case, rank: Any) -> None:
    """Load what stays for good and is no tensor: libraries, compiled operators, buffers of matrix products.

    An engine of a tiny network does; the network itself is computed without an engine.
    """
    import torch

    from pipeline.engine.deepspeed.engine import Engine
    from pipeline.engine.device import DTYPES
    from pipeline.engine.interface import EngineSettings

    config = case.config()
    model, batch = network_and_batch(case)
    engine = Engine(torch.nn.Linear(8, 8), EngineSettings.of(config), rank)
    batch = {name: tensor.to(engine.device) for name, tensor in batch.items()}
    _loss(model.to(engine.device, DTYPES[config.precision]), batch).backward()
    inputs = torch.ones(1, 8, dtype=DTYPES[config.precision], device=engine.device)
    engine.backward(engine(input=inputs).float().sum(), last=True)
    engine.update(1e-4)


def _train(case: Case, rank: Any) -> None:
    """Some updates on one micro-batch, through the engine that training has."""
    from pipeline.engine.deepspeed.engine import Engine
    from pipeline.engine.interface import EngineSettings

    config = case.config()
    model, batch = network_and_batch(case)
    engine = Engine(model, EngineSettings.of(config), rank)
    batch = {name: tensor.to(engine.device) for name, tensor in batch.items()}
    num_micro_batches = config.batch.samples // (config.batch.micro_batch_size * rank.world_size)
    for _ in range(NUM_UPDATES):
        for turn in range(num_micro_batches):
            loss = _loss(engine, batch)
            engine.backward(loss / config.batch.samples, last=turn == num_micro_batches - 1)
            del loss
        engine.update(1e-4)


def network_and_batch(case: Case) -> tuple[Any, dict[str, Any]]:
    from dataclasses import replace

    import torch

    from models.initialization import init_weights
    from pipeline.checkpoint.references import resolve_model
    from pipeline.engine.device import prepare_network
    from pipeline.objectives.base import resolve_references
    from pipeline.plan.network import example_batch, vocabulary_of

    config = case.config()
    vocabulary, _ = vocabulary_of(config)
    shape = replace(config.model, vocab_size=vocabulary.size)
    outside = resolve_references(config.objective, resolve_model)
    model = config.objective.build_model(shape, outside)
    init_weights(model, config.seed)
    prepare_network(model, shape, config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    batch = example_batch(config, vocabulary, config.batch.micro_batch_size, config.batch.sequence_length)
    return model, {name: torch.from_numpy(array) for name, array in batch.inputs.items()}


def _loss(model: Any, batch: dict[str, Any]) -> Any:
    import torch

    losses, _ = model(**batch)
    return torch.stack(list(losses.values())).sum()


if __name__ == "__main__":
    if "RANK" in os.environ:
        _rank(next(case for case in CASES if case.name == sys.argv[1]))
        # Threads of the process group outlive the interpreter's end now and then.
        os._exit(0)
    for line in run():
        print(line, flush=True)

"""The memory that `cloze plan` predicts, beside what real DeepSpeed steps allocate: networks, objectives, ZeRO stages.

On CUDA the measure is `torch.cuda.max_memory_allocated`. On a CPU it is the highest sum of allocations minus frees that
PyTorch's profiler reports. It follows one thread, and takes what gloo's threads free for alive: with several ranks on
a CPU the measure is an upper bound. Several updates are made: the optimizer's state is there only after the first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import load_config
from pipeline.pretrain.config import PretrainConfig

TOLERANCE = 0.1
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
    Case("MLM with dropout, stage 1", ("zero.stage=1", "model.dropout=0.1", "model.attention_dropout=0.1")),
    Case("MLM, recomputed, longer", ("compute.gradient_checkpointing=true", "batch.micro_batch_size=16")),
    Case("MLM, one micro-batch, stage 2", ("zero.stage=2", "batch.samples=4")),
    Case("MLM, stage 2, Lion", ("zero.stage=2", "optimizer.kind=lion")),
    Case("MLM, stage 1, Adagrad", ("zero.stage=1", "optimizer.kind=adagrad")),
    Case("MLM, stage 0, LAMB", ("zero.stage=0", "optimizer.kind=lamb")),
    Case("CLM, stage 1", ("model.network=decoder", "objective.kind=clm", "model.norm=pre")),
    Case("ELECTRA, stage 2", ("objective.kind=rtd", "zero.stage=2")),
    Case("BART, stage 1", (_ENCODER_DECODER, "objective.kind=bart_denoising")),
    Case("T5, stage 2", (_ENCODER_DECODER, "objective.kind=t5_span_corruption", "zero.stage=2")),
    Case("ELMo, stage 1", ("objective.kind=bilm",), elmo=True),
    Case("MLM, stage 0, 2 ranks", ("zero.stage=0",), workers=2),
    Case("MLM, stage 1, 2 ranks", ("zero.stage=1",), workers=2),
    Case("MLM, stage 2, 2 ranks", ("zero.stage=2",), workers=2),
    Case("MLM, stage 3, 2 ranks", ("zero.stage=3",), workers=2),
    Case("MLM, stage 2, bf16, 2 ranks", ("zero.stage=2", "precision=bf16"), workers=2),
    Case("CLM, stage 3, 2 ranks", ("model.network=decoder", "objective.kind=clm", "zero.stage=3"), workers=2),
)


def run() -> Iterator[str]:
    """A line per case."""
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
    """Bytes that a plan expects PyTorch's allocator to hand out at most."""
    import torch

    from pipeline.plan.choices import Machines, memory_of
    from pipeline.plan.network import make_network

    config, on_cuda = case.config(), torch.cuda.is_available()
    network = make_network(config, "cuda" if on_cuda else "cpu")
    return memory_of(config, network, Machines(1, case.workers, None, on_cuda)).allocated


def measure(case: Case) -> int:
    """Bytes that the allocator of the busiest rank handed out at most."""
    from tests.pipeline.ranks import free_port

    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={case.workers}"]
    command += [f"--master-port={free_port()}", "-m", "tests.benchmarks.plan_memory", case.name]
    with tempfile.TemporaryDirectory() as out:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CLOZE_MEASURED": out}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        found = [int(path.read_text()) for path in Path(out).iterdir()]
        if done.returncode != 0 or len(found) != case.workers:
            raise RuntimeError(f"{case.name} could not be measured:\n{done.stderr[-4000:]}")
        return max(found)


def _rank(case: Case) -> None:
    """The body of a rank that is measured."""
    import torch
    import torch.distributed as dist

    from cluster.train_group import Rank

    on_cuda = torch.cuda.is_available()
    torch.set_num_threads(1)
    number, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if on_cuda:
        torch.cuda.set_device(number)
    dist.init_process_group("nccl" if on_cuda else "gloo")
    rank = Rank(rank=number, world_size=ranks, local_rank=number, num_threads=1)
    peak = _peak_on_cuda(case, rank) if on_cuda else _peak_on_cpu(case, rank)
    (Path(os.environ["CLOZE_MEASURED"]) / str(number)).write_text(str(peak))


def _peak_on_cuda(case: Case, rank: Any) -> int:
    import torch

    torch.cuda.reset_peak_memory_stats()
    _train(case, rank)
    return torch.cuda.max_memory_allocated()


def _peak_on_cpu(case: Case, rank: Any) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _train(case, rank)
    recorded: Any = profiler.profiler
    events = recorded.kineto_results.events()
    changes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


def _train(case: Case, rank: Any) -> None:
    """Some updates on one micro-batch, through the engine that training has."""
    from dataclasses import replace

    import torch

    from models.initialization import init_weights
    from pipeline.objectives import OBJECTIVES
    from pipeline.plan.example import example_batch, reader_of
    from pipeline.pretrain.engine.training_engine import TrainingEngine, prepare_network

    config = case.config()
    vocabulary = reader_of(config).vocabulary
    shape = replace(config.model, vocab_size=vocabulary.size)
    model = OBJECTIVES[config.objective.kind].build_model(config.objective, shape)
    init_weights(model, config.seed)
    device = torch.device("cuda", rank.local_rank) if torch.cuda.is_available() else torch.device("cpu")
    prepare_network(model, shape, config, device)
    engine = TrainingEngine(model, config, rank)
    batch = example_batch(config, vocabulary, config.batch.micro_batch_size, config.batch.sequence_length)
    tensors = {name: torch.from_numpy(array).to(engine.device) for name, array in batch.inputs.items()}
    num_micro_batches = config.batch.samples // (config.batch.micro_batch_size * rank.world_size)
    for _ in range(NUM_UPDATES):
        for turn in range(num_micro_batches):
            losses, _ = engine(**tensors)
            loss = torch.stack(list(losses.values())).sum()
            engine.backward(loss / config.batch.samples, last=turn == num_micro_batches - 1)
            del losses, loss
        engine.update(1e-4)


if __name__ == "__main__":
    if "RANK" in os.environ:
        _rank(next(each for each in CASES if each.name == sys.argv[1]))
        # Threads of the process group outlive the interpreter's end now and then.
        os._exit(0)
    for line in run():
        print(line, flush=True)

"""What a GPU computes beside the same on the CPU; losses that are scaled in fp16; runs that are killed and resumed."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import read_metrics
from tests.benchmarks.plan_memory import Case, network_and_batch
from tests.conftest import write_store
from tests.pipeline.ranks import TRANSFORMER, final_state, make_run

LOSS_TOLERANCE, GRADIENT_TOLERANCE, UPDATE_TOLERANCE = 1e-4, 1e-3, 1e-3
NUM_UPDATES = 20
_DECODER = ("model.network=decoder", "model.norm=pre")
_BOTH = "model.network=encoder_decoder"
OBJECTIVES: dict[str, tuple[str, ...]] = {
    "mlm": (),
    "span": (),
    "rtd": (),
    "clm": _DECODER,
    "prefix_lm": _DECODER,
    "bart_denoising": (_BOTH,),
    "mbart_denoising": (_BOTH,),
    "t5_span_corruption": (_BOTH,),
    "ul2_mixture_of_denoisers": (_BOTH,),
    "bilm": ("model.dropout=0.0",),
    "distill": ("objective.start_from_teacher=false",),
}
"""By objective, the settings of its network; none has dropout, which draws other numbers on another device."""
_TEACHER = {
    "vocab_size": 8192,
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
}


@dataclass(frozen=True, slots=True)
class Check:
    """A difference that was found, beside the largest one allowed."""

    what: str
    found: float
    allowed: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the difference is allowed; one that is no number is not."""
        return self.found <= self.allowed

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        return f"{verdict}: {self.what}: {self.found:.2g}, allowed {self.allowed:.2g}"


def objectives_agree(device: torch.device) -> Iterator[Check]:
    """Two checks for every objective."""
    with tempfile.TemporaryDirectory() as scratch:
        for kind, settings in OBJECTIVES.items():
            if kind == "distill":
                settings = (*settings, f"objective.teacher={_teacher(Path(scratch))}")
            case = Case(kind, (f"objective.kind={kind}", *settings), elmo=kind == "bilm")
            model, batch = network_and_batch(case)
            yield from differences(kind, model, copy.deepcopy(model).to(device), batch)


def differences(what: str, model: nn.Module, other: nn.Module, batch: dict[str, Tensor]) -> Iterator[Check]:
    """How far the losses and gradients of two copies of a network lie apart, relative to the first one's."""
    # ELECTRA's generator draws tokens; on another device it would draw others.
    with patch("models.electra.gumbel_argmax", lambda logits: logits.argmax(-1)):
        ours, theirs = _losses(model, batch), _losses(other, batch)
    lost = max(abs(theirs[term] - loss) / abs(loss) for term, loss in ours.items())
    yield Check(f"{what}, losses", lost, LOSS_TOLERANCE)
    gradients = [
        (mine.grad, its.grad.cpu())
        for mine, its in zip(model.parameters(), other.parameters(), strict=True)
        if mine.grad is not None and its.grad is not None
    ]
    apart = torch.stack([(mine - its).norm() for mine, its in gradients]).norm()
    scale = torch.stack([mine.norm() for mine, _ in gradients]).norm()
    yield Check(f"{what}, gradients", float(apart / scale), GRADIENT_TOLERANCE)


def _losses(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
    device = next(model.parameters()).device
    losses, _ = model(**{name: tensor.to(device) for name, tensor in batch.items()})
    torch.stack(list(losses.values())).sum().backward()
    return {term: loss.item() for term, loss in losses.items()}


def _teacher(directory: Path) -> Path:
    import transformers
    from tokenizers import Tokenizer, models

    transformers.BertForMaskedLM(transformers.BertConfig(**_TEACHER)).save_pretrained(directory / "teacher")
    words = {f"w{number}": number for number in range(_TEACHER["vocab_size"])}
    Tokenizer(models.WordLevel(words, unk_token="w3")).save(str(directory / "teacher" / "tokenizer.json"))
    return directory / "teacher"


def optimizers_agree(device: torch.device, kinds: Iterable[str]) -> Iterator[Check]:
    """A check for every kind of optimizer: its updates on a GPU beside those on the CPU."""
    from pipeline.optimizers import OPTIMIZERS

    for kind in kinds:
        config = OPTIMIZERS[kind].model_validate({"kind": kind, "lr": 1e-2})
        start = [parameter.detach() for parameter in _weights(torch.device("cpu")).parameters()]
        found = [_updated(config, _weights(place)) for place in (torch.device("cpu"), device)]
        moved = torch.cat([(new - old).flatten() for new, old in zip(found[0], start, strict=True)])
        apart = torch.cat([(one - other).flatten() for one, other in zip(*found, strict=True)])
        yield Check(kind, float(apart.norm() / moved.norm()), UPDATE_TOLERANCE)


def _weights(device: torch.device) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    network = nn.Sequential(nn.Linear(96, 64), nn.Linear(64, 32))
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    return network.to(device)


def _updated(config: Any, network: nn.Module) -> list[Tensor]:
    """The weights on the CPU after some updates with drawn gradients."""
    optimizer = config.make(network)
    generator = torch.Generator().manual_seed(2)
    for _ in range(NUM_UPDATES):
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * group["lr_scale"]
        optimizer.step()
    return [parameter.detach().cpu() for parameter in network.parameters()]


STEPS, KILLED_AFTER = 40, 15
PATIENCE_S = 300
SETTINGS = (
    f"steps={STEPS}",
    "checkpoint.every_steps=10",
    "evaluation.every_steps=20",
    "compute.deterministic=true",
)
MODEL = TRANSFORMER.replace("hidden_size: 32", "hidden_size: 64, attention_dropout: 0.0")
"""A network that the variable-length kernel can compute: heads of 32, no dropout of attention weights."""


def resumed_runs_are_identical(precisions: tuple[str, ...], **environment: str) -> Iterator[Check]:
    """Checks for each precision: differing tensors of weights and optimizer, and differing losses.

    Args:
        environment: variables of the trainers, besides those of this process.
    """
    with tempfile.TemporaryDirectory() as scratch:
        store = write_store(Path(scratch) / "tokens")
        for precision in precisions:
            settings = (f"precision={precision}", *SETTINGS)
            whole, killed = (
                make_run(Path(scratch), store, f"{precision}-{name}", *settings, model=MODEL)
                for name in ("whole", "killed")
            )
            for run, is_killed in ((whole, False), (killed, True), (killed, False)):
                _train(run, environment, is_killed=is_killed)
            first, second = final_state(whole), final_state(killed)
            if first.keys() != second.keys():
                raise RuntimeError(f"other tensors: {sorted(first.keys() ^ second.keys())}")
            apart = sum(not torch.equal(tensor, second[name]) for name, tensor in first.items())
            yield Check(f"{precision}, tensors that differ after a kill", float(apart))
            losses = [[line["loss"] for line in read_metrics(run)] for run in (whole, killed)]
            apart = sum(one != other for one, other in zip(*losses, strict=True))
            yield Check(f"{precision}, losses of {STEPS} steps that differ after a kill", float(apart))


def _train(run: RunDirectory, environment: Mapping[str, str], *, is_killed: bool) -> None:
    """Train to the end, or kill all processes when a step between two checkpoints is in the log."""
    deadline = time.monotonic() + PATIENCE_S
    with (run.path / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.pretrain", str(run.path)],
            env=os.environ | {"DS_ACCELERATOR": "cuda"} | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    is_due = False
    while is_killed and not is_due and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
        is_due = any(line["step"] >= KILLED_AFTER for line in read_metrics(run))
    if is_killed and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    if process.wait(PATIENCE_S) != (-signal.SIGKILL if is_killed else 0) or is_due != is_killed:
        raise RuntimeError((run.path / "output").read_text()[-4000:])


OVERFLOW = 1e12
"""A factor on the loss that no gradient in fp16 survives."""
NUM_SCALED = 30


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
    for _ in range(NUM_SCALED):
        last, recovered = update(1.0)
    engine.close()
    before, after = good.loss_scale or 0.0, overflowed.loss_scale or 0.0
    yield Check(f"fp16, stage {stage}, updates made in spite of an overflow", float(overflowed.applied))
    yield Check(f"fp16, stage {stage}, scale after overflows, of the one before", after / before, 0.5)
    yield Check(f"fp16, stage {stage}, updates skipped afterwards", float(not recovered.applied))
    yield Check(f"fp16, stage {stage}, loss after {NUM_SCALED} updates, of the first one", last / first, 0.9)

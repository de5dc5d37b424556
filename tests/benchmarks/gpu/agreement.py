"""Losses, gradients and updates on a GPU beside the same on the CPU, in fp32: every objective, every optimizer."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.benchmarks.plan_memory import Case, network_and_batch

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

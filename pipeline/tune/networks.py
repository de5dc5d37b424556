"""The network of a training, from random weights and a checkpoint; what PEFT methods trained over one, as a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from pydantic import TypeAdapter
from safetensors import safe_open
from torch import Tensor, nn

from cluster.artefacts.errors import MismatchError
from cluster.artefacts.storage import contents_of
from models.config import NetworkConfig, TransformerConfig
from models.hf.heads import Head, build_on_meta
from models.initialization import init_weights
from models.peft.apply import apply_peft, load_peft, peft_state
from models.peft.settings import PeftSettings
from models.weights import check_tensors, with_prefix
from pipeline.tune.forms.base import NetworkPart, PreparedTask

_KEY = "peft"
"""The one key of the file's metadata: several are written by safetensors in an order that differs between processes."""
WRAPPER = "network."
"""Prefix of the tensor names of a ConditionalGenerator, which the network inside does not have."""


def initial_network(
    task: PreparedTask,
    seed: int,
    checkpoint: Mapping[str, Tensor] | None,
    peft: PeftSettings | None = None,
) -> nn.Module:
    """A network in host memory: random weights that follow from the seed, then the weights of the checkpoint.

    Args:
        checkpoint: tensors by name; None for random weights alone.
        peft: a method that trains something else than all weights; None trains them.

    Raises:
        MismatchError: the checkpoint lacks tensors, or they have other shapes or are not finite; they are named. Or the
            network cannot have the method.
    """
    with torch.device("meta"):
        model = task.build()
    model.to_empty(device="cpu")
    init_weights(model, seed)
    if checkpoint is not None:
        take_parts(model, task.parts, checkpoint)
    if peft is not None:
        try:
            apply_peft(model, peft, seed)
        except ValueError as error:
            raise MismatchError(
                f"training.peft: {error}.", next_step="choose another method, or leave training.peft out"
            ) from None
    return model


@torch.no_grad()
def take_parts(model: nn.Module, parts: tuple[NetworkPart, ...], checkpoint: Mapping[str, Tensor]) -> None:
    """Copy parts of a checkpoint into a network; tensors outside these parts are ignored on both sides.

    Raises:
        MismatchError: as in `initial_network`. Nothing is copied then.
    """
    own = model.state_dict()
    taken: dict[str, Tensor] = {}
    for part in parts:
        named = (with_prefix(checkpoint, theirs) for theirs in part.theirs or (part.own,))
        found = {part.own + name: tensor for name, tensor in next(filter(None, named), {}).items()}
        if not found and not part.required:
            continue
        expected = {name: tensor for name, tensor in own.items() if name.startswith(part.own)}
        try:
            check_tensors(expected, found, "the checkpoint to start from")
        except ValueError as error:
            raise MismatchError(str(error), next_step="start from a checkpoint of this network") from None
        if broken := [name for name, tensor in found.items() if not bool(tensor.isfinite().all())]:
            raise MismatchError(
                f"The checkpoint to start from has weights that are not finite: {', '.join(broken)}.",
                next_step="start from an earlier checkpoint of the run: cloze checkpoints RUN",
            )
        taken |= found
    for name, tensor in taken.items():
        own[name].copy_(tensor)


def trained_tensors(
    model: nn.Module, parts: tuple[NetworkPart, ...], settings: PeftSettings
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors that were trained, and the metadata that `load_adapted` needs beside them."""
    own = [dataclasses.replace(part, own=part.own.removeprefix(WRAPPER)) for part in parts]
    stored = {"method": dataclasses.asdict(settings), "parts": [dataclasses.asdict(part) for part in own]}
    tensors = {name.removeprefix(WRAPPER): tensor for name, tensor in peft_state(model).items()}
    return tensors, {_KEY: orjson.dumps(stored).decode()}


def method_of(file: Path) -> PeftSettings | None:
    """The method of a file of weights; None for the weights of a whole network."""
    with contents_of(file), safe_open(str(file), "pt") as opened:
        stored = _stored(opened)
        return None if stored is None else TypeAdapter(PeftSettings).validate_python(stored["method"])


def _stored(opened: Any) -> dict[str, Any] | None:
    """The method, and which parts of the network come from the checkpoint; None for a whole network."""
    metadata = opened.metadata() or {}
    return orjson.loads(metadata[_KEY]) if _KEY in metadata else None


def load_adapted(
    file: Path, network: NetworkConfig, head: Head, num_labels: int, base: Mapping[str, Tensor]
) -> nn.Module:
    """A network with its method, in host memory.

    Args:
        file: holds what `trained_tensors` gave.
        base: the tensors of the checkpoint that the training started from.

    Raises:
        MismatchError: the checkpoint lacks tensors.
        CorruptArtefactError: the file cannot be read.
    """
    assert isinstance(network, TransformerConfig), "ELMo has no such methods"
    with contents_of(file), safe_open(str(file), "pt") as opened:
        stored = _stored(opened)
        assert stored is not None, "the file holds a whole network"
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 -- no mapping
    settings: PeftSettings = TypeAdapter(PeftSettings).validate_python(stored["method"])
    parts = TypeAdapter(tuple[NetworkPart, ...]).validate_python(stored["parts"])
    model = build_on_meta(network, head, num_labels)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    take_parts(model, parts, base)
    apply_peft(model, settings, seed=0)
    with contents_of(file):
        load_peft(model, tensors)
    return model.eval()

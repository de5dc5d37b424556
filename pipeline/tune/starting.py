"""The weights that a training starts from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cluster.artefacts.errors import MismatchError
from models.initialization import init_weights
from models.peft.apply import apply_peft
from models.peft.settings import PeftSettings
from models.weights import check_tensors, with_prefix
from pipeline.tune.forms.base import Part, PreparedTask


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
def take_parts(model: nn.Module, parts: tuple[Part, ...], checkpoint: Mapping[str, Tensor]) -> None:
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

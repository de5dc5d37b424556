"""The part of a network that is exported: parts that serve only pre-training are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from models.config import TransformerConfig
from models.hf.family import Tensors
from models.hf.heads import Head
from models.hf.networks import head_of
from models.weights import with_prefix

BOUNDARY = "boundary_head."
POOLER = "pair_head.pooler."
PAIRS = "pair_head.output.weight"
DISCRIMINATOR = "discriminator."
GENERATOR = "generator."
EMBEDDINGS = "encoder.embeddings."


@dataclass(frozen=True)
class Part:
    """A network with one head."""

    state_dict: Tensors
    head: Head
    notes: tuple[str, ...]
    """The parts that were left out, for people."""


def exported_part(
    state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head | None = None
) -> Part:
    """Leave out what serves only training.

    Args:
        state_dict: of any network.
        config: its configuration; of the discriminator, for ELECTRA.
        head: the head that it has; None finds out. A `Discriminator` and a network of multiple choice look like a
            classifier with one label, so they must be said.
    """
    if any(name.startswith(DISCRIMINATOR) for name in state_dict):
        note = "the generator is left out; it is a network of its own there"
        return Part(with_prefix(state_dict, DISCRIMINATOR), "replaced_token_detection", (note,))
    kept = {name: tensor for name, tensor in state_dict.items() if not name.startswith(BOUNDARY)}
    notes = [] if len(kept) == len(state_dict) else ["the head for span boundaries is left out"]
    if PAIRS not in kept:
        # A pooler without the scores of pairs is there for classification to start from.
        kept = {name: tensor for name, tensor in kept.items() if not name.startswith(POOLER)}
    found = head or head_of(kept, config)
    if found == "encoder":
        notes.append("there is no pooler; a class that has one makes up its weights")
    return Part(kept, found, tuple(notes))


def generator_part(state_dict: Mapping[str, Tensor]) -> Tensors:
    """The state dict of ELECTRA's generator as a `MaskedLanguageModel`, from the state dict of an `Electra`.

    The embeddings that it shares with the discriminator are among its tensors. Export it with the generator's
    configuration.
    """
    lent = {
        name: tensor
        for name, tensor in with_prefix(state_dict, DISCRIMINATOR).items()
        if name.startswith(EMBEDDINGS) and not name.startswith(f"{EMBEDDINGS}projection.")
    }
    return {**lent, **with_prefix(state_dict, GENERATOR)}

"""The same batch through a network of ours and through one of `transformers`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import Tensor, nn

from models.config import TransformerConfig
from models.hf.directory import save_hf_directory
from models.hf.families import Exported, Imported, import_model
from models.hf.family import TokenIds
from models.hf.heads import Head
from models.hf.networks import carrier_of, num_labels_of, their_inputs
from models.initialization import init_weights

TOLERANCE = 1e-4
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


@dataclass(frozen=True)
class PaddedBatch:
    """Rows of different lengths, padded on one side."""

    input_ids: Tensor
    attention_mask: Tensor
    segment_ids: Tensor | None

    @property
    def position_ids(self) -> Tensor:
        """Places among the tokens of a row."""
        return (self.attention_mask.long().cumsum(-1) - 1).clamp_min(0)


@st.composite
def batches(
    draw, config: TransformerConfig, pad: int, longest: int, *, left: bool | None = None
) -> PaddedBatch:
    """Three rows, one of them full; ids other than padding."""
    length = draw(st.integers(2, longest))
    lengths = torch.tensor([length, draw(st.integers(1, length)), draw(st.integers(1, length))])[:, None]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    place = torch.arange(length)
    on_left = draw(st.booleans()) if left is None else left
    mask = place >= length - lengths if on_left else place < lengths
    ids = torch.randint(config.require_vocab_size() - 1, (3, length), generator=generator)
    ids = (ids + (ids >= pad)).where(mask, pad)
    segments = config.num_segments
    return PaddedBatch(
        ids, mask, torch.randint(segments, ids.shape, generator=generator) if segments else None
    )


def built(imported: Imported) -> nn.Module:
    """The network that an import stands for."""
    num_labels = num_labels_of(imported.state_dict, imported.head)
    model = carrier_of(imported.config, imported.head).build(imported.config, num_labels)
    model.load_state_dict(imported.state_dict)
    return model.eval()


def imported_from(theirs: Any) -> Imported:
    """What config.json and the weights would hold, without a directory."""
    config = json.loads(theirs.config.to_json_string(use_diff=False))
    return import_model(theirs.state_dict(), config | {"architectures": [type(theirs).__name__]})


def opened_by_transformers(
    model: nn.Module,
    config: TransformerConfig,
    head: Head | None,
    token_ids: TokenIds,
    family: str | None = None,
) -> tuple[Any, Exported]:
    """Write a network and read it with the class that `transformers` has for its head, every tensor in its place.

    Args:
        head: None for the one that the tensors tell.
    """
    with tempfile.TemporaryDirectory() as directory:
        exported = save_hf_directory(
            Path(directory), model.state_dict(), config, token_ids, head=head, family=family
        )
        auto_class = getattr(transformers, carrier_of(config, exported.head).auto_class)
        theirs, info = auto_class.from_pretrained(directory, output_loading_info=True)
    missing = {name for name in info["missing_keys"] if "pooler" not in name}
    assert not missing, "from_pretrained had to make up tensors"
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert head in (None, exported.head)
    assert type(theirs).__name__ == exported.config["architectures"][0]
    return theirs.eval(), exported


@torch.no_grad()
def assert_same_outputs(
    ours: nn.Module, theirs: Any, config: TransformerConfig, head: Head, batch: PaddedBatch, **arguments: Any
) -> None:
    """Every output is equal at every token.

    Args:
        arguments: what else their network takes.
    """
    found = carrier_of(config, head).outputs(ours, batch.input_ids, batch.attention_mask, batch.segment_ids)
    inputs = their_inputs(config, batch.input_ids, batch.attention_mask, batch.segment_ids, head)
    expected = theirs(**inputs, **arguments)
    for name, scores in found.items():
        other = expected[name]
        if scores.shape[:2] == batch.attention_mask.shape:
            scores, other = scores[batch.attention_mask], other[batch.attention_mask]
        torch.testing.assert_close(scores, other, atol=TOLERANCE, rtol=0)


def random_network(config: TransformerConfig, head: Head, seed: int, num_labels: int = 1) -> nn.Module:
    """A network in which nothing is left at zero or one."""
    model = carrier_of(config, head).build(config, num_labels).eval()
    model.config = config  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    init_weights(model, seed)
    shake(model, seed)
    return model


@torch.no_grad()
def shake(model: nn.Module, seed: int) -> None:
    """Move every parameter off its initial value."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


READ_FROM_THE_FIRST_TOKEN = ("pretraining", "sequence_classification", "multiple_choice")
"""Heads for which rows are padded on the right."""


def assert_import_agrees(
    data: DataObject, theirs: Any, *, pad: int, longest: int, counts_columns: bool = False
) -> Imported:
    """Our import of a network of `transformers`, with random weights, computes the same.

    Args:
        pad: id of padding.
        longest: tokens of the longest row to draw.
        counts_columns: whether their positions are columns unless told, so that padding on the left shifts them.
    """
    shake(theirs.eval(), 1)
    imported = imported_from(theirs)
    _assert_agree(data, built(imported), theirs, imported.config, imported.head, pad, longest, counts_columns)
    return imported


def assert_export_agrees(
    data: DataObject,
    config: TransformerConfig,
    head: Head,
    family: str,
    *,
    longest: int,
    counts_columns: bool = False,
) -> None:
    """Our random network, written and opened by `transformers`, computes the same there, and comes back as it was."""
    ours = random_network(config, head, 1, data.draw(st.integers(1, 4), "labels"))
    pad = data.draw(st.integers(0, config.require_vocab_size() - 1), "pad")
    tokens = TokenIds(pad, 0, 1)
    theirs, exported = opened_by_transformers(ours, config, head, tokens, family)
    assert exported.family == family
    _assert_agree(data, ours, theirs, config, head, pad, longest, counts_columns)

    back = import_model(exported.tensors, exported.config)
    assert (back.config, back.head) == (config, head)
    before = ours.state_dict()
    assert back.state_dict.keys() == before.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in back.state_dict.items())


def _assert_agree(
    data: DataObject,
    ours: nn.Module,
    theirs: Any,
    config: TransformerConfig,
    head: Head,
    pad: int,
    longest: int,
    counts_columns: bool,
) -> None:
    left = False if head in READ_FROM_THE_FIRST_TOKEN else None
    batch = data.draw(batches(config, pad, longest, left=left), "batch")
    places = {"position_ids": batch.position_ids} if counts_columns else {}
    assert_same_outputs(ours, theirs, config, head, batch, **places)

"""Networks of ours and of `transformers` beside each other, on the same batch and through directories on disk."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import Tensor, nn

from models.config import TransformerConfig
from models.hf.directory import read_hf_directory, save_hf_directory
from models.hf.families import Exported, Imported, export_model, import_model
from models.hf.family import TokenIds
from models.hf.heads import Head, carrier_of, num_labels_of, their_inputs
from models.initialization import init_weights
from tests.models.materials import padding, shake, some_tokens

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
    assert_close_outputs(found, expected, batch.attention_mask)


def assert_close_outputs(found: Mapping[str, Tensor], expected: Any, present: Tensor) -> None:
    """Every output of ours is theirs, at every token where it has one for each."""
    for name, scores in found.items():
        other = expected[name]
        if scores.shape[:2] == present.shape:
            scores, other = scores[present], other[present]
        torch.testing.assert_close(scores, other, atol=TOLERANCE, rtol=0)


def random_network(config: TransformerConfig, head: Head, seed: int, num_labels: int = 1) -> nn.Module:
    """A network in which nothing is left at zero or one."""
    model = carrier_of(config, head).build(config, num_labels).eval()
    model.config = config  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    init_weights(model, seed)
    shake(model, seed, 0.1)
    return model


READ_FROM_THE_FIRST_TOKEN = ("pretraining", "sequence_classification", "multiple_choice")
"""Heads for which encoders need rows that are padded on the right."""


def assert_import_agrees(data: DataObject, theirs: Any, *, counts_columns: bool = False) -> Imported:
    """Our import of a network of `transformers`, with random weights, computes the same.

    Args:
        counts_columns: whether their positions are columns unless given, so that padding on the left shifts them.
    """
    shake(theirs.eval(), 1, 0.1)
    imported = imported_from(theirs)
    pad = theirs.config.pad_token_id
    _assert_agree(data, built(imported), theirs, imported.config, imported.head, pad, counts_columns)
    return imported


def assert_export_agrees(
    data: DataObject, config: TransformerConfig, head: Head, family: str, *, counts_columns: bool = False
) -> None:
    """Our random network, written and opened by `transformers`, computes the same there, and comes back as it was."""
    ours = random_network(config, head, 1, data.draw(st.integers(1, 4), "labels"))
    pad = data.draw(st.integers(0, config.require_vocab_size() - 1), "pad")
    theirs, exported = opened_by_transformers(ours, config, head, TokenIds(pad, 0, 1), family)
    assert exported.family == family
    _assert_agree(data, ours, theirs, config, head, pad, counts_columns)

    back = import_model(exported.tensors, exported.config)
    assert (back.config, back.head) == (config, head)
    assert_same_tensors(back.state_dict, ours.state_dict())


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal names and equal values."""
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def _assert_agree(
    data: DataObject,
    ours: nn.Module,
    theirs: Any,
    config: TransformerConfig,
    head: Head,
    pad: int,
    counts_columns: bool,
) -> None:
    if head == "seq2seq_lm":
        # Learned positions are columns there; a relative bias is the same wherever the text begins.
        sides = ["left", "right"] if config.positions == "relative_bias" else ["right"]
        side, seed = data.draw(st.sampled_from(sides)), data.draw(st.integers(0, 2**31))
        assert_same_written_tokens(ours, theirs, side, seed)
        return
    left = False if config.network == "encoder" and head in READ_FROM_THE_FIRST_TOKEN else None
    batch = data.draw(batches(config, pad, config.max_positions, left=left), "batch")
    places = {"position_ids": batch.position_ids} if counts_columns else {}
    assert_same_outputs(ours, theirs, config, head, batch, **places)


TOKENS = TokenIds(pad=3, bos=4, eos=5)
"""Other ids than any class of `transformers` assumes."""


def import_of(theirs: transformers.PreTrainedModel) -> Any:
    """Our network with the weights of theirs, which go through a directory."""
    with tempfile.TemporaryDirectory() as directory:
        theirs.save_pretrained(directory)
        return built(read_hf_directory(directory))


def export_of(ours: nn.Module, config: TransformerConfig, token_ids: TokenIds = TOKENS) -> Any:
    """The network of `transformers` that it reads from our directory."""
    return opened_by_transformers(ours, config, None, token_ids)[0]


def tensors_on_meta(hf_config: dict[str, Any]) -> dict[str, list[int]]:
    """Names and shapes of what `transformers` makes of a config.json, without memory; a tied tensor has one name."""
    architecture = getattr(transformers, hf_config["architectures"][0])
    with torch.device("meta"):
        model = architecture(architecture.config_class.from_dict(dict(hf_config)))
    tied = set(model.all_tied_weights_keys)
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}


def shapes(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    """Names and shapes."""
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


@torch.no_grad()
def assert_same_written_tokens(ours: Any, theirs: Any, side: str = "right", seed: int = 0) -> None:
    """An encoder-decoder scores every token as `transformers` does; both sides of the batch are padded."""
    source, target = some_tokens(3, 14, seed), some_tokens(3, 9, seed + 1)
    mask, decoder_mask = padding([14, 9, 1], 14, side), padding([4, 9, 1], 9)
    expected = theirs(
        input_ids=source,
        attention_mask=mask.long(),
        decoder_input_ids=target,
        decoder_attention_mask=decoder_mask.long(),
    ).logits
    assert_close_logits(ours.logits(source, target, mask, decoder_mask), expected, decoder_mask)
    # The decoder's padding is on the right, behind everything that is looked at.
    assert_close_logits(ours.logits(source, target, mask), expected, decoder_mask)


def assert_close_logits(found: Tensor, expected: Tensor, seen: Tensor) -> None:
    """Equal where tokens are, up to 1e-4."""
    torch.testing.assert_close(found[seen], expected[seen], atol=1e-4, rtol=0.0)
    assert expected[seen].std() > 0.02, "logits that are all alike would prove nothing"


def assert_same_training(ours: Any, theirs: Any, batch: dict[str, Tensor], labels: dict[str, Tensor]) -> None:
    """Loss and every gradient of a training step, up to rounding.

    Args:
        batch: for our network, with `targets`.
        labels: for theirs, whose loss is the mean over as many targets.
    """
    losses, _ = ours(**batch)
    loss = torch.stack(list(losses.values())).sum() / len(batch["targets"])
    expected = theirs(**labels).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    loss.backward()
    expected.backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    renamed = export_model(gradients, ours.config, TOKENS).tensors
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(renamed[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)

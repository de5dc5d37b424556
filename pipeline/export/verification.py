"""Verify that an exported directory computes the same as our network, with the library that will read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cluster.artefacts.errors import ExportError
from models.config import TransformerConfig
from models.hf.heads import Head, carrier_of, ended_by, num_labels_of, their_inputs
from pipeline.samples.noise import Noise

if TYPE_CHECKING:
    from models.elmo.export import Elmo
    from models.elmo.language_model import ElmoLanguageModel

TOLERANCE = 1e-4
"""Largest absolute difference of logits in float32."""
_ROWS = 3
_LENGTH = 24


@torch.no_grad()
def verify_export(
    directory: Path, state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head
) -> float:
    """Read a Hugging Face directory with `transformers` and compare all its outputs on random padded text.

    Returns:
        The largest absolute difference at tokens that are not padding.

    Raises:
        ExportError: it is above the tolerance, or `transformers` cannot read the directory.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    carrier = carrier_of(config, head)
    ours = carrier.build(config, num_labels_of(state_dict, head))
    ours.load_state_dict(dict(state_dict))
    ours.eval()
    try:
        theirs = (
            getattr(transformers, carrier.auto_class)
            .from_pretrained(directory, dtype=torch.float32, use_safetensors=True, trust_remote_code=False)
            .eval()
        )
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    except Exception as error:
        raise ExportError(
            f"transformers {transformers.__version__} cannot read the export: {error}",
            kept="nothing was committed",
        ) from error
    if len(tokenizer) > config.require_vocab_size():
        raise ExportError(
            f"the tokenizer has {len(tokenizer)} tokens, and the network embeds {config.vocab_size}",
            kept="nothing was committed",
        )
    ids, mask = _random_text(config, theirs.config.pad_token_id or 0)
    if config.network == "encoder_decoder":
        if head == "sequence_classification" and theirs.config.eos_token_id is not None:
            ids = ended_by(ids, mask, theirs.config.eos_token_id)
        decoder_ids = ids.flip(0)
        expected = theirs(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=decoder_ids)
        found = carrier.outputs(ours, ids, mask, decoder_ids)
        compared = torch.ones_like(mask)
    else:
        segments = torch.arange(ids.shape[1]).expand_as(ids) % max(config.num_segments, 1)
        expected = theirs(**their_inputs(config, ids, mask, segments, head))
        found = carrier.outputs(ours, ids, mask, segments)
        compared = mask
    difference = max(_difference(found[name], expected[name], compared) for name in found)
    if not difference < TOLERANCE:
        raise ExportError(
            f"transformers computes other logits from the export: they differ by {difference:.2g}, allowed is"
            f" {TOLERANCE}.",
            kept="nothing was committed",
            next_step="report it with the network's configuration; --no-verify writes it without this check",
        )
    return difference


@torch.no_grad()
def compare_elmo(found: Elmo, model: ElmoLanguageModel) -> float:
    """Compare an exported ELMo, as its loader read it, with the network that was written.

    Raises:
        ExportError: the layers differ.
    """
    names = found.model.state_dict()
    difference = max(
        float((tensor - names[name]).abs().max())
        for name, tensor in model.state_dict().items()
        if tensor.numel()
    )
    if difference != 0:
        raise ExportError(
            f"the network that was read back differs by {difference:.2g} from the one that was written",
            kept="nothing was committed",
        )
    return difference


def _random_text(config: TransformerConfig, pad: int | None) -> tuple[Tensor, Tensor]:
    """[rows, length] int64 ids and bool mask; every row is padded more than the one before.

    The padding id occurs only as padding: from it `transformers` derives RoBERTa's positions, and the end of a text
    that GPT-2 classifies.
    """
    length = min(_LENGTH, config.max_positions)
    others = config.require_vocab_size() - (pad is not None)
    noise = Noise.of("export", config.require_vocab_size())
    draws = noise.at(torch.arange(_ROWS * length).numpy()).integers(max(others, 1))
    ids = torch.from_numpy(draws).view(_ROWS, length)
    mask = torch.arange(length) < torch.tensor([length, length - length // 4, length // 2])[:, None]
    if pad is not None:
        ids = (ids + (ids >= pad)).where(mask, pad)
    return ids, mask


def _difference(ours: Tensor, theirs: Tensor, compared: Tensor) -> float:
    if ours.shape[:2] == compared.shape:
        ours, theirs = ours[compared], theirs[compared]
    return float((ours.float() - theirs.float()).abs().max())

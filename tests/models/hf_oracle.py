"""Networks of ours and of `transformers` beside each other, on the same batch and through directories on disk."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from models.config import TransformerConfig
from models.hf.directory import read_hf_directory, save_hf_directory
from models.hf.families import Exported, Imported, export_model, import_model
from models.hf.family import TokenIds
from models.hf.heads import Head, build_on_meta, carrier_of, num_labels_of, their_inputs
from models.initialization import init_weights
from tests.models.hf_configs import small
from tests.models.materials import shake

TOLERANCE = 1e-4
LANGUAGE_MODEL_HEADS: dict[str, Head] = {
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "encoder_decoder": "seq2seq_lm",
}
"""By kind of network."""
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


@dataclass(frozen=True)
class PaddedBatch:
    """Rows of different lengths."""

    input_ids: Tensor
    attention_mask: Tensor
    segment_ids: Tensor | None


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


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal names and equal values."""
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


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


PAD, EOS, START = 1, 2, 3
"""Special tokens of networks that write."""
SIZES = {
    "vocab_size": 37,
    "max_positions": 40,
    "num_layers": 2,
    "hidden_size": 16,
    "num_heads": 4,
    "intermediate_size": 32,
}
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT-2", {}),
    "llama": ("LLaMA", {"tie_embeddings": False}),
    "bart": ("BART", {}),
    "mbart": ("mBART", {"scale_embeddings": True}),
    "t5": ("T5", {"relative_buckets": 8, "relative_max_distance": 16}),
}
"""Families, and how their networks differ from `hf_configs.small`."""
VOCAB_SIZE, MAX_POSITIONS = SIZES["vocab_size"], SIZES["max_positions"]
COMMON = TransformerConfig(**SIZES)


def prompts(rows: int = 3, length: int = 5, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    """[rows, length] ids of text."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(START + 1, vocab_size, (rows, length), generator=generator)


def move(model: nn.Module, seed: int) -> None:
    """Random weights under which each next token depends on all before it: with the usual small ones, a network that
    shares its embeddings repeats one token for ever."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            of_tokens = any(part in name for part in ("wte", "shared", "embed_tokens", "lm_head"))
            matrix = 0.4 if of_tokens else 3.2 * parameter.shape[-1] ** -0.5
            scale = matrix if parameter.dim() > 1 else 0.1
            noise = scale * torch.randn(parameter.shape, generator=generator)
            # What transformers draws for matrices comes from the process's generator, which others used before.
            parameter.copy_(noise) if parameter.dim() > 1 else parameter.add_(noise)


@cache
def pair(peer: str, seed: int, vocab_size: int = VOCAB_SIZE) -> tuple[Any, Any]:
    """A network of ours that writes, and the one of transformers with the same weights."""
    family, differences = PEERS[peer]
    config = small(family, **SIZES | differences | {"vocab_size": vocab_size})
    head = LANGUAGE_MODEL_HEADS[config.network]
    written = export_model(build_on_meta(config, head).state_dict(), config, head=head, family=family).config
    architecture = getattr(transformers, written["architectures"][0])
    no_tokens = {"bos_token_id": None, "eos_token_id": None}
    theirs = architecture(architecture.config_class.from_dict(written | no_tokens)).eval()
    move(theirs, seed)
    # Without settings of generation of its own.
    theirs.generation_config = transformers.GenerationConfig()
    return built(imported_from(theirs)), theirs

"""Networks of ours and of `transformers` beside each other."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from models.config import TransformerConfig
from models.hf.directory import read_hf_directory, save_hf_directory
from models.hf.families import Exported, Imported, import_model
from models.hf.family import TokenIds
from models.hf.heads import Head, carrier_of, num_labels_of
from models.initialization import init_weights
from tests.models.materials import shake

TOKENS = TokenIds(pad=3, bos=4, eos=5)
"""Other ids than any class of `transformers` assumes."""
LANGUAGE_MODEL_HEADS: dict[str, Head] = {
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "encoder_decoder": "seq2seq_lm",
}
"""By kind of network."""
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


def random_network(config: TransformerConfig, head: Head, seed: int, num_labels: int = 1) -> nn.Module:
    """A network in which nothing is left at zero or one."""
    model = carrier_of(config, head).build(config, num_labels).eval()
    model.config = config  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    init_weights(model, seed)
    shake(model, seed, 0.1)
    return model


def built(imported: Imported) -> Any:
    """The network that an import stands for."""
    num_labels = num_labels_of(imported.state_dict, imported.head)
    model = carrier_of(imported.config, imported.head).build(imported.config, num_labels)
    model.load_state_dict(imported.state_dict)
    return model.eval()


def imported_from(theirs: Any) -> Imported:
    """What config.json and the weights would hold, without a directory."""
    config = json.loads(theirs.config.to_json_string(use_diff=False))
    return import_model(theirs.state_dict(), config | {"architectures": [type(theirs).__name__]})


def import_of(theirs: transformers.PreTrainedModel) -> Any:
    """Our network with the weights of theirs, which go through a directory."""
    with tempfile.TemporaryDirectory() as directory:
        theirs.save_pretrained(directory)
        return built(read_hf_directory(directory))


def opened_by_transformers(
    ours: nn.Module,
    config: TransformerConfig,
    head: Head | None = None,
    token_ids: TokenIds = TOKENS,
    family: str | None = None,
) -> tuple[Any, Exported]:
    """Write a network and read it with the class that `transformers` has for its head, every tensor in its place.

    Args:
        head: None for the one that the tensors tell.
    """
    with tempfile.TemporaryDirectory() as directory:
        exported = save_hf_directory(
            Path(directory), ours.state_dict(), config, token_ids, head=head, family=family
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


def assert_close_outputs(found: Mapping[str, Tensor], expected: Any, present: Tensor) -> None:
    """Every output of ours is theirs, at every token where it has one for each."""
    for name, scores in found.items():
        other = expected[name]
        if scores.shape[:2] == present.shape:
            scores, other = scores[present], other[present]
        torch.testing.assert_close(scores, other, atol=1e-4, rtol=0)


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal names and equal values."""
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())

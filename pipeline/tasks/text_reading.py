"""How others read texts with an exported network: its tokenizer writes what stood around them in training.

`transformers` classifies with the last token that is not padding. A decoder learned to classify with `</s>`, so padding
gets a token of its own where the vocabulary has one token for both, as in GPT-2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from data_prep.tokenizers.special import NAMES, find_special_tokens
from models.config import TransformerConfig
from pipeline.tasks.tokenizer import SequenceFormat, TextTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from models.generation.config import GenerationConfig

EMBEDDING = "decoder.embeddings.tokens.weight"
"""Token embeddings of a decoder that classifies."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a network reads and writes in a task."""

    around: SequenceFormat
    """The tokens around its texts."""
    search: GenerationConfig | None = None
    """How it writes; None where it writes nothing."""
    cut: Literal["left", "right"] = "right"
    """The side where too long texts are cut."""
    special_tokens: tuple[str, ...] = ()
    """Tokens that are read as one wherever a text names them, and left out of what was written."""


def with_template(
    tokenizer: TextTokenizer, around: SequenceFormat, special_tokens: Collection[str] = ()
) -> str:
    """A `tokenizer.json` that puts tokens around a text and a pair of texts as fine-tuning did.

    Args:
        special_tokens: as in `Reading`.
    """
    found = Tokenizer.from_file(str(tokenizer.path))
    known = {token.content for token in found.get_added_tokens_decoder().values() if token.special}
    absent = sorted(set(special_tokens) - known)
    if _writes(found, around) and not (absent or found.padding or found.truncation):
        return tokenizer.path.read_text(encoding="utf-8")
    found.no_padding()
    found.no_truncation()
    found.add_special_tokens([AddedToken(token) for token in absent])
    found.post_processor = _template(found, around)
    return found.to_str()


def with_own_padding(
    tokenizer_json: str, network: TransformerConfig, tensors: Mapping[str, Tensor]
) -> tuple[str, TransformerConfig, dict[str, Tensor]]:
    """Tokenizer, shape and weights of a decoder whose padding is no longer its last token; its scores stay the same.

    The new token's embedding is zeros; it is never read, because attention and classification leave padding out.
    """
    import torch

    found = Tokenizer.from_str(tokenizer_json)
    roles = find_special_tokens(found)
    if roles["pad"] == roles["eos"]:
        found.add_special_tokens([NAMES["pad"][0]])
        tokenizer_json = found.to_str()
    table = tensors[EMBEDDING]
    rows = max(len(table), find_special_tokens(found)["pad"] + 1)
    grown = torch.cat([table, table.new_zeros(rows - len(table), table.shape[1])])
    return tokenizer_json, replace(network, vocab_size=rows), {**tensors, EMBEDDING: grown}


def _writes(tokenizer: Tokenizer, around: SequenceFormat) -> bool:
    """Whether the tokenizer's own template is this one."""
    first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
    single, pair = tokenizer.encode("a"), tokenizer.encode("a", "b")
    begun = [*around.first, *first, *around.between]
    ended = [*second, *around.last]
    segments = [0] * len(begun) + [1] * len(ended)
    return (
        single.ids == [*around.first, *first, *around.last]
        and pair.ids == [*begun, *ended]
        and (not around.has_segments or pair.type_ids == segments)
    )


def _template(tokenizer: Tokenizer, around: SequenceFormat) -> TemplateProcessing:
    places = {"first": around.first, "between": around.between, "last": around.last}
    second = int(around.has_segments)
    single = ["first:0", "$A:0", "last:0"]
    pair = ["first:0", "$A:0", "between:0", f"$B:{second}", f"last:{second}"]
    # A place has a name of its own because tokens may hold colons, which separate the segment.
    return TemplateProcessing(
        single=[piece for piece in single if places.get(piece[:-2], True)],
        pair=[piece for piece in pair if places.get(piece[:-2], True)],
        special_tokens=[
            {"id": place, "ids": list(ids), "tokens": [tokenizer.id_to_token(number) for number in ids]}
            for place, ids in places.items()
            if ids
        ],
    )

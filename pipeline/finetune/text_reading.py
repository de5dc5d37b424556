"""How others read texts with an exported network: its tokenizer writes the special tokens that it was trained with.

`transformers` classifies with the last token that is not padding. A decoder learned to classify with `</s>`, so padding
gets a token of its own where the vocabulary has one token for both, as in GPT-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from data_prep.tokenizers.special import NAMES, find_special_tokens
from models.config import TransformerConfig
from pipeline.finetune.tokenizer import SequenceFormat, TextTokenizer

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING = "decoder.embeddings.tokens.weight"
"""Of a decoder that classifies."""


def with_template(tokenizer: TextTokenizer, around: SequenceFormat) -> str:
    """A `tokenizer.json` that puts special tokens around a text and a pair of texts as fine-tuning did."""
    found = Tokenizer.from_file(str(tokenizer.path))
    if _writes(found, around):
        return tokenizer.path.read_text(encoding="utf-8")
    found.post_processor = _template(found, around)
    return found.to_str()


def with_own_padding(
    tokenizer_json: str, network: TransformerConfig, tensors: Mapping[str, Tensor]
) -> tuple[str, TransformerConfig, dict[str, Tensor]]:
    """Tokenizer, shape and weights of a decoder whose padding is no longer its last token; its scores stay the same.

    The new token's embedding is zeros; it is never read, because attention and classification leave padding out.
    """
    import torch

    written = own_padding(tokenizer_json)
    table = tensors[EMBEDDING]
    rows = max(len(table), find_special_tokens(Tokenizer.from_str(written))["pad"] + 1)
    grown = torch.cat([table, table.new_zeros(rows - len(table), table.shape[1])])
    return written, replace(network, vocab_size=rows), {**tensors, EMBEDDING: grown}


def own_padding(tokenizer_json: str) -> str:
    """The tokenizer, with another token to pad with where it pads with the token that ends a text."""
    found = Tokenizer.from_str(tokenizer_json)
    roles = find_special_tokens(found)
    if roles["pad"] != roles["eos"]:
        return tokenizer_json
    found.add_special_tokens([NAMES["pad"][0]])
    return found.to_str()


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
    def named(ids: tuple[int, ...], segment: int) -> list[str]:
        return [f"{tokenizer.id_to_token(number)}:{segment}" for number in ids]

    second = int(around.has_segments)
    begun = [*named(around.first, 0), "$A:0"]
    specials = {*around.first, *around.between, *around.last}
    return TemplateProcessing(
        single=[*begun, *named(around.last, 0)],
        pair=[*begun, *named(around.between, 0), f"$B:{second}", *named(around.last, second)],
        special_tokens=[(tokenizer.id_to_token(number), number) for number in sorted(specials)],
    )

"""Special tokens by their role, whatever a tokenizer calls them."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.storage import contents_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAMES = MappingProxyType(
    {
        "bos": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>", "</s>"),
        "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>", "</s>"),
        "eos": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
        "unk": ("<unk>", "[UNK]", "<|endoftext|>"),
        "mask": ("<mask>", "[MASK]", "<|mask|>"),
    }
)
"""Per role the names it goes by in published tokenizers; the first that the vocabulary has counts."""
KNOWN_NAMES = tuple(dict.fromkeys(name for names in NAMES.values() for name in names))
ROLE_NAMES = MappingProxyType(
    {
        "bos": ("bos_token", "cls_token"),
        "eos": ("eos_token", "sep_token"),
        "pad": ("pad_token",),
        "unk": ("unk_token",),
        "mask": ("mask_token",),
    }
)
"""Names of the roles in transformers."""
REQUIRED_ROLES = ("bos", "pad", "eos")
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""The special tokens of tokenizers trained here, except WordPiece; in RoBERTa's order."""


def find_special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of the special tokens by role; `unk` and `mask` only where the tokenizer has them."""
    found = {}
    for role, names in NAMES.items():
        ids = [number for name in names if (number := tokenizer.token_to_id(name)) is not None]
        if ids:
            found[role] = ids[0]
    return found


def check_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Refuse a tokenizer that cannot make a token store.

    Raises:
        ConfigError: it drops merges at random, or has no token to begin, end or pad a sequence.
    """
    if getattr(tokenizer.model, "dropout", None):
        raise ConfigError(
            f"{path} applies BPE dropout, so that the same text gives other tokens every time.",
            next_step="set `dropout` to null in the file's `model`",
        )
    special = find_special_tokens(tokenizer)
    if missing := [role for role in REQUIRED_ROLES if role not in special]:
        known = "; ".join(f"{role}: {', '.join(NAMES[role])}" for role in missing)
        raise ConfigError(
            f"{path} has no {' and no '.join(missing)} token.",
            next_step=f"add one to the tokenizer under a usual name ({known})",
        )


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """The highest id plus one: what an embedding needs. More than the number of entries if ids have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def transformers_config(tokenizer: Tokenizer) -> bytes:
    """The `tokenizer_config.json`, which tells transformers the special tokens of a `tokenizer.json`."""
    tokens = {role: tokenizer.id_to_token(number) for role, number in find_special_tokens(tokenizer).items()}
    named = {name: token for role, token in tokens.items() for name in ROLE_NAMES[role]}
    return orjson.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}, option=orjson.OPT_INDENT_2)


def tokenizer_facts(path: Path) -> dict[str, Any]:
    """`vocab_size` and `special_tokens` (ids by role) of a `tokenizer.json`.

    Raises:
        CorruptArtefactError: it is no tokenizer.
    """
    from tokenizers import Tokenizer

    with contents_of(path):
        tokenizer = Tokenizer.from_file(str(path))
    return {"vocab_size": vocabulary_size(tokenizer), "special_tokens": find_special_tokens(tokenizer)}

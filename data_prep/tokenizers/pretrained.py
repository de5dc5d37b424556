"""A tokenizer that exists already: found, checked and copied in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ConfigError, MissingInputError
from cluster.shards import ShardResult
from data_prep.layout import TOKENIZER_FILE
from data_prep.tokenizers.special import check_tokenizer


@dataclass(frozen=True, slots=True)
class CopySplit:
    """The input of copying a tokenizer."""

    path: Path
    """The `tokenizer.json` to copy."""


def find_tokenizer(path: Path) -> Path:
    """The `tokenizer.json` that `path` is or holds.

    Raises:
        MissingInputError: there is none.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise MissingInputError(
            f"There is no {file}.", next_step="set `tokenizer.path` to a tokenizer.json or its directory"
        )
    return file


def copy_tokenizer(split: CopySplit, path: Path) -> ShardResult:
    """Check a `tokenizer.json` and copy its bytes.

    Raises:
        ConfigError: it cannot be loaded, or cannot make a token store.
    """
    from tokenizers import Tokenizer

    data = split.path.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"{split.path} cannot be loaded by Hugging Face tokenizers: {error}") from None
    check_tokenizer(tokenizer, split.path)
    path.write_bytes(data)
    return ShardResult(rows=1)

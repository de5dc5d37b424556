"""The tokenizer of a Hugging Face directory as `tokenizer.json`, converted where only its older files are there."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import orjson

from cluster.artefacts.errors import ReferenceNotFoundError
from cluster.artefacts.private import cache_directory
from cluster.artefacts.storage import storage_errors
from pipeline.checkpoint.hub import CONFIG_FILE, TOKENIZER_FILES, VOCABULARY_FILES

TOKENIZER_FILE = "tokenizer.json"


def find_tokenizer(directory: Path) -> Path:
    """The `tokenizer.json` of a Hugging Face directory, or one in the cache that `transformers` made of the others.

    Raises:
        ReferenceNotFoundError: there is no tokenizer, or one that cannot be converted.
    """
    own = directory / TOKENIZER_FILE
    if own.is_file():
        return own
    if not any((directory / name).is_file() for name in VOCABULARY_FILES):
        raise _absent(directory, "")
    converted = cache_directory() / "tokenizers" / _key(directory) / TOKENIZER_FILE
    if not converted.is_file():
        contents = _convert(directory)
        with storage_errors(converted.parent):
            converted.parent.mkdir(parents=True, exist_ok=True)
            descriptor, part = tempfile.mkstemp(dir=converted.parent, prefix=".part-")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(contents)
            Path(part).replace(converted)
    return converted


def _convert(directory: Path) -> str:
    """The tokenizer as `tokenizers` stores it."""
    from transformers import AutoTokenizer

    try:
        # The reasons for a failure are in the error; what is printed on the way there is about other programs.
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            found = AutoTokenizer.from_pretrained(
                directory, use_fast=True, local_files_only=True, trust_remote_code=False
            )
        converted = found.backend_tokenizer
        # Classes begin with a vocabulary of special tokens when their files are not there or say nothing.
        wrong = [
            token for token, number in _stored(directory).items() if converted.token_to_id(token) != number
        ]
        if wrong or converted.get_vocab_size() <= len(found.all_special_tokens):
            raise ValueError(f"{type(found).__name__} does not read it")
        return converted.to_str()
    except Exception as error:  # files that say anything at all, read by code of every age
        raise _absent(directory, f"{type(error).__name__}: {error}".partition("\n")[0]) from None


def _stored(directory: Path) -> dict[str, int]:
    """The ids that the vocabulary's file gives to tokens; none for sentencepiece, where every class has its own ids."""
    words, pairs = directory / "vocab.txt", directory / "vocab.json"
    if words.is_file():
        lines = words.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return {line.rstrip("\r"): number for number, line in enumerate(lines)}
    return dict(orjson.loads(pairs.read_bytes())) if pairs.is_file() else {}


def _key(directory: Path) -> str:
    """A name for the files that a tokenizer is made from, and for the version that converts them."""
    import transformers

    digest = hashlib.sha256(transformers.__version__.encode())
    for name in (CONFIG_FILE, *TOKENIZER_FILES):
        file = directory / name
        if file.is_file():
            digest.update(f"\0{name}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _absent(directory: Path, reason: str) -> ReferenceNotFoundError:
    there = [name for name in VOCABULARY_FILES if (directory / name).is_file()]
    tried = f", and its {there[0]} cannot be converted: {reason}" if reason else ""
    return ReferenceNotFoundError(
        f"{directory} has no {TOKENIZER_FILE}{tried}.",
        next_step="save its fast tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
    )

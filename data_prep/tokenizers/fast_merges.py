"""Learning byte-level BPE merges with gigatoken: the same merges as Hugging Face tokenizers, several times faster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

CHECK_BYTES = 1 << 20
"""Text on which both libraries must learn the same before the faster one is trusted with all of it."""
CHECK_VOCABULARY = 4096
_SEPARATOR = b"\xff"
"""Between documents: a byte that UTF-8 never has."""

Merges = list[tuple[str, str]]
"""Pairs of symbols in GPT-2's alphabet, which writes every byte as one character; in the order of learning."""


def learn_merges(
    texts: Sequence[str],
    vocab_size: int,
    min_frequency: int,
    reference: Callable[[Sequence[str], int, int], Merges],
    assemble: Callable[[Merges], str],
) -> Merges | None:
    """The merges of a byte-level BPE with `vocab_size` entries, 256 bytes included.

    None where gigatoken is not installed, or would not give what the reference gives: they differ on a sample of
    these texts, an entry is made by two merges, or the text is so small that `min_frequency` ends the training.

    Args:
        reference: learns merges of (texts, vocabulary size, lowest frequency), the slow way.
        assemble: the `tokenizer.json` with given merges.
    """
    try:
        import gigatoken  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    sample = _sample(texts)
    if _gigatoken(sample, CHECK_VOCABULARY) != reference(sample, CHECK_VOCABULARY, 1):
        return None
    merges = _gigatoken(texts, vocab_size)
    entries = set(map("".join, merges))
    if len(merges) != vocab_size - 256 or len(entries) != len(merges):
        return None
    return merges if _is_frequent(merges, assemble(merges), texts, min_frequency) else None


def _sample(texts: Sequence[str]) -> list[str]:
    """Documents spread over all texts, CHECK_BYTES of them or a little more."""
    num_bytes = sum(map(len, texts))
    step = max(1, num_bytes // CHECK_BYTES)
    return [text[: CHECK_BYTES // 8] for text in texts[::step]]


def _gigatoken(texts: Sequence[str], vocab_size: int) -> Merges:
    import gigatoken  # pyright: ignore[reportMissingImports]

    corpus = _SEPARATOR.join(text.encode("utf-8") for text in texts)
    with _silence():
        _, merges = gigatoken.train_bpe(
            corpus, vocab_size, [], tie_breaking="huggingface", separator=_SEPARATOR
        )
    alphabet = byte_alphabet()

    def written(symbol: bytes) -> str:
        return "".join(alphabet[byte] for byte in symbol)

    return [(written(left), written(right)) for left, right in merges]


def byte_alphabet() -> list[str]:
    """[256] the character that GPT-2 writes for each byte: printable bytes are themselves, the others follow on
    from U+0100 (Radford et al. 2019, `bytes_to_unicode` of the published encoder)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _is_frequent(merges: Merges, tokenizer_json: str, texts: Sequence[str], min_frequency: int) -> bool:
    """Whether the last pair was seen often enough when it was merged; all before it were seen as often or more.

    Nothing was merged after it, so it was seen as often as its entry occurs in the encoded texts.
    """
    import numpy as np
    import orjson
    from fastokens import Tokenizer

    parts = orjson.loads(tokenizer_json)
    encoder = Tokenizer.from_json_str(orjson.dumps(parts | {"post_processor": None}).decode())
    last = parts["model"]["vocab"]["".join(merges[-1])]
    remaining, seen = iter(texts), 0
    while seen < min_frequency and (batch := list(islice(remaining, 256))):
        ids = np.frombuffer(encoder.encode_batch_flat(batch, False, True)[0], dtype="<u4")
        seen += int((ids == last).sum())
    return seen >= min_frequency


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing reaches the process's stdout and stderr: gigatoken reports to both, and a verb's JSON goes there."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(sink, number)
        yield
    finally:
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)
        os.close(sink)

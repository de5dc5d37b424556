"""SentencePiece (Kudo and Richardson 2018), trained for T5 and mBART and converted to a `tokenizer.json`.

Ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, with `byte_fallback` the 256 bytes, the pieces, language tags,
`<mask>`, and last T5's sentinels from the highest number down (Raffel et al. 2020, section 3.1.4; as published).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator

from cluster.artefacts.errors import ConfigError
from data_prep.tokenizers.config import SentencePiece
from data_prep.tokenizers.sentencepiece_conversion import check_conversion, convert
from data_prep.tokenizers.special import SPECIAL_TOKENS

NUM_THREADS = 8
"""Fixed, because the unigram trainer's sums, and so its pieces, depend on it."""
MAX_LINE_BYTES = 1 << 20
"""Longer lines would be skipped by the trainer, so they are cut."""
CHECK_TEXTS = 2000
"""Texts on which ids are compared with SentencePiece's own."""
_REQUIRED_CHARACTERS = "<>/_0123456789ABCDEFabdeiknpstux"
"""Every letter in the names of control symbols and bytes: text that spells one can then be made of these."""


def train(texts: Iterable[str], config: SentencePiece) -> str:
    """Train on texts; returns the `tokenizer.json`. See `train_and_check`."""
    return train_and_check(texts, config)[0]


def train_and_check(texts: Iterable[str], config: SentencePiece) -> tuple[str, dict[str, int]]:
    """Train on texts; returns the `tokenizer.json`, and on how many pieces of text it was compared with SentencePiece
    (see `check_conversion`).

    Raises:
        ConfigError: the texts have too few different pieces for `vocab_size`, or too many characters; or the
            converted tokenizer does not give SentencePiece's ids on these very texts.
    """
    kept = list(texts)
    extra = [*config.languages, "<mask>", *(f"<extra_id_{n}>" for n in reversed(range(config.sentinels)))]
    model = train_model(kept, config, config.vocab_size - len(extra))
    converted = convert(model, extra)
    sample = kept[:: max(1, len(kept) // CHECK_TEXTS)]
    counts = check_conversion(
        model,
        converted,
        (text[:4096] for text in sample),
        "set `tokenizer.normalization` to identity and normalise the text with a filter",
    )
    return converted, counts


def train_model(texts: Iterable[str], config: SentencePiece, vocab_size: int) -> bytes:
    """The serialised SentencePiece model; its training takes all lines, in order.

    Raises:
        ConfigError: `vocab_size` does not fit the texts.
    """
    import sentencepiece

    written = io.BytesIO()
    bos, pad, eos, unk, _ = SPECIAL_TOKENS
    try:
        sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
            sentence_iterator=_lines(texts),
            model_writer=written,
            model_type=config.model,
            vocab_size=vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name=config.normalization,
            required_chars=_REQUIRED_CHARACTERS,
            input_sentence_size=0,
            shuffle_input_sentence=False,
            max_sentence_length=MAX_LINE_BYTES,
            num_threads=NUM_THREADS,
            minloglevel=2,
            bos_id=0,
            pad_id=1,
            eos_id=2,
            unk_id=3,
            bos_piece=bos,
            pad_piece=pad,
            eos_piece=eos,
            unk_piece=unk,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].partition("\n")[0]
        raise ConfigError(
            f"SentencePiece cannot train {vocab_size:,} pieces on this text: {reason}",
            next_step=_other_size(str(error), config, config.vocab_size - vocab_size),
        ) from None
    return written.getvalue()


def _other_size(error: str, config: SentencePiece, num_appended: int) -> str:
    """The next step where `vocab_size` does not fit; SentencePiece names a size without the appended entries."""
    if found := re.search(r"<=? ?(\d+)\.?\s*$", error):
        largest = int(found[1]) + num_appended
        try:
            SentencePiece.model_validate(config.model_dump() | {"vocab_size": largest})
            return f"set `tokenizer.vocab_size` to {largest} or less, or train on more text"
        except ValueError:
            return "train on more text: it has fewer different pieces than the smallest vocabulary"
    return "change `tokenizer.vocab_size`, or train on more text"


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for line in text.split("\n"):
            # A character has at most four bytes.
            for start in range(0, len(line), MAX_LINE_BYTES // 4):
                yield line[start : start + MAX_LINE_BYTES // 4]

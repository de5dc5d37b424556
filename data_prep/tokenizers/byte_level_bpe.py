"""Byte-level BPE (Radford et al. 2019): trained with RoBERTa's special tokens, or from a published vocabulary.

Trained ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>` 4, then the 256 bytes, then merges as learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.tokenizers.config import ByteLevelBPE
from data_prep.tokenizers.fast_merges import learn_merges
from data_prep.tokenizers.special import SPECIAL_TOKENS, find_special_tokens, known_names

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def train(texts: Iterable[str], config: ByteLevelBPE) -> str:
    """Train on texts; returns the `tokenizer.json`. Merges come from the fastest library that learns the same."""
    kept = list(texts)
    num_entries = config.vocab_size - len(SPECIAL_TOKENS)
    merges = learn_merges(kept, num_entries, config.min_frequency, reference_merges, with_merges)
    if merges is None:
        return train_bpe(kept, config.vocab_size, config.min_frequency)
    return with_merges(merges)


def train_bpe(texts: Iterable[str], vocab_size: int, min_frequency: int) -> str:
    """Train with Hugging Face tokenizers; returns the `tokenizer.json`. The same texts give the same bytes."""
    from tokenizers import pre_tokenizers, trainers

    tokenizer = _assemble({}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=_added_tokens(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return _finish(tokenizer)


def reference_merges(texts: Iterable[str], vocab_size: int, min_frequency: int) -> list[tuple[str, str]]:
    """The merges that Hugging Face tokenizers learns, in its alphabet; `vocab_size` without special tokens."""
    import orjson

    trained = orjson.loads(train_bpe(texts, vocab_size + len(SPECIAL_TOKENS), min_frequency))
    return [tuple(pair) for pair in trained["model"]["merges"]]


def with_merges(merges: Sequence[tuple[str, str]]) -> str:
    """The `tokenizer.json` that training gives when it learns these merges."""
    from tokenizers import pre_tokenizers

    entries = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    return _finish(_assemble(vocabulary, list(merges)))


def from_files(vocabulary: Path, merges: Path) -> str:
    """The `tokenizer.json` of GPT-2's two files: entries with ids as JSON, and merges, one a line.

    Raises:
        ValueError: the files are not such files.
    """
    from tokenizers import models

    return _finish(_assemble(*models.BPE.read_file(str(vocabulary), str(merges))))


def _assemble(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _finish(tokenizer: Tokenizer) -> str:
    from tokenizers import processors

    vocabulary = tokenizer.get_vocab()
    names = sorted((name for name in known_names() if name in vocabulary), key=vocabulary.__getitem__)
    tokenizer.add_special_tokens(_added_tokens(names))
    if "<s>" in vocabulary and "</s>" in vocabulary:
        ids = find_special_tokens(tokenizer)
        ends = ("</s>", ids["eos"]), ("<s>", ids["bos"])
        tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return tokenizer.to_str(pretty=True)


def _added_tokens(names: Iterable[str]) -> list:
    from tokenizers import AddedToken

    # As in RoBERTa, a mask stands for a word with the space before it.
    return [AddedToken(name, special=True, normalized=False, lstrip=name == "<mask>") for name in names]

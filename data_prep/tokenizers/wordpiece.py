"""WordPiece (Wu et al. 2016) as BERT uses it (Devlin et al. 2019): trained, or from a published `vocab.txt`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from data_prep.tokenizers.training import NO_PUNCTUATION, TrainedTokenizer

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARACTERS = 100
"""Longer words become `[UNK]`, as in BERT's published code."""
PREFIX = "##"
"""Prefix of an entry that continues a word."""
_WORD_START = "▁"


class WordPiece(TrainedTokenizer):
    """Train a WordPiece tokenizer, as BERT and ELECTRA use it."""

    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: int = Field(default=30_522, ge=512, le=1 << 20)
    """Entries of the vocabulary, special tokens included."""
    lowercase: bool | Literal["auto"] = "auto"
    """Lower the case of all text and take its accents off, as BERT uncased does; that also takes Hangul apart, and the
    text cannot be written again. `auto` does so where all documents are English, by their `lang`."""
    min_frequency: int = Field(default=2, ge=1)
    """A pair of symbols seen fewer times is never merged."""
    max_word_characters: int = Field(default=100, ge=16)
    """Longer words (characters) are cut for training; encoding makes `[UNK]` of words longer than 100."""
    limit_alphabet: int | None = Field(default=None, ge=1)
    """Characters at the start or inside of words; rarer ones become `[UNK]`. None takes 1,000, or as many as
    leave 1 in 10,000 characters of the text unknown, up to a quarter of `vocab_size`."""

    words: ClassVar[tuple[str, ...]] = NO_PUNCTUATION

    def train(self, texts: Iterable[str]) -> tuple[str, dict[str, int]]:
        """As `TrainedTokenizer.train`. `lowercase` is decided by the caller: `auto` counts as true.

        Pairs are merged by frequency, as `WordPieceTrainer` of Hugging Face tokenizers does, whose own result changes
        from run to run. So its BPE trainer works on words with a mark at their start; an entry with the mark begins a
        word, one without continues it.
        """
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        kept = list(texts)
        alphabet = _alphabet(kept, self)
        tokenizer = Tokenizer(models.BPE())
        lowercase = bool(self.lowercase)
        tokenizer.normalizer = _normalizer(lowercase)
        mark = pre_tokenizers.Metaspace(replacement=_WORD_START, prepend_scheme="always", split=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), mark])
        trainer = trainers.BpeTrainer(
            # Merging the mark with a character gives no new entry, because every character may begin a word anyway.
            vocab_size=self.vocab_size + len(alphabet),
            min_frequency=self.min_frequency,
            initial_alphabet=[_WORD_START, *alphabet],
            limit_alphabet=1 + len(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(kept, trainer=trainer)
        learned = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        entries = [*SPECIAL_TOKENS, *alphabet, *(PREFIX + character for character in alphabet)]
        names = (
            name.removeprefix(_WORD_START) if name.startswith(_WORD_START) else PREFIX + name
            for name, _ in learned
        )
        entries += filter(None, names)
        return assemble(list(dict.fromkeys(entries))[: self.vocab_size], lowercase), {}


def assemble(entries: Sequence[str], lowercase: bool) -> str:
    """The `tokenizer.json` of a vocabulary in the order of its ids, with BERT's normalisation and word splitting."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary,
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
            continuing_subword_prefix=PREFIX,
        )
    )
    tokenizer.normalizer = _normalizer(lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in vocabulary])
    if "[CLS]" in vocabulary and "[SEP]" in vocabulary:
        ends = ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
        tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer.to_str(pretty=True)


def from_file(path: Path, lowercase: bool | Literal["auto"]) -> str:
    """The `tokenizer.json` of BERT's `vocab.txt`: one entry a line, ids from 0.

    Raises:
        ValueError: it has no `[UNK]`, or names an entry twice.
    """
    # Only line feeds end lines: some entries are white space to Python.
    lines = path.read_text(encoding="utf-8").split("\n")
    entries = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    if "[UNK]" not in entries:
        raise ValueError("it has no [UNK]")
    if repeated := [entry for entry, count in Counter(entries).items() if count > 1]:
        raise ValueError(f"it has {repeated[0]!r} more than once")
    words = [entry for entry in entries if not (entry.startswith("[") and entry.endswith("]"))]
    is_lowercase = all(word == word.lower() for word in words)
    return assemble(entries, is_lowercase if lowercase == "auto" else lowercase)


def _alphabet(texts: Sequence[str], config: WordPiece) -> list[str]:
    """The most frequent characters of the normalised texts, in the order of their code points."""
    normalizer = _normalizer(bool(config.lowercase))
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    found = [(-count, character) for character, count in counts.items() if not character.isspace()]
    ranked = sorted(pair for pair in found if pair[1] != _WORD_START)
    # As many as make up all but 1 in 10,000 characters of the text.
    seen = [0, *accumulate(-count for count, _ in ranked)]
    num_needed = sum(before < 0.9999 * seen[-1] for before in seen[:-1])
    limit = config.limit_alphabet or max(1000, min(num_needed, config.vocab_size // 4))
    return sorted(character for _, character in ranked[:limit])


def _normalizer(lowercase: bool):
    from tokenizers import normalizers

    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )

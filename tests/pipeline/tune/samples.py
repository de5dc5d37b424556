"""Small networks, tasks of two rows, and tokenizers like published ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from models.config import ElmoConfig, TransformerConfig
from pipeline.tasks.forms import Answer, Choices, Example, Question, TaggedSentence, TextPair
from pipeline.tasks.generation import XsumConfig
from pipeline.tasks.questions import SquadConfig
from pipeline.tasks.rows import RowsClassificationConfig, RowsRegressionConfig
from pipeline.tasks.superglue import CopaConfig
from pipeline.tasks.tagging import ConllNerConfig
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.forms import FORMS
from pipeline.tune.forms.base import TaskContext
from tests.pipeline.real_text import docstrings
from tests.pipeline.tune.conftest import MODEL, context_of

BERT = TransformerConfig(
    vocab_size=400,
    num_layers=1,
    hidden_size=64,
    num_heads=2,
    intermediate_size=128,
    max_positions=128,
    num_segments=2,
    dropout=0.0,
    attention_dropout=0.0,
)
GPT = dataclasses.replace(BERT, network="decoder", num_segments=0, norm="pre", embedding_norm=False)
BART = dataclasses.replace(BERT, network="encoder_decoder", num_segments=0)
ELMO = ElmoConfig(
    vocab_size=600,
    max_characters=12,
    character_size=8,
    filters=((1, 8), (2, 16), (3, 24)),
    num_highway_layers=1,
    projection_size=16,
    cell_size=32,
)
UNREAD = {"train": Path("unread"), "evaluation": Path("unread")}
SIDES = {side: Path("unread") for side in ("source", "target", "train_source", "train_target")}
FIRST, SECOND = "the good film", "bad plot and film"
TWO_ROWS: dict[str, tuple[Any, tuple[str, ...], tuple[Any, Any]]] = {
    "classification": (
        RowsClassificationConfig(**UNREAD),
        ("bad", "good"),
        (Example("a", FIRST, None, 1), Example("b", SECOND, None, 0)),
    ),
    "regression": (
        RowsRegressionConfig(**UNREAD),
        (),
        (Example("a", FIRST, None, 0.5), Example("b", SECOND, None, -2.0)),
    ),
    "tags": (
        ConllNerConfig(**UNREAD),
        ("B-X", "O"),
        (
            TaggedSentence("a", ("the", "good", "film"), ("O", "B-X", "O")),
            TaggedSentence("b", ("one",), ("O",)),
        ),
    ),
    "spans": (
        SquadConfig(**UNREAD, max_query_length=4),
        (),
        (
            Question("a", "the plot", "the good film was bad", (Answer("good film", 4),)),
            Question("b", "two", "one two", (Answer("two", 4),)),
        ),
    ),
    "choices": (
        CopaConfig(path=Path("unread")),
        (),
        (
            Choices("a", (("good", "film"), ("bad", "film plot")), 1),
            Choices("b", (("one", "two"), ("one", "three"), ("a", "the")), 2),
        ),
    ),
    "generation": (
        XsumConfig(**UNREAD, max_target_length=8, min_target_length=1, label_smoothing=0.0),
        (),
        (TextPair("a", FIRST, "film"), TextPair("b", SECOND, "plot and film")),
    ),
}
"""By form, a task of two rows of unequal lengths in the words of the tests: settings, labels and rows."""


def two_rows(form: str, tokenizer: TextTokenizer, network: Any = MODEL, **settings: Any) -> TaskContext:
    """A task of two rows; `settings` are of the training."""
    config, labels, rows = TWO_ROWS[form]
    return context_of(config, tokenizer, rows, labels, network, **settings)


def prepared_rows(form: str, tokenizer: TextTokenizer, network: Any = MODEL) -> Any:
    """A task of two rows, ready to be trained."""
    context = two_rows(form, tokenizer, network)
    return FORMS[context.config.form](context)


def wordpiece(path: Path) -> Path:
    """A WordPiece as BERT's uncased one, trained on docstrings."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

    def like_bert(vocabulary: dict[str, int]) -> Tokenizer:
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    trained = like_bert({})
    trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=specials, show_progress=False)
    trained.train_from_iterator(training_texts(), trainer)
    # As in BERT's file, the special tokens are words like others.
    like_bert(trained.get_vocab()).save(str(path))
    return path


def byte_level(
    path: Path, texts: Sequence[str] = (), special_tokens: Sequence[str] = (), vocab_size: int = 2000
) -> Path:
    """A byte-level BPE as GPT-2's, trained on docstrings or other texts, with special tokens of RoBERTa after it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts or training_texts(), trainer)
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>"])
    tokenizer.save(str(path))
    return path


def training_texts() -> list[str]:
    return [document.text for document in docstrings()[:400]]


def words_of(text: str, path: Path) -> Path:
    """A vocabulary of the words of a text, in lower case; `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3."""
    tokenizer = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=specials))
    tokenizer.save(str(path))
    return path

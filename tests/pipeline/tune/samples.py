"""Small networks, tasks of two rows, small parts of real task files, and tokenizers of published vocabularies."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from models.config import ElmoConfig, TransformerConfig
from pipeline.tasks.forms import Answer, Choices, Example, Question, TaggedSentence, TextPair
from pipeline.tasks.question_answering import SquadConfig
from pipeline.tasks.rows import RowsClassificationConfig, RowsRegressionConfig
from pipeline.tasks.summaries import XsumConfig
from pipeline.tasks.superglue import CopaConfig
from pipeline.tasks.tagging import ConllNerConfig
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.forms import FORMS
from pipeline.tune.forms.base import TaskContext
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


def wordpiece(corpora: Path, path: Path) -> Path:
    """BERT's uncased WordPiece."""
    lines = (corpora / "tokenizers/bert-base-uncased/vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {line: number for number, line in enumerate(lines) if line}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(path))
    return path


def byte_level(corpora: Path, path: Path) -> Path:
    """GPT-2's byte-level BPE, with the special tokens of RoBERTa behind it."""
    folder = corpora / "tokenizers/gpt2"
    model = models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>"])
    tokenizer.save(str(path))
    return path


def words_of(text: str, path: Path) -> Path:
    """A vocabulary of the words of a text, in lower case; `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3."""
    tokenizer = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=specials))
    tokenizer.save(str(path))
    return path


def squad_sample(corpora: Path, path: Path, num_questions: int, longest: int = 400) -> Path:
    """A file in SQuAD's layout: the first questions of the official file about passages of few characters."""
    official = json.loads((corpora / "squad/dev-v1.1.json").read_text(encoding="utf-8"))
    short = [
        {"context": paragraph["context"], "qas": paragraph["qas"][:1]}
        for article in official["data"]
        for paragraph in article["paragraphs"]
        if len(paragraph["context"]) <= longest
    ]
    data: dict[str, Any] = {"version": "1.1", "data": [{"title": "t", "paragraphs": short[:num_questions]}]}
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


def xsum_sample(corpora: Path, path: Path, num_documents: int) -> Path:
    """The first documents of the file with a summary of ordinary length, each cut to its first line."""
    with (corpora / "xsum/test-1000.jsonl").open(encoding="utf-8") as stream:
        short = (row for row in map(json.loads, stream) if len(row["summary"]) < 160)
        rows = list(itertools.islice(short, num_documents))
    for row in rows:
        row["document"] = row["document"].split("\n")[0]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def sst2_sample(corpora: Path, folder: Path, num_train: int, num_evaluation: int) -> Path:
    """The first lines of both files."""
    folder.mkdir(parents=True)
    for name, count in (("train.tsv", num_train), ("dev.tsv", num_evaluation)):
        lines = (corpora / "glue/SST-2" / name).read_text(encoding="utf-8").split("\n")
        (folder / name).write_text("\n".join(lines[: count + 1]) + "\n", encoding="utf-8")
    return folder

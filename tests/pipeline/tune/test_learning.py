"""Every form of task is learnt by every kind of network that carries it, and what is written gives the scores again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_prep.tokenizers.word_lexicon import assemble
from models.elmo.language_model import ElmoLanguageModel
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.tasks.metrics.squad import answer_metrics, unanswerable_metrics
from pipeline.tune.scores import Score
from tests.pipeline.tasks.excerpts import objects
from tests.pipeline.tune.conftest import BART, BERT, ELMO, GPT, make_checkpoint, predictions

NETWORKS: dict[str, Callable[[], Any]] = {
    "encoder": lambda: MaskedLanguageModel(BERT, pair="nsp"),
    "decoder": lambda: CausalLanguageModel(GPT),
    "encoder_decoder": lambda: SequenceToSequence(BART),
    "relative_bias": lambda: SequenceToSequence(dataclasses.replace(BART, positions="relative_bias")),
    "elmo": lambda: ElmoLanguageModel(ELMO),
}
QUESTIONS = (
    ("The red dog ran over a hill.", "Who ran?", "The red dog"),
    ("All of the grass near that river was green.", "What was green?", "grass"),
    ("One cat saw a tree.", "Who sang?", None),
    ("Under the old bridge lay a tall ladder.", "What was tall?", "ladder"),
    ("Snow fell for three days on every roof.", "Where was the sea?", None),
    ("Her brother sold both horses.", "When did it end?", None),
)
ROWS = [
    {
        "id": number,
        "text": text,
        "label": "abc"[number % 3],
        "number": float(number),
        "tokens": text.split(),
        "tags": ["B-END" if word.endswith(".") else "O" for word in text.split()],
        "question": question,
        "context": text,
        "answers": answer or " ".join(text.split()[:2]),
        "choices": [words.split()[0] for words in (text, question, "nothing")],
        "right": number % 3,
        "document": f"{text} It was wet. Nobody cuts it.",
        "summary": f"The story: {question}",
    }
    for number, (text, question, answer) in enumerate(QUESTIONS)
]
"""A row that every form of task reads."""
FILES = {"train": "rows.jsonl", "evaluation": "rows.jsonl"}
SIDES = {f"{split}{side}": side for split in ("", "train_") for side in ("source", "target")}
WRITTEN = {"max_target_length": 12, "min_target_length": 1, "num_beams": 2}
SPANS = FILES | {"doc_stride": 32, "max_query_length": 16}
TASKS: dict[str, dict[str, Any]] = {
    "labels": FILES | {"kind": "rows_classification"},
    "numbers": FILES | {"kind": "rows_regression", "columns": {"label": "number"}},
    "choices": FILES | {"kind": "rows_choices", "columns": {"label": "right"}},
    "tags": FILES | {"kind": "rows_tags"},
    "spans": SPANS | {"kind": "rows_spans"},
    "spans or none": SPANS | dict.fromkeys(FILES, "squad.json") | {"kind": "squad2"},
    "summaries": FILES | WRITTEN | {"kind": "xsum"},
    "translations": SIDES
    | WRITTEN
    | {"kind": "translation", "language": "de_DE", "target_language": "en_XX"},
}


def write_files(folder: Path) -> None:
    (folder / "rows.jsonl").write_text(objects(*ROWS))
    paragraphs = []
    for number, (context, asked, answer) in enumerate(QUESTIONS):
        right = [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}]
        entry = {"id": f"q{number}", "question": asked, "answers": right, "is_impossible": answer is None}
        paragraphs.append({"context": context, "qas": [entry]})
    (folder / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    for side, column in (("source", "text"), ("target", "question")):
        # As the tokenizer writes them.
        (folder / side).write_text("".join(row[column].lower().rstrip(".?") + "\n" for row in ROWS))


def check_spans(score: Score, directory: Path) -> None:
    official = orjson.loads((directory / "answers-task-pretrained-1.json").read_bytes())
    lines = predictions(directory, "task-pretrained-1")
    measured = answer_metrics([line["answers"] for line in lines], [official[line["id"]] for line in lines])
    assert measured == score.metrics
    for line, row in zip(lines, ROWS, strict=True):
        assert (line["question"], line["context"]) == (row["question"], row["context"])
        found = line["n_best"]
        assert line["prediction"] == found[0]["text"] == official[line["id"]]
        assert sum(each["probability"] for each in found) == pytest.approx(1)
        assert len({each["text"] for each in found}) == len(found) > 1


def check_spans_or_none(score: Score, directory: Path) -> None:
    files = (f"{name}-task-pretrained-1.json" for name in ("answers", "na_prob"))
    official, chances = (orjson.loads((directory / name).read_bytes()) for name in files)
    assert list(official.values()) == [answer or "" for _, _, answer in QUESTIONS]
    right = [[answer] if answer else [] for _, _, answer in QUESTIONS]
    assert score.metrics == unanswerable_metrics(right, [*official.values()], np.array([*chances.values()]))
    n_best = predictions(directory, "task-pretrained-1")[2]["n_best"]
    assert sum(found["probability"] for found in n_best) == pytest.approx(1)
    assert "" in [found["text"] for found in n_best]


class Lesson(NamedTuple):
    form: str
    network: str
    least: Mapping[str, float]
    """Metrics, the main one first, and what they exceed at the end."""
    epochs: int
    lr: float = 3e-3
    check: Callable[[Score, Path], None] = lambda score, directory: None


SURE = {"f1": 0.99, "best_f1": 0.99, "no_answer_exact": 0.99, "has_answer_f1": 0.99}
LESSONS = [
    Lesson("labels", "encoder", {"accuracy": 0.95}, 30),
    Lesson("labels", "decoder", {"accuracy": 0.95}, 30),
    Lesson("labels", "encoder_decoder", {"accuracy": 0.95}, 30),
    Lesson("labels", "relative_bias", {"accuracy": 0.95}, 30),
    # Above a frozen network of random weights a linear layer learns alone, so its rate is higher.
    Lesson("labels", "elmo", {"accuracy": 0.95}, 60, 2e-2),
    Lesson("numbers", "encoder", {"pearson": 0.9, "spearman": 0.9}, 60),
    Lesson("choices", "encoder", {"accuracy": 0.99}, 60),
    Lesson("tags", "encoder", {"accuracy": 0.95, "f1": 0.9}, 30),
    Lesson("tags", "decoder", {"accuracy": 0.95, "f1": 0.9}, 30),
    # The features of random weights tell only half of the last words from others.
    Lesson("tags", "elmo", {"accuracy": 0.9, "f1": 0.6}, 200, 0.1),
    Lesson("spans", "encoder", {"f1": 0.9, "exact_match": 0.9}, 40, check=check_spans),
    Lesson("spans", "decoder", {"f1": 0.9}, 40),
    Lesson("spans", "encoder_decoder", {"f1": 0.9}, 40),
    Lesson("spans or none", "encoder", SURE, 80, check=check_spans_or_none),
    Lesson("summaries", "encoder_decoder", {"rouge1": 0.9, "rouge2": 0.9}, 120),
    Lesson("summaries", "decoder", {"rouge1": 0.8, "rouge2": 0.8}, 60, 5e-3),
    Lesson("translations", "encoder_decoder", {"bleu": 0.9, "chrf": 0.9}, 120),
]


def tokenizer_for(network: str, path: Path) -> Path:
    """A vocabulary of all words of the rows in lower case, and tags of languages."""
    if network == "elmo":
        # The others are spelled.
        path.write_text(assemble(["dog", "grass", "One", "the"]).to_str())
        return path
    tokenizer = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator([objects(*ROWS)], trainers.WordLevelTrainer(special_tokens=specials))
    tokenizer.add_special_tokens(["de_DE", "en_XX"])
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: f"{lesson.form}-{lesson.network}")
def test_task_is_learnt_by_heart(lesson: Lesson, tmp_path: Path, tune, recorder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    start = make_checkpoint(
        tmp_path / "start",
        tokenizer_for(lesson.network, tmp_path / "words.json"),
        network=NETWORKS[lesson.network](),
    )
    training = {"epochs": lesson.epochs, "batch_size": 8, "lr": lesson.lr, "scored": "last_epoch"}
    tuned = tune(start, tasks={"task": TASKS[lesson.form]}, training=training | {"max_length": 48})
    (score,) = tuned.scores
    assert score.main_metric == next(iter(lesson.least))
    assert {
        name: score.metrics[name] for name, least in lesson.least.items() if score.metrics[name] <= least
    } == {}
    assert score.epochs[0].metrics == {}
    assert [*score.baselines] == (["lead-1"] if lesson.form == "summaries" else [])
    signed = tuned.directory / "signatures-task-pretrained-1.json"
    assert signed.exists() == (lesson.form == "translations")
    logged = {metric for metrics, _, _ in recorder.runs[0].metrics for metric in metrics}
    assert {f"task/{name}/{metric}" for name, found in score.baselines.items() for metric in found} <= logged
    lesson.check(score, tuned.directory)

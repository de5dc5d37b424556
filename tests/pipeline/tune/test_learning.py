"""Every form of task is learnt by every kind of network that carries it, and what is written gives the scores again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer

from data_prep.tokenizers.word_lexicon import assemble
from models.elmo.language_model import ElmoLanguageModel
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.tasks.metrics.squad import answer_metrics, unanswerable_metrics
from pipeline.tasks.metrics.texts import rouge
from pipeline.tasks.questions import read_questions
from pipeline.tune.scores import Score
from pipeline.tune.summary import summarise
from tests.pipeline.tasks.excerpts import both, objects, write
from tests.pipeline.tune.conftest import WORDS, make_checkpoint, predictions, write_sst2
from tests.pipeline.tune.samples import BART, BERT, ELMO, GPT, words_of

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
SUMMARIES = [
    ("The red dog ran over a hill. It was wet and it barked at two horses.", "A dog was seen on the hill."),
    ("All of the grass near that river is green. Nobody cuts it.", "Grass grows by the river."),
    ("One cat saw a tall tree. She slept below it for three days.", "The cat found a place for sleep."),
    ("Snow fell for three days on every roof. Then the sun came.", "Roofs were white this week."),
]
SENTENCES = [
    ("der Hund lief heute", "the dog ran today"),
    ("eine Katze schlief dort", "one cat was asleep there"),
    ("wir sahen kein Haus", "we did not see any house"),
    ("sie fand mein altes Buch", "she found my old book"),
]


def reviews(folder: Path) -> dict[str, Any]:
    return {"kind": "sst2", "path": write_sst2(folder / "SST-2", 64, 45)}


def similarities(folder: Path) -> dict[str, Any]:
    """Pairs that share 0 to 4 words; the number is the similarity."""
    head = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    rows = []
    for number in range(60):
        shared = number % 5
        first = [WORDS[(number + k) % 6] for k in range(4)]
        second = [*first[:shared], *[WORDS[6 + (number + k) % 6] for k in range(4 - shared)]]
        rows.append(f"{number}\t-\t-\t-\t-\t-\t-\t{' '.join(first)}\t{' '.join(second)}\t{shared:.3f}\n")
    write(folder, both(head + "".join(rows), "train.tsv", "dev.tsv"))
    return {"kind": "stsb", "path": folder}


def choices(folder: Path) -> dict[str, Any]:
    """The right choice holds the word "good"."""
    rows = []
    for number in range(60):
        filler, right = WORDS[4 + number % 8], int(number % 3 == 0)
        pair = [f"{filler} good", f"{filler} bad"][:: -1 if right else 1]
        asked = {"premise": "the film was", "question": "cause", "label": right}
        rows.append(asked | {"choice1": pair[0], "choice2": pair[1]})
    write(folder, both(objects(*rows), "train.jsonl", "val.jsonl"))
    return {"kind": "copa", "path": folder}


def one_file(kind: str, path: Path, content: str, **settings: Any) -> dict[str, Any]:
    path.write_text(content, encoding="utf-8")
    return {"kind": kind, "train": path, "evaluation": path, **settings}


def names(folder: Path) -> dict[str, Any]:
    """`good` and `bad` are persons, and the `film` behind them is the rest of the name."""
    text = ""
    for number in range(40):
        filler = "".join(f"{WORDS[4 + (number * 7 + k) % 8]}\tO\n" for k in range(1 + number % 4))
        text += f"{filler}{('good', 'bad')[number % 2]}\tB-PER\nfilm\tI-PER\nwas\tO\n\n"
    return one_file("conll_ner", folder / "names.conll", text)


def answers(folder: Path) -> dict[str, Any]:
    asked = [question for question in QUESTIONS if question[2]]
    return one_file("squad", folder / "squad.json", squad_json(asked), doc_stride=32, max_query_length=16)


def answers_or_none(folder: Path) -> dict[str, Any]:
    return one_file(
        "squad2", folder / "squad.json", squad_json(QUESTIONS), doc_stride=32, max_query_length=16
    )


def squad_json(questions: Any) -> str:
    paragraphs = []
    for number, (context, asked, answer) in enumerate(questions):
        right = [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}]
        entry = {"id": f"q{number}", "question": asked, "answers": right, "is_impossible": answer is None}
        paragraphs.append({"context": context, "qas": [entry]})
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})


def summaries(folder: Path) -> dict[str, Any]:
    rows = [{"id": n, "document": text, "summary": short} for n, (text, short) in enumerate(SUMMARIES)]
    return one_file("xsum", folder / "xsum.jsonl", objects(*rows), min_target_length=1, num_beams=2)


def highlights(folder: Path) -> dict[str, Any]:
    rows = [{"id": n, "article": text, "highlights": short} for n, (text, short) in enumerate(SUMMARIES)]
    lengths = {"max_target_length": 12, "min_target_length": 1, "num_beams": 1}
    return one_file("cnn_dailymail", folder / "cnn.jsonl", objects(*rows), **lengths)


def translations(folder: Path) -> dict[str, Any]:
    sides = ["".join(pair[side] + "\n" for pair in SENTENCES) for side in (0, 1)]
    write(folder, {"text.de": sides[0], "text.en": sides[1]})
    files = {"source": folder / "text.de", "target": folder / "text.en"}
    files |= {f"train_{side}": path for side, path in files.items()}
    tags = {"language": "de_DE", "target_language": "en_XX"}
    return {"kind": "translation", "num_beams": 2, "max_target_length": 12, **tags, **files}


def check_answers(score: Score, directory: Path, files: Path) -> None:
    official = orjson.loads((directory / "answers-task-pretrained-1.json").read_bytes())
    questions = read_questions(files / "squad.json")
    measured = answer_metrics([each.right for each in questions], [official[each.id] for each in questions])
    assert measured == score.metrics
    first = predictions(directory, "task-pretrained-1")[0]
    assert first["prediction"] == first["n_best"][0]["text"] == official[first["id"]]
    assert (first["question"], first["context"]) == (questions[0].question, questions[0].context)
    assert sum(found["probability"] for found in first["n_best"]) == pytest.approx(1)
    assert len({found["text"] for found in first["n_best"]}) == len(first["n_best"]) > 1


def check_answers_or_none(score: Score, directory: Path, files: Path) -> None:
    official, chances = (
        orjson.loads((directory / f"{name}-task-pretrained-1.json").read_bytes())
        for name in ("answers", "na_prob")
    )
    assert [official[f"q{number}"] for number in (0, 2, 4, 5)] == ["The red dog", "", "", ""]
    questions = read_questions(files / "squad.json", answerable=False)
    right, answered = [each.right for each in questions], [official[each.id] for each in questions]
    measured = unanswerable_metrics(right, answered, np.array([chances[each.id] for each in questions]))
    assert measured == score.metrics
    n_best = predictions(directory, "task-pretrained-1")[2]["n_best"]
    assert sum(found["probability"] for found in n_best) == pytest.approx(1)
    assert "" in [found["text"] for found in n_best]


def check_summaries(score: Score, directory: Path, files: Path) -> None:
    assert score.baselines["lead-1"]["rouge1"] < score.metrics["rouge1"]
    # The loss counts tokens, and starts near that of the uniform distribution.
    assert score.epochs[0].loss == pytest.approx(np.log(400), rel=0.1)
    assert [(row.reference, row.num_seeds) for row in summarise([score])] == [("tiny@5", 1), ("lead-1", 0)]
    rows = predictions(directory, "task-pretrained-1")
    measured = rouge([row["reference"] for row in rows], [row["prediction"] for row in rows])
    assert {name: measured[name] for name in score.metrics} == pytest.approx(score.metrics)


def check_highlights(score: Score, directory: Path, files: Path) -> None:
    assert set(score.metrics) == {"rouge1", "rouge2", "rouge_lsum", "rouge_l"}
    assert score.baselines["lead-3"].keys() == score.metrics.keys()


def check_translations(score: Score, directory: Path, files: Path) -> None:
    assert score.baselines == {}
    kept = orjson.loads((directory / "signatures-task-pretrained-1.json").read_bytes())
    assert kept["bleu"].startswith("nrefs:1|case:mixed|")


@dataclass(frozen=True)
class Lesson:
    network: str
    task: Callable[[Path], dict[str, Any]]
    least: Mapping[str, float]
    """Metrics, the main one first, and what they exceed at the end."""
    epochs: int
    lr: float = 2e-3
    check: Callable[[Score, Path, Path], None] | None = None
    """(score, its directory, the folder of the task's files)"""


LESSONS = {
    "labels-decoder": Lesson("decoder", reviews, {"accuracy": 0.95}, 8),
    "labels-encoder_decoder": Lesson("encoder_decoder", reviews, {"accuracy": 0.95}, 8),
    "labels-relative_bias": Lesson("relative_bias", reviews, {"accuracy": 0.95}, 8),
    "labels-elmo": Lesson("elmo", reviews, {"accuracy": 0.95}, 12, 5e-3),
    "numbers": Lesson("encoder", similarities, {"pearson": 0.9, "spearman": 0.9}, 20),
    "choices": Lesson("encoder", choices, {"accuracy": 0.99}, 10),
    "tags-encoder": Lesson("encoder", names, {"f1": 0.9, "accuracy": 0.9}, 12),
    "tags-decoder": Lesson("decoder", names, {"f1": 0.9, "accuracy": 0.9}, 12),
    # Above a frozen network of random weights a linear layer learns alone, so its rate is higher.
    "tags-elmo": Lesson("elmo", names, {"f1": 0.9, "accuracy": 0.9}, 40, 0.1),
    "spans-encoder": Lesson("encoder", answers, {"f1": 0.9, "exact_match": 0.9}, 40, 3e-3, check_answers),
    "spans-decoder": Lesson("decoder", answers, {"f1": 0.9}, 40, 3e-3),
    "spans-encoder_decoder": Lesson("encoder_decoder", answers, {"f1": 0.9}, 40, 3e-3),
    "spans or none": Lesson(
        "encoder",
        answers_or_none,
        {"f1": 0.99, "best_f1": 0.99, "no_answer_exact": 0.99, "has_answer_f1": 0.99},
        80,
        3e-3,
        check_answers_or_none,
    ),
    "summaries": Lesson(
        "encoder_decoder", summaries, {"rouge1": 0.9, "rouge2": 0.9}, 80, 3e-3, check_summaries
    ),
    "summaries-decoder": Lesson("decoder", summaries, {"rouge1": 0.8, "rouge2": 0.8}, 80, 5e-3),
    "highlights": Lesson("encoder_decoder", highlights, {"rouge1": -1}, 1, check=check_highlights),
    "translations": Lesson(
        "encoder_decoder", translations, {"bleu": 0.9, "chrf": 0.9}, 60, 3e-3, check_translations
    ),
}


def tokenizer_for(folder: Path, network: str, path: Path) -> Path:
    """A vocabulary of all words of the files in a folder, and tags of languages."""
    if network == "elmo":
        path.write_text(assemble([word for word in WORDS if len(word) > 1]).to_str())
        return path
    texts = [file.read_text(encoding="utf-8") for file in folder.rglob("*") if file.is_file()]
    tokenizer = Tokenizer.from_file(str(words_of("\n".join(texts), path)))
    tokenizer.add_special_tokens(["de_DE", "en_XX"])
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("name", LESSONS)
def test_task_is_learnt_by_heart(name, tmp_path, tune, recorder):
    lesson, files = LESSONS[name], tmp_path / "files"
    files.mkdir()
    task = lesson.task(files)
    tokenizer = tokenizer_for(files, lesson.network, tmp_path / "words.json")
    start = make_checkpoint(tmp_path / "start", tokenizer, network=NETWORKS[lesson.network]())
    training = {"epochs": lesson.epochs, "batch_size": 8, "lr": lesson.lr, "scored": "last_epoch"}
    tuned = tune(start, tasks={"task": task}, training=training | {"max_length": 48})
    (score,) = tuned.scores
    assert score.main_metric == next(iter(lesson.least))
    assert all(score.metrics[metric] > least for metric, least in lesson.least.items())
    assert lesson.epochs == 1 or score.epochs[0].metrics == {}
    logged = {metric for metrics, _, _ in recorder.runs[0].metrics for metric in metrics}
    assert {f"task/{name}/{metric}" for name, found in score.baselines.items() for metric in found} <= logged
    if lesson.check is not None:
        lesson.check(score, tuned.directory, files)

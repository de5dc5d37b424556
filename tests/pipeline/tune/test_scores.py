"""Tables of scores over seeds, confidence intervals over evaluation examples, and predictions of test sets as
leaderboards take them."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.decontaminate.config import DecontaminationConfig
from pipeline.tasks.evaluation_sets import evaluation_texts
from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.metrics import measure
from pipeline.tasks.metrics.entities import entity_metrics
from pipeline.tasks.metrics.squad import answer_metrics, unanswerable_metrics
from pipeline.tasks.metrics.texts import rouge
from pipeline.tasks.superglue import BoolqConfig
from pipeline.tune.report.bootstrap import confidence_interval, resampled, sums_of
from pipeline.tune.run import finetune
from pipeline.tune.scores import Initial, Score, same_prediction
from pipeline.tune.summary import GLUE_METRICS, glue_averages, make_archive, protocol, summarise
from pipeline.tune.trials import scores_directory
from tests.pipeline.tune.conftest import Recorder, config_in, scratch_in, write_tokenizer
from tests.pipeline.tune.written_scores import label_lines, score_of

NAMES = ("a", "b", "c")


def score(task: str, initial: Initial, seed: int, value: float, **more: Any) -> Score:
    reference = "tiny@5" if initial == "pretrained" else None
    return score_of(task, {"accuracy": value}, 10, seed=seed, initial=initial, reference=reference, **more)


def test_rows_give_mean_and_sample_deviation_over_seeds():
    found = [("pretrained", 1, 0.6), ("random", 1, 0.5), ("pretrained", 2, 0.8)]
    first, second = summarise([score("a", *each) for each in found])
    assert (first.task, first.initial, first.reference, first.num_seeds) == ("a", "pretrained", "tiny@5", 2)
    assert (first.mean["accuracy"], first.std["accuracy"]) == pytest.approx((0.7, 0.02**0.5))
    assert (second.initial, second.num_seeds, second.std["accuracy"]) == ("random", 1, None)
    main = score_of("a", {"f1": 0.5, "accuracy": 0.6}, 10).model_copy(update={"main_metric": "accuracy"})
    assert list(summarise([main])[0].mean) == ["accuracy", "f1"]


def test_baselines_stand_once_behind_their_task():
    baselines = {"first sentence": {"accuracy": 0.3}}
    scores = [score("a", "pretrained", seed, 0.6, baselines=baselines) for seed in (1, 2)]
    scores += [score("a", "random", 1, 0.5, baselines=baselines), score("b", "random", 1, 0.1)]
    rows = summarise(scores)
    assert [(row.task, row.initial, row.reference) for row in rows] == [
        ("a", "pretrained", "tiny@5"),
        ("a", None, "first sentence"),
        ("a", "random", None),
        ("b", "random", None),
    ]
    assert (rows[1].mean, rows[1].std, rows[1].num_seeds) == ({"accuracy": 0.3}, {"accuracy": None}, 0)


@pytest.mark.parametrize(
    ("lines", "same"),
    [
        (({"prediction": "1"}, {"prediction": "1"}), "'1'"),
        (({"prediction": "1"}, {"prediction": "0"}), None),
        (({"predictions": ["O", "O"]}, {"predictions": ["O"]}), "'O'"),
        (({"predictions": ["O", "B"]},), None),
        (({"prediction": ""},), "''"),
        (({"loss": 1.0},), None),
    ],
)
def test_predictions_that_are_all_the_same_are_named(lines: tuple, same: str | None):
    assert same_prediction(json_lines(lines)) == same
    scores = [score("a", "random", 1, 0.5, same_prediction=same), score("a", "random", 2, 0.5)]
    told = f"a from random weights: in 1 of 2 trainings all predictions are the same ({same})"
    assert protocol(scores).endswith(told if same else "after the last epoch")


def test_search_reports_the_choice_with_the_best_median_and_says_so():
    found = {1e-5: (0.1, 0.8, 0.9), 2e-5: (0.81, 0.82, 0.83)}
    scores = [
        score("a", "pretrained", seed, value, choice={"lr": lr})
        for lr, values in found.items()
        for seed, value in enumerate(values)
    ]
    (row,) = summarise(scores)
    assert (row.choice, row.num_choices, row.num_seeds, row.median["accuracy"]) == ({"lr": 2e-5}, 2, 3, 0.82)
    assert [row.choice["lr"] for row in summarise(scores, all_choices=True)] == [1e-5, 2e-5]
    expected = ["of 2 choices", "on which it is scored too", "after the last epoch"]
    assert [text for text in expected if text not in protocol(scores)] == []


def test_average_of_glue_is_given_where_all_tasks_are_there():
    scores = [
        score_of(f"my-{kind}", dict.fromkeys(metrics, 0.5), 10, reference="tiny@5")
        for kind, metrics in GLUE_METRICS.items()
    ]
    kinds = {f"my-{kind}": kind for kind in GLUE_METRICS}
    assert glue_averages(summarise(scores), kinds) == {"tiny@5": 0.5}
    assert glue_averages(summarise(scores[1:]), kinds) == {}


def test_score_that_is_no_number_is_read_back_as_such():
    lost = score("a", "pretrained", 1, math.nan)
    read = Score.model_validate(orjson.loads(orjson.dumps(lost.model_dump(mode="json"))))
    assert math.isnan(read.value)
    assert math.isnan(read.epochs[0].metrics["accuracy"])


def value(metric: str, lines: list, labels: tuple[str, ...] = ()) -> float:
    sums = sums_of(metric, lines, labels)
    assert sums is not None
    return float(sums.value(sums.columns.sum(0)))


def test_interval_of_an_accuracy_is_near_the_normal_one_and_seeds_share_their_resamples():
    lines = label_lines([("a", "a")] * 320 + [("a", "b")] * 80, NAMES)
    found = confidence_interval("accuracy", [(lines, 0.8)], NAMES)
    half = 1.96 * (0.8 * 0.2 / 400) ** 0.5
    assert found == pytest.approx((0.8 - half, 0.8 + half), abs=0.006)
    assert found == confidence_interval("accuracy", [(lines, 0.8)], NAMES)
    assert confidence_interval("accuracy", [(label_lines([("a", "a")] * 30, NAMES), 1.0)], NAMES) == (
        1.0,
        1.0,
    )
    sums = sums_of("accuracy", lines, NAMES)
    assert sums is not None
    assert resampled([sums, sums], 20).tolist() == resampled([sums], 20).tolist()


DRAW = np.random.default_rng(0)
RIGHT = DRAW.integers(3, size=200)
GUESSED = np.where(DRAW.random(200) < 0.6, RIGHT, DRAW.integers(3, size=200))
NUMBERS = DRAW.random(100) * 5
NEAR = NUMBERS + DRAW.normal(size=100) + 1000
ANSWERS, ANSWERED = [["the red car"], ["a", "b c"], ["x"]], ["red", "b", "x"]
OR_NONE, OR_NOTHING = [[], *ANSWERS[1:]], ["", *ANSWERED[1:]]
TEXTS, WRITTEN = ["A red car. It runs.", "one line"], ["A car runs. It is red.", "two lines"]
TAGS, TAGGED = [["B-X", "I-X", "O"], ["B-Y"]], [["B-X", "O", "O"], ["B-Y"]]


def named(right: np.ndarray, guessed: np.ndarray) -> list:
    return label_lines([(NAMES[r], NAMES[g]) for r, g in zip(right, guessed, strict=True)], NAMES)


def lines_of(right, predicted, *keys: str, **further) -> list:
    return [dict(zip(keys, pair, strict=True)) | further for pair in zip(right, predicted, strict=True)]


THREE = [named(np.zeros(1, int), np.array([guess]))[0] for guess in (0, 1, 0)]
GROUPS = [
    line | {"group": group} for line, group in zip(THREE, ("matched", "matched", "mismatched"), strict=True)
]
NO_ANSWER = {"f1": unanswerable_metrics(OR_NONE, OR_NOTHING, np.zeros(3))["f1"]}
ENTITIES = {metric: entity_metrics(TAGS, TAGGED)[metric] for metric in ("f1", "accuracy")}
SUMS = {
    "labels": (named(RIGHT, GUESSED), NAMES, measure(["accuracy", "matthews", "macro_f1"], RIGHT, GUESSED)),
    "two labels": (named(RIGHT % 2, GUESSED % 2), NAMES[:2], measure(["f1"], RIGHT % 2, GUESSED % 2)),
    "one prediction": (named(np.array([0, 1]), np.array([1, 1])), NAMES, {"matthews": 0}),
    "groups": (GROUPS, NAMES, {"accuracy_matched": 0.5, "accuracy_mismatched": 1.0}),
    "numbers": (lines_of(NUMBERS, NEAR, "label", "prediction"), (), measure(["pearson"], NUMBERS, NEAR)),
    "one number": (lines_of([1.0] * 3, [2.0] * 3, "label", "prediction"), (), {"pearson": 0}),
    "spans": (
        lines_of(ANSWERS, ANSWERED, "answers", "prediction", n_best=[]),
        (),
        answer_metrics(ANSWERS, ANSWERED),
    ),
    "spans or none": (lines_of(OR_NONE, OR_NOTHING, "answers", "prediction", n_best=[]), (), NO_ANSWER),
    "texts": (lines_of(TEXTS, WRITTEN, "reference", "prediction"), (), rouge(TEXTS, WRITTEN)),
    "tags": (lines_of(TAGS, TAGGED, "tags", "predictions"), (), ENTITIES),
}


@pytest.mark.parametrize("case", SUMS)
def test_metrics_are_functions_of_sums_over_the_examples(case):
    lines, labels, measured = SUMS[case]
    assert {metric: value(metric, lines, labels) for metric in measured} == pytest.approx(measured, abs=1e-9)


def test_a_score_that_the_predictions_do_not_have_gets_no_interval():
    lines = named(RIGHT, GUESSED)
    asked = [("accuracy", [(lines, 0.123)]), ("unheard_of", [(lines, 0.5)]), ("accuracy", [([], 0.5)])]
    for metric, trainings in (*asked, ("accuracy", [])):
        assert confidence_interval(metric, trainings, NAMES) is None


PASSAGE = "the film was good and the plot was bad"
PAIR = {"premise": PASSAGE, "hypothesis": "the plot was bad"}
NEWS = {"text": PASSAGE, "entities": [{"start": 4, "end": 7}, {"start": 26, "end": 29}]}
QUERY = {"query": "the @placeholder was bad", "idx": 40}


def paragraph(**label: int) -> dict[str, Any]:
    answers = [[{"text": "good", "idx": 7, **label}, {"text": "bad", "idx": 8, **label}]]
    answers += [[{"text": "bad", "idx": 9, **label}]]
    asked = [{"question": "a film", "idx": 20 + n, "answers": each} for n, each in enumerate(answers)]
    return {"passage": {"text": PASSAGE, "questions": asked}}


ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "BoolQ": ({"question": "was the film good", "passage": PASSAGE}, {"label": True}),
    "CB": (PAIR, {"label": "neutral"}),
    "COPA": ({"premise": PASSAGE, "choice1": "good", "choice2": "bad", "question": "cause"}, {"label": 1}),
    "MultiRC": (paragraph(), paragraph(label=1)),
    "ReCoRD": ({"passage": NEWS, "qas": [QUERY]}, {"qas": [QUERY | {"answers": [{"text": "plot"}]}]}),
    "RTE": (PAIR, {"label": "entailment"}),
    "WiC": ({"word": "film", "sentence1": "a film", "sentence2": "the film"}, {"label": False}),
}
"""A line of each task as a test set of the release has it, and what lines with labels have besides."""
KINDS = {name: name.lower() for name in ROWS} | {"RTE": "superglue_rte"}


def write_superglue(folder: Path) -> None:
    for name, (row, right) in ROWS.items():
        (folder / name).mkdir(parents=True)
        for split in ("train", "val"):
            (folder / name / f"{split}.jsonl").write_text(json.dumps({"idx": 0} | row | right) + "\n")
        lines = [json.dumps({"idx": number} | row) for number in (5, 3)]
        (folder / name / "test.jsonl").write_text("\n".join(lines) + "\n")
    diagnostic = {"AX-b": {"sentence1": "a", "sentence2": "film"}, "AX-g": PAIR | {"pair_id": 1}}
    for number, (name, row) in enumerate(diagnostic.items(), 11):
        line = {"idx": number, "label": "entailment", **row}
        (folder / f"{name}.jsonl").write_text(json.dumps(line))


def test_corpora_are_decontaminated_against_test_sets_too_where_they_are_there(tmp_path):
    write_superglue(tmp_path / "superglue")
    config = DecontaminationConfig(tasks=("superglue",), data=tmp_path)
    for splits in (("val", "test"), ("val",)):
        found = {(text.task, text.file.name) for text in evaluation_texts(config)}
        assert found == {(kind, f"{split}.jsonl") for kind in KINDS.values() for split in splits}
        for path in tmp_path.rglob("test.jsonl"):
            path.unlink()


@pytest.fixture(scope="module")
def submitted(tmp_path_factory) -> Path:
    """Scores of all tasks of SuperGLUE, whose test sets were predicted."""
    folder = tmp_path_factory.mktemp("superglue")
    write_superglue(folder / "data")
    write_tokenizer(folder / "tokenizer.json")
    tasks: dict[str, Any] = {
        name: {"kind": kind, "path": folder / "data" / name, "submit": True} for name, kind in KINDS.items()
    }
    tasks["RTE"] |= {"ax_b": folder / "data/AX-b.jsonl", "ax_g": folder / "data/AX-g.jsonl"}
    training = {"epochs": 1, "batch_size": 4, "max_length": 48}
    scratch = scratch_in(folder, max_positions=64)
    config = config_in(folder, tasks=tasks, training=training, scratch=scratch)
    with Recorder():
        finetune(config, None)
    return scores_directory(config, None)


@pytest.fixture(scope="module")
def files(submitted) -> dict[str, list[dict]]:
    with zipfile.ZipFile(io.BytesIO(make_archive([submitted]).content)) as opened:
        assert opened.testzip() is None
        contents = {name: opened.read(name).splitlines() for name in opened.namelist()}
    return {name: [json.loads(line) for line in lines] for name, lines in contents.items()}


def test_files_have_the_names_and_lines_that_superglue_takes(files):
    allowed = {
        **dict.fromkeys(("BoolQ.jsonl", "WiC.jsonl"), ("true", "false")),
        "CB.jsonl": ("entailment", "contradiction", "neutral"),
        "COPA.jsonl": (0, 1),
        "ReCoRD.jsonl": ("film", "plot"),
        **dict.fromkeys(("RTE.jsonl", "AX-b.jsonl", "AX-g.jsonl"), ("entailment", "not_entailment")),
    }
    numbers = {"ReCoRD.jsonl": [40, 40], "AX-b.jsonl": [11], "AX-g.jsonl": [12]}
    assert files.keys() == allowed.keys() | {"MultiRC.jsonl"}
    for name, labels in allowed.items():
        assert [line["idx"] for line in files[name]] == numbers.get(name, [5, 3]), name
        assert all(line.keys() == {"idx", "label"} and line["label"] in labels for line in files[name]), name


def test_answers_of_multirc_are_nested_as_they_came(files):
    assert [line["idx"] for line in files["MultiRC.jsonl"]] == [5, 3]
    for line in files["MultiRC.jsonl"]:
        answers = {each["idx"]: each["answers"] for each in line["passage"]["questions"]}
        assert {key: [one["idx"] for one in each] for key, each in answers.items()} == {20: [7, 8], 21: [9]}
        assert {one["label"] for each in answers.values() for one in each} <= {0, 1}


def test_archive_has_the_same_bytes_each_time_and_tells_what_is_missing(submitted):
    one, two = make_archive([submitted]), make_archive([submitted, submitted])
    assert one.content == two.content
    assert (one.leaderboard, one.missing) == ("SuperGLUE", ("WSC.jsonl",))
    assert set(make_archive([submitted], seed=2).files.values()) == {f"{name}-random-2" for name in ROWS}
    with pytest.raises(MissingInputError):
        make_archive([submitted], seed=3)


def test_line_of_a_test_set_without_its_number_is_named(tmp_path):
    write_superglue(tmp_path)
    (tmp_path / "BoolQ/test.jsonl").write_text(json.dumps({"question": "a", "passage": "b"}))
    with pytest.raises(ConfigError, match=r"test\.jsonl, line 1: `idx`"):
        BoolqConfig(path=tmp_path / "BoolQ", submit=True).load()

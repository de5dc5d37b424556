"""The page of scores: one file, safe with any text, the same bytes for the same scores, and the summary's numbers."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import ReferenceNotFoundError
from cluster.artefacts.manifest import hash_file
from pipeline.tasks import TASKS
from pipeline.tune.report.curves import MOST_POINTS, Curve, plot, thinned, ticks
from pipeline.tune.report.page import confusion, percent, published_scores, render_page
from pipeline.tune.report.predictions import WrongPrediction, worst_of
from pipeline.tune.scores import ScoresDirectory, read_scores
from pipeline.tune.summary import summarise
from tests.pipeline.tune.written_scores import label_lines, score_of, write_artefact

NAMES = ("negative", "positive")
PAIRS = [("positive", "positive")] * 6 + [("negative", "positive")] * 3 + [("negative", "negative")]
HOSTILE = "</p></script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\x00\x1b[31m\u202e\"'&"
VOID = {"meta", "br"}
"""Elements without an end."""


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    lines = label_lines(PAIRS, NAMES, text="a film")
    trainings = [
        (score_of("reviews", {"accuracy": 0.7}, 10, seed=seed, initial=initial), lines)
        for initial in ("pretrained", "random")
        for seed in (1, 2)
    ]
    return write_artefact(
        tmp_path / "finetuned" / "small" / "tiny@5",
        trainings,
        labels={"reviews": NAMES},
        kinds={"reviews": "sst2"},
    )


def test_page_is_one_file_and_the_same_each_time(scores: Path, tmp_path: Path):
    page = render_page(scores, tmp_path / "runs")
    assert page == render_page(scores, tmp_path / "runs")
    assert not re.search(r"<(script|link|img|iframe|object|embed|video|audio|source|base)\b", page, re.I)
    assert not re.search(r"(src|href|srcset|data|action)\s*=|url\(|@import|https?://", page, re.I)
    assert "default-src 'none'" in page


def test_elements_of_the_page_are_closed_in_order(scores: Path, tmp_path: Path):
    open_elements: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in VOID:
                open_elements.append(tag)

        def handle_startendtag(self, tag, attrs):
            assert tag in VOID | {"line", "circle", "polyline"}

        def handle_endtag(self, tag):
            assert open_elements.pop() == tag

    Checker().feed(render_page(scores, tmp_path / "runs"))
    assert open_elements == []


def test_hostile_texts_are_shown_and_not_obeyed(tmp_path: Path):
    names = ("no", HOSTILE)
    lines = label_lines([("no", HOSTILE), (HOSTILE, "no")], names, text=HOSTILE, text_b=HOSTILE)
    for line in lines:
        line["id"] = HOSTILE
    score = score_of("t", {"accuracy": 0.0}, 2)
    directory = write_artefact(
        tmp_path / "scores", [(score, lines)], labels={"t": names}, reference=HOSTILE[:60]
    )
    page = render_page(directory, tmp_path / "runs")
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", page)


def test_numbers_of_the_page_are_those_of_the_summary(scores: Path, tmp_path: Path):
    page = render_page(scores, tmp_path / "runs")
    for row in summarise(read_scores(scores)):
        assert f"{percent(row.mean['accuracy'])} ± {percent(row.std['accuracy'] or 0)}" in page
    assert "mean ± standard deviation over 2 seeds" in page
    assert "94.9" in page  # BERT-large on SST-2
    assert "data/train.tsv" in page
    assert "reviews-random-2" in page


def worst_errors(directory: Path, trial: str | None, count: int) -> list[WrongPrediction]:
    opened = ScoresDirectory.open(directory)
    return worst_of(opened.lines(opened.score(trial).trial), count)


def test_confusions_sum_to_the_examples():
    found = confusion(label_lines(PAIRS, NAMES), NAMES)
    assert found["counts"] == [[1, 3], [0, 6]]
    assert sum(map(sum, found["counts"])) == len(PAIRS)
    assert found["most"] == [("negative", "positive", 3)]
    many = [f"label {number}" for number in range(50)]
    assert confusion(label_lines([(many[0], many[1])] * 4, many), many)["counts"] == []


def test_worst_errors_are_the_surest_ones(scores: Path):
    found = worst_errors(scores, "reviews-random-2", 2)
    assert [error.id for error in found] == ["dev-8", "dev-7"]
    assert (found[0].right, found[0].predicted, found[0].texts) == (
        "negative",
        "positive",
        {"text": "a film 8"},
    )
    assert len(worst_errors(scores, None, 100)) == 3
    with pytest.raises(ReferenceNotFoundError) as refused:
        worst_errors(scores, "reviews-random-3", 2)
    assert "reviews-random-2" in refused.value.next_step


def test_worst_answers_texts_numbers_and_choices_come_first(tmp_path: Path):
    asked = {"n_best": [{"text": "x", "probability": 0.9}], "question": "q", "context": "c"}
    spans = [
        {"id": "half", "answers": ["red car"], "prediction": "car", **asked},
        {"id": "none", "answers": [], "prediction": "car", **asked},
        {"id": "right", "answers": ["the car"], "prediction": "car", **asked},
        {"id": "without words", "answers": ["the"], "prediction": "a", **asked},
    ]
    texts = [
        {"id": "near", "reference": "a red car", "prediction": "a blue car", "source": "s"},
        {"id": "far", "reference": "a red car", "prediction": "nothing", "source": "s"},
    ]
    numbers = [
        {"id": "near", "label": 2.0, "prediction": 2.1},
        {"id": "far", "label": 1.0, "prediction": 4.5},
    ]
    choices = [
        {"id": "unsure", "label": 0, "prediction": 1, "scores": [0.0, 0.1], "choices": ["a", "b"]},
        {"id": "sure", "label": 0, "prediction": 1, "scores": [0.0, 9.0, None], "choices": ["a", "b", "c"]},
    ]
    tags = [
        {"id": "half", "words": ["a", "b"], "tags": ["O", "B-X"], "predictions": ["O", "O"]},
        {"id": "all", "words": ["a"], "tags": ["B-X"], "predictions": ["O"]},
    ]
    found = {"spans": spans, "texts": texts, "numbers": numbers, "choices": choices, "tags": tags}
    trainings = [(score_of(task, {"f1": 0.5}, 2), lines) for task, lines in found.items()]
    directory = write_artefact(tmp_path / "scores", trainings)

    def order(task: str) -> list[str]:
        return [error.id for error in worst_errors(directory, f"{task}-pretrained-1", 9)]

    assert order("spans") == ["none", "half"]
    assert order("texts") == ["far", "near"]
    assert order("numbers") == ["far", "near"]
    assert order("choices") == ["sure", "unsure"]
    assert order("tags") == ["all", "half"]
    assert "(no answer)" in render_page(directory, tmp_path / "runs")


def test_page_of_a_real_training_has_its_interval_texts_losses_and_source_files(tune, sst2):
    tuned = tune(training={"epochs": 1, "batch_size": 16, "lr": 1e-4, "max_length": 16})
    assert 0 < tuned.scores[0].metrics["accuracy"] < 1
    page = render_page(tuned.directory, tuned.config.runs_dir)
    assert re.search(r'data-label="interval">\d+\.\d to \d+\.\d<', page)
    assert page.count("<polyline") == 1
    assert worst_errors(tuned.directory, None, 1)[0].texts["text"] in page
    for name in ("train.tsv", "dev.tsv"):
        assert str(sst2 / name) in page
        assert hash_file(sst2 / name)[0] in page


def test_a_diverged_training_has_a_page(tmp_path: Path):
    lines = [
        {"id": "dev-1", "label": 2.0, "prediction": None},
        {"id": "dev-2", "label": 1.0, "prediction": 1.0},
    ]
    directory = write_artefact(
        tmp_path / "scores", [(score_of("t", {"pearson": 0.0}, 2), lines)], losses=[1.0, None, None]
    )
    assert [(error.id, error.predicted) for error in worst_errors(directory, None, 9)] == [("dev-1", "nan")]
    assert "<polyline" in render_page(directory, tmp_path / "runs")


def test_every_choice_of_a_search_is_on_the_page(tmp_path: Path):
    lines = label_lines(PAIRS, NAMES)
    trainings = [
        (score_of("t", {"accuracy": accuracy}, 10, choice={"lr": lr}), lines)
        for lr, accuracy in ((1e-5, 0.7), (3e-5, 0.65))
    ]
    page = render_page(write_artefact(tmp_path / "scores", trainings, labels={"t": NAMES}), tmp_path / "runs")
    assert "of 2 choices of settings" in page
    assert 'settings">lr 1e-05</td>' in page
    assert 'settings">lr 3e-05</td>' in page


def test_published_scores_are_of_known_tasks_and_metrics():
    with_some = set()
    for kind, task in TASKS.items():
        for each in published_scores(kind):
            with_some.add(kind)
            assert each.metrics
            assert set(each.metrics) <= set(task.metrics)
            assert each.split in ("dev", "test")
            assert all(0 < value < 100 for value in each.metrics.values())
    assert {
        "cola",
        "sst2",
        "mrpc",
        "stsb",
        "qqp",
        "mnli",
        "qnli",
        "rte",
        "squad",
        "squad2",
        "xsum",
    } <= with_some
    assert all("ROUGE-1.5.5" in each.note for each in published_scores("xsum"))


def test_curves_are_drawn_inside_of_their_plot():
    curve = Curve("<a & b>", 0, [1, 2, 3], [0.5, float("nan"), -2.0], marked=True)
    drawing = plot([curve], title="loss", y_format=lambda y: f"{y:g}")
    assert drawing.count("<circle") == 2
    assert "&lt;a &amp; b&gt;" in drawing
    places = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[\d.-]+,[\d.-]+", drawing)]
    assert all(0 <= x <= 360 and 0 <= y <= 210 for x, y in places)
    assert plot([Curve("a", 0, [], [])], title="loss", y_format=str) == ""
    assert plot([Curve("a", 0, [1], [0.0])], title="loss", y_format=str)


@pytest.mark.parametrize("count", [0, 1, MOST_POINTS, MOST_POINTS + 1, 12345])
def test_long_curves_are_means_of_neighbours(count: int):
    x, y = thinned([float(number) for number in range(1, count + 1)])
    assert len(x) == len(y) <= MOST_POINTS
    assert x == pytest.approx(y)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_are_few_and_include_both_ends(low: float, width: float):
    found = ticks(low, low + width)
    assert found[0] <= low + 1e-9
    assert found[-1] >= low + width - 1e-9
    assert 2 <= len(found) <= 7


@given(st.integers(1, 10**6))
def test_ticks_of_updates_are_whole_numbers(high: int):
    found = ticks(0, high, whole=True)
    assert found == [int(tick) for tick in found]
    assert found[-1] >= high
    assert len(found) <= 6

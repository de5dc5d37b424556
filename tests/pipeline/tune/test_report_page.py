"""The page of scores: one file, safe with any text, the same bytes for the same scores, and the summary's numbers."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError, ReferenceNotFoundError
from cluster.artefacts.manifest import hash_file
from pipeline.tune.report.curves import MOST_POINTS, Curve, plot, thinned, ticks
from pipeline.tune.report.lines import WrongPrediction, worst_of
from pipeline.tune.report.listing import list_scores
from pipeline.tune.report.page import confusion, percent, published_scores, render_page
from pipeline.tune.run import finetune
from pipeline.tune.scores import ScoresDirectory, read_scores
from pipeline.tune.summary import summarise
from pipeline.tune.tasks import TASKS
from pipeline.tune.trials import scores_directory
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
    assert found.counts == [[1, 3], [0, 6]]
    assert sum(map(sum, found.counts)) == len(PAIRS)
    assert found.most == [("negative", "positive", 3)]
    many = [f"label {number}" for number in range(50)]
    assert confusion(label_lines([(many[0], many[1])] * 4, many), many).counts == []


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
    best = [{"text": "x", "probability": 0.9}]
    spans = [
        {
            "id": "half",
            "answers": ["red car"],
            "prediction": "car",
            "n_best": best,
            "question": "q",
            "context": "c",
        },
        {"id": "none", "answers": [], "prediction": "car", "n_best": best, "question": "q", "context": "c"},
        {"id": "right", "answers": ["the car"], "prediction": "car", "n_best": best},
        {"id": "without words", "answers": ["the"], "prediction": "a", "n_best": best},
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


def test_page_of_a_real_training_has_its_interval_texts_losses_and_source_files(
    make_config, checkpoint, recorder, sst2, tmp_path
):
    config = make_config(seeds=[1], training={"epochs": 1, "batch_size": 16, "lr": 1e-4, "max_length": 16})
    (score,) = finetune(config, checkpoint, track=recorder)
    assert 0 < score.metrics["accuracy"] < 1
    page = render_page(scores_directory(config, checkpoint), config.runs_dir)
    assert re.search(r'data-label="interval">\d+\.\d to \d+\.\d<', page)
    assert page.count("<polyline") == 1
    assert worst_errors(scores_directory(config, checkpoint), None, 1)[0].texts["text"] in page
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


def test_list_has_all_scores_and_names_damaged_ones(scores: Path, tmp_path: Path):
    root = tmp_path / "finetuned"
    lines = label_lines(PAIRS, NAMES, text="a film")
    damaged = write_artefact(root / "other" / "tiny@6", [(score_of("reviews", {"accuracy": 0.7}, 10), lines)])
    (damaged / "predictions-reviews-pretrained-1.jsonl").write_text("{}\n")
    (root / "not-scores").mkdir()
    (root / "torn").mkdir()
    (root / "torn" / "manifest.json").write_text("{")
    found = {each.name: each for each in list_scores(root)}
    assert set(found) == {"small/tiny@5", "other/tiny@6", "torn"}
    assert (found["small/tiny@5"].reference, found["small/tiny@5"].tasks) == ("tiny@5", ["reviews"])
    assert found["small/tiny@5"].problem == ""
    assert "predictions-reviews-pretrained-1.jsonl" in found["other/tiny@6"].problem
    assert found["torn"].problem
    with pytest.raises(CorruptArtefactError):
        render_page(damaged, tmp_path / "runs")
    with pytest.raises(MissingInputError):
        list_scores(tmp_path / "nowhere")


def test_published_scores_are_of_known_tasks_and_metrics():
    counts = Counter(
        each.task
        for kind, task in TASKS.items()
        for each in published_scores(kind)
        if each.metrics
        if set(each.metrics) <= set(task.metrics)
    )
    for kind in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "squad", "squad2", "xsum"):
        assert counts[kind] == len(published_scores(kind)) > 0
    for each in published_scores("xsum"):
        assert "ROUGE-1.5.5" in each.note
    for kind in TASKS:
        for each in published_scores(kind):
            assert each.split in ("dev", "test")
            assert all(0 < value < 100 for value in each.metrics.values())


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


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.2, 0.21), (5, 5), (0, 0), (-3, 1e6), (1e-9, 2e-9)])
def test_ticks_are_few_and_include_both_ends(low: float, high: float):
    found = ticks(low, high)
    assert found[0] <= low + 1e-9
    assert found[-1] >= high - 1e-9
    assert 2 <= len(found) <= 7


@pytest.mark.parametrize("high", [1, 3, 10, 12, 24, 999])
def test_ticks_of_updates_are_whole_numbers(high: int):
    found = ticks(0, high, whole=True)
    assert found == [int(tick) for tick in found]
    assert found[-1] >= high
    assert len(found) <= 6

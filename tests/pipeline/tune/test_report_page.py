"""Scores as people and programs read them: the page, which is one file, safe with any text, the same bytes for the same
scores, with the summary's numbers; what the terminal shows; and what MLflow gets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError, ReferenceNotFoundError
from pipeline.run.tracking import connect, start_run
from pipeline.tasks import TASKS
from pipeline.tune.report.page import (
    MOST_POINTS,
    PAGE_FILE,
    TABLE_FILE,
    confusion,
    log_page,
    percent,
    publish_page,
    published_scores,
    render_page,
    thinned,
)
from pipeline.tune.report.predictions import worst_of
from pipeline.tune.scores import ScoresDirectory, read_scores
from pipeline.tune.summary import GLUE_METRICS, summarise
from tests.pipeline.command import cloze, invoke
from tests.pipeline.tune.written_scores import label_lines, score_of, write_artefact

NAMES = ("negative", "positive")
PAIRS = [("positive", "positive")] * 6 + [("negative", "positive")] * 3 + [("negative", "negative")]
HOSTILE = "</p></script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\x00\x1b[31m\u202e\"'&"
CONTROLS = "[/red] [bold]x \x1b[2J \x9b2J"


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    lines = label_lines(PAIRS, NAMES, text=CONTROLS)
    trainings = [
        (score_of("reviews", {"accuracy": 0.7}, 10, seed=seed, initial=initial), lines)
        for initial in ("pretrained", "random")
        for seed in (1, 2)
    ]
    directory = tmp_path / "finetuned" / "small" / "tiny@5"
    return write_artefact(directory, trainings, labels={"reviews": NAMES}, kinds={"reviews": "sst2"})


def page_of(directory: Path) -> str:
    return render_page(directory, directory / "runs")


def worst_errors(directory: Path, trial: str | None, count: int) -> list[dict[str, Any]]:
    opened = ScoresDirectory.open(directory)
    return worst_of(opened.lines(opened.score(trial).trial), count)


def test_page_is_one_file_of_closed_elements_and_the_same_each_time(scores: Path):
    page = page_of(scores)
    assert page == page_of(scores)
    assert not re.search(r"<(script|link|img|iframe|object|embed|video|audio|source|base)\b", page, re.I)
    # Drawings name their namespaces, and parts of themselves.
    assert not re.search(r"(src|href|srcset|data|action)\s*=\s*[\"'](?!#)|url\((?!#)|@import", page, re.I)
    assert not re.search(r"https?://(?!www\.w3\.org/)", page)
    assert "default-src 'none'" in page
    # What has no end in HTML aside, a page whose elements are closed is XML.
    ElementTree.fromstring(re.sub(r"<(!doctype|meta|br)\b[^>]*>", "", page))


def test_hostile_texts_are_shown_and_not_obeyed(tmp_path: Path):
    names = ("no", HOSTILE)
    pairs = [("no", HOSTILE), (HOSTILE, "no")]
    lines = [line | {"id": HOSTILE} for line in label_lines(pairs, names, text=HOSTILE, text_b=HOSTILE)]
    trainings = [(score_of("t", {"accuracy": 0.0}, 2), lines)]
    page = page_of(
        write_artefact(tmp_path / "scores", trainings, labels={"t": names}, reference=HOSTILE[:60])
    )
    assert not re.search(r"<script|<img|[\x00-\x08\x0b-\x1f]", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_numbers_of_the_page_are_those_of_the_summary_and_inputs_have_their_hashes(scores: Path):
    page = page_of(scores)
    shown = [
        f"{percent(row.mean['accuracy'])} ± {percent(row.std['accuracy'] or 0)}"
        for row in summarise(read_scores(scores))
    ]
    # The published number is that of BERT-large.
    expected = [
        "mean ± standard deviation over 2 seeds",
        "94.9",
        "data/train.tsv",
        "d" * 32,
        "reviews-random-2",
    ]
    assert [text for text in (*shown, *expected) if text not in page] == []
    assert re.search(r'data-label="interval">\d+\.\d to \d+\.\d<', page)
    assert page.count("<svg") == 2


def test_confusions_sum_to_the_examples():
    found = confusion(label_lines(PAIRS, NAMES), NAMES)
    assert found["counts"] == [[1, 3], [0, 6]]
    assert found["most"] == [("negative", "positive", 3)]
    many = [f"label {number}" for number in range(50)]
    assert confusion(label_lines([(many[0], many[1])] * 4, many), many)["counts"] == []


def test_worst_errors_are_the_surest_ones(scores: Path):
    found = worst_errors(scores, "reviews-random-2", 2)
    assert [(each["id"], each["right"], each["predicted"]) for each in found] == [
        ("dev-8", "negative", "positive"),
        ("dev-7", "negative", "positive"),
    ]
    assert found[0]["texts"] == {"text": f"{CONTROLS} 8"}
    assert len(worst_errors(scores, None, 100)) == 3
    with pytest.raises(ReferenceNotFoundError) as refused:
        worst_errors(scores, "reviews-random-3", 2)
    assert "reviews-random-2" in refused.value.next_step


CAR = {"prediction": "car", "n_best": [{"text": "x", "probability": 0.9}], "question": "q", "context": "c"}
RED = {"reference": "a red car", "source": "s"}
WRONG: dict[str, dict[str, dict[str, Any]]] = {
    "spans": {
        "2": {"answers": ["red car"], **CAR},
        "1": {"answers": [], **CAR},
        "right": {"answers": ["the car"], **CAR},
        "without words": {"answers": ["the"], **CAR, "prediction": "a"},
    },
    "texts": {"2": {"prediction": "a blue car", **RED}, "1": {"prediction": "nothing", **RED}},
    "numbers": {"2": {"label": 2.0, "prediction": 2.1}, "1": {"label": 1.0, "prediction": 4.5}},
    "choices": {
        "2": {"label": 0, "prediction": 1, "scores": [0.0, 0.1], "choices": ["a", "b"]},
        "1": {"label": 0, "prediction": 1, "scores": [0.0, 9.0, None], "choices": ["a", "b", "c"]},
    },
    "tags": {
        "2": {"words": ["a", "b"], "tags": ["O", "B-X"], "predictions": ["O", "O"]},
        "1": {"words": ["a"], "tags": ["B-X"], "predictions": ["O"]},
    },
}
"""By form, lines by their ids; the error of 1 is worse than that of 2."""


def test_worst_answers_texts_numbers_choices_and_tags_come_first(tmp_path: Path):
    trainings = [
        (score_of(form, {"f1": 0.5}, 2), [{"id": name, **line} for name, line in lines.items()])
        for form, lines in WRONG.items()
    ]
    directory = write_artefact(tmp_path / "scores", trainings)
    for form in WRONG:
        assert [each["id"] for each in worst_errors(directory, f"{form}-pretrained-1", 9)] == ["1", "2"], form
    assert "(no answer)" in page_of(directory)


def test_a_long_and_diverged_training_has_a_page(tmp_path: Path):
    lines = [{"id": str(n), "label": 1.0, "prediction": predicted} for n, predicted in ((1, None), (2, 1.0))]
    trainings = [(score_of("t", {"pearson": 0.0}, 2), lines)]
    directory = write_artefact(tmp_path / "scores", trainings, losses=[1.0, None, None] * 75)
    (worst,) = worst_errors(directory, None, 9)
    assert (worst["id"], worst["predicted"]) == ("1", "nan")
    assert "<svg" in page_of(directory)


def test_every_choice_of_a_search_is_on_the_page_and_so_are_baselines(tmp_path: Path):
    lead = {"lead-1": {"accuracy": 0.3}}
    trainings = [
        (score_of("t", {"accuracy": 0.7}, 10, choice={"lr": lr}, baselines=lead), label_lines(PAIRS, NAMES))
        for lr in (1e-5, 3e-5)
    ]
    page = page_of(write_artefact(tmp_path / "scores", trainings, labels={"t": NAMES}))
    cells = ["lead-1", "30.0", *(f'settings">lr {lr}</td>' for lr in ("1e-05", "3e-05"))]
    assert [text for text in ("of 2 choices of settings", *cells) if text not in page] == []


def test_published_scores_are_of_known_tasks_and_metrics():
    found = {kind: published_scores(kind) for kind in TASKS}
    expected = {*GLUE_METRICS, "squad", "squad2", "xsum"} - {"wnli"}
    assert {kind for kind, scores in found.items() if scores} >= expected
    for kind, each in ((kind, each) for kind, scores in found.items() for each in scores):
        assert set() < set(each["metrics"]) <= set(TASKS[kind].metrics)
        assert each["split"] in ("dev", "test")
        assert all(0 < value < 100 for value in each["metrics"].values())
    assert all("ROUGE-1.5.5" in each["note"] for each in found["xsum"])


@pytest.mark.parametrize("count", [0, 1, MOST_POINTS, MOST_POINTS + 1, 12345])
def test_long_curves_are_means_of_neighbours(count: int):
    x, y = thinned([float(number) for number in range(1, count + 1)])
    assert len(x) == len(y) <= MOST_POINTS
    assert x == pytest.approx(y)
    assert (len(x) == count) == (count <= MOST_POINTS)


def test_show_prints_scores_and_errors_without_control_characters(scores: Path):
    printed = cloze("finetune", "show", scores, "--errors", 5)
    shown = ["70.0 ± 0.0", "reviews-pretrained-1", "[/red] [bold]x", "predicted positive"]
    assert [text for text in shown if text not in printed] == []
    assert not re.search("[\x1b\x9b]", printed)


def test_show_answers_programs_and_writes_the_page(scores: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    done = invoke("finetune", "show", scores, "--trial", "reviews-pretrained-2", "--json", "--html", page)
    answer = json.loads(done.stdout)
    assert answer["trial"] == "reviews-pretrained-2"
    assert [error["id"] for error in answer["errors"]] == ["dev-8", "dev-7", "dev-6"]
    assert answer["errors"][0]["texts"]["text"].startswith(CONTROLS)
    assert page.read_text().startswith("<!doctype html>")


def test_list_prints_scores_and_names_damaged_ones(scores: Path, tmp_path: Path):
    root = tmp_path / "finetuned"
    trainings = [(score_of("reviews", {"accuracy": 0.75}, 4), label_lines(PAIRS, NAMES))]
    damaged = write_artefact(root / "broken[/red]", trainings)
    (damaged / "predictions-reviews-pretrained-1.jsonl").write_text("{}\n")
    for name, content in (("torn/manifest.json", "{"), ("not-scores/file", "")):
        (root / name).parent.mkdir()
        (root / name).write_text(content)
    done = invoke("finetune", "list", root)
    assert done.exit_code == 0, done.output
    assert [text for text in ("small/tiny@5", "70.0 ± 0.0", "broken[/red]") if text not in done.output] == []
    answer = {each["name"]: each for each in json.loads(invoke("finetune", "list", root, "--json").stdout)}
    assert {name: bool(each["problem"]) for name, each in answer.items()} == {
        "broken[/red]": True,
        "torn": True,
        "small/tiny@5": False,
    }
    assert "predictions-reviews-pretrained-1.jsonl" in answer["broken[/red]"]["problem"]
    whole = answer["small/tiny@5"]
    assert (whole["reference"], whole["tasks"]) == ("tiny@5", ["reviews"])
    with pytest.raises(CorruptArtefactError):
        page_of(damaged)


def test_a_directory_without_scores_is_said_to_have_none(tmp_path: Path):
    assert "no scores" in invoke("finetune", "list", tmp_path).output
    assert isinstance(invoke("finetune", "list", tmp_path / "nowhere").exception, MissingInputError)


def test_page_and_table_are_logged_to_the_runs_of_the_trainings_and_failures_are_told(
    tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = start_run("test", "a", config={}, tags={}, runs_dir=tmp_path)
    log_page([run.run_id], "<p>é</p>", tmp_path, [score_of("reviews", {"accuracy": 0.75}, 4)])
    client = connect(run.uri)
    page, table = (
        Path(client.download_artifacts(run.run_id, name, str(tmp_path))).read_text(encoding="utf-8")
        for name in (PAGE_FILE, TABLE_FILE)
    )
    assert page == "<p>é</p>"
    assert json.loads(table)["data"] == [["reviews", "random weights", "accuracy", 0.75, None, 0.75, 0.75, 1]]
    unreadable: Any = [None]
    for scores in ((), unreadable):
        log_page(["0" * 32], "<p></p>", tmp_path, scores)
        assert "was not logged to MLflow" in capsys.readouterr().err


def test_page_that_cannot_be_made_or_written_is_told_and_the_scores_stay(
    scores: Path, tmp_path: Path, capsys
):
    def full(page: str) -> None:
        raise OSError("No space left on device")

    publish_page(scores, [], tmp_path / "runs", [], full)
    told = capsys.readouterr().err
    assert "No space left on device" in told
    assert f"cloze finetune show {scores} --runs-dir {tmp_path / 'runs'} --html" in told
    next(scores.glob("*.jsonl")).write_text("{}")
    pages: list[str] = []
    publish_page(scores, [], tmp_path / "runs", ["0" * 32], pages.append)
    assert "The scores are complete, but their page is not: CorruptArtefactError" in capsys.readouterr().err
    assert not pages

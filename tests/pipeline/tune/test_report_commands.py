"""What people and programs are told of finished scores, on the terminal and in MLflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError
from pipeline.run.tracking import connect, start_run
from pipeline.tune.report.page import PAGE_FILE, TABLE_FILE, log_page, publish_page, render_page
from tests.pipeline.command import invoke
from tests.pipeline.tune.written_scores import label_lines, score_of, write_artefact

NAMES = ("negative", "positive")
PAIRS = [("positive", "positive")] * 3 + [("negative", "positive")]
HOSTILE = "[/red] [bold]x \x1b[2J \x9b2J"


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    trainings = [
        (score_of("reviews", {"accuracy": 0.75}, 4, seed=seed), label_lines(PAIRS, NAMES, text=HOSTILE))
        for seed in (1, 2)
    ]
    return write_artefact(tmp_path / "finetuned" / "small" / "tiny@5", trainings, labels={"reviews": NAMES})


def test_show_prints_scores_and_errors_without_control_characters(scores: Path):
    done = invoke("finetune", "show", scores, "--errors", 5)
    assert done.exit_code == 0, done.output
    assert "75.0 ± 0.0" in done.output
    assert "reviews-pretrained-1" in done.output
    assert "[/red] [bold]x" in done.output
    assert "\x1b" not in done.output
    assert "\x9b" not in done.output
    assert "predicted positive" in done.output


def test_show_answers_programs_and_writes_the_page(scores: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    done = invoke("finetune", "show", scores, "--trial", "reviews-pretrained-2", "--json", "--html", page)
    answer = json.loads(done.stdout)
    assert answer["trial"] == "reviews-pretrained-2"
    assert [error["id"] for error in answer["errors"]] == ["dev-3"]
    assert answer["errors"][0]["texts"]["text"].startswith(HOSTILE)
    assert page.read_text().startswith("<!doctype html>")


def test_list_prints_scores_and_names_damaged_ones(scores: Path, tmp_path: Path):
    root = tmp_path / "finetuned"
    damaged = write_artefact(
        root / "broken[/red]", [(score_of("reviews", {"accuracy": 0.75}, 4), label_lines(PAIRS, NAMES))]
    )
    (damaged / "predictions-reviews-pretrained-1.jsonl").write_text("{}\n")
    for name, content in (("torn/manifest.json", "{"), ("not-scores/file", "")):
        (root / name).parent.mkdir()
        (root / name).write_text(content)
    done = invoke("finetune", "list", root)
    assert done.exit_code == 0, done.output
    assert "small/tiny@5" in done.output
    assert "75.0 ± 0.0" in done.output
    assert "broken[/red]" in done.output
    answer = {each["name"]: each for each in json.loads(invoke("finetune", "list", root, "--json").stdout)}
    assert {name for name, each in answer.items() if each["problem"]} == {"broken[/red]", "torn"}
    assert answer.keys() == {"broken[/red]", "torn", "small/tiny@5"}
    assert "predictions-reviews-pretrained-1.jsonl" in answer["broken[/red]"]["problem"]
    whole = answer["small/tiny@5"]
    assert (whole["reference"], whole["tasks"]) == ("tiny@5", ["reviews"])
    with pytest.raises(CorruptArtefactError):
        render_page(damaged, tmp_path / "runs")


def test_a_directory_without_scores_is_said_to_have_none(tmp_path: Path):
    assert "no scores" in invoke("finetune", "list", tmp_path).output
    assert isinstance(invoke("finetune", "list", tmp_path / "nowhere").exception, MissingInputError)


def test_page_and_table_are_logged_to_the_runs_of_the_trainings(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = start_run("test", "a", config={}, tags={}, runs_dir=tmp_path)
    log_page([run.run_id], "<p>é</p>", tmp_path, [score_of("reviews", {"accuracy": 0.75}, 4)])
    client = connect(run.uri)
    assert {PAGE_FILE, TABLE_FILE} <= {each.path for each in client.list_artifacts(run.run_id)}
    page = Path(client.download_artifacts(run.run_id, PAGE_FILE, str(tmp_path)))
    assert page.read_text(encoding="utf-8") == "<p>é</p>"
    table = json.loads(Path(client.download_artifacts(run.run_id, TABLE_FILE, str(tmp_path))).read_text())
    assert table["data"] == [["reviews", "random weights", "accuracy", 0.75, None, 0.75, 0.75, 1]]


def test_a_page_that_cannot_be_logged_is_told_of(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    start_run("test", "a", config={}, tags={}, runs_dir=tmp_path)
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

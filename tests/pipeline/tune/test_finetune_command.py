"""`cloze finetune` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.artefacts.errors import ConfigError
from pipeline.commands.verbs import app
from tests.pipeline.tune.conftest import write_tokenizer

SCRATCH = (
    "scratch={model: {num_layers: 1, hidden_size: 32, num_heads: 2, intermediate_size: 64, max_positions: 32},"
    " tokenizer: %s}"
)
ROWS = 'premise,hypothesis,gold\n"a good film,\nreally",very good,yes\n' + "".join(
    f"{'good' if n % 2 else 'bad'} film {n},very {'good' if n % 2 else 'bad'},{'yes' if n % 2 else 'no'}\n"
    for n in range(40)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The directory that commands are typed in, with rows and a tokenizer."""
    (tmp_path / "pairs.csv").write_text(ROWS, encoding="utf-8")
    write_tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cloze(*arguments: object):
    return CliRunner().invoke(app, ["finetune", *map(str, arguments)])


def own_rows(folder: Path) -> list[str]:
    columns = "text=premise,text_b=hypothesis,label=gold"
    described = ["--task", "rows_classification", "--train", "pairs.csv", "--columns", columns]
    settings = [
        "training.epochs=1",
        "training.max_length=16",
        "seeds=[1]",
        SCRATCH % (folder / "tokenizer.json"),
    ]
    return [*described, "--from", "random", *settings]


def test_own_rows_are_trained_on_without_a_file_of_settings_and_get_a_page(folder):
    done = cloze(*own_rows(folder), "--html", "page.html", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["directory"] == "finetuned/rows_classification/random"
    (score,) = answer["scores"]
    assert score["num_train_examples"] + score["num_evaluation_examples"] == 41
    assert "<html" in (folder / "page.html").read_text()


def test_dry_run_of_own_rows_starts_nothing(folder):
    before = set(folder.rglob("*"))
    done = cloze(*own_rows(folder), "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    (task,) = json.loads(done.stdout)["tasks"]
    assert (task["kind"], task["trainings"]) == ("rows_classification", 1)
    assert set(folder.rglob("*")) == before


def test_own_instructions_are_described_by_options_alone(folder):
    rows = [{"ask": f"say {number}", "answer": "yes"} for number in range(20)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    described = ["--task", "instructions", "--train", "own.jsonl"]
    decoder = (SCRATCH % (folder / "tokenizer.json")).replace("{num_layers", "{network: decoder, num_layers")
    columns = ["--columns", "prompt=ask,response=answer"]
    done = cloze(
        *described, *columns, "--from", "random", decoder, "training.max_length=32", "--dry-run", "--json"
    )
    assert done.exit_code == 0, done.exception
    (task,) = json.loads(done.stdout)["tasks"]
    assert (task["kind"], task["train_examples"] + task["evaluation_examples"]) == ("instructions", 20)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "neither a configuration nor a task"),
        (["--task", "rows_classification", "--columns", "text"], "--columns text cannot be read"),
        (["some.yaml", "--task", "sst2"], "some.yaml describes the tasks, and so do --task"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_a_way_out(folder, arguments, said):
    (folder / "some.yaml").write_text("name: some\n")
    done = cloze(*arguments, "--from", "random")
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert "Next: " in str(done.exception)


def test_missing_setting_of_a_task_named_like_its_kind_is_named_in_full(folder):
    done = cloze("--task", "sst2", "--from", "random")
    assert "tasks.sst2.path: is required" in str(done.exception)

"""`cloze finetune` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.artefacts.errors import ConfigError
from tests.pipeline.command import invoke
from tests.pipeline.tune.conftest import SIZES, write_tokenizer

ROWS = 'premise,hypothesis,gold\n"a good film,\nreally",very good,yes\n' + "".join(
    f"{'good' if n % 2 else 'bad'} film {n},very {'good' if n % 2 else 'bad'},{'yes' if n % 2 else 'no'}\n"
    for n in range(40)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The directory that commands are typed in, with rows and a tokenizer."""
    (tmp_path / "pairs.csv").write_text(ROWS, encoding="utf-8")
    rows = [{"ask": f"say {number}", "answer": "yes"} for number in range(20)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cloze(*arguments: object):
    return invoke("finetune", *arguments)


def described(kind: str, file: str, columns: str, network: str = "encoder") -> list[str]:
    """Options and settings of a task on own rows, from random weights."""
    model = json.dumps(SIZES | {"network": network})
    task = ["--task", kind, "--train", file, "--columns", columns, "--from", "random"]
    return [
        *task,
        f"scratch={{model: {model}, tokenizer: tokenizer.json}}",
        "training.max_length=32",
        "seeds=[1]",
    ]


LABELS = ("rows_classification", "pairs.csv", "text=premise,text_b=hypothesis,label=gold")
RESPONSES = ("instructions", "own.jsonl", "prompt=ask,response=answer", "decoder")


def test_own_rows_are_trained_on_without_a_file_of_settings_and_get_a_page(folder):
    done = cloze(*described(*LABELS), "training.epochs=1", "--html", "page.html", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["directory"] == "finetuned/rows_classification/random"
    (score,) = answer["scores"]
    assert score["num_train_examples"] + score["num_evaluation_examples"] == 41
    assert "<html" in (folder / "page.html").read_text()


@pytest.mark.parametrize(("task", "examples"), [(LABELS, 41), (RESPONSES, 20)], ids=["labels", "responses"])
def test_dry_run_of_own_rows_starts_nothing(folder, task, examples):
    before = set(folder.rglob("*"))
    done = cloze(*described(*task), "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["tasks"]
    assert (found["kind"], found["trainings"]) == (task[0], 1)
    assert found["train_examples"] + found["evaluation_examples"] == examples
    assert set(folder.rglob("*")) == before


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
    assert "tasks.sst2.path" in str(done.exception)

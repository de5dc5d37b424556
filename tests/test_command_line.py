"""What users get wrong, through the real command line: exit code, explanation, no traceback. What
strangers wrote moves no cursor and exchanges no letters on a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from cluster import logs
from cluster.artefacts.errors import MissingInputError, StorageError
from cluster.artefacts.manifest import seal
from cluster.artefacts.visible import visible
from pipeline.commands.output import MOST_FRAMED, json_text, print_table
from pipeline.commands.verbs import app
from pipeline.run.tracking import start_run
from tests.pipeline import command
from tests.surroundings import flip_bit, plain_environment

CONFIG = """
name: tiny
runs_dir: runs
data: {{stores: [{{path: {store}}}], held_out: 0.1}}
model: {{num_layers: 2, hidden_size: 32, num_heads: 2, intermediate_size: 64, max_positions: 32}}
objective: {{kind: mlm}}
batch: {{sequence_length: 32, samples: 8, micro_batch_size: 4}}
steps: 5
optimizer: {{lr: 1e-3}}
"""


def cloze(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does; a traceback is never an answer."""
    done = subprocess.run(
        [Path(sys.executable).with_name("cloze"), *arguments],
        cwd=directory,
        env=plain_environment(),
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def write_config(directory: Path, store: Path) -> str:
    (directory / "tiny.yaml").write_text(CONFIG.format(store=store))
    return "tiny.yaml"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("pretrain tiny.yaml optimiser.lr=1 --dry-run", 10, "did you mean optimizer?"),
        ("pretrain tinny.yaml", 11, "did you mean tiny.yaml?"),
        ("pretrain tiny.yaml model.vocab_size=100", 22, "model.vocab_size is 100"),
        ("pretrian", 2, "pretrain"),
    ],
)
def test_what_cannot_be_meant_ends_with_its_code_and_the_nearest_name(
    arguments: str, code: int, told: str, tmp_path: Path, store: Path
):
    write_config(tmp_path, store)
    done = cloze(tmp_path, *arguments.split())
    assert done.returncode == code
    assert told in done.stderr
    assert code != 22 or "200" in done.stderr


def test_what_cannot_be_started_is_no_plan(tmp_path: Path, store: Path):
    config = write_config(tmp_path, tmp_path / "nowhere")
    assert cloze(tmp_path, "pretrain", config, "--dry-run").returncode == 11
    config = write_config(tmp_path, store)
    giant = ("model.hidden_size=1048576", "model.intermediate_size=4194304", "model.num_heads=1024")
    for dry in ((), ("--dry-run",)):
        assert cloze(tmp_path, "pretrain", config, *giant, *dry).returncode == 37
    assert not (tmp_path / "runs").exists()


def test_folders_of_the_user_take_no_name_of_ours(tmp_path: Path, store: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("raise SystemExit(9)")
    command = [sys.executable, "-m", "pipeline.cli", "plan", write_config(tmp_path, store), "--gpu", "cpu"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


@pytest.mark.parametrize(("rank", "is_told"), [("0", True), ("1", False)])
def test_what_is_wrong_for_all_ranks_of_a_machine_is_told_once(
    rank: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOCAL_RANK", rank)
    done = cloze(tmp_path, "finetune", "none.yaml", "--from", "none")
    assert done.returncode == 11
    assert ("none.yaml" in done.stderr) is is_told


def test_exit_code_is_that_of_the_failure_where_nothing_can_be_printed(tmp_path: Path):
    command = f"{Path(sys.executable).with_name('cloze')} resume nobody > /dev/full 2> /dev/full"
    assert subprocess.run(command, shell=True, cwd=tmp_path).returncode == 23


def test_damaged_shard_stops_a_run_with_20_naming_file_and_runbook(tmp_path: Path, store: Path):
    damaged = shutil.copytree(store, tmp_path / "tokens")
    shard = min(damaged.glob("*.arrow"))
    flip_bit(shard)
    done = cloze(tmp_path, "pretrain", write_config(tmp_path, damaged))
    assert done.returncode == 20
    assert shard.name in done.stderr
    assert "Runbook: runbooks/corrupt-shard.md" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_reference_to_no_run_ends_with_23_and_the_nearest_run(tmp_path: Path):
    run = tmp_path / "runs" / "tiny-1a2b3c4d"
    run.mkdir(parents=True)
    info = {"name": run.name, "run_id": "0" * 32, "tracking_uri": "none"}
    (run / "run.json").write_text(json.dumps(seal(info)))
    done = cloze(tmp_path, "checkpoints", "tiny-1a2b3c4e")
    assert done.returncode == 23
    assert "Did you mean tiny-1a2b3c4d?" in done.stderr


def test_answers_for_programs_are_json(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, store)
    assert answer("pretrain", config, "--dry-run")["steps"] == 5
    assert answer("data", "verify", str(store))[0]["kind"] == "tokens"
    assert answer("data", "stats", str(store))["total"]["documents"] == 300
    assert answer("tokenizer", "encode", str(store), "w7")["ids"] == [7]
    assert answer("runs") == []
    assert answer("lineage", str(store))["kind"] == "tokens"


def test_a_page_without_a_directory_is_refused_before_the_work(tmp_path: Path, store: Path):
    with pytest.raises(MissingInputError):
        command.cloze("data", "stats", store, "--html", tmp_path / "new" / "x.html")


def answer(*arguments: str):
    """The parsed answer of a verb that is asked for JSON."""
    return json.loads(command.cloze(*arguments, "--json"))


ODD = "a\x1b[2J\x9b\u202eb\r"


def test_nothing_odd_reaches_the_terminal(capsys: pytest.CaptureFixture[str]):
    print_table(ODD, ("x", ODD), [(1, ODD)])
    print_table("", ("x",), [(ODD,)] * 1001)
    logs.say(ODD)
    print(MissingInputError(ODD, kept=ODD, next_step=ODD))
    printed = "".join(capsys.readouterr()) + json_text({"a": ODD})
    assert set(ODD) & set(printed) <= set("a[2Jb")
    assert json.loads(json_text({"a": ODD})) == {"a": ODD}
    assert visible("line\n\tשלום\u200e") == "line\n\tשלום\u200e"


@pytest.mark.parametrize("place", ["file", "locked"])
def test_a_directory_of_runs_that_cannot_be_written_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    # As for a user who is not root.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError):
        start_run("e", "n", config={}, tags={}, runs_dir=tmp_path / place / "runs")


def test_tables_leave_digits_and_headings_whole_in_a_narrow_terminal(monkeypatch, capsys):
    headings = ("task", "train", "evaluation", "tokens", "full length", "trainings", "updates", "time")
    rows = [(f"task{n}", 67_349, 1_043, 1_227_271, "29.2%", 3, 12_345, "46 min") for n in range(2)]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "84")
    print_table("tasks", headings, rows)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, printed.splitlines())) <= 84
    assert all(word in printed for word in ("67,349", "1,227,271", "12,345", "evaluation", "trainings"))


def test_tables_of_very_many_rows_are_plain_lines_that_are_never_folded(capsys):
    rows = [
        (f"run{n}", n, None if n % 2 else 0.5, "/a/long\nplace/" + "x" * 200) for n in range(MOST_FRAMED + 1)
    ]
    print_table("many runs", ("run", "step", "loss", "directory"), rows)
    title, heading, *lines = capsys.readouterr().out.splitlines()
    assert (title, heading.split()) == ("many runs", ["run", "step", "loss", "directory"])
    assert [line.split() for line in lines] == [
        [name, f"{step:,}", "-" if loss is None else "0.5", *place.split()]
        for name, step, loss, place in rows
    ]
    assert {line.index("/a/long") for line in lines} == {heading.index("directory")}


def test_every_command_and_every_option_has_a_help_text():
    def silent(command, name: str) -> Iterator[str]:
        if command.callback is not None and not command.help:
            yield name
        yield from (
            f"{name} {p.name}" for p in command.params if p.name != "help" and not getattr(p, "help", None)
        )
        for key, inner in getattr(command, "commands", {}).items():
            yield from silent(inner, f"{name} {key}")

    assert [*silent(typer.main.get_command(app), "cloze")] == []

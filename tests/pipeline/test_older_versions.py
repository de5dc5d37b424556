"""Runs of other versions of cloze, whose configuration does not validate here: listed, shown, compared and traced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.manifest import InputEntry, read_manifest
from pipeline.checkpoints.store import newest_state, store_of
from pipeline.commands.verbs import app
from pipeline.inspection.comparison import compare
from pipeline.inspection.lineage import trace
from pipeline.runs.directory import RunDirectory
from pipeline.runs.events import Event
from pipeline.runs.log.kinds import LogKind
from pipeline.runs.log.log import RunLog
from pipeline.runs.stored_settings import StoredSettings
from tests.pipeline.ranks import make_run
from tests.pipeline.small_checkpoints import state_at, write_files
from tests.test_layers import modules_after


@pytest.fixture
def older(tmp_path: Path, store: Path) -> RunDirectory:
    """A run with settings, and an objective, that this version does not have."""
    run = make_run(tmp_path, store, "older", "steps=null", "budget={tokens: 5120}")
    text = "".join(run.config_file.read_text().splitlines(keepends=True)[:-1])
    text = text.replace("kind: mlm", "kind: word2vec").replace("seed: 1", "seed: 1\nflux: {capacitor: true}")
    run.config_file.write_text(text)
    with pytest.raises(ConfigError, match="flux"):
        run.config()
    run.record_event(Event.STARTED, step=0, world_size=1)
    log = RunLog(run)
    for step in (1, 2, 3):
        log.write(LogKind.STEP, step, {"loss": 5.0 - step, "tokens_per_s": 9.0})
    log.write(LogKind.HELD_OUT, 3, {"loss": 2.5})
    log.close()
    run.record_event(Event.FAILED, error="NonFiniteError", message="of old")
    return run


def answer(*arguments: Any) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_an_older_run_is_listed_as_it_stands(older: RunDirectory):
    (row,) = answer("runs", "--runs-dir", older.path.parent, "--json")
    assert (row["state"], row["step"], row["steps"]) == ("failed", 3, 10)
    assert (row["loss"], row["metric"], row["held_out"]) == (2.0, "loss", 2.5)


def test_an_older_run_that_saved_its_last_step_is_finished(older: RunDirectory):
    log = RunLog(older)
    log.write(LogKind.CHECKPOINT, 10, {"directory": "there", "kept": [10]})
    log.close()
    (row,) = answer("runs", "--runs-dir", older.path.parent, "--json")
    assert row["state"] == "finished"


def test_an_older_run_is_compared_with_one_of_today(older: RunDirectory, tmp_path: Path, store: Path):
    found = compare(older, make_run(tmp_path, store, "today"))
    assert found.settings["flux.capacitor"] == (True, None)
    assert found.settings["objective.kind"] == ("word2vec", "mlm")
    assert "seed" not in found.settings
    facts = found.facts[0]
    assert (facts.step, facts.steps, facts.tokens, facts.held_out) == (3, 10, 3 * 16 * 32, 2.5)


def test_an_older_run_and_its_checkpoints_are_traced(older: RunDirectory, store: Path):
    node = trace("older", older.path.parent)
    assert (node.facts["step"], node.facts["objective"]["kind"], node.facts["state"]) == (
        3,
        "word2vec",
        "failed",
    )
    assert [one.kind for one in node.inputs] == ["tokens"]
    entry = InputEntry(kind="tokens", uri=str(store), fingerprint=read_manifest(store).fingerprint)
    write_files(store_of(older), state_at(3, run_id=older.info.run_id), inputs=[entry])
    (row,) = answer("checkpoints", "older", "--runs-dir", older.path.parent, "--json")
    assert row["reference"].endswith("older@3")
    state = newest_state(older)
    assert state is not None
    assert state.step == 3
    node = trace("older@3", older.path.parent)
    assert [one["from_step"] for one in node.facts["attempts"]] == [1]


def test_stored_settings_say_what_the_configuration_says(tmp_path: Path, store: Path):
    stages = ("batch.warmup=[{steps: 4, samples: 4}]", "batch.phases=[{steps: 6, sequence_length: 16}]")
    for name, more in (("steps", ()), ("tokens", ("steps=null", "budget={tokens: 7000}"))):
        run = make_run(tmp_path, store, name, *stages, *more)
        stored, config = StoredSettings.of(run), run.config()
        assert (stored.num_steps, stored.metric) == (config.num_steps, config.metric)
        assert stored.token_plan == config.token_plan
    assert StoredSettings.of(make_run(tmp_path, store, "time", "steps=null", "budget=2h")).num_steps is None


def test_a_run_is_read_without_the_classes_of_its_configuration(older: RunDirectory):
    program = (
        "from pathlib import Path\n"
        "from pipeline.runs.directory import RunDirectory\n"
        "from pipeline.runs.state import state_of\n"
        "from pipeline.runs.stored_settings import StoredSettings\n"
        "from pipeline.runs.history import last_logged, list_attempts\n"
        f"run = RunDirectory(Path({str(older.path)!r}))\n"
        "assert state_of(run).name == 'failed' and last_logged(run)[0] == 3 and list_attempts(run.events())\n"
        "assert StoredSettings.of(run).num_steps == 10\n"
        "import sys\n"
        "assert not [name for name in sys.modules if name in ('pipeline.runs.config', 'pipeline.objectives.mlm')]"
    )
    assert "torch" not in modules_after(program)

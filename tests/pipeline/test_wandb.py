"""A copy of runs in Weights & Biases: the calls of its client's public interface."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cluster.artefacts.errors import MissingInputError
from pipeline.pretrain.launch import create_run
from pipeline.run.config import identity_of
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind
from pipeline.run.log.log import RunLog
from pipeline.run.log.wandb_sink import require_client, send_to_wandb
from tests.pipeline.ranks import make_config, make_run

IS_INSTALLED = getattr(find_spec("wandb"), "origin", None) is not None
OFFLINE = "wandb={project: tests, offline: true}"
STAND_IN = '''
"""The calls that a run makes of the client, as lines of JSON in the file `calls` of its directory."""
import json, pathlib

class Run:
    def __init__(self, **options):
        self.file = pathlib.Path(options["dir"], "calls")
        self.note("init", options)

    def note(self, name, *arguments):
        with self.file.open("a") as stream:
            print(json.dumps([name, *arguments]), file=stream)

    def __getattr__(self, name):
        return lambda *arguments, **options: self.note(name, *arguments, *options.values())

init, Settings = Run, dict
'''


def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a client that writes down its calls in the place of the real one, here and in programs started from here."""
    (directory / "client").mkdir()
    (directory / "client" / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(directory / "client")
    # Set before it is deleted, so that whatever is imported in its place goes with the test.
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    del sys.modules["wandb"]


def calls(directory: Path, name: str) -> list[Any]:
    """The arguments of every call of this name."""
    found = map(json.loads, (directory / "calls").read_text().splitlines())
    return [arguments for called, *arguments in found if called == name]


def test_attempts_at_a_run_are_one_run_there_with_every_entry_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stand_in(tmp_path, monkeypatch)
    run = make_run(tmp_path, tmp_path, "tiny", OFFLINE)
    first = RunLog(run)
    first.senders.append(send_to_wandb(run))
    for step in (1, 2, 3):
        first.write(LogKind.STEP, step, {"loss": 4.0 - step})
    first.write(LogKind.HELD_OUT, 3, {"loss": 1.5})
    first.close()
    second = RunLog(run, since=2)
    second.senders.append(send_to_wandb(run))
    assert not second.write(LogKind.STEP, 3, {"loss": 1.0}), "a repeated step is in the log already"
    second.write(LogKind.STEP, 4, {"loss": float("nan")})
    second.event(LogKind.SPIKE, 4, {"loss": 9.0, "reason": "spike"})
    second.close()
    assert not run.events(Event.TRACKING_BEHIND)
    # The MLflow id of `make_run`, so that another attempt continues the run.
    expected = {"id": "0" * 32, "project": "tests", "name": "tiny", "resume": "allow", "mode": "offline"}
    begun = [options for (options,) in calls(run.path, "init")]
    assert [{name: options[name] for name in expected} for options in begun] == [expected] * 2
    rows, places = zip(*calls(run.path, "log"), strict=True)
    losses = [{"step": step, "loss": 4.0 - step} for step in (1, 2, 3)]
    assert list(rows[:4]) == [*losses, {"step": 3, "held_out_loss": 1.5}]
    assert (rows[4]["step"], str(rows[4]["loss"])) == (4, "nan")
    assert rows[5:] == ({"step": 4, "spike/loss": 9.0},)
    # The client leaves out what comes again at a place.
    assert list(places) == sorted(set(places))
    assert calls(run.path, "finish") == [[1], [1]], "its last step is not made yet"


def test_a_missing_client_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Set before it is deleted, so that whatever is imported in its place goes with the test.
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    del sys.modules["wandb"]
    if IS_INSTALLED:
        monkeypatch.setitem(sys.modules, "wandb", None)
    # The client makes a directory of its name where it runs, which Python takes for a package.
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    require_client(None)
    config = make_config(tmp_path, tmp_path, "wandb={}")
    with pytest.raises(MissingInputError) as refusal:
        create_run(config)
    assert "pip install wandb" in refusal.value.next_step
    assert not config.runs_dir.exists()


def test_a_copy_changes_no_update_of_a_run(tmp_path: Path):
    plain, copied = (make_config(tmp_path, tmp_path, *options) for options in ((), (OFFLINE,)))
    assert identity_of(copied) == identity_of(plain)

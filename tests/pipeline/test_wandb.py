"""A copy of runs in Weights & Biases: the calls of its client's public interface, and its real client where that is
installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from cluster.artefacts.errors import MissingInputError
from pipeline.pretrain.launch import create_run
from pipeline.run.config import identity_of
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind
from pipeline.run.log.log import RunLog
from pipeline.run.log.wandb_sink import WandbCopy, require_client, send_to_wandb
from pipeline.run.shared_settings import WandbConfig
from tests.pipeline.ranks import make_config, make_run

_found = find_spec("wandb")
IS_INSTALLED = _found is not None and _found.origin is not None
needs_client = pytest.mark.skipif(not IS_INSTALLED, reason="the client is not installed: pip install wandb")
OFFLINE = "wandb={project: tests, offline: true}"
STAND_IN = '''
"""The calls that a run makes of the client, as lines of JSON in the file `calls` of its directory."""
import json, pathlib

class Run:
    def __init__(self, **options):
        self.file = pathlib.Path(options["dir"], "calls")
        self._note("init", options)

    def _note(self, name, *arguments):
        with self.file.open("a") as stream:
            print(json.dumps([name, *arguments]), file=stream)

    def define_metric(self, name, **options):
        pass

    def log(self, values, step=None):
        self._note("log", values, step)

    def finish(self, exit_code):
        self._note("finish", exit_code)

init, Settings = Run, dict
'''


def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a client that writes down its calls in the place of the real one, here and in programs started from here."""
    file = directory / "client" / "wandb.py"
    file.parent.mkdir()
    file.write_text(STAND_IN)
    monkeypatch.syspath_prepend(file.parent)
    spec: Any = spec_from_file_location("wandb", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "wandb", module)


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


@needs_client
def test_real_client_keeps_a_copy_on_disk_without_secrets_and_a_server_that_is_down_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-in-variable")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr("pipeline.run.log.wandb_sink.INIT_TIMEOUT_S", 1.0)
    config = {"place": "https://someone:planted-in-settings@store/bucket", "rate": 0.5}

    def copied(chosen: WandbConfig) -> str:
        copy = WandbCopy(chosen, run_id="a" * 32, name="n", group="g", config=config, directory=tmp_path)
        copy.log({"task/loss": 1.0}, 7)
        copy.finish(failed=False)
        return capsys.readouterr().err

    assert copied(WandbConfig(offline=True)) == ""
    # The client's own process may write the last entries after its run has ended.
    found: dict[Path, bytes] = {}
    while not all(
        any(word in content for content in found.values()) for word in (b"task/loss", b"store/bucket")
    ):
        time.sleep(0.1)
        found = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [path for path, content in found.items() if b"planted" in content] == []
    assert copied(WandbConfig()).count("Weights & Biases gets no copy of this training") == 1


def test_a_missing_client_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


@needs_client
def test_a_missing_key_is_told_before_anything_starts(tmp_path: Path):
    """In a process of its own: the client remembers keys."""
    code = "from pipeline.run.log.wandb_sink import *; require_client(WandbConfig())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"NETRC": str(tmp_path / "none"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "MissingInputError: Weights & Biases has no key here" in done.stderr


def test_a_copy_changes_no_update_of_a_run(tmp_path: Path):
    plain, copied = (make_config(tmp_path, tmp_path, *options) for options in ((), (OFFLINE,)))
    assert identity_of(copied) == identity_of(plain)

"""A copy of runs in Weights & Biases, written by its real client where that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
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
from pipeline.run.settings import WandbConfig
from tests.pipeline.ranks import make_config, make_run

_found = find_spec("wandb")
IS_INSTALLED = _found is not None and _found.origin is not None
needs_client = pytest.mark.skipif(not IS_INSTALLED, reason="the client is not installed: pip install wandb")
OFFLINE = "wandb={project: tests, offline: true}"


def records(path: Path) -> list[Any]:
    """The records of the client's file: protocol buffers in blocks, as LevelDB's log has them, behind 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportMissingImports]

    content, at, found, whole, block_bytes = path.read_bytes(), 7, [], b"", 1 << 15
    while at + 7 <= len(content):
        left = block_bytes - at % block_bytes
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # A whole record, or its last part.
            record = Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def attempts(directory: Path) -> list[list[Any]]:
    """The records of each attempt, in order. The client's own process may write the last ones after its run has ended:
    this waits for them."""
    paths = sorted(directory.glob("wandb/offline-run-*/*.wandb"))
    while not all("exit" in kinds(records(path)) for path in paths):
        time.sleep(0.1)
    return [records(path) for path in paths]


def kinds(attempt: list[Any]) -> list[str]:
    return [record.WhichOneof("record_type") for record in attempt]


def rows(attempt: list[Any]) -> list[dict[str, Any]]:
    found = []
    for record in attempt:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            found.append({name: value for name, value in row.items() if not name.startswith("_")})
    return found


def started(attempt: list[Any]) -> Any:
    (run,) = (record.run for record in attempt if record.WhichOneof("record_type") == "run")
    return run


@needs_client
def test_attempts_at_a_run_are_one_run_there_with_every_entry_once(tmp_path: Path):
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
    before, after = attempts(run.path)
    # The MLflow id of `make_run`.
    assert {started(before).run_id, started(after).run_id} == {"0" * 32}
    assert (started(before).project, started(before).display_name) == ("tests", "tiny")
    assert rows(before) == [
        *({"step": step, "loss": 4.0 - step} for step in (1, 2, 3)),
        {"step": 3, "held_out_loss": 1.5},
    ]
    loss, spike = rows(after)
    assert (loss["step"], str(loss["loss"]).lower()) == (4, "nan")
    assert spike == {"step": 4, "spike/loss": 9.0}


@needs_client
def test_settings_and_files_there_hold_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-in-variable")
    uri = "https://someone:planted-in-settings@store/bucket"
    copy = WandbCopy(
        WandbConfig(offline=True),
        run_id="a" * 32,
        name="n",
        group="g",
        config={"place": uri, "rate": 0.5},
        directory=tmp_path,
    )
    copy.log({"task/loss": 1.0}, 7)
    copy.finish(failed=False)
    (attempt,) = attempts(tmp_path)
    settings = {item.key: json.loads(item.value_json) for item in started(attempt).config.update}
    assert settings["rate"] == 0.5
    assert "store/bucket" in settings["place"]
    assert rows(attempt) == [{"step": 7, "task/loss": 1.0}]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"planted" not in path.read_bytes(), path


@needs_client
def test_a_server_that_does_not_answer_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr("pipeline.run.log.wandb_sink.INIT_TIMEOUT_S", 1.0)
    copy = WandbCopy(WandbConfig(), run_id="b" * 32, name="n", group="g", config={}, directory=tmp_path)
    copy.log({"loss": 1.0}, 1)
    copy.finish(failed=False)
    assert "Weights & Biases gets no copy of this training" in capsys.readouterr().err


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
    code = (
        "from pipeline.run.log.wandb_sink import WandbConfig, require_client; require_client(WandbConfig())"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"NETRC": str(tmp_path / "none"), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "MissingInputError: Weights & Biases has no key here" in done.stderr


def test_a_copy_changes_no_update_of_a_run(tmp_path: Path):
    assert identity_of(make_config(tmp_path, tmp_path, OFFLINE)) == identity_of(
        make_config(tmp_path, tmp_path)
    )

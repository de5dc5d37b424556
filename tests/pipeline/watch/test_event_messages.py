"""Where messages are JSON, ranks and drivers of a run say which run, rank and step they speak of."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from cluster import logs
from cluster.artefacts.errors import NonFiniteError
from pipeline.pretrain.progress import log_events
from pipeline.run.events import TROUBLES, Event
from tests.pipeline.process_group import Group
from tests.pipeline.ranks import make_run


def test_driver_tells_each_new_event_once_with_its_rank_and_node(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    run = make_run(tmp_path, store, "told")
    run.record_event(Event.STARTED, step=0, world_size=1)
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", logs.JsonStream(written))
    run.record_event(Event.STALLED, rank=3, host="gpu-7", step=5, message="no heartbeat for 900 s")
    run.record_event(Event.RESTARTS_RENEWED, step=9)
    assert log_events(run, log_events(run, 1)) == 3
    stalled, renewed = (json.loads(line) for line in written.getvalue().splitlines())
    assert (stalled["level"], stalled["rank"], stalled["node"], stalled["step"]) == ("warning", 3, "gpu-7", 5)
    assert stalled["message"] == "stalled: no heartbeat for 900 s"
    assert (renewed["level"], renewed["event"]) == ("info", "restarts-renewed")
    assert Event.SPIKE in TROUBLES


def test_rank_that_fails_says_so_as_json_with_run_rank_and_step(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "json")
    run = make_run(tmp_path, store, "failing", "optimizer.lr=1e38", "guards.max_skipped_updates=2")
    group = Group("pipeline.pretrain", [run.path], 1)
    assert group.wait() == NonFiniteError.exit_code, group.output
    found = [json.loads(line) for line in group.output.splitlines() if line.startswith('{"time"')]
    (error,) = [one for one in found if one["level"] == "error"]
    assert (error["run"], error["rank"], error["error"], error["exit_code"]) == (
        "failing",
        0,
        "NonFiniteError",
        36,
    )
    assert error["step"] > 0

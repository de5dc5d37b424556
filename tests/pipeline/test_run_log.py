"""The run's log: durable first, sent later, every step once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.pretrain.run_log import LOG_NAME, SENT_NAME, RunLog, Sender, read_log, read_metrics, send_log
from pipeline.tracking import TrackedRun, connect, start_run


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> TrackedRun:
    """A real MLflow run in SQLite; each test logs to metrics of its own."""
    runs_dir = tmp_path_factory.mktemp("runs")
    return start_run("test", "run", config={"a": {"b": 1}}, tags={"t": "v"}, runs_dir=runs_dir)


def history(tracked: TrackedRun, metric: str) -> list[tuple[int, float]]:
    found = connect(tracked.uri).get_metric_history(tracked.run_id, metric)
    return sorted((entry.step, entry.value) for entry in found)


def test_steps_that_are_logged_already_are_not_written_again(tmp_path: Path):
    log = RunLog(tmp_path)
    for step in (1, 2, 3):
        log.write("train", step, {"loss": float(step)})
    log.close()
    resumed = RunLog(tmp_path)
    assert not resumed.write("train", 2, {"loss": 99.0})
    assert resumed.write("held_out", 2, {"loss": 5.0})
    assert resumed.write("train", 4, {"loss": 4.0})
    resumed.close()
    assert [metrics["loss"] for metrics in read_metrics(tmp_path)] == [1.0, 2.0, 3.0, 4.0]


def test_a_line_torn_by_a_kill_is_dropped_and_written_anew(tmp_path: Path):
    log = RunLog(tmp_path)
    log.write("train", 1, {"loss": 1.0})
    log.close()
    with (tmp_path / LOG_NAME).open("ab") as stream:
        stream.write(b'{"kind":"train","step":2,"da')
    assert len(read_log(tmp_path)) == 1
    resumed = RunLog(tmp_path)
    assert resumed.write("train", 2, {"loss": 2.0})
    resumed.close()
    assert [entry["step"] for entry in read_log(tmp_path)] == [1, 2]


def test_sending_twice_logs_once(tmp_path: Path, tracked: TrackedRun):
    log = RunLog(tmp_path)
    for step in range(1, 6):
        log.write("train", step, {"twice": step / 2})
    log.close()
    send_log(tmp_path, uri=tracked.uri, run_id=tracked.run_id, model_name="twice")
    # As after a kill between sending and remembering that it was sent.
    (tmp_path / SENT_NAME).unlink()
    send_log(tmp_path, uri=tracked.uri, run_id=tracked.run_id, model_name="twice")
    assert history(tracked, "twice") == [(step, step / 2) for step in range(1, 6)]


def test_a_tracking_store_that_is_down_costs_nothing_and_gets_everything_later(
    tmp_path: Path, tracked: TrackedRun
):
    log = RunLog(tmp_path)
    sender = Sender(tmp_path, uri="http://127.0.0.1:9", run_id=tracked.run_id, model_name="down")
    for step in range(1, 4):
        log.write("train", step, {"down": float(step)})
        sender.notify()
    log.close()
    assert "did not take everything" in sender.close(timeout_s=0.5)
    send_log(tmp_path, uri=tracked.uri, run_id=tracked.run_id, model_name="down")
    assert history(tracked, "down") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_checkpoints_become_versions_and_forgotten_ones_disappear(tmp_path: Path, tracked: TrackedRun):
    log = RunLog(tmp_path)
    for step, best in ((10, True), (20, False)):
        data = {"directory": str(tmp_path / f"step-{step}"), "fingerprint": "f", "best": best}
        log.write("checkpoint", step, {**data, "metrics": {"held_out_loss": step / 10}})
    send_log(tmp_path, uri=tracked.uri, run_id=tracked.run_id, model_name="versions")
    client = connect(tracked.uri)
    best = client.get_model_version_by_alias("versions", "best")
    assert best.tags["cloze.step"] == "10"
    assert client.get_logged_model(best.tags["cloze.model_id"]).source_run_id == tracked.run_id

    log.write("forget", 20, {"steps": [10]})
    log.close()
    send_log(tmp_path, uri=tracked.uri, run_id=tracked.run_id, model_name="versions")
    left = client.search_model_versions("name = 'versions'")
    assert [version.tags["cloze.step"] for version in left] == ["20"]


def test_a_new_run_has_its_configuration_as_parameters(tracked: TrackedRun):
    run = connect(tracked.uri).get_run(tracked.run_id)
    assert run.data.params == {"a.b": "1"}
    assert run.data.tags["t"] == "v"

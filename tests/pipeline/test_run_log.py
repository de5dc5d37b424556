"""The run's log: durable first, sent later, every step once."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import StorageError, TrackingUnreachableError
from cluster.group import Rank
from pipeline.checkpoint.references import resolve_model
from pipeline.checkpoint.store import apply_retention, store_of
from pipeline.pretrain.launch import create_run
from pipeline.pretrain.resume_checks import roll_back
from pipeline.pretrain.run_checkpoints import RunCheckpoints
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import environment, last_logged, logged, logged_checkpoints, source_tags
from pipeline.run.inputs import open_inputs
from pipeline.run.lifecycle import record_failure, replay
from pipeline.run.log import lines as log_lines
from pipeline.run.log.lines import entries_backwards, entries_from, log_size, read_metrics
from pipeline.run.log.log import RunLog, damage_of_log
from pipeline.run.log.mlflow_sink import send_log, send_to_mlflow, want_status
from pipeline.run.state import Heartbeat
from pipeline.run.tracking import SETTING_TAG, SETTINGS_FILE, TrackedRun, connect, start_run
from tests.pipeline.process_group import PATIENCE_S, start_on_ranks, wait_until
from tests.pipeline.ranks import make_config, make_run, tied
from tests.pipeline.small_checkpoints import state_at, write_files
from tests.surroundings import largest_file


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> TrackedRun:
    """A real MLflow run in SQLite; each test logs to metrics of its own."""
    runs_dir = tmp_path_factory.mktemp("runs")
    return start_run("test", "run", config={"a": {"b": 1}}, tags={"t": "v"}, runs_dir=runs_dir)


def history(tracked: TrackedRun, metric: str) -> list[tuple[int, float]]:
    found = connect(tracked.uri).get_metric_history(tracked.run_id, metric)
    return sorted((entry.step, entry.value) for entry in found)


def send(run: RunDirectory, tracked: TrackedRun, model_name: str) -> None:
    send_log(tied(run, tracked.uri, tracked.run_id, model_name))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A directory in which a run logs."""
    return RunDirectory(tmp_path)


def write(run: RunDirectory, name: str, steps: Iterable[int], since: int = 0, factor: float = 1.0) -> None:
    """Log a metric whose value is a multiple of the step, and close the log."""
    with closing(RunLog(run, since=since)) as log:
        for step in steps:
            assert log.write("train", step, {name: factor * step})


def test_steps_behind_a_rollback_are_logged_anew_and_their_first_metrics_count_no_more(
    tmp_path: Path, store: Path, tracked: TrackedRun
):
    run = make_run(tmp_path, store, "back")
    kept, log = store_of(run), RunLog(run)
    for step in range(1, 13):
        log.write("train", step, {"back": float(step)})
        if step % 4 == 0:
            write_files(kept, state_at(step, 1 / step))
            place = {"directory": kept.place(step), "fingerprint": "f", "metrics": {}, "best": True}
            log.write("checkpoint", step, place | {"kept": [*range(4, step + 1, 4)]})
    log.close()
    for _ in range(2):  # As after a kill in the middle.
        roll_back(run, kept, 4)
    assert kept.steps() == [4]
    set_aside = sorted(path.name for path in run.checkpoints.glob("*.rolled-back"))
    assert set_aside == [f"step-{step:08}.rolled-back" for step in (8, 12)]
    assert [event["reached"] for event in run.events(Event.ROLLED_BACK)] == [12]
    assert last_logged(run) == (4, {"back": 4.0})
    assert logged(run, 8) is None
    assert logged_checkpoints(run) == (4, {4})
    write(run, "back", (5, 6), since=4, factor=10.0)
    assert [metrics["back"] for metrics in read_metrics(run)] == [1.0, 2.0, 3.0, 4.0, 50.0, 60.0]
    assert logged(run, 5) == {"back": 50.0}
    send(run, tracked, "back")
    client = connect(tracked.uri)
    (version,) = client.search_model_versions("name = 'back'")
    assert version.tags["cloze.step"] == "4"
    assert client.get_model_version_by_alias("back", "best").version == version.version
    assert damage_of_log(run) == ""


def test_what_was_done_to_checkpoints_before_a_kill_is_told_once(
    tmp_path: Path, store: Path, tracked: TrackedRun
):
    run = make_run(tmp_path, store, "killed")
    kept, config = store_of(run), run.config()
    inputs, rank = open_inputs(config, verify=False, resolve=resolve_model), Rank(0, 1, 0, 1)

    def start(since: int) -> list[tuple[str, int]]:
        """What a start of the run's processes adds to the log."""
        before = log_size(run)
        with closing(RunLog(run, since=since)) as log, closing(Heartbeat(run, 0, 900.0)) as heartbeat:
            RunCheckpoints(run, config, rank, kept, inputs, log, heartbeat, None)
        return [(entry["kind"], entry["step"]) for entry, _ in entries_from(run, before)]

    for step, loss in ((4, 2.0), (8, 1.0)):
        write_files(kept, state_at(step, loss))
        assert start(step) == [("checkpoint", step)]
    write_files(kept, state_at(12, 0.5))
    assert apply_retention(kept, 2) == [4]
    assert start(12) == [("forget", 12), ("checkpoint", 12)]
    assert start(12) == []
    write_files(kept, state_at(16, 0.7))
    kept.delete(8)
    assert start(16) == [("forget", 16), ("checkpoint", 16)]
    kept.set_aside(16)
    assert start(12) == [], "the one of step 16 will be made again"
    send(run, tracked, "killed")
    versions = connect(tracked.uri).search_model_versions("name = 'killed'")
    assert {version.tags["cloze.step"] for version in versions} == {"12", "16"}


def test_a_new_run_has_its_configuration_as_parameters(tracked: TrackedRun):
    run = connect(tracked.uri).get_run(tracked.run_id)
    assert run.data.params == {"a.b": "1"}
    assert run.data.tags["t"] == "v"
    artifacts = {file.path for file in connect(tracked.uri).list_artifacts(tracked.run_id)}
    assert artifacts == {"config.json", "environment.json"}
    assert source_tags().items() <= run.data.tags.items()
    assert {"torch", "deepspeed", "ray", "mlflow"} <= environment()["packages"].keys()


def test_numbers_that_are_not_finite_are_logged_and_sent_as_what_they_are(
    run: RunDirectory, tracked: TrackedRun
):
    with closing(RunLog(run)) as log:
        log.write("train", 1, {"nan": math.nan, "grown": math.inf, "sunk": -math.inf, "finite": 2.0})
    (metrics,) = read_metrics(run)
    assert math.isnan(metrics.pop("nan"))
    assert metrics == {"step": 1, "grown": math.inf, "sunk": -math.inf, "finite": 2.0}
    send(run, tracked, "finite")
    ((_, value),) = history(tracked, "nan")
    assert math.isnan(value)
    # The largest doubles stand for infinities in MLflow's database.
    assert [history(tracked, name)[0][1] > 1e308 for name in ("grown", "sunk")] == [True, False]


def test_events_become_metrics_at_their_step_and_a_tag(run: RunDirectory, tracked: TrackedRun):
    with closing(RunLog(run)) as log:
        log.event("straggler", 5, {"ratio": 1.7, "host": "node-3"})
        log.event("straggler", 9, {"ratio": 1.9, "host": "node+4"})
        log.write("system", 9, {"node+4/cpu_utilization_percentage": 50.0})
    for _ in range(2):
        send(run, tracked, "events")
        run.log_sent.unlink()
    assert history(tracked, "straggler/ratio") == [(5, 1.7), (9, 1.9)]
    assert history(tracked, "system/node_4/cpu_utilization_percentage") == [(9, 50.0)]
    assert '"host":"node+4"' in connect(tracked.uri).get_run(tracked.run_id).data.tags["cloze.last_straggler"]


def test_what_a_resumption_repeats_is_not_logged_again_and_what_was_torn_is(run: RunDirectory):
    with closing(RunLog(run)) as log:
        for step in range(1, 11):
            log.write("train", step, {"elapsed_s": step * 0.1})
            if step in (4, 8):
                log.write("checkpoint", step, {"directory": "d"})
        assert log.event("spike", 10, {"data_step": 2, "loss": 9.0})
        assert not log.event("spike", 10, {"data_step": 2, "loss": 9.0})
        assert log.event("spike", 10, {"data_step": 3, "loss": 8.0}), (
            "another batch at the same step spikes too"
        )
    with run.log.open("ab") as stream:
        stream.write(b'{"kind":"train","step":11,"da')
    with closing(RunLog(run, since=8)) as resumed:
        assert (resumed.last_step("train"), resumed.last_step("checkpoint")) == (10, 8)
        assert not resumed.write("train", 10, {"elapsed_s": 99.0})
        assert not resumed.event("spike", 10, {"data_step": 2, "loss": 9.0})
        assert resumed.write("held_out", 9, {"loss": 5.0})
        assert resumed.write("train", 11, {"elapsed_s": 7.0})
        resumed.write("checkpoint", 11, {"directory": "d"})
        # The run may go back to an older checkpoint.
        recorded = {step: resumed.recorded(step) for step in (5, 9, 11, 12)}
    repeated = {step: {"elapsed_s": step * 0.1} for step in (5, 9)}
    assert recorded == repeated | {11: {"elapsed_s": 7.0}, 12: None}
    kinds = [entry["kind"] for entry, _ in entries_from(run)]
    assert kinds[12:] == ["spike", "spike", "held_out", "train", "checkpoint"]


def test_neither_opening_nor_sending_a_long_log_reads_it_all(run: RunDirectory, tracked: TrackedRun):
    # Zeros that take no room on disk and cannot be read in a lifetime.
    hole = 1 << 40
    with run.log.open("wb") as stream:
        os.truncate(stream.fileno(), hole)
        stream.seek(hole)
        stream.write(b"\n" + log_lines.encode("train", 1_000_000, 0, {"long": 1.0}) + b'{"kind":"train","st')
    run.log_sent.write_text(str(hole + 1))
    run.log_seals.write_text(json.dumps({"start": 0, "end": hole + 1, "xxh3_128": ""}))
    with closing(RunLog(run, since=1_000_000)) as log:
        assert not log.write("train", 1_000_000, {"long": 2.0})
        assert log.write("train", 1_000_001, {"long": 3.0})
    assert [entry["step"] for entry, _ in entries_from(run, hole + 1)] == [1_000_000, 1_000_001]
    send(run, tracked, "long")
    assert history(tracked, "long") == [(1_000_000, 1.0), (1_000_001, 3.0)]


@given(
    sizes=st.lists(st.integers(0, 60), max_size=8),
    torn=st.binary(max_size=50).filter(lambda data: b"\n" not in data),
    block=st.integers(1, 64),
)
def test_a_log_reads_the_same_in_both_directions(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], torn: bytes, block: int
):
    run = RunDirectory(tmp_path_factory.mktemp("log"))
    lines = [log_lines.encode("train", step, 0, {"text": "x" * size}) for step, size in enumerate(sizes)]
    run.log.write_bytes(b"".join(lines) + torn)
    with pytest.MonkeyPatch.context() as patch:
        # Line breaks at every place of a block.
        patch.setattr(log_lines, "BLOCK_BYTES", block)
        assert list(entries_backwards(run))[::-1] == [entry for entry, _ in entries_from(run)]


def test_a_sender_that_cannot_be_started_does_not_stop_the_run(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    sender = send_to_mlflow(tied(run, "http://127.0.0.1:9", "0" * 32, "none"))
    write(run, "loss", range(1, 2))
    assert sender.pid is None
    assert "no-python" in sender.close()


def test_a_sender_that_was_killed_does_not_stop_the_run_and_leaves_the_rest(run: RunDirectory):
    sender = send_to_mlflow(tied(run, "http://127.0.0.1:9", "0" * 32, "none"))
    assert sender.pid is not None
    os.kill(sender.pid, signal.SIGKILL)
    write(run, "loss", range(1, 2))
    assert "did not take everything" in sender.close()


def test_a_sender_that_was_replaced_does_not_say_that_the_run_was_killed(run: RunDirectory, tmp_path: Path):
    tracked = start_run("test", "replaced", config={}, tags={}, runs_dir=tmp_path / "runs")
    killed = start_on_ranks(send_and_stay, tied(run, tracked.uri, tracked.run_id, "replaced"), workers=1)
    wait_until(lambda: killed.output.endswith("\n"), killed)
    replaced = psutil.Process(int(killed.output.split()[-1]))
    newest = send_to_mlflow(run)
    killed.kill()
    replaced.wait(PATIENCE_S)
    assert newest.close() == ""
    assert not run.log_status.exists()
    assert connect(tracked.uri).get_run(tracked.run_id).info.status == "RUNNING"


def send_and_stay(run: RunDirectory) -> None:
    print(send_to_mlflow(run).pid, flush=True)
    time.sleep(PATIENCE_S)


def test_settings_that_a_resumption_changed_are_those_that_mlflow_shows(tmp_path: Path, store: Path):
    run = make_run(tmp_path, store, "changed", "steps=30")
    tracked = start_run("changed", "run", config=run.settings(), tags={}, runs_dir=tmp_path)
    client = connect(tracked.uri)

    def shown(*overrides: str) -> tuple[dict[str, str], str, int]:
        run.reconfigure(run.config(overrides))
        send(run, tracked, "changed")
        tags = client.get_run(tracked.run_id).data.tags
        artefact = Path(client.download_artifacts(tracked.run_id, SETTINGS_FILE, str(tmp_path)))
        settings = {key.removeprefix(SETTING_TAG): tags[key] for key in tags if key.startswith(SETTING_TAG)}
        return settings, tags["mlflow.note.content"], json.loads(artefact.read_bytes())["steps"]

    client.set_tag(tracked.run_id, "mlflow.note.content", "my words")
    settings, note, steps = shown("steps=60", "optimizer.lr=0.5")
    assert (settings, steps) == ({"steps": "60", "optimizer.lr": "0.5"}, 60)
    assert note.startswith("my words\n\n")
    assert "| steps | 30 | 60 |" in note
    settings, note, steps = shown("steps=30")
    assert (list(settings), steps) == (["optimizer.lr"], 30)
    assert "| steps |" not in note


def test_a_full_disk_is_a_typed_error_that_leaves_a_whole_log_to_go_on_from(run: RunDirectory):
    log = RunLog(run)
    with largest_file(1000), pytest.raises(StorageError, match=r"log\.jsonl") as caught:
        any(not log.write("train", step, {"loss": 1.0}) for step in range(1, 1001))
    assert "cloze resume" in caught.value.next_step
    steps = len(read_metrics(run))
    assert run.log.read_bytes().endswith(b"\n")
    assert log.write("train", steps + 1, {"loss": 2.0}), "there is room again"
    log.close()
    assert [entry["step"] for entry in read_metrics(run)] == list(range(1, steps + 2))


def test_a_history_that_cannot_be_written_is_a_typed_error_and_hides_no_other(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = tied(make_run(tmp_path, store, "full"), "http://127.0.0.1:9", "0" * 32, "full")
    write(run, "loss", range(1, 2))
    with largest_file(10):
        with pytest.raises(StorageError) as caught:
            run.reconfigure(run.config(("steps=13",)))
        with pytest.raises(StorageError):
            run.record_event("started", step=0)
        assert not replay(run)
        record_failure(run, caught.value)
    assert (run.events(), run.config().steps) == ([], 12)


def test_a_run_does_not_begin_without_its_tracking_server(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    config = make_config(tmp_path, store)
    with pytest.raises(TrackingUnreachableError):
        create_run(config)
    assert [path for path in config.runs_dir.glob("*") if path.is_dir()] == []


def test_a_tracking_store_that_is_down_costs_nothing_and_gets_everything_once_later_and_the_status_last(
    run: RunDirectory, tmp_path: Path
):
    tracked = start_run("test", "down", config={}, tags={}, runs_dir=tmp_path / "runs")
    sender = send_to_mlflow(tied(run, "http://127.0.0.1:9", tracked.run_id, "down"))
    write(run, "down", range(1, 4))
    want_status(run, "KILLED")
    assert "did not take everything" in sender.close()
    assert not run.log_sent.exists()
    assert connect(tracked.uri).get_run(tracked.run_id).info.status == "RUNNING"
    # Later as after a kill between sending and remembering that it was sent.
    for remembered in (b"0", b"", b"\xff"):
        run.log_sent.write_bytes(remembered)
        send(run, tracked, "down")
        assert history(tracked, "down") == [(1, 1.0), (2, 2.0), (3, 3.0)]
        assert connect(tracked.uri).get_run(tracked.run_id).info.status == "KILLED"


def test_checkpoints_become_versions_with_their_evaluation_and_forgotten_ones_disappear(
    run: RunDirectory, tmp_path: Path, tracked: TrackedRun
):
    log, client = RunLog(run), connect(tracked.uri)
    log.write("held_out", 10, {"loss": 1.5})
    for step, best, loss in ((10, True, 1.5), (20, False, 2.0)):
        data = {"directory": str(tmp_path), "fingerprint": "f", "best": best}
        measured = {"metrics": {"held_out_loss": loss}, "evaluated_ms": log.evaluated_ms(step)}
        log.write("checkpoint", step, data | measured)
    send(run, tracked, "versions")
    best = client.get_model_version_by_alias("versions", "best")
    assert best.tags["cloze.step"] == "10"
    model = client.get_logged_model(best.tags["cloze.model_id"])
    assert model.source_run_id == tracked.run_id
    metrics = [(metric.key, metric.step, metric.value) for metric in model.metrics or []]
    assert metrics == [("held_out_loss", 10, 1.5)]
    # The run's own point, at the time of the evaluation, and no second one.
    points = client.get_metric_history(tracked.run_id, "held_out_loss")
    evaluation = next(entries_from(run))[0]
    assert [(one.value, one.timestamp) for one in points if one.step == 10] == [(1.5, evaluation["time_ms"])]
    log.write("forget", 20, {"steps": [10]})
    log.close()
    send(run, tracked, "versions")
    left = client.search_model_versions("name = 'versions'")
    assert [version.tags["cloze.step"] for version in left] == ["20"]


def test_two_that_send_the_same_log_while_the_run_goes_on_take_turns(run: RunDirectory, tracked: TrackedRun):
    senders = [send_to_mlflow(tied(run, tracked.uri, tracked.run_id, "two")) for _ in range(2)]
    write(run, "two", range(1, 1501))
    assert [sender.close() for sender in senders] == ["", ""]
    assert history(tracked, "two") == [(step, float(step)) for step in range(1, 1501)]

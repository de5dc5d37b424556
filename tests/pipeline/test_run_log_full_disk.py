"""A disk that is full: nothing of the log is lost, and what happened is said."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.artefacts.errors import StorageError
from pipeline.run.directory import RunDirectory, RunInfo
from pipeline.run.lifecycle import record_failure, replay
from pipeline.run.log.lines import log_size, read_new
from pipeline.run.log.log import RunLog
from pipeline.run.tracking import connect
from tests.pipeline.ranks import make_config


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """The kernel refuses to let files of this process grow beyond a size, in the middle of a line if need be."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_a_typed_error_that_leaves_a_whole_log_to_go_on_from(tmp_path: Path):
    log = RunLog(RunDirectory(tmp_path))
    with largest_file(1000), pytest.raises(StorageError, match=r"log\.jsonl") as caught:
        any(not log.write("train", step, {"loss": 1.0}) for step in range(1, 1001))
    assert "last checkpoint" in caught.value.kept
    assert "cloze resume" in caught.value.next_step
    steps = [entry["step"] for entry in read_new(RunDirectory(tmp_path))[0]]
    assert log_size(RunDirectory(tmp_path)) == sum(
        len(line) for line in RunDirectory(tmp_path).log.open("rb")
    )
    assert RunDirectory(tmp_path).log.read_bytes().endswith(b"\n")
    assert log.write("train", steps[-1] + 1, {"loss": 2.0}), "there is room again"
    log.close()
    assert [entry["step"] for entry in read_new(RunDirectory(tmp_path))[0]] == list(range(1, steps[-1] + 2))


def test_a_history_that_cannot_be_written_is_a_typed_error_and_hides_no_other(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = RunDirectory(tmp_path / "full")
    run.create(
        RunInfo(name="full", run_id="0" * 32, tracking_uri="http://127.0.0.1:9"), make_config(tmp_path, store)
    )
    log = RunLog(run)
    log.write("train", 1, {"loss": 1.0})
    log.close()
    with largest_file(10):
        with pytest.raises(StorageError, match="File too large") as caught:
            run.reconfigure(run.config(("steps=13",)))
        with pytest.raises(StorageError, match="File too large"):
            run.record_event("started", step=0)
        assert not replay(run)
        record_failure(run, caught.value)
    assert run.events() == []
    assert run.config().steps == 12


def test_a_tracking_store_on_a_full_disk_raises_and_prints_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    from mlflow.exceptions import MlflowException

    database = tmp_path / "mlflow.db"
    client = connect(f"sqlite:///{database}")
    run = client.create_run(client.create_experiment("full")).info.run_id
    with largest_file(database.stat().st_size // 8):
        for step in range(3):
            with pytest.raises(MlflowException, match="disk I/O error"):
                client.log_metric(run, "loss", 1.0, step=step)
    assert "Traceback" not in capfd.readouterr().err

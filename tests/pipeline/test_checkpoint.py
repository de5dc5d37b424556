"""Checkpoints: only whole ones are read, damaged ones are set aside, retention keeps the best."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster.artefacts.errors import CorruptCheckpointError
from pipeline.checkpoint import checkpoint as checkpoints
from pipeline.checkpoint.store import CheckpointStore, Retention, apply_retention, best_step, newest_good
from pipeline.pretrain.resume_checks import require_not_lost
from pipeline.run.directory import RunDirectory
from pipeline.run.log.log import RunLog
from tests.pipeline.small_checkpoints import NETWORK, state_at, write_files


def save(directory: Path, step: int, loss: float | None = None) -> Path:
    """Commit a small checkpoint the way rank 0 does."""
    write_files(CheckpointStore(directory), state_at(step, loss))
    return directory / checkpoints.checkpoint_name(step)


def flip_byte(path: Path, position: int = 10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoints"
    made.mkdir()
    return made


def test_the_newest_good_checkpoint_is_taken_and_damaged_ones_are_set_aside(directory: Path):
    save(directory, 10)
    damaged = save(directory, 20)
    flip_byte(damaged / checkpoints.MODEL_FILE)
    chosen, messages = newest_good(CheckpointStore(directory))
    assert chosen == directory / "step-00000010"
    assert checkpoints.MODEL_FILE in messages[0]
    assert (directory / "step-00000020.corrupt").is_dir()
    assert not damaged.exists()


def test_a_missing_file_is_damage(directory: Path):
    save(directory, 10)
    (save(directory, 20) / checkpoints.MODEL_CONFIG_FILE).unlink()
    assert newest_good(CheckpointStore(directory))[0] == directory / "step-00000010"


def test_when_no_checkpoint_verifies_the_run_is_refused_not_restarted(directory: Path):
    flip_byte(save(directory, 10) / checkpoints.MODEL_FILE)
    with pytest.raises(CorruptCheckpointError) as caught:
        newest_good(CheckpointStore(directory))
    assert caught.value.exit_code == 21
    assert checkpoints.MODEL_FILE in str(caught.value)


def test_a_run_without_checkpoints_starts_at_the_beginning(directory: Path):
    assert newest_good(CheckpointStore(directory)) == (None, [])


def test_an_uncommitted_checkpoint_is_never_seen(directory: Path):
    save(directory, 10)
    write_files(CheckpointStore(directory), state_at(20), publish=False)
    (directory / "step-00000030").mkdir()
    assert checkpoints.list_checkpoints(directory) == [directory / "step-00000010"]
    CheckpointStore(directory).clean()
    assert not list(directory.glob(".*"))


def test_retention_keeps_the_newest_and_the_best(directory: Path):
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5)):
        save(directory, step, loss)
    assert apply_retention(CheckpointStore(directory), Retention(2)) == [10]
    kept = [checkpoints.step_of(path) for path in checkpoints.list_checkpoints(directory)]
    assert kept == [20, 30, 40]
    assert best_step(CheckpointStore(directory)) == 20


def test_values_of_earlier_checkpoints_are_read_once_and_the_newest_again(directory: Path):
    store = CheckpointStore(directory)
    save(directory, 10, 1.0)
    newest = save(directory, 20, 2.0)
    assert best_step(store) == 10
    (directory / "step-00000010" / "manifest.json").write_text("damaged since")
    assert best_step(store) == 10
    shutil.rmtree(newest)
    save(directory, 20, 0.5)
    assert best_step(store) == 20


def test_a_deletion_that_was_killed_half_way_is_finished_by_the_next(directory: Path):
    save(directory, 10)
    (directory / ".step-00000010.deleted").mkdir()
    (directory / ".step-00000010.deleted" / "left").write_text("")
    save(directory, 20)
    assert apply_retention(CheckpointStore(directory), Retention(1)) == [10]
    assert [path.name for path in directory.iterdir()] == ["step-00000020"]


def test_state_and_network_are_read_back_as_they_were_written(directory: Path):
    path = save(directory, 10, 2.5)
    assert checkpoints.read_trainer_state(path).held_out == {"loss": 2.5}
    assert checkpoints.read_model_config(path) == NETWORK


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(tmp_path: Path):
    run = RunDirectory(tmp_path / "run")
    (run.path).mkdir()
    require_not_lost(run, None)
    log = RunLog(run)
    log.write("checkpoint", 20, {"directory": "/mnt/gone/step-00000020", "fingerprint": "f"})
    log.close()
    with pytest.raises(CorruptCheckpointError, match=r"step 20 at /mnt/gone"):
        require_not_lost(run, None)


def test_a_torn_line_of_the_history_costs_that_line_alone(tmp_path: Path):
    run = RunDirectory(tmp_path)
    run.record_event("started", step=0)
    with (tmp_path / "events.jsonl").open("ab") as stream:
        stream.write(b'{"event":"checkpoint-fai')
    run.record_event("finished", step=9)
    assert [event["event"] for event in run.events()] == ["started", "finished"]

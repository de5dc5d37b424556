"""A checkpoint that was published is saved, whatever becomes of older ones; and retention deletes nothing else."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from cluster.artefacts.errors import StorageError
from cluster.group import Rank
from pipeline.checkpoint.checkpoint import checkpoint_name
from pipeline.checkpoint.saver import CheckpointSaver, Committed
from pipeline.checkpoint.store import CheckpointStore, apply_retention, open_store
from pipeline.engine.interface import Captured, ParameterSlice
from tests.pipeline.saver_ranks import make_saver
from tests.pipeline.small_checkpoints import state_at, write_files

ALONE = Rank(0, 1, 0, 1)


class EngineAt:
    """The state of an engine at a step, without a network."""

    def __init__(self, step: int) -> None:
        self.step = step

    def capture(self, copied: Any) -> Captured:
        return Captured({"mp_rank_00_model_states.pt": {"step": self.step}})

    def slices(self, kind: str) -> list[ParameterSlice]:
        return [ParameterSlice("weight", 0, torch.full((3,), float(self.step)))]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (3,)}


def save(saver: CheckpointSaver, step: int) -> Committed:
    """Save as the only rank, and wait for it."""
    saver.save(cast(Any, EngineAt(step)), state_at(step))
    saver.wait()
    (outcome,) = saver.finished()
    assert isinstance(outcome, Committed), outcome
    return outcome


def test_a_directory_that_is_still_in_use_elsewhere_is_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    saver = make_saver(store, ALONE, 1)
    save(saver, 10)
    remove = os.rmdir

    def rmdir(path: Any, **options: Any) -> None:
        # As NFS answers while another machine has a file of the directory open.
        if "deepspeed" in str(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        remove(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", rmdir)
        outcomes = [save(saver, step) for step in (20, 30, 40, 50)]
    assert all("not empty" in outcome.warning for outcome in outcomes)
    assert store.steps() == [50]
    assert save(saver, 60).warning == ""
    assert [path.name for path in store.directory.iterdir()] == [checkpoint_name(60)]


def test_a_link_is_deleted_as_a_link_and_what_was_moved_away_is_no_failure(tmp_path: Path) -> None:
    store, elsewhere = CheckpointStore(tmp_path / "checkpoints"), tmp_path / "elsewhere"
    saver = make_saver(store, ALONE, 1)
    save(saver, 10)
    shutil.move(store.local(10), elsewhere)
    store.local(10).symlink_to(elsewhere)
    assert store.steps() == [10]
    assert save(saver, 20).warning == ""
    assert store.steps() == [20]
    assert (elsewhere / "manifest.json").is_file()
    # The same step again, where a link stands.
    shutil.move(store.local(20), tmp_path / "moved")
    store.local(20).symlink_to(tmp_path / "moved")
    assert save(saver, 20).kept == (20,)
    assert not store.local(20).is_symlink()
    assert (tmp_path / "moved" / "manifest.json").is_file()
    # Gone between listing and deleting, or for good.
    store.delete(999)
    shutil.rmtree(store.local(20))
    assert save(saver, 30).warning == ""
    assert [path.name for path in store.directory.iterdir()] == [checkpoint_name(30)]


def test_a_remote_store_that_refuses_to_delete_keeps_what_was_just_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = open_store(f"memory://{tmp_path.name}", "run")
    saver = make_saver(store, ALONE, 1)
    save(saver, 10)
    kind = type(store.remote.filesystem)
    remove = kind.rm_file

    def rm_file(self: Any, path: str) -> None:
        if "step-00000010/" in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        remove(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "rm_file", rm_file)
        assert "step-00000010" in save(saver, 20).warning
    assert store.steps() == [10, 20]
    assert store.damage(20, store.manifest(20), deep=True) == []
    assert save(saver, 30).warning == ""
    assert store.steps() == [30]
    left = store.remote.filesystem.find(store.remote.root)
    assert {path.split("/")[3] for path in left} == {checkpoint_name(30)}


def test_an_answer_that_is_lost_behind_the_manifest_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = open_store(f"memory://{tmp_path.name}", "run")
    saver = make_saver(store, ALONE, 1)
    kind = type(store.remote.filesystem)
    pipe = kind.pipe_file

    def pipe_file(self: Any, path: str, value: bytes, **options: Any) -> None:
        pipe(self, path, value, **options)
        if path.endswith("manifest.json"):
            raise TimeoutError("the answer did not arrive")

    monkeypatch.setattr(kind, "pipe_file", pipe_file)
    save(saver, 10)
    assert store.steps() == [10]


def test_one_that_cannot_be_deleted_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    for step in (10, 20, 30):
        write_files(store, state_at(step))
    replace = os.replace

    def refuse(source: Any, target: Any) -> None:
        if str(source).endswith("step-00000010"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        with pytest.raises(StorageError, match="1 of 2"):
            apply_retention(store, 1)
    assert store.steps() == [10, 30]
    assert apply_retention(store, 1) == [10]

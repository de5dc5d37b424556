"""Saving goes on behind training: what is written is what was there; failed saves and deletions harm nothing."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from cluster.artefacts.errors import StorageError
from cluster.artefacts.remote import Remote
from cluster.group import Rank
from pipeline.checkpoint.checkpoint import (
    DEEPSPEED_DIRECTORY,
    EMA_FILE,
    MODEL_FILE,
    checkpoint_name,
    read_trainer_state,
)
from pipeline.checkpoint.rank_save import (
    Extent,
    IncompleteWeightsError,
    write_weights,
)
from pipeline.checkpoint.saver import Committed, Failed
from pipeline.checkpoint.store import CheckpointStore, newest_good, open_store
from pipeline.engine.deepspeed.engine import Engine
from tests.pipeline.engine_ranks import is_same, join_group, make_engine, make_saver, run
from tests.pipeline.process_group import PATIENCE_S, on_ranks, start_on_ranks
from tests.pipeline.small_checkpoints import state_at
from tests.surroundings import largest_file


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A tiny network under ZeRO-2 in this very process, the only rank."""
    directory = tmp_path_factory.mktemp("engine")
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    made = make_engine(directory, Rank(0, 1, 0, 1), "2-fp32")
    run(made, 0, 1)
    yield made
    dist.destroy_process_group()
    del os.environ["LOCAL_RANK"]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def saves(
    engine: Engine, store: CheckpointStore, keep: int = 2, **options: Any
) -> Callable[..., Committed | Failed]:
    """A function that saves a step, waits for it, and returns what became of it."""
    saver = make_saver(store, Rank(0, 1, 0, 1), keep, **options)

    def save(step: int, loss: float | None = None) -> Committed | Failed:
        saver.save(engine, state_at(step, loss))
        saver.wait()
        (outcome,) = saver.finished()
        return outcome

    return save


def test_a_rank_that_fails_stops_neither_the_others_nor_the_next_save(tmp_path: Path):
    first, second = on_ranks(fail_on_the_last_rank, tmp_path, workers=2)
    names = [Committed, Failed, Committed, Failed, Committed]
    assert [(type(outcome), outcome.step) for outcome in first] == list(zip(names, range(1, 6), strict=True))
    assert all("File too large" in first[number].error.problem for number in (1, 3))
    assert second == []
    assert CheckpointStore(tmp_path / "full").steps() == [3, 5]
    assert not list((tmp_path / "full").glob(".*"))


def fail_on_the_last_rank(directory: Path) -> list[Any]:
    """The last rank's disk is full for two saves: nothing can be written; then half of a file."""
    rank = join_group()
    engine, saver = (
        make_engine(directory, rank, "2-fp32"),
        make_saver(CheckpointStore(directory / "full"), rank),
    )
    run(engine, 0, 1)
    found = []
    for step in range(1, 6):
        limit = {2: 1, 4: 2000}.get(step) if rank.rank else None
        with largest_file(limit) if limit else nullcontext():
            saver.save(engine, state_at(step))
            saver.wait()
        found += saver.finished()
    return found


def test_a_save_without_a_thread_writes_the_same(engine: Engine, tmp_path: Path):
    stores = [CheckpointStore(tmp_path / name) for name in ("one", "two")]
    for asynchronous, store in zip((True, False), stores, strict=True):
        assert isinstance(saves(engine, store, asynchronous=asynchronous)(1), Committed)
    files = sorted((stores[0].at(1) / DEEPSPEED_DIRECTORY).iterdir())
    assert len(files) == 2
    for file in files:
        other = stores[1].at(1) / DEEPSPEED_DIRECTORY / file.name
        assert is_same(torch.load(file, weights_only=False), torch.load(other, weights_only=False))
    for name in (MODEL_FILE, EMA_FILE):
        assert (stores[0].at(1) / name).read_bytes() == (stores[1].at(1) / name).read_bytes()


def slice_of(name: str, values: np.ndarray, start: int, end: int) -> tuple[Extent, Callable[[], np.ndarray]]:
    return Extent(name, start, end - start), lambda: values.ravel()[start:end]


@given(st.data())
def test_weights_are_put_together_from_any_shares(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    directory = tmp_path_factory.mktemp("weights")
    dimensions = st.lists(st.integers(0, 5), max_size=3)
    shapes = data.draw(st.dictionaries(st.text("ab.:é", min_size=1), dimensions, min_size=1, max_size=4))
    whole = {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()
    }
    slices = []
    for name, values in whole.items():
        cuts = sorted(data.draw(st.lists(st.integers(0, values.size), max_size=4)))
        slices += [slice_of(name, values, *ends) for ends in itertools.pairwise([0, *cuts, values.size])]
    with (directory / "model").open("wb") as stream:
        write_weights(stream, shapes, data.draw(st.permutations(slices)))
    found = load_file(directory / "model")
    assert found.keys() == whole.keys()
    assert all(np.array_equal(found[name], values) for name, values in whole.items())


@pytest.mark.parametrize("spans", [[(0, 4)], [(0, 4), (3, 6)], [(0, 4), (5, 6)], [(0, 6), (0, 6)]])
def test_weights_with_a_hole_or_an_overlap_are_refused(tmp_path: Path, spans: list[tuple[int, int]]):
    values = np.arange(6, dtype=np.float32)
    slices = [slice_of("w", values, *ends) for ends in spans]
    with (tmp_path / "model").open("wb") as stream, pytest.raises(IncompleteWeightsError, match="w: "):
        write_weights(stream, {"w": (2, 3)}, slices)


def test_killed_at_any_moment_the_newest_checkpoint_is_whole(tmp_path: Path):
    store = CheckpointStore(tmp_path / "endless")
    seen = 0
    for attempt in range(3):
        group = start_on_ranks(save_endlessly, tmp_path, workers=1)
        deadline = time.monotonic() + PATIENCE_S
        while (store.steps() or [0])[-1] < seen + 5:
            assert group.poll() is None, group.output[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.005 + 0.007 * attempt)
        group.kill()
        newest, messages = newest_good(store)
        assert (messages, newest) == ([], store.at(store.steps()[-1]))
        seen = read_trainer_state(Path(newest)).step
        assert seen == store.steps()[-1]


def save_endlessly(directory: Path) -> None:
    """Save one checkpoint after the other, starting after the newest one."""
    rank, store = join_group(), CheckpointStore(directory / "endless")
    engine, saver = make_engine(directory, rank, "2-fp32"), make_saver(store, rank)
    for step in itertools.count(1 + max(store.steps(), default=0)):
        saver.save(engine, state_at(step))


def test_a_save_that_fails_is_reported_and_costs_that_save_alone(
    engine: Engine, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    def refused(step: int, save: Callable[..., Any]) -> StorageError:
        outcome = save(step)
        assert isinstance(outcome, Failed)
        assert outcome.step == step
        return outcome.error

    save = saves(engine, store)
    assert isinstance(save(1), Committed)
    with largest_file(4000):
        assert "ulimit" in refused(2, save).next_step
    # What it wrote is gone again, and nothing half-written is there to be read.
    assert [path.name for path in store.directory.iterdir()] == ["step-00000001"]
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", Mock(side_effect=MemoryError("cannot allocate 1 TiB")))
        assert "MemoryError" in refused(2, saves(engine, store)).problem
    moved = shutil.move(store.directory, store.directory.with_name("moved"))
    store.directory.write_text("a file stands here")
    assert str(store.directory) in refused(2, save).problem
    store.directory.unlink()
    shutil.move(moved, store.directory)
    assert isinstance(save(3), Committed)
    assert store.steps() == [1, 3]


def test_what_a_killed_save_left_goes_at_the_next_start_and_retention_follows_each_save(
    engine: Engine, store: CheckpointStore
):
    with store.staging(1, "0ld-0001").create("deepspeed/half.pt") as stream:
        stream.write(b"half")
    save = saves(engine, store)
    assert list(store.directory.iterdir()) == []
    outcomes: list[Any] = [save(step, loss) for step, loss in ((1, 1.0), (2, 3.0), (3, 2.0), (4, 0.5))]
    assert [outcome.kept for outcome in outcomes] == [(1,), (1, 2), (1, 2, 3), (3, 4)]
    assert [outcome.best for outcome in outcomes] == [True, False, False, True]
    assert store.steps() == [3, 4]


def test_a_directory_that_is_still_in_use_elsewhere_is_deleted_later(
    engine: Engine, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    save: Any = saves(engine, store, 1)
    save(10)
    remove = os.rmdir

    def rmdir(path: Any, **options: Any) -> None:
        # As NFS answers while another machine has a file of the directory open.
        if "deepspeed" in str(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        remove(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", rmdir)
        assert all("not empty" in save(step).warning for step in (20, 30, 40, 50))
    assert store.steps() == [50]
    assert save(60).warning == ""
    assert [path.name for path in store.directory.iterdir()] == [checkpoint_name(60)]


def test_a_link_is_deleted_as_a_link_and_what_was_moved_away_is_no_failure(
    engine: Engine, store: CheckpointStore, tmp_path: Path
):
    save: Any = saves(engine, store, 1)
    # The next step, and the same step again, where a link stands.
    for step, after in ((10, 20), (20, 20)):
        save(step)
        elsewhere = shutil.move(store.at(step), tmp_path / f"moved-{step}")
        store.at(step).symlink_to(elsewhere)
        assert store.steps() == [step]
        assert (save(after).warning, store.steps()) == ("", [after])
        assert not store.at(after).is_symlink()
        assert (elsewhere / "manifest.json").is_file()
    # Gone between listing and deleting, or for good.
    store.delete(999)
    shutil.rmtree(store.at(20))
    assert save(30).warning == ""
    assert [path.name for path in store.directory.iterdir()] == [checkpoint_name(30)]


def test_a_save_that_a_remote_store_refuses_is_reported_and_costs_that_save_alone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(f"memory://{tmp_path.name}", "run")
    save: Any = saves(engine, store)
    remote = Remote.open(str(store.directory))
    denied = Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    assert isinstance(save(1), Committed)
    with monkeypatch.context() as patched:
        for way in ("pipe_file", "put_file", "_open"):
            patched.setattr(type(remote.filesystem), way, denied)
        refused = save(2)
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, StorageError)
    assert str(store.at(2)) in refused.error.problem
    assert isinstance(save(3), Committed)
    assert store.steps() == [1, 3]


def test_a_remote_store_that_refuses_to_delete_keeps_what_was_just_published(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(f"memory://{tmp_path.name}", "run")
    save: Any = saves(engine, store, 1)
    remote = Remote.open(str(store.directory))
    kind = type(remote.filesystem)
    remove, pipe = kind.rm_file, kind.pipe_file

    def rm_file(self: Any, path: str) -> None:
        if "step-00000010/" in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        remove(self, path)

    def pipe_file(self: Any, path: str, value: bytes, **options: Any) -> None:
        pipe(self, path, value, **options)
        if path.endswith("manifest.json"):
            raise TimeoutError("the answer did not arrive")

    with monkeypatch.context() as patched:
        # An answer that is lost after the manifest arrived is no failure.
        patched.setattr(kind, "pipe_file", pipe_file)
        assert isinstance(save(10), Committed)
    with monkeypatch.context() as patched:
        patched.setattr(kind, "rm_file", rm_file)
        assert all("step-00000010" in save(step).warning for step in (20, 30))
    # One that cannot be deleted does not keep the others.
    assert store.steps() == [10, 30]
    assert store.damage(30, store.manifest(30), deep=True) == []
    assert (save(40).warning, store.steps()) == ("", [40])
    left = remote.filesystem.find(remote.root)
    assert {path.split("/")[3] for path in left} == {checkpoint_name(40)}

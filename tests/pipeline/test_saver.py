"""Saving goes on behind training: what is written is what was there; failed saves and deletions harm nothing."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import orjson
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
from pipeline.checkpoint.store import CheckpointStore, apply_retention, newest_good, open_store, store_of
from pipeline.engine.deepspeed.engine import Engine
from tests.pipeline.full_disk import largest_file
from tests.pipeline.process_group import PATIENCE_S, Group, run_group
from tests.pipeline.ranks import make_run
from tests.pipeline.saver_ranks import (
    CASES,
    is_same,
    make_engine,
    make_saver,
    update,
)
from tests.pipeline.small_checkpoints import state_at, write_files


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A tiny network under ZeRO-2 in this very process, the only rank."""
    directory = tmp_path_factory.mktemp("engine")
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    made = make_engine(directory, Rank(0, 1, 0, 1), "2", "fp32")
    update(made, 0)
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


def test_every_zero_stage_is_saved_as_it_was_while_two_ranks_go_on_training(tmp_path: Path):
    run_group("tests.pipeline.saver_ranks", [tmp_path, tmp_path / "store"], 2)
    first, second = (orjson.loads((tmp_path / f"rank-{rank}.json").read_bytes()) for rank in range(2))
    for case in CASES:
        assert (first[case]["outcomes"], second[case]["outcomes"]) == (["Committed"], []), case
        # The same files with the same contents as DeepSpeed writes itself, save for weights that its masters hold, too.
        others = [EMA_FILE, "manifest.json", "model.json", MODEL_FILE, "tokenizer.json", "trainer.json"]
        assert first[case]["all_files"] == [*first[case]["files"], *others], case
        assert first[case]["moved"], case
        for found in (first[case], second[case]):
            claims = ("equal", "small", "shares", "restored")
            assert [claim for claim in claims if not found[claim]] == [], case
    # A rank that fails does not stop the others, nor the next save.
    outcomes = [(1, "Committed"), (2, "Failed"), (3, "Committed"), (4, "Failed"), (5, "Committed")]
    assert first["full"]["outcomes"] == [[outcome, step] for step, outcome in outcomes]
    assert all("File too large" in problem for problem in first["full"]["problems"])
    assert first["full"]["steps"] == [3, 5]
    assert not list((tmp_path / "store" / "full").glob(".*"))


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
        group = Group("tests.pipeline.saver_ranks", [tmp_path, tmp_path, "endless"], 1)
        deadline = time.monotonic() + PATIENCE_S
        while (store.steps() or [0])[-1] < seen + 5:
            assert group.poll() is None, group.output[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.005 + 0.007 * attempt)
        group.kill()
        newest, messages = newest_good(store)
        assert messages == []
        assert newest is not None
        seen = read_trainer_state(newest).step
        assert seen == store.steps()[-1]


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
    with largest_file(20_000):
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


def test_the_configuration_says_where_checkpoints_are(tmp_path: Path):
    run = make_run(tmp_path, tmp_path / "none", "here")
    assert store_of(run) == CheckpointStore(run.path / "checkpoints")
    run.reconfigure(run.config((f"checkpoint.directory={tmp_path}/elsewhere",)))
    assert store_of(run) == CheckpointStore(tmp_path / "elsewhere" / "here")


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
        assert "step-00000010" in save(20).warning
    assert store.steps() == [10, 20]
    assert store.damage(20, store.manifest(20), deep=True) == []
    assert (save(30).warning, store.steps()) == ("", [30])
    left = remote.filesystem.find(remote.root)
    assert {path.split("/")[3] for path in left} == {checkpoint_name(30)}


def test_one_that_cannot_be_deleted_does_not_keep_the_others(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
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

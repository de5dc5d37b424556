"""Saving goes on behind training: what is written is what was there, and a save that fails harms nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import orjson
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from cluster.artefacts.errors import StorageError
from cluster.group import Rank
from pipeline.checkpoint.checkpoint import (
    DEEPSPEED_DIRECTORY,
    EMA_FILE,
    MODEL_FILE,
    read_trainer_state,
)
from pipeline.checkpoint.rank_save import (
    PARTS_DIRECTORY,
    IncompleteWeightsError,
    RankSave,
    Snapshot,
    assemble,
    files_of_all,
    from_array,
    read_slices,
    write_slices,
    write_weights,
)
from pipeline.checkpoint.saver import CheckpointSaver, Committed, Failed
from pipeline.checkpoint.store import CheckpointStore, newest_good, store_of
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
from tests.pipeline.small_checkpoints import state_at

ALONE = Rank(0, 1, 0, 1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A tiny network under ZeRO-2 in this very process, the only rank."""
    directory = tmp_path_factory.mktemp("engine")
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    made = make_engine(directory, ALONE, "2", "fp32")
    update(made, 0)
    yield made
    dist.destroy_process_group()
    del os.environ["LOCAL_RANK"]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def save(saver: CheckpointSaver, engine: Engine, step: int, loss: float | None = None) -> Any:
    """Save, wait, and return what became of it."""
    saver.save(engine, state_at(step, loss))
    saver.wait()
    (outcome,) = saver.finished()
    return outcome


def test_every_zero_stage_is_saved_as_it_was_while_two_ranks_go_on_training(tmp_path: Path):
    run_group("tests.pipeline.saver_ranks", [tmp_path, tmp_path / "store"], 2)
    first, second = (orjson.loads((tmp_path / f"rank-{rank}.json").read_bytes()) for rank in range(2))
    for case in CASES:
        assert first[case]["outcomes"] == ["Committed"], case
        assert second[case]["outcomes"] == [], case
        assert first[case]["moved"], case
        # The same files with the same contents as DeepSpeed writes itself, save for weights that its masters hold, too,
        # and nothing of what ranks told each other.
        deepspeed = [f"{DEEPSPEED_DIRECTORY}/{name}" for name in first[case]["files"]]
        others = [EMA_FILE, "manifest.json", "model.json", MODEL_FILE, "tokenizer.json", "trainer.json"]
        assert first[case]["all_files"] == [*deepspeed, *others], case
        for found in (first[case], second[case]):
            assert found["equal"], case
            assert found["shares"], case
            assert found["restored"], case
    # A rank that cannot even write down that it failed does not stop the others, nor the next save.
    assert first["full"]["outcomes"] == [["Committed", 1], ["Failed", 2], ["Committed", 3]]
    assert "[1]" in first["full"]["problems"][0]
    assert first["full"]["steps"] == [1, 3]
    assert not list((tmp_path / "store" / "full").glob(".*"))


def test_a_save_without_a_thread_writes_the_same(engine: Engine, tmp_path: Path):
    stores = [CheckpointStore(tmp_path / name) for name in ("one", "two")]
    for asynchronous, store in zip((True, False), stores, strict=True):
        assert isinstance(save(make_saver(store, ALONE, asynchronous=asynchronous), engine, 1), Committed)
    files = sorted((stores[0].local(1) / DEEPSPEED_DIRECTORY).iterdir())
    assert len(files) == 2
    for file in files:
        other = stores[1].local(1) / DEEPSPEED_DIRECTORY / file.name
        assert is_same(torch.load(file, weights_only=False), torch.load(other, weights_only=False))
    for name in (MODEL_FILE, EMA_FILE):
        assert (stores[0].local(1) / name).read_bytes() == (stores[1].local(1) / name).read_bytes()


def test_copies_share_memory_where_originals_do_and_change_no_more():
    flat, step = torch.arange(10.0), SimpleNamespace(scale=2.0)
    state = {
        "whole": flat,
        "view": flat[2:6],
        "again": [flat.view(2, 5).t()],
        "scaler": step,
        "flag": torch.ones((), dtype=torch.bool),
        "parameter": torch.nn.Parameter(torch.zeros(3)),
        "empty": torch.empty(0),
    }
    snapshot = Snapshot()
    copy = snapshot.tree(state)
    step.scale = 4.0
    flat += 100
    assert copy["whole"].tolist() == list(range(10))
    assert copy["view"].untyped_storage().data_ptr() == copy["whole"].untyped_storage().data_ptr()
    assert copy["again"][0].tolist() == [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]]
    assert copy["again"][0].stride() == (1, 5)
    assert copy["again"][0].untyped_storage().data_ptr() == copy["whole"].untyped_storage().data_ptr()
    assert copy["parameter"].requires_grad
    assert (copy["scaler"].scale, copy["flag"].item(), copy["empty"].numel()) == (2.0, True, 0)
    place = copy["whole"].data_ptr()
    snapshot.reset()
    assert snapshot.tensor(flat).data_ptr() == place, "memory is used again"


@given(st.data())
def test_weights_are_put_together_from_any_shares(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    directory = tmp_path_factory.mktemp("weights")
    shapes = data.draw(
        st.dictionaries(
            st.text("ab.:é", min_size=1, max_size=5),
            st.lists(st.integers(0, 5), max_size=3),
            min_size=1,
            max_size=4,
        )
    )
    generator = np.random.default_rng(0)
    whole = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    ranks = data.draw(st.integers(1, 3))
    shares: list[list[Any]] = [[] for _ in range(ranks)]
    for name, values in whole.items():
        cuts = sorted(data.draw(st.lists(st.integers(0, values.size), max_size=4)))
        for start, end in zip([0, *cuts], [*cuts, values.size], strict=True):
            if end > start:
                one = from_array(name, start, values.ravel()[start:end])
                shares[data.draw(st.integers(0, ranks - 1))].append(one)
    slices = list(shares[0])
    for number, share in enumerate(shares[1:]):
        with (directory / str(number)).open("wb") as stream:
            write_slices(stream, share)
        slices += read_slices((directory / str(number)).open("rb"))
    with (directory / "model").open("wb") as stream:
        write_weights(stream, shapes, slices)
    with safe_open(directory / "model", framework="np") as found:
        assert set(found.keys()) == set(whole)
        for name, values in whole.items():
            np.testing.assert_array_equal(found.get_tensor(name), values)


@pytest.mark.parametrize("spans", [[(0, 4)], [(0, 4), (3, 6)], [(0, 4), (5, 6)], [(0, 6), (0, 6)]])
def test_weights_with_a_hole_or_an_overlap_are_refused(tmp_path: Path, spans: list[tuple[int, int]]):
    values = np.arange(6, dtype=np.float32)
    slices = [from_array("w", start, values[start:end]) for start, end in spans]
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


def test_the_cause_counts_of_a_rank_that_fails_while_its_marker_is_looked_for(tmp_path: Path):
    save = RankSave(SimpleNamespace(step=1), SimpleNamespace(poll_s=0.0), 0.0)  # type: ignore[arg-type]

    def marks():
        if save.settled.is_set():
            return {"rank-00001.failed": b'["the disk is full", "make room"]'}
        save.any_failed = True
        save.settled.set()
        return {}

    save.staging.marks = marks  # type: ignore[misc]
    with pytest.raises(StorageError) as caught:
        files_of_all(save, 2, "runs/one")
    assert caught.value.problem == "the disk is full"


def test_a_save_that_fails_is_reported_and_costs_that_save_alone(
    engine: Engine, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    saver = make_saver(store, ALONE)
    assert isinstance(save(saver, engine, 1), Committed)
    with largest_file(20_000):
        full = save(saver, engine, 2)
    assert isinstance(full, Failed)
    assert (full.step, full.error.exit_code) == (2, 33)
    assert "ulimit" in full.error.next_step
    # What it wrote is gone again, and nothing half-written is there to be read.
    assert [path.name for path in store.directory.iterdir()] == ["step-00000001"]
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", Mock(side_effect=MemoryError("cannot allocate 1 TiB")))
        outcome = save(make_saver(store, ALONE), engine, 2)
    assert isinstance(outcome, Failed)
    assert "MemoryError" in outcome.error.problem
    shutil.move(store.directory, store.directory.with_name("moved"))
    store.directory.write_text("a file stands here")
    outcome = save(saver, engine, 2)
    assert isinstance(outcome, Failed)
    assert str(store.directory) in outcome.error.problem
    store.directory.unlink()
    shutil.move(store.directory.with_name("moved"), store.directory)
    assert isinstance(save(saver, engine, 3), Committed)
    assert store.steps() == [1, 3]


def test_what_a_killed_save_left_goes_at_the_next_start_and_retention_follows_each_save(
    engine: Engine, store: CheckpointStore
):
    old = store.staging(1, "0ld-0001")
    with old.create("deepspeed/half.pt") as stream:
        stream.write(b"half")
    old.mark("rank-00000.done", b"[]")
    assert store.staging(1, "new-0001").marks() == {}
    assert store.steps() == []
    saver = make_saver(store, ALONE)
    assert list(store.directory.iterdir()) == []
    outcomes = [save(saver, engine, step, loss) for step, loss in ((1, 1.0), (2, 3.0), (3, 2.0), (4, 0.5))]
    assert [outcome.kept for outcome in outcomes] == [(1,), (1, 2), (1, 2, 3), (3, 4)]
    assert [outcome.best for outcome in outcomes] == [True, False, False, True]
    assert store.steps() == [3, 4]


def test_the_configuration_says_where_checkpoints_are(tmp_path: Path):
    run = make_run(tmp_path, tmp_path / "none", "here")
    assert store_of(run) == CheckpointStore(run.path / "checkpoints")
    run.reconfigure(run.config((f"checkpoint.directory={tmp_path}/elsewhere",)))
    assert store_of(run) == CheckpointStore(tmp_path / "elsewhere" / "here")


def test_a_share_that_cannot_be_opened_leaves_none_of_the_others_open(tmp_path: Path):
    staging = CheckpointStore(tmp_path).staging(10, "key")
    with staging.create(f"{PARTS_DIRECTORY}/{MODEL_FILE}.00001"):
        pass
    before = sorted(os.listdir("/proc/self/fd"))
    saved: Any = SimpleNamespace(staging=staging, weights={MODEL_FILE: []}, shapes={})
    with pytest.raises(FileNotFoundError, match=r"\.00002"):
        assemble(saved, MODEL_FILE, 3)
    assert sorted(os.listdir("/proc/self/fd")) == before

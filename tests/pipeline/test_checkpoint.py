"""Checkpoints on a disk and in an object store: only whole ones are read, and damaged ones are set aside."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
import torch
from fsspec.core import url_to_fs
from safetensors.torch import save

from cluster.artefacts.errors import (
    CorruptArtefactError,
    CorruptCheckpointError,
    MismatchError,
    ReferenceNotFoundError,
    UntrustedArtefactError,
)
from cluster.artefacts.places import Uri
from cluster.artefacts.remote import Remote
from cluster.artefacts.signatures import KEY_VARIABLE, TRUST_VARIABLE, make_keys
from cluster.copies import SIZE_VARIABLE
from pipeline.checkpoint.checkpoint import (
    DEEPSPEED_DIRECTORY,
    MODEL_FILE,
    TRAINER_FILE,
    read_model_config,
    read_trainer_state,
)
from pipeline.checkpoint.references import CheckpointReference, resolve_checkpoint, resolve_model
from pipeline.checkpoint.store import (
    CheckpointStore,
    apply_retention,
    best_step,
    newest_good,
    open_store,
    store_of,
)
from pipeline.pretrain.resume_checks import require_not_lost
from pipeline.pretrain.step import Trainer
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.log import RunLog
from tests.object_store import flip_byte, objects
from tests.pipeline.command import invoke
from tests.pipeline.engine_ranks import each_case, explore
from tests.pipeline.process_group import on_ranks
from tests.pipeline.ranks import make_run
from tests.pipeline.small_checkpoints import NETWORK, state_at, write_files

OPTIMIZER_FILE = f"{DEEPSPEED_DIRECTORY}/optimizer.pt"


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    """The checkpoints of a run, in either kind of place."""
    if request.param == "disk":
        return CheckpointStore(tmp_path / "checkpoints")
    return open_store(request.getfixturevalue("uri"), "run")


@pytest.fixture
def run(tmp_path: Path, uri: str) -> RunDirectory:
    """A run that keeps its checkpoints in an object store."""
    return make_run(tmp_path, tmp_path / "none", "run", f"checkpoint.directory={uri}")


def write(store: CheckpointStore, step: int, loss: float | None = None, *, publish: bool = True) -> None:
    """What a save writes, with weights that tell the step."""
    weights = {MODEL_FILE: save({"w": torch.full((1000,), float(step))})}
    write_files(store, state_at(step, loss), weights | {OPTIMIZER_FILE: os.urandom(100_000)}, publish=publish)


def names_in(store: CheckpointStore) -> set[str]:
    """Everything that lies in the store, hidden or not."""
    place = store.directory
    return set(os.listdir(place) if isinstance(place, Path) else Remote.open(place).names())


def damage(store: CheckpointStore, step: int, name: str, how: str = "flip") -> None:
    """Flip a byte of a file of a checkpoint, shorten the file, or remove it."""
    files, path = url_to_fs(f"{store.place(step)}/{name}")
    if how == "remove":
        files.rm_file(path)
        return
    data = bytearray(files.cat_file(path))
    data[10] ^= 0xFF
    files.pipe_file(path, bytes(data[:20] if how == "shorten" else data))


def test_only_a_save_that_was_published_is_a_checkpoint_and_is_read_with_the_same_bytes(
    store: CheckpointStore,
):
    assert newest_good(store) == (None, [])
    write(store, 10, 2.5)
    write(store, 20, publish=False)
    assert store.steps() == [10]
    with pytest.raises(CorruptArtefactError):
        store.fetch(20)
    path = store.fetch(10)
    assert newest_good(store) == (path, [])
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert names == {"manifest.json", *(entry.path for entry in store.manifest(10).files)}
    assert store.damage(10, store.manifest(10), deep=True) == []
    assert (read_trainer_state(path).held_out, read_model_config(path)) == ({"loss": 2.5}, NETWORK)
    store.clean()
    assert names_in(store) == {"step-00000010"}


def test_a_step_that_is_saved_again_is_no_checkpoint_until_it_is_whole(uri: str):
    store = open_store(uri, "run")
    killed = store.staging(10, "killed-0001")
    with killed.create(f"{DEEPSPEED_DIRECTORY}/of_another_rank.pt") as stream:
        stream.write(b"old")
    write(store, 10, 1.0)
    # Nothing of what a killed save left.
    assert len(objects(uri)) == 1 + len(store.manifest(10).files)
    write(store, 20, 2.0)
    assert best_step(store) == 10
    store.make_room(20)
    write(store, 20, publish=False)
    assert store.steps() == [10]
    write(store, 20, 0.5)
    assert (store.steps(), best_step(store)) == ([10, 20], 20)
    assert store.damage(20, store.manifest(20), deep=True) == []


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (MODEL_FILE, "flip"),
        (OPTIMIZER_FILE, "flip"),
        ("manifest.json", "flip"),
        ("manifest.json", "remove"),
        (MODEL_FILE, "remove"),
        (OPTIMIZER_FILE, "shorten"),
    ],
)
def test_damage_is_named_and_the_checkpoint_before_is_taken(store: CheckpointStore, name: str, how: str):
    write(store, 10)
    write(store, 20)
    damage(store, 20, name, how)
    if (name, how) == ("manifest.json", "remove") and not isinstance(store.directory, Path):
        # An object store has no directories: what has no manifest was never published.
        assert newest_good(store) == (store.fetch(10), [])
        return
    chosen, messages = newest_good(store)
    assert chosen == store.fetch(10)
    assert name in messages[0]
    assert store.steps() == [10]
    assert names_in(store) == {"step-00000010", "step-00000020.corrupt"}


def test_when_none_verifies_the_run_is_refused_not_restarted(store: CheckpointStore):
    for step in (10, 20):
        write(store, step)
        damage(store, step, MODEL_FILE)
    with pytest.raises(CorruptCheckpointError) as caught:
        newest_good(store, look_only=True)
    assert caught.value.exit_code == 21
    assert MODEL_FILE in str(caught.value)
    assert store.steps() == [10, 20]


def test_the_step_in_a_manifest_outweighs_the_name_of_its_directory(store: CheckpointStore):
    write_files(store, state_at(10))
    first, second = store.at(10), store.at(20)
    if isinstance(second, Uri):
        Remote.open(str(first)).copy(second)
    else:
        shutil.copytree(first, second)
    with pytest.raises(CorruptCheckpointError):
        newest_good(store)
    with pytest.raises(CorruptCheckpointError):
        CheckpointReference(store.at(20), 20).fetch()
    assert best_step(store) is None
    assert store.steps() == [10, 20]


def test_retention_keeps_the_newest_the_best_and_every_so_many(store: CheckpointStore):
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5), (50, 2.0)):
        write(store, step, loss)
    assert best_step(store) == 20
    assert apply_retention(store, 1, keep_every_steps=30) == [10, 40]
    assert store.steps() == [20, 30, 50]
    assert names_in(store) == {f"step-{step:08d}" for step in (20, 30, 50)}


def test_a_copy_that_training_was_restored_from_makes_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(SIZE_VARIABLE, "15 kB")
    store = open_store(f"memory://{tmp_path.name}", "run")
    trainer: Any = Mock(config=Mock(metric="loss"), checkpoints=Mock(store=store))
    for step in (10, 20):
        write_files(store, state_at(step), {"large": bytes(10_000)})
        Trainer.restore(trainer, read_trainer_state(store.fetch(step)))
    assert trainer.engine.restore.call_count == 2


def test_a_deletion_that_was_killed_half_way_is_finished_by_the_next(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    write(store, 10)
    (tmp_path / ".step-00000010.deleted").mkdir()
    (tmp_path / ".step-00000010.deleted" / "left").write_text("")
    write(store, 20)
    assert apply_retention(store, 1) == [10]
    assert names_in(store) == {"step-00000020"}


def test_signed_checkpoint_is_read_and_an_unsigned_one_is_refused(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    private, _ = make_keys(tmp_path / "keys", "team")
    write(store, 20)
    monkeypatch.setenv(KEY_VARIABLE, str(private))
    write(store, 10)
    monkeypatch.setenv(TRUST_VARIABLE, str(private.parent))
    assert all(entry.sha256 for entry in store.manifest(10).files)
    assert (store.fetch(10) / MODEL_FILE).is_file()
    with pytest.raises(UntrustedArtefactError):
        store.fetch(20)


def test_two_ranks_save_their_own_parts_and_a_fresh_engine_goes_on_from_them(uri: str, tmp_path: Path):
    ranks = on_ranks(each_case, explore, tmp_path, uri, ["2-fp32"], workers=2)
    assert [rank["2-fp32"]["outcomes"] for rank in ranks] == [["Committed"], []]
    assert [claim for rank in ranks for claim, holds in rank["2-fp32"].items() if holds is False] == []


def test_references_read_the_model_alone(run: RunDirectory):
    store = store_of(run)
    for step, loss in ((10, 1.0), (20, 2.0)):
        write(store, step, loss)
    runs = run.path.parent
    places = {"run": 20, "run@latest": 20, "run@best": 10, "run@10": 10, store.place(10): 10}
    for reference, step in places.items():
        model = resolve_model(reference, runs)
        assert (model.step, model.reference) == (step, f"run@{step}")
        assert model.state_dict()["w"].tolist() == [float(step)] * 1000
        assert not (model.directory / OPTIMIZER_FILE).exists()
    assert (resolve_checkpoint("run@10", runs) / TRAINER_FILE).is_file()
    with pytest.raises(MismatchError):
        resolve_model("run@10", runs, weights="ema")
    with pytest.raises(ReferenceNotFoundError, match="10, 20"):
        resolve_model("run@15", runs)
    for absent in (store.place(15), "s3://bucket/run/last"):
        with pytest.raises(ReferenceNotFoundError):
            resolve_model(absent, runs)


def test_the_listing_names_what_is_damaged(run: RunDirectory, uri: str):
    store = store_of(run)
    write(store, 10, 1.0)
    write(store, 20, 2.0)
    arguments = ["checkpoints", "run", "--runs-dir", str(run.path.parent), "--json"]
    rows = orjson.loads(invoke(*arguments).stdout)
    assert [(row["reference"], row["alias"], row["state"]) for row in rows] == [
        (f"{run.typed}@10", "best", "committed"),
        (f"{run.typed}@20", "latest", "committed"),
    ]
    assert rows[0]["directory"] == f"{uri}/run/step-00000010"
    flip_byte(f"{uri}/run/step-00000020/{OPTIMIZER_FILE}")
    failed = invoke(*arguments, "--verify")
    assert isinstance(failed.exception, CorruptCheckpointError)
    assert OPTIMIZER_FILE in failed.exception.problem
    assert [row["state"] for row in orjson.loads(failed.stdout)] == ["verified", "damaged"]


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(tmp_path: Path):
    run = RunDirectory(tmp_path)
    require_not_lost(run, None)
    log = RunLog(run)
    log.write("checkpoint", 20, {"directory": "/mnt/gone/step-00000020", "fingerprint": "f"})
    log.close()
    with pytest.raises(CorruptCheckpointError, match=r"step 20 .*/mnt/gone"):
        require_not_lost(run, None)


def test_a_torn_line_of_the_history_costs_that_line_alone(tmp_path: Path):
    run = RunDirectory(tmp_path)
    run.record_event(Event.STARTED, step=0)
    with (tmp_path / "events.jsonl").open("ab") as stream:
        stream.write(b'{"event":"checkpoint-fai')
    run.record_event(Event.FINISHED, step=9)
    assert [event["event"] for event in run.events()] == ["started", "finished"]

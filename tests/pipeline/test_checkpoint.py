"""Checkpoints on a disk and in an object store: only whole ones are read, damaged ones are set aside, retention keeps
the best."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import save
from typer.testing import CliRunner

from cluster.artefacts.errors import (
    CorruptArtefactError,
    CorruptCheckpointError,
    MismatchError,
    MissingInputError,
    ReferenceNotFoundError,
    StorageError,
    UntrustedArtefactError,
)
from cluster.artefacts.signatures import KEY_VARIABLE, TRUST_VARIABLE, make_keys
from pipeline.checkpoint.checkpoint import (
    DEEPSPEED_DIRECTORY,
    EMA_FILE,
    MODEL_FILE,
    TRAINER_FILE,
    checkpoint_name,
    read_model_config,
    read_trainer_state,
    step_of,
)
from pipeline.checkpoint.object_store import ObjectStore
from pipeline.checkpoint.references import CheckpointReference, resolve_checkpoint, resolve_model
from pipeline.checkpoint.store import (
    CheckpointStore,
    Retention,
    apply_retention,
    best_step,
    newest_good,
    open_store,
    store_of,
)
from pipeline.commands.verbs import app
from pipeline.pretrain.resume_checks import require_not_lost
from pipeline.run.directory import RunDirectory
from pipeline.run.log.log import RunLog
from tests.object_store import flip_byte, objects
from tests.pipeline.process_group import run_group
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
def remote_store(uri: str) -> CheckpointStore:
    return open_store(uri, "run")


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
    return set(os.listdir(store.directory) if not isinstance(store, ObjectStore) else store.remote.names())


def change(store: CheckpointStore, step: int, name: str, data: bytes | None = None) -> None:
    """Put other bytes in the place of a file of a checkpoint; without `data`, flip one."""
    path: Any = store.local(step) / name
    if isinstance(store, ObjectStore) and data is None:
        flip_byte(f"{store.place(step)}/{name}")
    elif isinstance(store, ObjectStore):
        store.remote.write(f"{checkpoint_name(step)}/{name}", data or b"")
    else:
        old = path.read_bytes()
        path.write_bytes(old[:10] + bytes([old[10] ^ 0xFF]) + old[11:] if data is None else data)


def remove(store: CheckpointStore, step: int, name: str) -> None:
    if not isinstance(store, ObjectStore):
        (store.local(step) / name).unlink()
    else:
        store.remote.remove([f"{checkpoint_name(step)}/{name}"])


def test_a_published_checkpoint_is_fetched_with_the_same_bytes(store: CheckpointStore):
    write(store, 10, 2.5)
    path = store.fetch(10)
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert names == {"manifest.json", *(entry.path for entry in store.manifest(10).files)}
    assert store.steps() == [10]
    assert store.damage(10, store.manifest(10), deep=True) == []
    assert read_trainer_state(path).held_out == {"loss": 2.5}
    assert read_model_config(path) == NETWORK


def test_a_run_without_checkpoints_starts_at_the_beginning(store: CheckpointStore):
    assert newest_good(store) == (None, [])


def test_killed_before_the_manifest_it_is_no_checkpoint(store: CheckpointStore):
    write(store, 10)
    write(store, 20, publish=False)
    assert store.steps() == [10]
    with pytest.raises(CorruptArtefactError, match=r"has no manifest\.json"):
        store.fetch(20)
    chosen, messages = newest_good(store)
    assert chosen is not None
    assert (step_of(chosen), messages) == (10, [])
    store.clean()
    assert names_in(store) == {"step-00000010"}


def test_a_step_that_is_saved_again_is_no_checkpoint_until_it_is_whole(remote_store: CheckpointStore):
    write(remote_store, 10)
    remote_store.make_room(10)
    write(remote_store, 10, publish=False)
    assert remote_store.steps() == []
    write(remote_store, 10)
    assert remote_store.steps() == [10]
    assert remote_store.damage(10, remote_store.manifest(10), deep=True) == []


def test_what_ranks_told_each_other_and_what_killed_saves_left_is_not_in_a_checkpoint(
    remote_store: CheckpointStore, uri: str
):
    killed = remote_store.staging(10, "killed-0001")
    with killed.create(f"{DEEPSPEED_DIRECTORY}/of_another_rank.pt") as stream:
        stream.write(b"old")
    assert remote_store.staging(10, "attempt-10").marks() == {}
    write(remote_store, 10)
    assert len(objects(uri)) == 1 + len(remote_store.manifest(10).files)


@pytest.mark.parametrize("name", [MODEL_FILE, OPTIMIZER_FILE, "manifest.json"])
def test_a_flipped_byte_is_found_and_the_checkpoint_before_is_taken(store: CheckpointStore, name: str):
    write(store, 10)
    write(store, 20)
    change(store, 20, name)
    chosen, messages = newest_good(store)
    assert chosen == store.local(10)
    assert name in messages[0]
    assert store.steps() == [10]
    assert names_in(store) == {"step-00000010", "step-00000020.corrupt"}


def test_a_checkpoint_with_a_missing_file_gives_way_to_the_one_before(store: CheckpointStore):
    for step in (10, 20):
        write(store, step)
    remove(store, 20, MODEL_FILE)
    assert step_of(newest_good(store)[0]) == 10


def test_a_missing_and_a_shortened_file_are_named(store: CheckpointStore):
    write(store, 10)
    remove(store, 10, MODEL_FILE)
    change(store, 10, OPTIMIZER_FILE, b"short")
    with pytest.raises(CorruptArtefactError) as caught:
        store.fetch(10)
    assert f"{MODEL_FILE}: missing" in caught.value.problem
    assert f"{OPTIMIZER_FILE}: 5 bytes instead of 100000" in caught.value.problem


def test_a_lost_manifest_on_a_disk_is_damage_and_is_set_aside(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    for step in (10, 20):
        write(store, step)
    (store.local(20) / "manifest.json").unlink()
    assert store.lost() == [20]
    chosen, messages = newest_good(store)
    assert chosen == store.local(10)
    assert "no manifest.json" in messages[0]
    assert (tmp_path / "step-00000020.corrupt").is_dir()


def test_when_none_verifies_the_run_is_refused_not_restarted(store: CheckpointStore):
    for step in (10, 20):
        write(store, step)
        change(store, step, MODEL_FILE)
    with pytest.raises(CorruptCheckpointError) as caught:
        newest_good(store, look_only=True)
    assert caught.value.exit_code == 21
    assert MODEL_FILE in str(caught.value)
    assert store.steps() == [10, 20]


def test_the_step_in_a_manifest_outweighs_the_name_of_its_directory(store: CheckpointStore):
    write_files(store, state_at(10))
    if not isinstance(store, ObjectStore):
        shutil.copytree(store.local(10), store.local(20))
    else:
        store.remote.copy(checkpoint_name(10), checkpoint_name(20))
    with pytest.raises(CorruptCheckpointError):
        newest_good(store)
    with pytest.raises(CorruptCheckpointError):
        CheckpointReference(store, 20).fetch()
    assert best_step(store) is None
    assert store.steps() == [10, 20]


def test_retention_keeps_the_newest_the_best_and_every_so_many(store: CheckpointStore):
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5), (50, 2.0)):
        write(store, step, loss)
    store.fetch(10)
    assert best_step(store) == 20
    assert apply_retention(store, Retention(keep_last=1, keep_every_steps=30)) == [10, 40]
    assert store.steps() == [20, 30, 50]
    assert names_in(store) == {f"step-{step:08d}" for step in (20, 30, 50)}
    store.fetch(20)
    assert not store.local(10).exists()


def test_values_of_earlier_checkpoints_are_read_once_and_the_newest_again(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    write(store, 10, 1.0)
    write(store, 20, 2.0)
    assert best_step(store) == 10
    change(store, 10, "manifest.json", b"damaged since")
    assert best_step(store) == 10
    shutil.rmtree(store.local(20))
    write(store, 20, 0.5)
    assert best_step(store) == 20


def test_a_deletion_that_was_killed_half_way_is_finished_by_the_next(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    write(store, 10)
    (tmp_path / ".step-00000010.deleted").mkdir()
    (tmp_path / ".step-00000010.deleted" / "left").write_text("")
    write(store, 20)
    assert apply_retention(store, Retention(1)) == [10]
    assert names_in(store) == {"step-00000020"}


def test_signed_checkpoint_is_read_and_forged_weights_are_not(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    private, _ = make_keys(tmp_path / "keys", "team")
    monkeypatch.setenv(KEY_VARIABLE, str(private))
    write(store, 10)
    monkeypatch.setenv(TRUST_VARIABLE, str(private.parent))
    assert all(entry.sha256 for entry in store.manifest(10).files)
    assert store.damage(10, store.manifest(10), deep=True) == []
    assert (store.fetch(10) / MODEL_FILE).is_file()
    monkeypatch.delenv(TRUST_VARIABLE)
    monkeypatch.delenv(KEY_VARIABLE)
    write(store, 20)
    monkeypatch.setenv(TRUST_VARIABLE, str(private.parent))
    with pytest.raises(UntrustedArtefactError, match="is not signed"):
        store.fetch(20)


def test_two_ranks_save_their_own_parts_and_a_fresh_engine_goes_on_from_them(uri: str, tmp_path: Path):
    run_group("tests.pipeline.saver_ranks", [tmp_path, uri], 2, {"CASES": "2-fp32"})
    for rank, outcomes in enumerate((["Committed"], [])):
        found = orjson.loads((tmp_path / f"rank-{rank}.json").read_bytes())["2-fp32"]
        assert found["outcomes"] == outcomes
        assert all(found[what] for what in ("moved", "equal", "shares", "restored")), found


def test_damage_to_the_copy_on_this_machine_is_repaired_from_the_store(remote_store: CheckpointStore):
    write(remote_store, 10)
    copy = remote_store.fetch(10) / MODEL_FILE
    good = copy.read_bytes()
    copy.write_bytes(good[:-1] + b"\x01")
    assert (remote_store.fetch(10) / MODEL_FILE).read_bytes() == good


def test_copies_share_the_bound_of_the_cache_and_make_room_unless_they_are_used(
    remote_store: CheckpointStore, uri: str, monkeypatch: pytest.MonkeyPatch
):
    store = remote_store
    for step in (10, 20):
        write(store, step)
    monkeypatch.setenv("CLOZE_CACHE_BYTES", "150KB")
    script = (
        "import sys; from pipeline.checkpoint.store import open_store; store = open_store(sys.argv[1], 'run');"
        " print(store.fetch(int(sys.argv[2])), flush=True); input()"
    )
    command = [sys.executable, "-c", script, uri]
    process = subprocess.Popen([*command, "10"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == str(store.local(10))
    with pytest.raises(StorageError, match=r"step-00000020 takes .*, of which processes that run now use"):
        store.fetch(20)
    process.communicate("end\n")
    store.fetch(20)
    assert not store.local(10).exists()
    assert store.fetch(20) == store.local(20)
    monkeypatch.setenv("CLOZE_CACHE_BYTES", "1KB")
    assert store.fetch(20) == store.local(20)


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
    with pytest.raises(MismatchError, match="no moving average"):
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
    rows = orjson.loads(CliRunner().invoke(app, arguments).stdout)
    assert [(row["reference"], row["alias"], row["state"]) for row in rows] == [
        (f"{run.typed}@10", "best", "committed"),
        (f"{run.typed}@20", "latest", "committed"),
    ]
    assert rows[0]["directory"] == f"{uri}/run/step-00000010"
    flip_byte(f"{uri}/run/step-00000020/{OPTIMIZER_FILE}")
    failed = CliRunner().invoke(app, [*arguments, "--verify"])
    assert isinstance(failed.exception, CorruptCheckpointError)
    assert OPTIMIZER_FILE in failed.exception.problem
    assert [row["state"] for row in orjson.loads(failed.stdout)] == ["verified", "damaged"]


def test_a_store_that_refuses_is_a_typed_error(server: str):
    store = open_store("s3://nobodys-bucket/x", "run")
    assert store.steps() == []
    with pytest.raises(StorageError) as caught, store.staging(10, "a").create("file") as stream:
        stream.write(b"data")
    assert "s3://nobodys-bucket/x/run/step-00000010/file" in caught.value.problem
    with pytest.raises(MissingInputError):
        open_store("nosuch://place", "run")


def test_another_scheme_works_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path))
    store: Any = open_store("memory://checkpoints", "run")
    write(store, 10)
    write(store, 20)
    assert store.steps() == [10, 20]
    assert newest_good(store)[0] == store.local(20)
    store.delete(20)
    assert store.steps() == [10]
    assert EMA_FILE not in {entry.path for entry in store.manifest(10).files}


def test_a_name_that_is_no_checkpoints_is_a_users_mistake(tmp_path: Path):
    with pytest.raises(ValueError, match="step-00000100"):
        step_of(tmp_path)


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(tmp_path: Path):
    run = RunDirectory(tmp_path)
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

"""Checkpoints in an object store, on a server that speaks S3: what holds for a disk holds there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import s3fs
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
    step_of,
)
from pipeline.checkpoint.references import resolve_checkpoint, resolve_model
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
from pipeline.run.directory import RunDirectory
from tests.object_store import flip_byte, objects
from tests.pipeline.process_group import run_group
from tests.pipeline.ranks import make_run
from tests.pipeline.small_checkpoints import state_at, write_files

OPTIMIZER_FILE = f"{DEEPSPEED_DIRECTORY}/optimizer.pt"


@pytest.fixture
def store(uri: str) -> CheckpointStore:
    return open_store(uri, "run")


@pytest.fixture
def run(tmp_path: Path, uri: str) -> RunDirectory:
    """A run that keeps its checkpoints there."""
    return make_run(tmp_path, tmp_path / "none", "run", f"checkpoint.directory={uri}")


def write(store: CheckpointStore, step: int, loss: float | None = None, *, publish: bool = True) -> None:
    """What a save writes, with weights that tell the step."""
    weights = {MODEL_FILE: save({"w": torch.full((1000,), float(step))})}
    write_files(store, state_at(step, loss), weights | {OPTIMIZER_FILE: os.urandom(100_000)}, publish=publish)


def test_two_ranks_save_their_own_parts_and_a_fresh_engine_goes_on_from_them(uri: str, tmp_path: Path):
    run_group("tests.pipeline.saver_ranks", [tmp_path, uri], 2, {"CASES": "2-fp32"})
    for rank, outcomes in enumerate((["Committed"], [])):
        found = orjson.loads((tmp_path / f"rank-{rank}.json").read_bytes())["2-fp32"]
        assert found["outcomes"] == outcomes
        assert found["moved"]
        assert found["equal"]
        assert found["shares"]
        assert found["restored"]


def test_a_published_checkpoint_is_fetched_with_the_same_bytes(store: CheckpointStore):
    write(store, 10)
    path = store.fetch(10)
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert names == {"manifest.json", *(entry.path for entry in store.manifest(10).files)}
    assert store.steps() == [10]
    assert store.damage(10, store.manifest(10), deep=True) == []


def test_killed_before_the_manifest_it_is_no_checkpoint(store: CheckpointStore, uri: str):
    write(store, 10)
    write(store, 20, publish=False)
    assert store.steps() == [10]
    with pytest.raises(CorruptArtefactError, match=r"has no manifest\.json"):
        store.fetch(20)
    chosen, messages = newest_good(store)
    assert chosen is not None
    assert (step_of(chosen), messages) == (10, [])
    store.clean()
    assert {name.split("/")[1] for name in objects(uri)} == {"step-00000010"}


def test_a_step_that_is_saved_again_is_no_checkpoint_until_it_is_whole(store: CheckpointStore):
    write(store, 10)
    store.make_room(10)
    write(store, 10, publish=False)
    assert store.steps() == []
    write(store, 10)
    assert store.steps() == [10]
    assert store.damage(10, store.manifest(10), deep=True) == []


def test_what_ranks_told_each_other_and_what_killed_saves_left_is_not_in_a_checkpoint(
    store: CheckpointStore, uri: str
):
    with store.staging(10, "killed-0001").create(f"{DEEPSPEED_DIRECTORY}/of_another_rank.pt") as stream:
        stream.write(b"old")
    assert store.staging(10, "attempt-10").marks() == {}
    write(store, 10)
    assert len(objects(uri)) == 1 + len(store.manifest(10).files)


@pytest.mark.parametrize("name", [MODEL_FILE, OPTIMIZER_FILE, "manifest.json"])
def test_a_flipped_byte_is_found_and_the_checkpoint_before_is_taken(
    store: CheckpointStore, uri: str, name: str
):
    write(store, 10)
    write(store, 20)
    flip_byte(f"{uri}/run/step-00000020/{name}")
    chosen, messages = newest_good(store)
    assert chosen is not None
    assert step_of(chosen) == 10
    assert name in messages[0]
    assert store.steps() == [10]
    assert any(path.startswith("run/step-00000020.corrupt/") for path in objects(uri))


def test_a_missing_and_a_shortened_file_are_named(store: CheckpointStore, uri: str):
    write(store, 10)
    client = s3fs.S3FileSystem()
    client.rm_file(f"{uri}/run/step-00000010/{MODEL_FILE}")
    client.pipe_file(f"{uri}/run/step-00000010/{OPTIMIZER_FILE}", b"short")
    with pytest.raises(CorruptArtefactError) as caught:
        store.fetch(10)
    assert f"{MODEL_FILE}: missing" in caught.value.problem
    assert f"{OPTIMIZER_FILE}: 5 bytes instead of 100000" in caught.value.problem


def test_when_none_verifies_the_run_is_refused(store: CheckpointStore, uri: str):
    for step in (10, 20):
        write(store, step)
        flip_byte(f"{uri}/run/{checkpoint_name(step)}/{MODEL_FILE}")
    with pytest.raises(CorruptCheckpointError) as caught:
        newest_good(store, look_only=True)
    assert caught.value.exit_code == 21
    assert store.steps() == [10, 20]


def test_damage_to_the_copy_on_this_machine_is_repaired_from_the_store(store: CheckpointStore):
    write(store, 10)
    copy = store.fetch(10) / MODEL_FILE
    good = copy.read_bytes()
    copy.write_bytes(good[:-1] + b"\x01")
    assert (store.fetch(10) / MODEL_FILE).read_bytes() == good


def test_copies_share_the_bound_of_the_cache_and_make_room_unless_they_are_used(
    store: CheckpointStore, uri: str, monkeypatch: pytest.MonkeyPatch
):
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


def test_retention_keeps_the_newest_the_best_and_every_so_many(store: CheckpointStore, uri: str):
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5), (50, 2.0)):
        write(store, step, loss)
    store.fetch(10)
    assert best_step(store) == 20
    assert apply_retention(store, Retention(keep_last=1, keep_every_steps=30)) == [10, 40]
    assert store.steps() == [20, 30, 50]
    assert {name.split("/")[1] for name in objects(uri)} == {f"step-{step:08d}" for step in (20, 30, 50)}
    store.fetch(20)
    assert not store.local(10).exists()


def test_references_read_the_model_alone(run: RunDirectory, tmp_path: Path):
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
    with pytest.raises(ReferenceNotFoundError):
        resolve_model(store.place(15), runs)


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


def test_a_store_that_refuses_is_a_typed_error(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_signed_checkpoint_is_read_and_forged_weights_are_not(
    store: CheckpointStore, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    private, _ = make_keys(tmp_path / "keys", "team")
    monkeypatch.setenv(KEY_VARIABLE, str(private))
    write(store, 10)
    monkeypatch.setenv(TRUST_VARIABLE, str(private.parent))
    assert all(entry.sha256 for entry in store.manifest(10).files)
    assert store.damage(10, store.manifest(10), deep=True) == []
    assert (store.fetch(10) / MODEL_FILE).is_file()
    monkeypatch.delenv(KEY_VARIABLE)
    write(store, 20)
    with pytest.raises(UntrustedArtefactError, match="is not signed"):
        store.fetch(20)

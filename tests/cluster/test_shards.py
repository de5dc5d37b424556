"""Shard tasks on a real Ray cluster, and the artefacts made of them."""

import errno
import json
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cluster import runtime
from cluster.artefacts.errors import MissingInputError, StorageError, TooManyRejectsError, WorkersLostError
from cluster.artefacts.manifest import InputEntry
from cluster.artefacts.shard_records import (
    LOG_NAME,
    SHARD_RECORDS,
    Reject,
    read_progress,
)
from cluster.runtime import node_cpus, ray_runtime, tasks_in_flight
from cluster.shards import Shard, ShardResult, build_sharded_artefact, map_shards


@pytest.fixture(scope="module", autouse=True)
def cluster():
    from ray import cloudpickle

    # Workers know the project's modules, not those of the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with ray_runtime("local", num_cpus=2):
        yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def write(split: dict, path: Path) -> ShardResult:
    """A shard function with every fate that a test asks for."""
    text = split["text"]
    if "fail_while" in split and Path(split["fail_while"]).exists():
        raise MissingInputError(f"{text} is missing", next_step="find it")
    if "die_once" in split and not Path(split["die_once"]).exists():
        Path(split["die_once"]).touch()
        path.write_text("half a sh")
        os.kill(os.getpid(), signal.SIGKILL)
    if "die" in split:
        os.kill(os.getpid(), signal.SIGKILL)
    if "disk_full" in split:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    path.write_text(text)
    rejects = tuple(Reject("file", offset, "bad") for offset in split.get("rejects", ()))
    notes = tuple(split.get("notes", ()))
    return ShardResult(rows=len(text), tokens=2 * len(text), stats={"seen": 1}, rejects=rejects, notes=notes)


def make(texts, size_bytes=0, **special) -> list[Shard]:
    splits = [{"text": text} | special.get(f"_{n}", {}) for n, text in enumerate(texts)]
    return [
        Shard(f"shard-{n}", partial(partial, write, split), f"identity of {split['text']}", size_bytes)
        for n, split in enumerate(splits)
    ]


def texts_of(directory, records) -> list[str]:
    return [(directory / record.entry.path).read_text() for record in records]


def finished(directory) -> list[str]:
    return [record.entry.path for record in SHARD_RECORDS.read_all(directory)]


def build(directory, shards, config=None, **settings):
    def finish(path, records):
        (path / "sidecar").write_text(",".join(record.entry.path for record in records))
        return {"shards": len(records)}

    inputs = [InputEntry(kind="k", uri="u", fingerprint="f")]
    options = {"config": config or {}, "inputs": inputs, "finish": finish} | settings
    return build_sharded_artefact(directory, "kind", shards=shards, **options)


def map_one_by_one(shards, directory):
    with ray_runtime(workers=1):
        return map_shards(shards, directory, title="t")


def inodes(directory) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in directory.iterdir() if path.is_file()}


def test_records_come_in_the_order_of_the_shards_and_describe_their_files(tmp_path):
    shards = make(["a", "bbb", "cc"], _0={"notes": [{"left": "out"}]})
    records = map_shards(shards, tmp_path, title="t")
    described = [(record.entry.path, record.entry.rows) for record in records]
    assert described == [("shard-0", 1), ("shard-1", 3), ("shard-2", 2)]
    assert texts_of(tmp_path, records) == ["a", "bbb", "cc"]
    # Notes are on disk and not in memory.
    assert [record.notes for record in records] == [(), (), ()]
    stored = SHARD_RECORDS.read_all(tmp_path)
    assert [record.model_copy(update={"notes": ()}) for record in stored] == records
    assert [record.notes for record in stored] == [({"left": "out"},), (), ()]
    assert map_shards(shards, tmp_path, title="t") == records


def test_finished_shards_are_skipped_and_those_whose_file_input_or_record_changed_redone(tmp_path):
    map_shards(make("abcdef"), tmp_path, title="t")
    before, records = inodes(tmp_path), tmp_path / "shard-records"
    (tmp_path / "shard-1").write_text("x")
    (records / "shard-3.json").write_text("{")
    altered = records / "shard-4.json"
    altered.write_bytes(altered.read_bytes().replace(b'"rows":1', b'"rows":7'))
    assert len(SHARD_RECORDS.read_all(tmp_path)) == 4
    texts = ["a", "b", "new", "d", "e", "f"]
    found = map_shards(make(texts), tmp_path, title="t")
    assert texts_of(tmp_path, found) == texts
    assert [record.entry.rows for record in found] == [1, 1, 3, 1, 1, 1]
    after = inodes(tmp_path)
    assert {name for name in before if before[name] == after[name]} >= {"shard-0", "shard-5"}


def test_a_task_that_is_killed_once_is_run_again(tmp_path):
    marker = tmp_path / "died"
    records = map_shards(make(["a", "b"], _1={"die_once": str(marker)}), tmp_path / "o", title="t")
    assert marker.exists()
    assert texts_of(tmp_path / "o", records) == ["a", "b"]


@pytest.mark.parametrize(
    ("texts", "size_bytes", "named"), [("ab", 0, "shard-1"), ("abcdefgh", 1, "shard-0 .*shard-1")]
)
def test_a_task_that_always_dies_is_named_and_the_shards_before_are_kept(
    tmp_path, monkeypatch, texts, size_bytes, named
):
    monkeypatch.setattr(runtime, "TASK_RETRIES", 0)
    with pytest.raises(WorkersLostError, match=named):
        map_one_by_one(make(texts, size_bytes, _1={"die": True}), tmp_path)
    assert finished(tmp_path) == ["shard-0"]
    before = inodes(tmp_path)["shard-0"]
    records = map_one_by_one(make(texts, size_bytes), tmp_path)
    assert texts_of(tmp_path, records) == list(texts)
    assert inodes(tmp_path)["shard-0"] == before
    progress = read_progress(tmp_path)
    assert progress is not None
    assert (progress.done, progress.total) == (len(texts), len(texts))


@pytest.mark.parametrize(("texts", "size_bytes"), [("ab", 0), ("abcdefgh", 1)])
def test_an_error_of_a_task_arrives_as_itself_and_keeps_and_logs_the_shards_before(
    tmp_path, texts, size_bytes
):
    (tmp_path / "broken").touch()
    shards = make(texts, size_bytes, _1={"fail_while": str(tmp_path / "broken")})
    with pytest.raises(MissingInputError, match=r"^b ") as raised:
        map_one_by_one(shards, tmp_path / "o")
    assert (type(raised.value), raised.value.next_step) == (MissingInputError, "find it")
    assert not list((tmp_path / "o").glob(".*"))
    assert finished(tmp_path / "o") == ["shard-0"]
    progress = read_progress(tmp_path / "o")
    assert progress is not None
    assert (progress.done, progress.text_bytes) == (1, size_bytes)
    (tmp_path / "broken").unlink()
    assert len(map_shards(shards, tmp_path / "o", title="t")) == len(texts)


def test_a_full_disk_in_a_task_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError):
        map_shards(make(["a"], _0={"disk_full": True}), tmp_path, title="t")


def test_rejects_are_counted_over_all_shards(tmp_path):
    shards = make(["a", "b"], _0={"rejects": [3, 9]}, _1={"rejects": [4]})
    with pytest.raises(TooManyRejectsError, match=r"^3 .* 2\b"):
        map_shards(shards, tmp_path, title="t", max_rejects=2)
    records = map_shards(shards, tmp_path, title="t", max_rejects=3)
    assert [reject.byte_offset for record in records for reject in record.rejects] == [3, 9, 4]


def test_what_killed_runs_left_and_tasks_that_were_given_up_still_write_does_not_enter_an_artefact(tmp_path):
    (tmp_path / "m" / "shard-records").mkdir(parents=True)
    for name in (".shard-0.123.tmp", "shard-records/.shard-0.json.123.tmp"):
        (tmp_path / "m" / name).write_text("half")
    map_shards(make(["a"]), tmp_path / "m", title="t")
    assert not list((tmp_path / "m").rglob(".*"))

    def finish(directory, records):
        (directory / ".shard-0.123.tmp").write_text("half")
        return {}

    first = build(tmp_path / "a", make(["x"]), finish=lambda directory, records: {})
    assert build(tmp_path / "b", make(["x"]), finish=finish).fingerprint == first.fingerprint


def test_shards_that_other_libraries_made_are_not_continued_and_finished_artefacts_stay(tmp_path):
    (tmp_path / "broken").touch()
    shards = make(["x", "yy"], _1={"fail_while": str(tmp_path / "broken")})
    with pytest.raises(MissingInputError):
        build(tmp_path / "a", shards, made_with=["lib 1"])
    (tmp_path / "broken").unlink()
    shards[0] = replace(shards[0], make=make(["made by another"])[0].make)
    first = build(tmp_path / "a", shards, made_with=["lib 2"])
    assert (tmp_path / "a" / "shard-0").read_text() == "made by another"
    (tmp_path / "a" / "shard-1").unlink()
    before = inodes(tmp_path / "a")
    assert build(tmp_path / "a", shards, made_with=["lib 3"]) == first
    assert inodes(tmp_path / "a")["shard-0"] == before["shard-0"]


def test_a_connected_cluster_is_used_within_the_workers_asked_for_and_left_alone(tmp_path):
    import ray

    with ray_runtime(num_cpus=7):
        assert (node_cpus(), tasks_in_flight()) == (2, 4)
    with ray_runtime(workers=1):
        assert (node_cpus(), tasks_in_flight()) == (1, 1)
        map_shards(make(["a", "bbb", "cc"]), tmp_path, title="t")
    assert ray.is_initialized()
    assert tasks_in_flight() == 4


def test_shards_that_were_made_from_the_same_are_taken_over_under_their_new_names(tmp_path):
    build(tmp_path / "a", make(["x", "yy", "z"]), {"rate": 1})
    (tmp_path / "a" / "shard-2").write_text("damaged")
    expected = build(tmp_path / "b", make(["new", "x", "z"]), {"rate": 2})
    replaced = build(tmp_path / "a", make(["new", "x", "z"]), {"rate": 2}, replace=True)
    assert replaced.fingerprint == expected.fingerprint
    assert [(tmp_path / "a" / f"shard-{n}").read_text() for n in range(3)] == ["new", "x", "z"]
    lines = map(json.loads, (tmp_path / "a" / LOG_NAME).read_text().splitlines())
    assert sorted(line["file"] for line in lines if "file" in line) == ["shard-0", "shard-2"]

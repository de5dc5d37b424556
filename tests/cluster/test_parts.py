"""Artefacts made of parts with several files each: made, continued, adopted, repaired; without Ray. The log of shard
tasks: who made what, how fast, and how long it will take."""

import mmap
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.artefacts.errors import ConfigError, CorruptArtefactError
from cluster.artefacts.manifest import FileEntry, InputEntry, Manifest, hash_json
from cluster.artefacts.parts import PartedArtefact, PartRecord, PartRecords
from cluster.artefacts.shard_records import LOG_NAME, ShardLog, measure_effort, summarize_log


class PairRecord(PartRecord):
    """A part `x` has the files `x.a` and `x.b`."""

    name: str
    files: tuple[FileEntry, ...]

    @property
    def part_name(self) -> str:
        return self.name

    @property
    def part_files(self) -> tuple[FileEntry, ...]:
        return self.files


RECORDS = PartRecords("pair-records", PairRecord)


def build(
    directory: Path,
    contents: dict[str, str],
    *,
    replace: bool = False,
    fail_at: str = "",
    content: bool = True,
    config: dict[str, Any] | None = None,
    kind: str = "k",
) -> tuple[Manifest, list[str]]:
    """Make an artefact whose parts hold the given texts; also returns the names of the parts that were made."""
    inputs = [InputEntry(kind=kind, uri="u", fingerprint=kind)]
    config = contents if config is None else config
    key = hash_json([contents, config, kind])
    artefact = PartedArtefact(directory, "pairs", key, config, inputs, contents, RECORDS, content)
    if intact := artefact.inspect(replace=replace):
        return intact, []
    workspace = artefact.prepare()
    records, made = RECORDS.finished(workspace, contents), []
    for name in [name for name in contents if name not in records]:
        entries = []
        for suffix in "ab":
            path = workspace / f"{name}.{suffix}"
            path.write_text(contents[name] + suffix)
            if name == fail_at:
                raise KeyboardInterrupt
            entries.append(FileEntry.of(path, path.name))
        records[name] = PairRecord(identity=contents[name], name=name, files=tuple(entries))
        RECORDS.write(workspace, records[name])
        made.append(name)
    files = [entry for name in contents for entry in records[name].files]
    return artefact.conclude(files, {"pairs": len(contents)}), made


XY = {"x": "1", "y": "2"}


def test_a_killed_run_continues_after_its_finished_parts(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "a", XY, fail_at="y")
    manifest, made = build(tmp_path / "a", XY)
    assert (made, manifest.stats["pairs"]) == (["y"], 2)
    assert build(tmp_path / "a", XY) == (manifest, [])
    assert manifest.fingerprint == build(tmp_path / "b", XY)[0].fingerprint


def test_a_damaged_file_costs_its_part_and_is_kept_in_quarantine_every_time(tmp_path: Path):
    first, _ = build(tmp_path / "a", XY)
    for text in ("damaged", "damaged again"):
        (tmp_path / "a" / "x.b").write_text(text)
        assert build(tmp_path / "a", XY) == (first, ["x"])
    assert (tmp_path / "a" / "quarantine" / "x.b").read_text() == "damaged"
    kept = [path.read_text() for path in (tmp_path / "a" / "quarantine").iterdir()]
    assert sorted(kept) == ["damaged", "damaged again"]


def test_a_lost_record_costs_its_part_only_where_records_are_content(tmp_path: Path):
    build(tmp_path / "a", XY)
    RECORDS.path(tmp_path / "a", "y").unlink()
    assert build(tmp_path / "a", XY, content=False)[1] == []
    assert build(tmp_path / "a", XY)[1] == ["y"]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("{")], ids=["lost", "damaged"])
def test_a_lost_or_damaged_manifest_costs_no_part_but_damaged_ones(tmp_path: Path, spoil: Any):
    first, _ = build(tmp_path / "a", XY)
    spoil(tmp_path / "a" / "manifest.json")
    again, made = build(tmp_path / "a", XY)
    assert (again.fingerprint, made) == (first.fingerprint, [])
    for name in ("manifest.json", "y.a"):
        spoil(tmp_path / "a" / name)
    again, made = build(tmp_path / "a", XY)
    assert (again.fingerprint, made) == (first.fingerprint, ["y"])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_damaged_manifest_of_unknown_work_is_not_thrown_away(tmp_path: Path):
    build(tmp_path / "a", {"x": "1"})
    (tmp_path / "a" / "manifest.json").write_text("{")
    with pytest.raises(CorruptArtefactError, match=r"manifest\.json") as raised:
        build(tmp_path / "a", {"x": "other"})
    assert "--replace" in raised.value.next_step
    build(tmp_path / "a", {"x": "other"}, replace=True)
    assert (tmp_path / "a" / "x.a").read_text() == "othera"


def test_a_refusal_names_the_settings_and_kinds_of_input_that_differ_and_nothing_around_them(tmp_path: Path):
    def config(**changes: int) -> dict[str, Any]:
        return {"sources": [{"name": "a"}, {"name": "b", "filters": [{"kind": "length"} | changes]}]}

    build(tmp_path / "a", {"x": "1"}, config=config(least=3))
    with pytest.raises(ConfigError, match=r"sources\.1\.filters\.0\.least"):
        build(tmp_path / "a", {"x": "1"}, config=config(least=4))
    with pytest.raises(ConfigError, match="other instead"):
        build(tmp_path / "a", {"x": "1"}, config=config(least=3), kind="other")


def test_parts_of_the_replaced_artefact_are_adopted_and_damaged_ones_made_again(tmp_path: Path):
    build(tmp_path / "a", {"x": "1", "y": "2", "z": "3"})
    (tmp_path / "a" / "y.b").write_text("damaged")
    with pytest.raises(ConfigError, match="new was"):
        build(tmp_path / "a", {"x": "1", "y": "2", "z": "3", "new": "4"})
    _, made = build(tmp_path / "a", {"x": "1", "y": "2", "new": "4"}, replace=True)
    assert made == ["y", "new"]
    assert not (tmp_path / "a" / "z.a").exists()
    # These parts have no other names.
    assert build(tmp_path / "a", {"other": "1"}, replace=True)[1] == ["other"]


def test_a_repair_that_differs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build(tmp_path / "a", {"x": "1"})
    (tmp_path / "a" / "x.a").unlink()
    monkeypatch.setattr(Path, "write_text", lambda path, text: path.write_bytes(b"nondeterministic"))
    with pytest.raises(CorruptArtefactError):
        build(tmp_path / "a", {"x": "1"})


def effort(worker: str, seconds: float, peak_rss_bytes: int) -> dict[str, Any]:
    used = {"seconds": seconds, "processor_seconds": seconds, "peak_rss_bytes": peak_rss_bytes}
    return {"worker": worker, **used}


def test_the_time_left_is_weighed_by_bytes(tmp_path, monkeypatch):
    clock = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    log = ShardLog(tmp_path, "tokens", [10, 30])
    clock += 7.0
    log.add("a", 10, 10, 1, effort("one:1", 7.0, 5))
    assert log.seconds_left == 21


def test_half_a_line_of_a_killed_process_is_skipped(tmp_path):
    ShardLog(tmp_path, "tokens", [1]).add("a", 1, 1, 1, effort("one:1", 1.0, 5))
    with (tmp_path / LOG_NAME).open("ab") as stream:
        stream.write(b'{"file": "b"}\n3\n{"file": "c", "worker": "w", "bytes": "many"}\n{"stage": "tok')
    assert summarize_log(tmp_path)["shards"] == 1
    assert summarize_log(tmp_path / "absent") == {}


def test_the_peak_of_memory_is_known_where_the_kernel_does_not_tell_that_of_a_block(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: "Name:\tpython\n")
    with measure_effort() as measured:
        pass
    assert measured()["peak_rss_bytes"] > 0


def test_the_peak_of_memory_is_that_of_the_block_alone():
    with measure_effort() as measured, mmap.mmap(-1, 160_000_000) as memory:  # which no allocator keeps
        for _ in range(160):
            memory.write(bytes(1_000_000))
    large = measured()
    with measure_effort() as measured:
        bytes(100)
    assert large["peak_rss_bytes"] - measured()["peak_rss_bytes"] > 80_000_000
    assert min(large["seconds"], large["processor_seconds"]) > 0

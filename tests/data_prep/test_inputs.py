"""Source files: listed, hashed and grouped."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cluster import runtime
from cluster.artefacts.errors import ConfigError, MissingInputError, WorkersLostError
from cluster.runtime import ray_runtime
from data_prep import input_hashes
from data_prep.config import PreparationConfig
from data_prep.input_hashes import CACHE_NAME, hash_inputs
from data_prep.inputs import Input, ShardInput, group_inputs, list_inputs
from data_prep.sources.base import SourceFile


def configured(tmp_path: Path, **kinds: str) -> PreparationConfig:
    """Sources of these kinds, by their names, which are those of their folders too."""
    sources = [
        {"kind": kind, "name": name, "paths": [f"{tmp_path}/{name}/*"]} for name, kind in kinds.items()
    ]
    return PreparationConfig.model_validate({"name": "n", "out": tmp_path / "out", "sources": sources})


@pytest.fixture
def config(tmp_path: Path) -> PreparationConfig:
    """Two sources with the files a/0 to a/4 and b/0 to b/2, of 10 bytes and more."""
    for folder, count in (("a", 5), ("b", 3), ("out", 0)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / str(number)).write_bytes(b"%d" % number * (10 + number))
    return configured(tmp_path, a="json_lines", b="books_text")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read to be hashed, in this process."""
    read: list[str] = []

    def run(function: Any, batches: Any, arguments: Any, who: Any) -> Iterator[tuple[Any, list[bytes]]]:
        for batch in batches:
            (paths,) = arguments(batch)
            read.extend(f"{Path(path).parent.name}/{Path(path).name}" for path in paths)
            yield batch, function(paths)

    monkeypatch.setattr(input_hashes, "run_tasks", run)
    monkeypatch.setattr(input_hashes, "require_ray", lambda: None)
    return read


def hash_rightly(config: PreparationConfig) -> None:
    """Hash the files, which must be found as they are."""
    inputs = list_inputs(config)
    paths = [own.file.path for own in inputs]
    right = {path: xxhash.xxh3_128_hexdigest(Path(path).read_bytes()) for path in paths}
    assert hash_inputs(inputs, config.out) == right


def test_only_new_and_changed_files_are_hashed(config, hashed, tmp_path):
    hash_rightly(config)
    assert len(hashed) == 8
    hashed.clear()
    (tmp_path / "a" / "3").write_bytes(b"changed")
    (tmp_path / "b" / "new").write_bytes(b"new")
    hash_rightly(config)
    assert hashed == ["a/3", "b/new"]


def test_hashes_of_files_that_are_left_out_for_a_time_are_kept(config, hashed):
    hash_rightly(config)
    one = config.model_copy(update={"sources": config.sources[1:]})
    os.utime(Path(list_inputs(one)[0].file.path), ns=(1, 1))
    hash_rightly(one)
    hashed.clear()
    hash_rightly(config)
    assert hashed == []


def test_a_damaged_cache_costs_time_only(config, hashed):
    hash_rightly(config)
    path = config.out / CACHE_NAME
    good = path.read_bytes()
    places = range(0, len(good), 23)
    flipped = (good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in places)
    for data in (b"", b"PAR1", *flipped):
        path.write_bytes(data)
        hash_rightly(config)


def test_what_was_hashed_before_a_failure_is_kept(config, hashed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_hashes, "HASH_TASK_FILES", 2)
    inputs = list_inputs(config)
    path = Path(inputs[4].file.path)
    path.rename(path.with_suffix(".gone"))
    with pytest.raises(MissingInputError):
        hash_inputs(inputs, config.out)
    path.with_suffix(".gone").rename(path)
    hashed.clear()
    hash_rightly(config)
    assert hashed == ["a/4", "b/0", "b/1", "b/2"]


def test_a_hashing_task_that_always_dies_is_named(config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime, "TASK_RETRIES", 0)
    monkeypatch.setattr(input_hashes, "hash_files", lambda paths: os.kill(os.getpid(), signal.SIGKILL))
    with ray_runtime("local", num_cpus=1), pytest.raises(WorkersLostError, match="a/0 and"):
        hash_inputs(list_inputs(config), config.out)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=12).map(sorted), st.integers(1, 20))
def test_a_group_holds_consecutive_files_of_one_source_up_to_its_size(files, shard_bytes):
    sources = configured(Path("/"), a="books_text", b="books_text").sources
    groups: list[list[int]] = []
    for number, (source, size) in enumerate(files):
        group = groups[-1] if groups else []
        is_same = group and files[group[0]][0] == source
        if not is_same or sum(files[each][1] for each in group) + size > shard_bytes:
            groups.append(group := [])
        group.append(number)
    inputs = [
        Input(sources[source], SourceFile(f"/{number}", str(number)), size, "")
        for number, (source, size) in enumerate(files)
    ]
    expected = []
    for group in groups:
        own = [inputs[number] for number in group]
        parts = [each.file for each in own]
        expected.append(ShardInput(own[0].source, parts, sum(each.size_bytes for each in own)))
    assert group_inputs(inputs, shard_bytes) == expected


def test_a_big_file_is_split_into_parts_that_end_where_the_next_begins(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "big").write_bytes(b"\n" * (3 << 20))
    shards = group_inputs(list_inputs(configured(tmp_path, s="json_lines")), 1 << 20)
    file = SourceFile(f"{tmp_path}/s/big", "big")
    bounds = [(0, 1 << 20), (1 << 20, 2 << 20), (2 << 20, None)]
    assert [shard.parts for shard in shards] == [
        [replace(file, start=start, end=end)] for start, end in bounds
    ]
    assert [shard.size_bytes for shard in shards] == [1 << 20] * 3


def test_names_that_are_not_utf8_are_refused_before_anything_is_read(config, tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a/caf\xe9")).touch()
    with pytest.raises(ConfigError):
        list_inputs(config)

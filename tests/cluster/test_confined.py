"""Names in manifests and records lead to files of their own artefact, also if an attacker wrote them; and what may not
be read is told as such: it is neither missing nor damaged, and nothing waits for a FIFO."""

import os
import string
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.artefacts.errors import ClozeError, CorruptArtefactError, StorageError
from cluster.artefacts.manifest import MANIFEST_NAME, hash_file, read_manifest, seal
from cluster.artefacts.reading import confined_name, inside, read_bytes
from cluster.artefacts.remote import Remote
from cluster.artefacts.shard_records import SHARD_RECORDS
from cluster.artefacts.storage import (
    Damage,
    contents_of,
    find_damage,
    open_artefact,
    quarantine,
)
from cluster.copies import local_copy
from data_prep.selection import load_selection
from data_prep.sources.hf_datasets import HfDatasetsConfig
from data_prep.token_files import map_batches
from data_prep.token_store import TokenStore
from data_prep.verify import examine, verify_preparation
from pipeline import cli
from pipeline.checkpoint.store import open_store
from tests.cluster.materials import forged, make
from tests.pipeline.small_checkpoints import state_at, write_files

OUTSIDE = [
    *("../outside", "a/../../outside", "/etc/passwd", "//server/share", "..", "", "a//b", "a/./b"),
    *(".", "./a", "a/"),
    *("..\\outside", "a\\b", "C:outside", "c:/outside"),
    *("a\0b", "a\nb", "a\x1b[31mb", "a\u202eb", "a/" + "b" * 256),
]


def name_files(directory: Path, *names: str) -> None:
    """Make the manifest name these files."""
    entry = {"size_bytes": 6, "xxh3_128": "0" * 32, "rows": None, "tokens": None}
    files = [{"path": name, **entry} for name in names]
    path = directory / MANIFEST_NAME
    path.write_bytes(forged(path.read_bytes(), lambda contents: contents.update(files=files)))


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("secret")
    return make(tmp_path / "artefact", {"sub/file": b"inside"}, "thing")


@given(
    st.text(alphabet=string.printable + "é\u200f\ud800", max_size=30)
    | st.lists(st.sampled_from(["..", ".", "a", "", "C:", "\\"])).map("/".join)
)
@example("a/b.arrow")
def test_a_name_is_refused_or_stays_inside_whatever_it_is(name: str) -> None:
    try:
        confined_name(name)
    except ValueError:
        return
    root = "/some/where"
    assert os.path.normpath(f"{root}/{name}") == f"{root}/{name}"
    assert os.path.commonpath([root, os.path.normpath(f"{root}/{name}")]) == root


@pytest.mark.parametrize("names", [*([name] for name in (*OUTSIDE, MANIFEST_NAME)), ["sub/file"] * 2])
def test_a_manifest_that_names_files_elsewhere_or_twice_is_refused(artefact: Path, names: list[str]) -> None:
    name_files(artefact, *names)
    with pytest.raises(CorruptArtefactError):
        read_manifest(artefact)
    _, damages = examine(artefact)
    assert hash_file(artefact.parent / "outside")[0] not in str(damages)


@pytest.mark.parametrize("linked", ["sub/file", "sub"])
def test_a_link_that_leads_out_is_damage_and_is_never_followed(artefact, tmp_path, linked):
    elsewhere = tmp_path / "elsewhere"
    (artefact / "sub").rename(elsewhere)
    if linked == "sub/file":
        (artefact / "sub").mkdir()
    (artefact / linked).symlink_to(elsewhere / linked.removeprefix("sub").removeprefix("/"))
    manifest = read_manifest(artefact)
    (damage,) = find_damage(artefact, manifest)
    for follow in (lambda: open_artefact(artefact), lambda: manifest.files[0].under(artefact)):
        with pytest.raises(CorruptArtefactError):
            follow()
    if linked == "sub":
        with pytest.raises(CorruptArtefactError):
            quarantine(artefact, damage)
    else:
        assert (moved := quarantine(artefact, damage)) is not None
        assert moved.is_symlink()
    assert (elsewhere / "file").read_text() == "inside"


def test_links_to_an_artefact_and_within_it_are_followed(artefact: Path, tmp_path: Path) -> None:
    (artefact / "sub" / "file").rename(artefact / "moved")
    (artefact / "sub" / "file").symlink_to("../moved")
    (tmp_path / "link").symlink_to(artefact)
    assert not find_damage(tmp_path / "link", read_manifest(tmp_path / "link"))
    assert inside(tmp_path / "link", "sub/file").read_text() == "inside"


def test_quarantine_moves_nothing_from_elsewhere_and_leads_nowhere_else(artefact, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (artefact / "quarantine").symlink_to(tmp_path / "elsewhere")
    for name in ("../outside", "/etc/passwd", "sub/../../outside", "sub/file"):
        with pytest.raises(CorruptArtefactError):
            quarantine(artefact, Damage(name, "whatever"))
    assert (tmp_path / "outside").read_text() == "secret"
    assert not any((tmp_path / "elsewhere").iterdir())


def test_records_of_shards_adopt_nothing_from_elsewhere(artefact: Path, tmp_path: Path) -> None:
    digest, size_bytes = hash_file(tmp_path / "outside")
    (artefact / "sub" / "link").symlink_to(tmp_path / "outside")
    (artefact / SHARD_RECORDS.directory_name).mkdir()
    for number, name in enumerate(["../outside", str(tmp_path / "outside"), "sub/link"]):
        entry = {"path": name, "size_bytes": size_bytes, "xxh3_128": digest}
        record = {"identity": f"shard {number}", "entry": entry, "stats": {}, "rejects": []}
        SHARD_RECORDS.path(artefact, f"{number}").write_bytes(orjson.dumps(seal(record)))
    assert [record.entry.path for record in SHARD_RECORDS.read_all(artefact)] == ["sub/link"]
    shards = {f"shard-{number}": f"shard {number}" for number in range(3)}
    assert SHARD_RECORDS.adopt(artefact, tmp_path / "new", shards) == 0
    assert not [path for path in (tmp_path / "new").rglob("shard-*") if path.is_file()]


@pytest.mark.parametrize(
    "name", ["../../outside", "/tmp/outside-of-cloze", "deepspeed/../../../outside", "linked/planted"]
)
def test_a_remote_checkpoint_writes_nothing_outside_of_its_copy(tmp_path, monkeypatch, name):
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    store: Any = open_store(f"memory://{tmp_path.name}-{abs(hash(name))}", "run")
    write_files(store, state_at(10), {"planted": b"x" * 6})
    (tmp_path / "elsewhere").mkdir()
    remote = Remote.open(store.place(10))
    filesystem, place = remote.filesystem, remote.root

    def rename(contents: dict[str, Any]) -> None:
        next(one for one in contents["files"] if one["path"] == "planted")["path"] = name

    manifest = f"{place}/{MANIFEST_NAME}"
    filesystem.pipe_file(manifest, forged(filesystem.cat_file(manifest), rename))
    filesystem.pipe_file(os.path.normpath(f"{place}/{name}"), b"x" * 6)
    with suppress(CorruptArtefactError):
        (local_copy(store.at(10), only=[]) / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptArtefactError):
        store.fetch(10)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if path.read_bytes() == b"x" * 6]


@pytest.mark.parametrize("name", ["../../outside.arrow", "/etc/passwd", "link.arrow"])
def test_a_saved_data_set_names_only_files_of_its_own(tmp_path: Path, name: str) -> None:
    saved = tmp_path / "saved" / "train"
    saved.mkdir(parents=True)
    (tmp_path / "outside.arrow").write_text("secret")
    (saved / "link.arrow").symlink_to(tmp_path / "outside.arrow")
    (saved / "state.json").write_bytes(orjson.dumps({"_data_files": [{"filename": name}]}))
    config = HfDatasetsConfig(kind="hf_datasets", name="d", path=str(tmp_path / "saved"))
    with pytest.raises(CorruptArtefactError):
        config.list_files()


@pytest.mark.parametrize("make_odd", [os.mkfifo, Path.mkdir])
def test_only_regular_files_are_read(tmp_path: Path, make_odd: Callable[[Path], Any]):
    make_odd(tmp_path / MANIFEST_NAME)
    (tmp_path / "shard-records").mkdir()
    make_odd(tmp_path / "shard-records/a.json")
    for read in (hash_file, read_bytes):
        with pytest.raises(StorageError):
            read(tmp_path / MANIFEST_NAME)
    with pytest.raises(StorageError):
        SHARD_RECORDS.read_all(tmp_path)
    for look in (read_manifest, verify_preparation, TokenStore.open):
        with pytest.raises(ClozeError):
            look(tmp_path)


def test_a_file_that_may_not_be_read_is_not_told_as_damaged(artefact: Path, monkeypatch: pytest.MonkeyPatch):
    manifest, file = read_manifest(artefact), artefact / "sub/file"

    def refuse(path: Any, *_: Any, **__: Any) -> Any:
        # As for a user who is not root.
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("os.open", "pyarrow.memory_map", "data_prep.selection.pq.read_table"):
        monkeypatch.setattr(name, refuse)
    for read in (
        lambda: read_manifest(artefact),
        lambda: find_damage(artefact, manifest),
        lambda: map_batches(file),
        lambda: load_selection(file),
    ):
        with pytest.raises(StorageError):
            read()
    with pytest.raises(StorageError), contents_of(file):
        refuse(file)
    # Too little memory is no damage of the file.
    with pytest.raises(MemoryError), contents_of(file):
        raise MemoryError


def test_an_error_of_the_file_system_that_nobody_explained_ends_a_verb_as_documented(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.commands.verbs.app", (tmp_path / "no" / "such").read_bytes)
    assert cli.run_verb() == StorageError.exit_code


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert cli.run_verb() == 11

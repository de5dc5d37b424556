"""Names in manifests and records lead to files of their own artefact, also if an attacker wrote them."""

import os
import string
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    hash_file,
    read_manifest,
    seal,
)
from cluster.artefacts.reading import confined_name, inside
from cluster.artefacts.shard_records import SHARD_RECORDS
from cluster.artefacts.storage import Damage, find_damage, open_artefact, quarantine
from data_prep.sources.hf_datasets import HfDatasetsConfig
from data_prep.verify import examine
from pipeline.checkpoint.object_store import ObjectStore
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
    files = [
        {"path": name, "size_bytes": 6, "xxh3_128": "0" * 32, "rows": None, "tokens": None} for name in names
    ]
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


@pytest.mark.parametrize("name", [*OUTSIDE, MANIFEST_NAME])
def test_a_manifest_that_names_files_elsewhere_is_refused_when_it_is_read(artefact: Path, name: str) -> None:
    name_files(artefact, name)
    with pytest.raises(CorruptArtefactError):
        read_manifest(artefact)
    (health,) = examine(artefact)
    shown = str(health.damages)
    assert hash_file(artefact.parent / "outside")[0] not in shown


def test_a_manifest_names_no_file_twice(artefact: Path) -> None:
    name_files(artefact, "sub/file", "sub/file")
    with pytest.raises(CorruptArtefactError, match="twice"):
        read_manifest(artefact)


@pytest.mark.parametrize("linked", ["sub/file", "sub"])
def test_a_link_that_leads_out_is_damage_and_is_never_followed(
    artefact: Path, tmp_path: Path, linked: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (artefact / "sub").rename(elsewhere)
    if linked == "sub/file":
        (artefact / "sub").mkdir()
    (artefact / linked).symlink_to(elsewhere / linked.removeprefix("sub").removeprefix("/"))
    manifest = read_manifest(artefact)
    (damage,) = find_damage(artefact, manifest)
    assert damage.reason == "a link that leads out of the artefact"
    with pytest.raises(CorruptArtefactError, match="leads out"):
        open_artefact(artefact)
    with pytest.raises(CorruptArtefactError, match="leads out"):
        manifest.files[0].under(artefact)
    if linked == "sub":
        with pytest.raises(CorruptArtefactError, match="leads out"):
            quarantine(artefact, damage)
    else:
        moved = quarantine(artefact, damage)
        assert moved is not None
        assert moved.is_symlink()
    assert (elsewhere / "file").read_text() == "inside"


def test_links_to_an_artefact_and_within_it_are_followed(artefact: Path, tmp_path: Path) -> None:
    (artefact / "sub" / "file").rename(artefact / "moved")
    (artefact / "sub" / "file").symlink_to("../moved")
    (tmp_path / "link").symlink_to(artefact)
    assert not find_damage(tmp_path / "link", read_manifest(tmp_path / "link"))
    assert inside(tmp_path / "link", "sub/file").read_text() == "inside"


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/../../outside"])
def test_quarantine_moves_nothing_from_elsewhere(artefact: Path, name: str) -> None:
    with pytest.raises(CorruptArtefactError):
        quarantine(artefact, Damage(name, "whatever"))
    assert (artefact.parent / "outside").read_text() == "secret"


def test_quarantine_itself_leads_nowhere_else(artefact: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (artefact / "quarantine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptArtefactError):
        quarantine(artefact, Damage("sub/file", "whatever"))
    assert not any((tmp_path / "elsewhere").iterdir())


def test_records_of_shards_adopt_nothing_from_elsewhere(artefact: Path, tmp_path: Path) -> None:
    digest, size_bytes = hash_file(tmp_path / "outside")
    (artefact / "sub" / "link").symlink_to(tmp_path / "outside")
    (artefact / SHARD_RECORDS.directory_name).mkdir()
    for number, name in enumerate(["../outside", str(tmp_path / "outside"), "sub/link"]):
        record: dict[str, Any] = {
            "identity": f"shard {number}",
            "entry": {"path": name, "size_bytes": size_bytes, "xxh3_128": digest},
            "stats": {},
            "rejects": [],
        }
        SHARD_RECORDS.path(artefact, f"{number}").write_bytes(orjson.dumps(seal(record)))
    assert [record.entry.path for record in SHARD_RECORDS.read_all(artefact)] == ["sub/link"]
    shards = {f"shard-{number}": f"shard {number}" for number in range(3)}
    assert SHARD_RECORDS.adopt(artefact, tmp_path / "new", shards) == 0
    assert not [path for path in (tmp_path / "new").rglob("shard-*") if path.is_file()]


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside-of-cloze", "deepspeed/../../../outside"])
def test_a_remote_checkpoint_writes_nothing_outside_of_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    store = open_store(f"memory://{tmp_path.name}-{abs(hash(name))}", "run")
    write_files(store, state_at(10), {"planted": b"x" * 6})
    assert isinstance(store, ObjectStore)
    filesystem: Any = store.remote.filesystem
    place = f"{store.remote.root}/step-00000010"

    def rename(contents: dict[str, Any]) -> None:
        next(one for one in contents["files"] if one["path"] == "planted")["path"] = name

    manifest = f"{place}/{MANIFEST_NAME}"
    filesystem.pipe_file(manifest, forged(filesystem.cat_file(manifest), rename))
    filesystem.pipe_file(os.path.normpath(f"{place}/{name}"), b"x" * 6)
    with pytest.raises(CorruptArtefactError):
        store.fetch(10)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_copy_of_a_remote_checkpoint_is_not_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    remote = open_store(f"memory://{tmp_path.name}-link", "run")
    write_files(remote, state_at(10), {"deepspeed/planted": b"x" * 6})
    (tmp_path / "elsewhere").mkdir()
    remote.local(10).mkdir(parents=True)
    (remote.local(10) / "deepspeed").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptArtefactError, match="leads out"):
        remote.fetch(10)
    assert not any((tmp_path / "elsewhere").iterdir())


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

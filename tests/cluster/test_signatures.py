"""Signed artefacts are read, and nothing of another maker, and nothing changed."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import xxhash

from cluster.artefacts.errors import (
    ConfigError,
    CorruptArtefactError,
    MissingInputError,
    UntrustedArtefactError,
)
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    hash_json,
    read_manifest,
    seal,
    sha256_of,
    signed_bytes,
    unseal,
)
from cluster.artefacts.seals import SeenFiles, has_seal, write_seal
from cluster.artefacts.shard_records import SHARD_RECORDS, ShardRecord
from cluster.artefacts.signatures import KEY_VARIABLE, PUBLIC_SUFFIX, TRUST_VARIABLE, make_keys, sign
from cluster.artefacts.storage import difference, open_artefact, staging_directory
from cluster.shards import Shard, build_sharded_artefact
from data_prep.tokenizers.pretrained import find_tokenizer
from tests.cluster.materials import make
from tests.pipeline.command import cloze, invoke


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of keys: this process signs, and trusts its own key."""
    private, _ = make_keys(tmp_path / "keys", "team")
    monkeypatch.setenv(KEY_VARIABLE, str(private))
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "keys"))
    return tmp_path / "keys"


@pytest.fixture
def artefact(team: Path, tmp_path: Path) -> Path:
    """An artefact that the team signed."""
    return made(tmp_path / "artefact")


def made(directory: Path, text: str = "tokens") -> Path:
    return make(directory, {"data": text.encode()})


def unsigned(directory: Path) -> Path:
    """An artefact of a process that neither signs nor trusts."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in (KEY_VARIABLE, TRUST_VARIABLE):
            patch.delenv(variable)
        return made(directory)


def contents_of(artefact: Path) -> Any:
    return unseal(orjson.loads((artefact / MANIFEST_NAME).read_bytes()))


def test_signed_artefact_is_read_with_the_fingerprint_of_an_unsigned_one_which_is_refused(artefact, tmp_path):
    manifest, plain = open_artefact(artefact), unsigned(tmp_path / "unsigned")
    assert manifest.files[0].sha256 == sha256_of(artefact / "data")
    assert read_manifest(plain, anyone=True).fingerprint == manifest.fingerprint
    stored = orjson.loads((plain / MANIFEST_NAME).read_bytes())
    assert "signature" not in stored
    assert set(stored["files"][0]) == {"path", "size_bytes", "xxh3_128", "rows", "tokens"}
    with pytest.raises(UntrustedArtefactError):
        open_artefact(plain)


def test_artefact_of_another_key_is_refused(team: Path, artefact: Path):
    (team / f"team{PUBLIC_SUFFIX}").unlink()
    make_keys(team, "others")
    with pytest.raises(UntrustedArtefactError, match=r"others\.pub"):
        open_artefact(artefact)


def test_forged_file_with_the_same_xxh3_is_found_and_no_cache_of_hashed_files_vouches_for_it(artefact: Path):
    """An entry whose xxh3_128 fits stands for the collision that a forger can compute."""
    path, seen = artefact / "data", SeenFiles()
    (entry,) = read_manifest(artefact).files
    seen.add(path, entry.xxh3_128, path.stat())
    assert not seen.has(path, entry.sha256 or "")
    path.write_text("forged")
    assert "SHA-256" in difference(path, replace(entry, xxh3_128=xxhash.xxh3_128_hexdigest(b"forged")))


def with_other_numbers(artefact: Path) -> Any:
    return contents_of(artefact) | {"stats": {"tokens": 7}}


def with_the_signature_of_another(artefact: Path) -> Any:
    other = made(artefact.with_name("other"), "others' tokens")
    return contents_of(artefact) | {"signature": contents_of(other)["signature"]}


def without_sha256(artefact: Path) -> Any:
    """It would leave files to a hash that a forger can meet; only a buggy or hostile signer makes one."""
    manifest = read_manifest(artefact)
    files = tuple(replace(one, sha256=None) for one in manifest.files)
    bare = manifest.model_copy(update={"files": files, "signature": None})
    return bare.model_copy(update={"signature": sign(signed_bytes(bare))}).model_dump(mode="json")


@pytest.mark.parametrize(
    ("forge", "error", "message"),
    [
        (with_other_numbers, UntrustedArtefactError, r"team\.pub signed"),
        (with_the_signature_of_another, UntrustedArtefactError, r"team\.pub signed"),
        (without_sha256, CorruptArtefactError, "SHA-256"),
    ],
)
def test_forged_manifest_is_refused_though_its_checksums_fit(artefact, forge, error, message):
    (artefact / MANIFEST_NAME).write_bytes(orjson.dumps(seal(forge(artefact))))
    with pytest.raises(error, match=message):
        read_manifest(artefact)


def test_keys_that_are_missing_or_that_others_can_read_are_told_and_who_only_reads_makes_nothing(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (team / "team.pem").chmod(0o644)
    with pytest.raises(ConfigError, match=r"team\.pem"):
        made(tmp_path / "open")
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "gone.pem"))
    with pytest.raises(MissingInputError, match=r"gone\.pem"):
        made(tmp_path / "one")
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(UntrustedArtefactError):
        made(tmp_path / "two")
    assert not [name for name in ("open", "one", "two") if (tmp_path / name).exists()]
    monkeypatch.delenv(TRUST_VARIABLE)
    artefact = made(tmp_path / "three")
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path))
    with pytest.raises(MissingInputError):
        open_artefact(artefact)


@pytest.mark.parametrize("name", ["../../x", "a/b", "", ".."])
def test_keys_are_written_where_they_were_asked_for(tmp_path: Path, name: str):
    with pytest.raises(ConfigError):
        make_keys(tmp_path / "keys/inner", name)
    assert not list(tmp_path.iterdir())


def test_keys_of_openssl_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    private, public = tmp_path / "o.pem", tmp_path / "o.pub"
    private.touch(mode=0o600)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    monkeypatch.setenv(KEY_VARIABLE, str(private))
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path))
    assert open_artefact(made(tmp_path / "artefact")).signature is not None


def test_artefact_is_signed_later_by_a_command_unless_it_is_damaged(team, tmp_path, monkeypatch):
    artefact = unsigned(tmp_path / "artefact")
    before = read_manifest(artefact, anyone=True)
    with monkeypatch.context() as patch:
        patch.delenv(KEY_VARIABLE)
        assert isinstance(invoke("sign", artefact).exception, ConfigError)
    cloze("sign", artefact)
    assert open_artefact(artefact).fingerprint == before.fingerprint
    (artefact / "data").write_text("damage")
    assert isinstance(invoke("sign", artefact).exception, CorruptArtefactError)


PARTS = {"part": "identity"}


def write_part(directory: Path) -> list[str]:
    """Finish the part, as this process does; returns the names of the parts that may be continued from."""
    SHARD_RECORDS.open(directory)
    (directory / "part").write_text("text")
    entry = FileEntry.of(directory / "part", "part")
    SHARD_RECORDS.write(directory, ShardRecord(identity=PARTS["part"], entry=entry, stats={}, rejects=()))
    return [*SHARD_RECORDS.finished(directory, PARTS)]


@pytest.mark.parametrize("asked", [KEY_VARIABLE, TRUST_VARIABLE])
def test_work_in_progress_of_others_is_made_anew(team, tmp_path, monkeypatch, asked):
    value = os.environ[asked]
    for variable in (KEY_VARIABLE, TRUST_VARIABLE):
        monkeypatch.delenv(variable)
    assert write_part(tmp_path / "planted") == ["part"]
    write_seal(tmp_path / "planted/part")
    monkeypatch.setenv(asked, value)
    assert not SHARD_RECORDS.finished(tmp_path / "planted", PARTS)
    assert not SHARD_RECORDS.adopt(tmp_path / "planted", tmp_path / "adopting", PARTS)
    assert not has_seal(tmp_path / "planted/part")
    if asked == KEY_VARIABLE:
        assert write_part(tmp_path / "own") == ["part"]
        assert SHARD_RECORDS.adopt(tmp_path / "own", tmp_path / "adopting", PARTS)
        write_seal(tmp_path / "own/part")
        assert has_seal(tmp_path / "own/part")
        # A forger can make a file with the same xxh3_128.
        digest = xxhash.xxh3_128_hexdigest(b"text")
        monkeypatch.setattr("cluster.artefacts.storage.hash_file", lambda path: (digest, 4))
        (tmp_path / "own/part").write_text("evil")
        assert not SHARD_RECORDS.finished(tmp_path / "own", PARTS)
        assert not has_seal(tmp_path / "own/part")


def test_a_planted_file_does_not_become_part_of_an_artefact(tmp_path: Path):
    shard = Shard("part", lambda: pytest.fail("the part is there"), "identity")
    staging = staging_directory(tmp_path / "made", hash_json(["kind", {}, [], ["identity"]]))
    staging.mkdir()
    write_part(staging)
    (staging / "planted.json").touch()
    manifest = build_sharded_artefact(tmp_path / "made", "kind", shards=[shard], config={}, inputs=[])
    assert [entry.path for entry in manifest.files] == ["part"]


def test_a_tokenizer_is_a_file_of_a_signed_artefact(team: Path, tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UntrustedArtefactError):
        find_tokenizer(tmp_path)
    file = make(tmp_path / "t", {"tokenizer.json": b"{}"}, "tokenizer") / "tokenizer.json"
    assert find_tokenizer(tmp_path / "t").files == (file,)
    file.write_text("[]")
    with pytest.raises(CorruptArtefactError):
        find_tokenizer(file)

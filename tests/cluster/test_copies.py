"""Copies of artefacts in an object store: the bytes of the store, fetched once, shared by processes, and bounded."""

import contextlib
import os
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import s3fs

from cluster.artefacts import remote
from cluster.artefacts.errors import (
    ConfigError,
    CorruptArtefactError,
    MissingInputError,
    StorageError,
    UntrustedArtefactError,
)
from cluster.artefacts.manifest import MANIFEST_NAME
from cluster.artefacts.places import as_place
from cluster.artefacts.signatures import TRUST_VARIABLE, make_keys
from cluster.artefacts.storage import open_artefact
from cluster.copies import (
    SIZE_VARIABLE,
    beside,
    committed_at,
    is_on_this_machine,
    is_there,
    local_copy,
    place_of,
    release,
)
from cluster.publication import pull, push
from tests.cluster.materials import FILES, SIZE_BYTES, claim_a_huge_file, forged, make
from tests.object_store import Proxy, flip_byte, killed_at_the_second_file
from tests.surroundings import serving


def in_process(program: str, *arguments: object, wait: bool = True) -> subprocess.Popen[str]:
    """Run a program that has `local_copy` and `arguments`."""
    start = "import sys\nfrom cluster.copies import local_copy\narguments = sys.argv[1:]\n"
    command = [sys.executable, "-c", start + program, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if wait:
        assert process.wait() == 0
    return process


@pytest.fixture
def tokens(uri: str, tmp_path: Path) -> Path:
    """An artefact that was pushed to the place of the test."""
    push(make(tmp_path / "tokens"), uri)
    return tmp_path / "tokens"


def test_copy_has_the_bytes_of_the_store_and_is_fetched_once(uri: str, tmp_path: Path, proxy: Proxy):
    push(make(tmp_path / "tokens"), f"{uri}/tokens")
    assert is_there(f"{uri}/tokens")
    assert not is_on_this_machine(f"{uri}/tokens")
    copies = [local_copy(f"{uri}/tokens", kind="tokens") for _ in range(3)]
    assert {copy.name for copy in copies} == {"tokens"}
    assert open_artefact(copies[0]) == open_artefact(tmp_path / "tokens")
    assert {name: (copies[0] / name).read_bytes() for name in FILES} == FILES
    assert proxy.count("GET", "tokens/a.bin") == 1
    assert is_on_this_machine(f"{uri}/tokens")
    assert place_of(copies[0]) == f"{uri}/tokens"
    assert beside(copies[0], "documents") == f"{uri}/documents"
    assert place_of(tmp_path / "tokens") == str(tmp_path / "tokens")


def test_only_the_files_that_are_asked_for_are_fetched(uri, tokens, proxy):
    copy = local_copy(uri, only=["inner/b.bin"])
    assert {path.name for path in copy.rglob("*") if path.is_file()} == {MANIFEST_NAME, "b.bin"}
    with pytest.raises(CorruptArtefactError):
        open_artefact(copy)
    open_artefact(local_copy(uri))
    assert proxy.count("GET", "b.bin") == 1


def test_artefact_that_was_replaced_in_the_store_is_noticed(uri: str, tmp_path: Path):
    copies = []
    for name in (b"one", b"other"):
        push(make(tmp_path / name.decode(), {"a.bin": name}), uri, replace=True)
        copies.append(local_copy(uri))
    assert [(copy / "a.bin").read_bytes() for copy in copies] == [b"one", b"other"]


def test_damaged_copy_is_repaired_and_of_damage_in_the_store_nothing_is_kept(uri, tokens, tmp_path):
    copy = local_copy(uri)
    (copy / "a.bin").write_bytes(b"x" * 3000)
    (copy / "inner/b.bin").unlink()
    open_artefact(local_copy(uri))
    flip_byte(f"{uri}/a.bin")
    s3fs.S3FileSystem().rm_file(f"{uri}/inner/b.bin")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CorruptArtefactError) as caught:
        local_copy(uri)
    told = ("a.bin: xxh3_128 is", "inner/b.bin: missing", f"cloze push DIRECTORY {uri} --again")
    assert [text for text in told if text not in str(caught.value)] == []
    kept = {path.name for path in (tmp_path / "cache").rglob("*")}
    assert not [name for name in kept if name == MANIFEST_NAME or name.endswith((".bin", ".tmp"))]
    push(tokens, uri, again=True)
    open_artefact(local_copy(uri))


def test_processes_of_a_machine_share_one_copy(uri, tokens, proxy):
    proxy.requests.clear()
    running = [in_process("print(local_copy(arguments[0]))", uri, wait=False) for _ in range(4)]
    found = {process.communicate()[0] for process in running}
    assert len(found) == 1
    assert proxy.count("GET", "a.bin") == proxy.count("GET", "b.bin") == 1
    assert proxy.count("GET", MANIFEST_NAME) == 4


def test_fetch_that_was_killed_is_continued(uri, tokens, tmp_path, proxy):
    with killed_at_the_second_file(proxy, "GET") as ready:
        process = in_process("local_copy(arguments[0])", uri, wait=False)
        ready(process, lambda: bool(list((tmp_path / "cache").rglob("a.bin"))))
    assert not list((tmp_path / "cache").rglob(MANIFEST_NAME))
    proxy.requests.clear()
    open_artefact(local_copy(uri))
    assert proxy.count("GET", "a.bin") == 0
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_copy_that_was_used_longest_ago_makes_room_unless_a_process_uses_it(uri, tmp_path, monkeypatch):
    for number in range(4):
        push(make(tmp_path / f"{number}", {"data": bytes([number]) * SIZE_BYTES}), f"{uri}/{number}")
    monkeypatch.setenv(SIZE_VARIABLE, "11KB")
    used = in_process("local_copy(arguments[0])\nprint('ready', flush=True)\ninput()", f"{uri}/0", wait=False)
    assert used.stdout is not None
    assert used.stdout.readline() == "ready\n"
    in_process("local_copy(arguments[0])", f"{uri}/1")

    def kept() -> set[str]:
        return {path.parent.name for path in (tmp_path / "cache").rglob(MANIFEST_NAME)}

    assert kept() == {"0", "1"}
    in_process("local_copy(arguments[0])", f"{uri}/2")
    assert kept() == {"0", "2"}
    local_copy(f"{uri}/2")
    with pytest.raises(StorageError, match=SIZE_VARIABLE):
        local_copy(f"{uri}/3")
    used.communicate("end\n")
    copy = local_copy(f"{uri}/3")
    assert kept() == {"2", "3"}
    # What this process does not read any more makes room; what is no copy is left alone.
    for directory in (copy, tmp_path):
        release(directory)
    open_artefact(local_copy(f"{uri}/0"))
    assert kept() == {"0", "2"}


def test_artefact_that_is_larger_than_the_cache_is_refused_with_both_sizes(uri, tokens, monkeypatch, proxy):
    monkeypatch.setenv(SIZE_VARIABLE, "4 kB")
    with pytest.raises(StorageError, match=r"4\.9KiB, .*3\.9KiB"):
        local_copy(uri)
    assert proxy.count("GET", "a.bin") == 0
    monkeypatch.setenv(SIZE_VARIABLE, "1,000GB")
    with pytest.raises(ConfigError, match=SIZE_VARIABLE):
        local_copy(uri)
    # More than is free.
    claim_a_huge_file(uri)
    monkeypatch.setenv(SIZE_VARIABLE, "9000PB")
    with pytest.raises(StorageError, match=r"1\.0EiB"):
        local_copy(uri)


def test_object_that_is_larger_than_its_manifest_says_takes_no_more_room(uri, tokens, monkeypatch):
    received: list[int] = []
    read = s3fs.core.S3File.read

    def counted(self: s3fs.core.S3File, length: int = -1) -> bytes:
        block = read(self, length)
        received.append(len(block))
        return block

    monkeypatch.setattr(s3fs.core.S3File, "read", counted)
    for size_bytes in (40_000_000, 10):
        s3fs.S3FileSystem().pipe_file(f"{uri}/a.bin", b"a" * size_bytes)
        with pytest.raises(CorruptArtefactError, match=r"a\.bin.* 3000"):
            local_copy(uri)
    assert 0 < sum(received) < 20_000_000


@pytest.mark.parametrize(
    "fields", [{"size_bytes": -(1 << 60)}, {"path": "/".join(["a" * 200] * 30)}, {"path": "../../outside"}]
)
def test_manifest_with_impossible_files_is_refused(uri: str, tmp_path: Path, fields: dict[str, Any]):
    directory = make(tmp_path / "tokens")
    push(directory, uri)
    manifest = (directory / MANIFEST_NAME).read_bytes()
    changed = forged(manifest, lambda contents: contents["files"][0].update(fields))
    s3fs.S3FileSystem().pipe_file(f"{uri}/{MANIFEST_NAME}", changed)
    for read in (local_copy, lambda place: pull(place, tmp_path / "back")):
        with pytest.raises(CorruptArtefactError, match=MANIFEST_NAME):
            read(uri)


def test_damaged_note_of_a_copy_stops_no_other(uri: str, tmp_path: Path):
    for name in ("one", "two"):
        push(make(tmp_path / name, {"data": name.encode()}), f"{uri}/{name}")
    copy = local_copy(f"{uri}/one")
    for damaged in (b"[]", b'{"uri": "s3://x"}', b'{"uri": "s3://x", "size_bytes": "much"}', b"\xff"):
        (copy.parent / "origin.json").write_bytes(damaged)
        assert place_of(copy) == str(copy)
        shutil.rmtree(local_copy(f"{uri}/two"))
        open_artefact(local_copy(f"{uri}/two"))


@pytest.mark.parametrize("place", ["s3://", "s3:///", "s3:///corpus/tokens", "gs:///corpus", "memory://"])
def test_uri_without_a_bucket_is_no_path_either(place: str):
    with pytest.raises(ConfigError, match="s3://bucket/corpus"):
        as_place(place)


def test_places_without_an_artefact_and_other_kinds_are_refused_before_anything_is_fetched(uri, tmp_path):
    for place in (uri, "s3://no-such-bucket/tokens"):
        with pytest.raises(MissingInputError, match=place):
            local_copy(place)
    push(make(tmp_path / "documents", kind="documents"), f"{uri}/documents")
    with pytest.raises(MissingInputError, match=r"`documents`.*`tokens`"):
        local_copy(f"{uri}/documents", kind="tokens")
    assert not list((tmp_path / "cache").rglob("*.bin"))
    assert committed_at(uri, "documents") == f"{uri}/documents"
    with pytest.raises(MissingInputError, match="nosuch://place/tokens"):
        local_copy("nosuch://place/tokens")


def test_artefact_without_files_is_copied_and_an_unsigned_one_refused_where_signatures_are_asked_for(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    push(make(tmp_path / "nothing", {}), uri)
    assert open_artefact(local_copy(uri)).files == ()
    private, _ = make_keys(tmp_path / "keys", "team")
    monkeypatch.setenv(TRUST_VARIABLE, str(private.parent))
    with pytest.raises(UntrustedArtefactError, match=f"{uri}/{MANIFEST_NAME}"):
        local_copy(uri)


class Served(SimpleHTTPRequestHandler):
    def list_directory(self, path: Any) -> None:
        self.send_error(404)


class Endless(Served):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b" " * (1 << 16))


def test_web_server_is_read_without_listings_or_ranges_and_its_password_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    make(tmp_path / "served" / "tokens", {"big.bin": os.urandom(3 << 20), "inner/small": b"s"})
    with serving(partial(Served, directory=str(tmp_path / "served"))) as host:
        copy = local_copy(f"http://user:planted@{host}/tokens")
        assert place_of(copy) == f"http://{host}/tokens"
    assert open_artefact(copy) == open_artefact(tmp_path / "served" / "tokens")
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not any(b"planted" in path.read_bytes() for path in kept)


def test_manifest_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "SMALL_BYTES", 1 << 24)
    with serving(Endless) as host, pytest.raises(StorageError, match="16 MiB"):
        local_copy(f"http://{host}/tokens")

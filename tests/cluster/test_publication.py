"""Artefacts copied to an object store and back: complete or not at all, resumable, never twice, never over others."""

import itertools
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import s3fs
from pydantic import TypeAdapter

from cluster import publication
from cluster.artefacts import remote
from cluster.artefacts.errors import ConfigError, CorruptArtefactError, MissingInputError, StorageError
from cluster.artefacts.manifest import MANIFEST_NAME
from cluster.artefacts.places import UriSetting, as_place
from cluster.artefacts.remote import Remote
from cluster.artefacts.storage import open_artefact
from cluster.copies import is_there, local_copy, manifest_at
from cluster.publication import find_published, pull, push
from tests.cluster.materials import FILES, SIZE_BYTES, claim_a_huge_file, make
from tests.object_store import Proxy, flip_byte, killed_at_the_second_file, objects
from tests.pipeline.command import invoke


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    """An artefact with a record beside its files."""
    directory = make(tmp_path / "made" / "tokens")
    (directory / "shard-records").mkdir()
    (directory / "shard-records" / "a.json").write_text("{}")
    return directory


def files_of(directory: Path) -> dict[str, bytes]:
    files = filter(Path.is_file, directory.rglob("*"))
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def test_artefact_comes_back_as_it_went_with_the_records_beside_it_and_is_copied_once(
    uri: str, tmp_path: Path, artefact: Path, proxy: Proxy
):
    place, back = f"{uri}/tokens", tmp_path / "back"
    copied = push(artefact, place)
    assert (copied.size_bytes, copied.copied_bytes) == (SIZE_BYTES, SIZE_BYTES + 2)
    assert find_published(uri) == ["tokens"]
    # What the store holds besides is not pulled.
    for name in ("config.json", "a.py", "deep/shard-records/b.json", "shard-records/b.sh", ".lock"):
        Remote.open(place).write(name, b"planted")
    pull(place, back)
    assert files_of(back) == files_of(artefact)
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []
    proxy.requests.clear()
    assert (push(artefact, place).copied_bytes, pull(place, back).copied_bytes) == (0, 0)
    assert {one.method for one in proxy.requests} <= {"GET", "HEAD"}
    assert proxy.count("GET", ".bin") == 0


def test_push_that_was_killed_is_no_artefact_and_is_continued(uri: str, artefact: Path, proxy: Proxy):
    push_first = "import sys; from pathlib import Path; from cluster.publication import push; "
    program = f"{push_first}push(Path(sys.argv[1]), sys.argv[2])"
    with killed_at_the_second_file(proxy, "PUT") as ready:
        process = subprocess.Popen([sys.executable, "-c", program, str(artefact), uri])
        ready(process, lambda: "a.bin" in objects(uri))
    assert not is_there(uri)
    with pytest.raises(MissingInputError):
        local_copy(uri)
    proxy.requests.clear()
    push(artefact, uri)
    assert proxy.count("PUT", "a.bin") == 0
    open_artefact(local_copy(uri))


class Killed(BaseException):
    """The process is gone."""


def test_push_killed_at_any_request_leaves_no_stale_file_of_equal_size_to_a_later_one(tmp_path, monkeypatch):
    names, place = ("a.bin", "b.bin", "c.bin"), "memory://killed/tokens"
    first, second = (
        make(tmp_path / word, {"same.bin": b"same", **{name: f"{word} {name}".encode() for name in names}})
        for word in ("one", "two")
    )
    store = Remote.open(place).filesystem

    def begin(directory: Path, requests: int, *, again: bool) -> int:
        """Push until so many requests were made that change the store; returns the number of those wanted besides."""
        left = [requests]
        with monkeypatch.context() as patch:
            for name in ("pipe_file", "put_file", "rm_file"):

                def change(*arguments: Any, original: Any = getattr(store, name), **options: Any) -> None:
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                    original(*arguments, **options)

                patch.setattr(store, name, change)
            with suppress(Killed):
                push(directory, place, replace=True, again=again)
        return max(0, -left[0])

    for begun, again in ((second, False), (first, True)):
        for later in (first, second):
            for requests in itertools.count(1):
                store.rm("/killed", recursive=True) if store.exists("/killed") else None
                push(first, place)
                for name in names if again else ():
                    store.pipe_file(f"/killed/tokens/{name}", f"bad {name}".encode())
                killed = begin(begun, requests, again=again)
                push(later, place, replace=True)
                found = {name: store.cat_file(f"/killed/tokens/{name}") for name in files_of(later)}
                assert found == files_of(later), (begun, later, requests)
                if not killed:
                    break


def test_another_artefact_is_replaced_only_when_that_is_wanted_and_equal_files_stay(
    uri: str, tmp_path: Path, artefact: Path, proxy: Proxy
):
    push(artefact, uri)
    other = make(tmp_path / "other", {"a.bin": FILES["a.bin"], "c.bin": b"c"})
    proxy.requests.clear()
    with pytest.raises(ConfigError):
        push(other, uri)
    assert proxy.count("PUT", "") == 0
    push(other, uri, replace=True)
    assert proxy.count("PUT", "a.bin") == 0
    assert [name for name in objects(uri) if name.endswith("bin")] == ["a.bin", "c.bin"]
    assert manifest_at(uri) == open_artefact(other)
    pull(uri, tmp_path / "back")
    with pytest.raises(ConfigError):
        pull(uri, artefact)
    pull(uri, artefact, replace=True)
    assert files_of(artefact) == files_of(tmp_path / "back") == files_of(other)


def test_pull_leaves_other_files_of_the_directory_alone(uri: str, tmp_path: Path, artefact: Path):
    push(artefact, uri)
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    pull(uri, home)
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError):
        pull(uri, other)
    assert files_of(other) == {"notes.txt": b"mine"}
    pull(uri, other, replace=True)
    assert files_of(tmp_path / "other.uncommitted") == {"notes.txt": b"mine"}
    assert files_of(other) == files_of(artefact) == files_of(home)


def test_names_in_the_store_lead_no_pull_out_of_its_directory(uri: str, tmp_path: Path, artefact: Path):
    push(artefact, f"{uri}/tokens")
    for name in ("../../outside", f"/{tmp_path}/outside"):
        for file, data in files_of(artefact).items():
            Remote.open(uri).write(f"{name}/{file}", data)
        done = invoke("pull", uri, tmp_path / "deep" / "back")
        assert isinstance(done.exception, CorruptArtefactError)
        assert {path.name for path in tmp_path.iterdir()} == {"made"}
        Remote.open(uri).remove([f"{name}/{file}" for file in files_of(artefact)])


def test_pull_that_has_no_room_or_records_without_end_is_refused(uri, tmp_path, artefact, monkeypatch):
    push(artefact, uri)
    monkeypatch.setattr(publication, "RECORD_BYTES", 1 << 10)
    Remote.open(uri).write("shard-records/long.json", bytes(1 << 11))
    with pytest.raises(StorageError):
        pull(uri, tmp_path / "back")
    claim_a_huge_file(uri)
    with pytest.raises(StorageError, match=r"1\.0EiB"):
        pull(uri, tmp_path / "back")


def test_verbs_say_what_is_unfinished_and_pull_into_the_working_directory_and_through_a_link(
    uri: str, tmp_path: Path, artefact: Path, monkeypatch: pytest.MonkeyPatch
):
    def run(*words: str) -> str:
        done = invoke(*words)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stderr

    (artefact.parent / ".documents.0123456789ab.partial").mkdir()
    assert "unfinished: documents" in run("push", str(artefact.parent), uri)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.chdir(tmp_path / "here")
    for target in (".", "../link"):
        run("pull", f"{uri}/tokens", target)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there") == files_of(artefact)
    assert (tmp_path / "link").is_symlink()


def test_what_an_earlier_pull_left_is_not_kept(uri, tmp_path, artefact, monkeypatch):
    push(artefact, uri)
    push(artefact, f"{uri}-of-others")
    Remote.open(f"{uri}-of-others").write("shard-records/planted.json", b"{}")
    Remote.open(uri).write("shard-records/", b"")
    with monkeypatch.context() as patch:
        patch.setattr(publication, "put_in_place", Mock(side_effect=StorageError("refused")))
        for place in (uri, f"{uri}-of-others"):
            with pytest.raises(StorageError):
                pull(place, tmp_path / "back")
    for staging in tmp_path.glob(".back.*.partial"):
        (staging / "inner/.b.bin.0a1b.tmp").write_bytes(b"half")
        (staging / "shard-records/planted.json").write_text("{}")
    pull(uri, tmp_path / "back")
    assert files_of(tmp_path / "back") == files_of(artefact)


@pytest.mark.parametrize(
    "odd", ["zip://x", "dir://x", "ftp://no.invalid/x", "github://a:b@c/x", "reference://x", "generic://x"]
)
def test_uris_that_no_store_is_made_from_are_told(odd: str):
    with pytest.raises((MissingInputError, StorageError, ConfigError)):
        manifest_at(as_place(odd))


def test_buckets_that_do_not_exist_and_web_servers_are_named(server: str, artefact: Path):
    bucket, web = "s3://no-such-bucket/corpus", f"{server}/corpus"
    for act, error, named in (
        (lambda: find_published(bucket), MissingInputError, bucket),
        (lambda: push(artefact, bucket), StorageError, bucket),
        (lambda: push(artefact, web), ConfigError, web),
        (lambda: TypeAdapter(UriSetting).validate_python(web), ValueError, server),
    ):
        with pytest.raises(error, match=named):
            act()


def test_push_deletes_what_an_earlier_artefact_had_and_nothing_else(uri: str, tmp_path: Path, artefact: Path):
    others = {"payroll.csv", "models/weights.bin", "x-records/a.json"}
    for name in others:
        Remote.open(uri).write(name, b"of others")
    push(artefact, uri)
    (artefact / "shard-records" / "a.json").rename(artefact / "shard-records" / "b.json")
    push(artefact, uri, again=True)
    assert "shard-records/a.json" not in objects(uri)
    push(make(tmp_path / "other", {"c.bin": b"c"}), uri, replace=True)
    assert set(objects(uri)) == {*others, "c.bin", MANIFEST_NAME, "arrived.json"}


def test_push_onto_a_place_with_other_artefacts_below_is_refused(uri: str, tmp_path: Path, artefact: Path):
    push(artefact, f"{uri}/corpus/tokens")
    before = objects(uri)
    for place in (uri, f"{uri}/corpus"):
        with pytest.raises(ConfigError, match=rf"{place}: .*tokens"):
            push(artefact, place)
    assert objects(uri) == before
    push(artefact, f"{uri}/corpus", replace=True)
    assert set(before) < set(objects(uri))


def test_artefact_that_is_replaced_while_it_is_read_is_not_called_damaged(
    uri: str, tmp_path: Path, artefact: Path, monkeypatch: pytest.MonkeyPatch
):
    push(artefact, uri)
    other = make(tmp_path / "other", {name: data[::-1] + b"!" for name, data in FILES.items()})
    download = Remote.download

    def replaced(self: Remote, *arguments: Any) -> Any:
        monkeypatch.setattr(Remote, "download", download)
        push(other, uri, replace=True)
        return download(self, *arguments)

    for read in (lambda: pull(uri, tmp_path / "back"), lambda: local_copy(uri)):
        monkeypatch.setattr(Remote, "download", replaced)
        with pytest.raises(StorageError, match=f"{uri} was replaced"):
            read()
        read()
        push(artefact, uri, replace=True)


def test_damage_is_not_pushed_and_that_in_the_store_named_by_a_pull_and_written_again_by_a_push(
    uri, tmp_path, artefact
):
    push(artefact, uri)
    flip_byte(f"{uri}/a.bin")
    with pytest.raises(CorruptArtefactError, match=r"a\.bin") as caught:
        pull(uri, tmp_path / "back")
    assert f"cloze push DIRECTORY {uri} --again" in caught.value.next_step
    assert not (tmp_path / "back").exists()
    push(artefact, uri, again=True)
    flip_byte(f"{uri}/{MANIFEST_NAME}", 40)
    with pytest.raises(CorruptArtefactError):
        manifest_at(uri)
    assert push(artefact, uri).copied_bytes == 0
    assert manifest_at(uri) == open_artefact(artefact)
    pull(uri, tmp_path / "back")
    (tmp_path / "back" / "a.bin").write_bytes(b"x" * 3000)
    with pytest.raises(CorruptArtefactError, match=r"a\.bin"):
        push(tmp_path / "back", f"{uri}/another")
    assert not [name for name in objects(uri) if name.startswith("another")]
    pull(uri, tmp_path / "back")
    open_artefact(tmp_path / "back")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients leave all repetitions to us, and we make them soon."""
    monkeypatch.setattr(remote, "PAUSES_S", (0.01,) * 8)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()


def test_store_that_drops_and_throttles_costs_time_and_no_byte(uri, tmp_path, proxy, hasty):
    files = {f"{number}.bin": bytes([number]) * 100_000 for number in range(8)}
    artefact = make(tmp_path / "tokens", files)
    # Every third request fails, each kind of fault in turn.
    proxy.fault = lambda number, request: ("slow_down", "", "", "reset", "", "", "lost", "", "")[number % 9]
    push(artefact, uri)
    open_artefact(local_copy(uri))
    pull(uri, tmp_path / "back")
    assert files_of(tmp_path / "back") == files_of(artefact)
    assert set(proxy.faults) == {"slow_down", "reset", "lost"}
    assert push(artefact, uri).copied_bytes == 0


def test_store_that_stays_down_is_named_after_every_attempt(uri, artefact, proxy, hasty):
    push(artefact, uri)
    proxy.fault = lambda number, request: "slow_down"
    with pytest.raises(StorageError, match=f"{uri}/{MANIFEST_NAME}"):
        manifest_at(uri)
    assert len(proxy.faults) == 9

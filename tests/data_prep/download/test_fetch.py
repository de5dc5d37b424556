"""A file arrives complete and right, whatever the server does, or the error says which file and why."""

import errno
import hashlib
import os
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from cluster.artefacts.errors import DownloadError, StorageError
from data_prep.download import directory as downloads
from data_prep.download import fetch as fetching
from data_prep.download.directory import download
from data_prep.download.fetch import RemoteFile
from data_prep.download.http import Http, Politeness
from data_prep.download.publishers import choose
from tests.data_prep.download.publisher import Answer

BODY = bytes(range(256)) * 40
"""10,240 bytes."""
PATH = "/dump/a.xml.bz2"


def remote(publisher, path=PATH, *, size=None, sha1=None, **more):
    name = path.rpartition("/")[2]
    return RemoteFile(publisher.url + path, name, size, "sha1" if sha1 else "", sha1 or "", **more)


def sha1(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def offered(publisher):
    publisher.files[PATH] = BODY
    publisher.tags[PATH] = '"first"'
    return publisher


def left_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {".lock", downloads.INDEX_NAME}


def test_a_file_arrives_and_the_second_call_asks_for_nothing(offered, http, tmp_path):
    file = remote(offered, size=len(BODY), sha1=sha1(BODY))
    first = download(http, [file], tmp_path)
    second = download(http, [file], tmp_path)
    assert (tmp_path / "a.xml.bz2").read_bytes() == BODY
    assert (first.num_fetched, second.num_fetched) == (1, 0)
    assert first.files == second.files
    assert first.files[0].checksum == sha1(BODY)
    assert offered.asked == [(PATH, None)]
    assert left_in(tmp_path) == {"a.xml.bz2"}


def test_without_published_checksum_one_is_recorded(offered, http, tmp_path):
    (found,) = download(http, [remote(offered)], tmp_path).files
    assert (found.algorithm, found.checksum) == ("sha256", hashlib.sha256(BODY).hexdigest())
    assert found.size_bytes == len(BODY)


@pytest.mark.parametrize(
    ("answers", "is_tagged", "has_checksum", "ranges"),
    [
        ([Answer(cut_at=3000), Answer(cut_at=1000)], True, False, [None, "bytes=3000-", "bytes=4000-"]),
        ([Answer(cut_at=3000), Answer(ignore_range=True)], True, False, [None, "bytes=3000-"]),
        ([Answer(cut_at=3000)], False, False, [None, None]),
        ([Answer(cut_at=3000)], False, True, [None, "bytes=3000-"]),
    ],
    ids=["continued", "ranges ignored", "versions not known", "checksum published"],
)
def test_dropped_connections_are_continued_where_the_version_is_known(
    offered, http, tmp_path, answers, is_tagged, has_checksum, ranges
):
    if not is_tagged:
        del offered.tags[PATH]
    offered.answers[PATH] = list(answers)
    download(http, [remote(offered, sha1=sha1(BODY) if has_checksum else None)], tmp_path)
    assert (tmp_path / "a.xml.bz2").read_bytes() == BODY
    assert offered.asked == [(PATH, each) for each in ranges]


def test_the_next_call_continues_what_the_last_one_left(offered, tmp_path):
    offered.answers[PATH] = [Answer(cut_at=3000)]
    once = Http(Politeness(attempts=1))
    with pytest.raises(DownloadError, match=r"a\.xml\.bz2 could not be downloaded"):
        download(once, [remote(offered)], tmp_path)
    assert (tmp_path / "a.xml.bz2.part").read_bytes() == BODY[:3000]
    download(once, [remote(offered)], tmp_path)
    assert offered.asked[-1] == (PATH, "bytes=3000-")
    assert (tmp_path / "a.xml.bz2").read_bytes() == BODY


def test_attempts_that_bring_much_are_not_counted(offered, http, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "FRUITFUL_BYTES", 500)
    offered.answers[PATH] = [Answer(cut_at=1000) for _ in range(9)]
    download(http, [remote(offered)], tmp_path)
    assert len(offered.asked) == 10
    assert (tmp_path / "a.xml.bz2").read_bytes() == BODY


@pytest.mark.parametrize("size", [9_000, 20_000, 2_000])
@pytest.mark.parametrize("ignore_if_range", [False, True])
def test_a_file_that_changed_meanwhile_is_fetched_from_its_start(
    offered, http, tmp_path, size, ignore_if_range
):
    offered.answers[PATH] = [Answer(cut_at=3000), Answer(ignore_if_range=ignore_if_range)]
    offered.changes[PATH] = b"x" * size
    download(http, [remote(offered)], tmp_path)
    assert (tmp_path / "a.xml.bz2").read_bytes() == b"x" * size


def test_a_wrong_checksum_is_tried_again_and_then_named(offered, http, tmp_path):
    file = remote(offered, sha1=sha1(b"other"))
    with pytest.raises(DownloadError) as caught:
        download(http, [file], tmp_path)
    assert caught.value.exit_code == 14
    for text in ("a.xml.bz2", sha1(b"other"), sha1(BODY)):
        assert text in str(caught.value)
    assert len(offered.asked) == 2
    assert left_in(tmp_path) == set()


def test_bytes_damaged_once_on_the_way_are_fetched_again(offered, http, tmp_path):
    offered.changes[PATH] = BODY
    offered.files[PATH] = BODY[:-1] + b"!"
    download(http, [remote(offered, sha1=sha1(BODY))], tmp_path)
    assert (tmp_path / "a.xml.bz2").read_bytes() == BODY


def test_another_size_than_published_is_named_before_it_is_fetched(offered, http, tmp_path):
    with pytest.raises(DownloadError, match=r"offers 10240 bytes, 10241 are published"):
        download(http, [remote(offered, size=10_241)], tmp_path)
    assert left_in(tmp_path) == set()


def test_a_body_shorter_than_its_length_is_never_taken_for_the_file(offered, http, tmp_path):
    offered.answers[PATH] = [Answer(length=20_000, cut_at=len(BODY)) for _ in range(9)]
    with pytest.raises(DownloadError, match="could not be downloaded"):
        download(http, [remote(offered)], tmp_path)
    assert "a.xml.bz2" not in left_in(tmp_path)


def test_a_body_without_end_needs_a_size_or_a_checksum(offered, http, tmp_path):
    offered.answers[PATH] = [Answer(no_length=True) for _ in range(3)]
    with pytest.raises(DownloadError, match="neither size nor checksum nor end"):
        download(http, [remote(offered)], tmp_path)
    download(http, [remote(offered, size=len(BODY))], tmp_path)
    assert (tmp_path / "a.xml.bz2").read_bytes() == BODY


@pytest.mark.parametrize("status", [429, 503])
def test_the_wait_that_a_server_asks_for_is_kept(offered, http, tmp_path, status):
    offered.answers[PATH] = [Answer(status, {"Retry-After": "1"})]
    started = time.monotonic()
    download(http, [remote(offered)], tmp_path)
    assert time.monotonic() - started >= 1
    assert (tmp_path / "a.xml.bz2").read_bytes() == BODY


def test_a_wait_until_a_date_is_kept_and_one_of_a_day_is_refused(offered, http, tmp_path):
    offered.answers[PATH] = [Answer(503, {"Retry-After": formatdate(time.time() - 5, usegmt=True)})]
    download(http, [remote(offered)], tmp_path)
    offered.answers[PATH] = [Answer(503, {"Retry-After": "86400"})]
    with pytest.raises(DownloadError, match="asks to wait 86400 s"):
        download(http, [remote(offered)], tmp_path / "later")


def test_a_server_that_stays_busy_is_given_up(offered, http, tmp_path):
    offered.answers[PATH] = [Answer(503) for _ in range(9)]
    with pytest.raises(DownloadError, match="503"):
        download(http, [remote(offered)], tmp_path)
    assert len(offered.asked) == http.politeness.attempts


def test_a_server_that_is_not_there_is_named(http, tmp_path):
    with pytest.raises(DownloadError, match=r"a\.xml could not be downloaded: ConnectionError"):
        download(http, [RemoteFile("http://127.0.0.1:9/a.xml", "a.xml")], tmp_path)


def test_refusals_are_not_repeated(offered, http, tmp_path):
    offered.answers[PATH] = [Answer(403)]
    with pytest.raises(DownloadError, match="403"):
        download(http, [remote(offered)], tmp_path)
    assert len(offered.asked) == 1


def test_one_missing_file_does_not_keep_the_others_away(offered, http, tmp_path):
    offered.files |= {"/b": b"bb", "/c": b"ccc"}
    files = [remote(offered, path) for path in ("/b", "/gone", "/c")]
    with pytest.raises(DownloadError, match="/gone answers 404"):
        download(http, files, tmp_path)
    assert left_in(tmp_path) == {"b", "c"}
    files[1] = remote(offered, "/gone", may_be_missing=True)
    found = download(http, files, tmp_path)
    assert [file.name for file in found.files] == ["b", "c"]
    assert (found.num_fetched, found.missing) == (0, ("gone",))


def test_all_files_that_failed_are_named(offered, http, tmp_path):
    files = [remote(offered, path) for path in ("/gone", PATH, "/lost")]
    with pytest.raises(DownloadError, match=r"2 of 3 files") as caught:
        download(http, files, tmp_path)
    assert "/gone" in str(caught.value)
    assert "/lost" in str(caught.value)


def test_no_more_connections_than_allowed(offered, http, tmp_path):
    offered.files |= {f"/{number}": BODY for number in range(20)}
    download(http, [remote(offered, f"/{number}") for number in range(20)], tmp_path)
    assert offered.most_busy <= http.politeness.connections
    assert len(left_in(tmp_path)) == 20


def test_requests_say_who_asks(offered, tmp_path):
    download(Http(Politeness(contact="me@example.org")), [remote(offered)], tmp_path)
    (agent,) = offered.agents
    assert agent.startswith("cloze/")
    assert agent.endswith("(me@example.org)")


def test_a_file_that_something_wrote_to_is_fetched_again(offered, http, tmp_path):
    file = remote(offered)
    download(http, [file], tmp_path)
    (tmp_path / "a.xml.bz2").write_bytes(BODY[::-1])
    assert download(http, [file], tmp_path).num_fetched == 1
    assert (tmp_path / "a.xml.bz2").read_bytes() == BODY


def test_verify_finds_what_sizes_and_times_hide(offered, http, tmp_path):
    file, path = remote(offered), tmp_path / "a.xml.bz2"
    download(http, [file], tmp_path)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(BODY[::-1])
    os.utime(path, ns=times)
    assert download(http, [file], tmp_path).num_fetched == 0
    assert download(http, [file], tmp_path, verify=True).num_fetched == 1


def test_a_file_whose_published_checksum_changed_is_fetched_again(offered, http, tmp_path):
    download(http, [remote(offered, sha1=sha1(BODY))], tmp_path)
    offered.files[PATH] = b"new"
    download(http, [remote(offered, sha1=sha1(b"new"))], tmp_path)
    assert (tmp_path / "a.xml.bz2").read_bytes() == b"new"


def test_a_file_that_lost_its_record_is_recognised_by_its_checksum(offered, http, tmp_path):
    file = remote(offered, sha1=sha1(BODY))
    download(http, [file], tmp_path)
    (tmp_path / downloads.INDEX_NAME).unlink()
    assert download(http, [file], tmp_path).num_fetched == 0


def test_a_full_disk_ends_with_a_storage_error_and_keeps_the_part(offered, http, tmp_path, monkeypatch):
    real = Path.open

    def full(self, mode="r", *rest, **more):
        if self.suffix == ".part" and mode == "r+b":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return real(self, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", full)
    offered.answers[PATH] = [Answer(cut_at=3000)]
    with pytest.raises(StorageError, match="No space left"):
        download(http, [remote(offered)], tmp_path)
    assert (tmp_path / "a.xml.bz2.part").stat().st_size == 3000


def test_a_disk_that_is_too_small_is_told_beforehand(offered, http, tmp_path):
    with pytest.raises(StorageError, match="are free"):
        download(http, [remote(offered, size=1 << 60)], tmp_path)
    assert offered.asked == []


def test_an_interrupt_ends_waiting_and_keeps_the_part(offered, http, tmp_path, monkeypatch):
    offered.answers[PATH] = [Answer(cut_at=3000), Answer(503, {"Retry-After": "600"})]

    def interrupt(*_, **__):
        while len(offered.asked) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "wait", interrupt)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        download(http, [remote(offered)], tmp_path)
    assert time.monotonic() - started < 300, "half of what the server asked to wait"
    assert (tmp_path / "a.xml.bz2.part").read_bytes() == BODY[:3000]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("download")]


def test_names_cannot_lead_out_of_the_directory():
    for name in ("../x", "a/b", "..", ""):
        with pytest.raises(DownloadError, match="no file name"):
            choose([RemoteFile("http://example.org/x", name)])


def test_files_are_chosen_by_pattern_and_number():
    files = [
        RemoteFile(f"http://example.org/{name}", name) for name in ("a1.xml", "b.txt", "a2.xml", "a3.xml")
    ]
    assert [file.name for file in choose(files, "a*.xml", 2)] == ["a1.xml", "a2.xml"]
    with pytest.raises(DownloadError, match=r"no file that matches \*\.zip"):
        choose(files, "*.zip")

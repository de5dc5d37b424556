"""A file that publishers list arrives complete and right, or the error says which file and why."""

import errno
import gzip
import hashlib
import json
import os
import re
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from cluster.artefacts.errors import DownloadError, StorageError
from data_prep.download import directory as downloads
from data_prep.download import fetch as fetching
from data_prep.download.directory import download
from data_prep.download.fetch import Http, RemoteFile
from data_prep.download.publishers import choose, list_common_crawl, list_gutenberg, list_wikipedia
from tests.data_prep import reading
from tests.data_prep.download.conftest import Answer
from tests.pipeline.command import cloze

BODY = bytes(range(256)) * 40
"""10,240 bytes."""
PATH = "/dump/a.xml.bz2"
NAME = "a.xml.bz2"


def remote(publisher, path=PATH, *, size=None, sha1=None, **more):
    return RemoteFile(
        publisher.url + path, path.rpartition("/")[2], size, "sha1" if sha1 else "", sha1 or "", **more
    )


def sha1(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def offered(publisher):
    publisher.files[PATH] = BODY
    publisher.tags[PATH] = '"first"'
    return publisher


@pytest.fixture
def fetch(offered, http, tmp_path):
    """Fetches the offered file, answered as said, and gives the bytes that arrived."""

    def run(*answers: Answer, **published) -> bytes:
        offered.answers[PATH] = list(answers)
        download(http, [remote(offered, **published)], tmp_path)
        return (tmp_path / NAME).read_bytes()

    return run


def left_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {".lock", downloads.INDEX_NAME}


def test_a_file_arrives_and_the_second_call_asks_for_nothing(offered, http, tmp_path):
    file = remote(offered, size=len(BODY), sha1=sha1(BODY))
    first, second = (download(http, [file], tmp_path) for _ in range(2))
    assert (tmp_path / NAME).read_bytes() == BODY
    assert (first.num_fetched, second.num_fetched) == (1, 0)
    assert first.files == second.files
    assert first.files[0].checksum == sha1(BODY)
    assert offered.asked == [(PATH, None)]
    assert left_in(tmp_path) == {NAME}


def test_without_published_checksum_one_is_recorded(offered, http, tmp_path):
    (found,) = download(http, [remote(offered)], tmp_path).files
    assert (found.algorithm, found.checksum) == ("sha256", hashlib.sha256(BODY).hexdigest())
    assert found.size_bytes == len(BODY)


# -- connections that break -------------------------------------------------------------------------------------


OVER = formatdate(time.time() - 5, usegmt=True)


@pytest.mark.parametrize(
    ("answers", "is_tagged", "published", "ranges"),
    [
        ([Answer(cut_at=3000), Answer(cut_at=1000)], True, {}, [None, "bytes=3000-", "bytes=4000-"]),
        ([Answer(cut_at=3000), Answer(ignore_range=True)], True, {}, [None, "bytes=3000-"]),
        ([Answer(cut_at=3000)], False, {}, [None, None]),
        ([Answer(cut_at=3000)], False, {"sha1": sha1(BODY)}, [None, "bytes=3000-"]),
        ([Answer(no_length=True)], True, {"size": len(BODY)}, [None]),
        ([Answer(503, {"Retry-After": OVER})], True, {}, [None, None]),
    ],
    ids=["continued", "ranges ignored", "unknown version", "checksum", "no length", "wait that is over"],
)
def test_broken_connections_are_continued_where_the_version_is_known_and_begun_again_elsewhere(
    offered, fetch, answers, is_tagged, published, ranges
):
    if not is_tagged:
        del offered.tags[PATH]
    assert fetch(*answers, **published) == BODY
    assert offered.asked == [(PATH, each) for each in ranges]


def test_the_next_call_continues_what_the_last_one_left(offered, tmp_path):
    offered.answers[PATH] = [Answer(cut_at=3000)]
    once = Http(attempts=1)
    with pytest.raises(DownloadError, match=r"a\.xml\.bz2"):
        download(once, [remote(offered)], tmp_path)
    assert (tmp_path / f"{NAME}.part").read_bytes() == BODY[:3000]
    download(once, [remote(offered)], tmp_path)
    assert offered.asked[-1] == (PATH, "bytes=3000-")
    assert (tmp_path / NAME).read_bytes() == BODY


def test_attempts_that_bring_much_are_not_counted(offered, fetch, monkeypatch):
    monkeypatch.setattr(fetching, "FRUITFUL_BYTES", 500)
    assert fetch(*[Answer(cut_at=1000)] * 9) == BODY
    assert len(offered.asked) == 10


@pytest.mark.parametrize("size", [9_000, 20_000, 2_000])
@pytest.mark.parametrize("ignore_if_range", [False, True])
def test_a_file_that_changed_meanwhile_is_fetched_from_its_start(offered, fetch, size, ignore_if_range):
    offered.changes[PATH] = b"x" * size
    assert fetch(Answer(cut_at=3000), Answer(ignore_if_range=ignore_if_range)) == b"x" * size


# -- what arrives is not what was published, or does not arrive --------------------------------------------------

SHORT, BUSY = Answer(length=20_000, cut_at=len(BODY)), Answer(503)


@pytest.mark.parametrize(
    ("answers", "published", "told", "num_asked"),
    [
        ([], {"sha1": sha1(b"other")}, f"(?s)(?=.*{NAME})(?=.*{sha1(b'other')}).*{sha1(BODY)}", 2),
        ([], {"size": 10_241}, r"10240 .* 10241", 2),
        ([SHORT] * 9, {}, re.escape(NAME), 4),
        ([Answer(no_length=True)], {}, "checksum", 1),
        ([Answer(503, {"Retry-After": "86400"})], {}, "86400 s", 1),
        ([BUSY] * 9, {}, "503", 4),
        ([Answer(403)], {}, "403", 1),
    ],
    ids=["checksum", "size", "shorter than its length", "no length", "wait of a day", "busy", "refused"],
)
def test_what_is_not_the_file_is_named_and_never_taken_for_it(
    offered, fetch, tmp_path, answers, published, told, num_asked
):
    with pytest.raises(DownloadError, match=told) as caught:
        fetch(*answers, **published)
    assert caught.value.exit_code == 14
    assert NAME not in left_in(tmp_path)
    assert len(offered.asked) == num_asked


def test_a_file_that_was_wrong_once_is_fetched_again(offered, fetch):
    offered.changes[PATH], offered.files[PATH] = BODY, BODY[:-1] + b"!"
    assert fetch(sha1=sha1(BODY)) == BODY


@pytest.mark.parametrize("status", [429, 503])
def test_the_wait_that_a_server_asks_for_is_kept(fetch, status):
    started = time.monotonic()
    assert fetch(Answer(status, {"Retry-After": "1"})) == BODY
    assert time.monotonic() - started >= 1


def test_a_server_that_is_not_there_is_named(http, tmp_path):
    with pytest.raises(DownloadError, match=r"a\.xml"):
        download(http, [RemoteFile("http://127.0.0.1:9/a.xml", "a.xml")], tmp_path)


def test_an_interrupt_ends_waiting_and_keeps_the_part(offered, fetch, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        while len(offered.asked) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "wait", interrupt)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fetch(Answer(cut_at=3000), Answer(503, {"Retry-After": "600"}))
    assert time.monotonic() - started < 300, "half of what the server asked to wait"
    assert (tmp_path / f"{NAME}.part").read_bytes() == BODY[:3000]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("download")]


# -- many files -------------------------------------------------------------------------------------------------


def test_missing_files_are_all_named_and_do_not_keep_the_others_away(offered, http, tmp_path):
    offered.files |= {"/b": b"bb", "/c": b"ccc"}
    files = [remote(offered, path) for path in ("/b", "/gone", "/c", "/lost")]
    with pytest.raises(DownloadError, match="2 of 4 files") as caught:
        download(http, files, tmp_path)
    assert "/gone answers 404" in str(caught.value)
    assert "/lost" in str(caught.value)
    assert left_in(tmp_path) == {"b", "c"}
    files[1] = remote(offered, "/gone", may_be_missing=True)
    found = download(http, files[:3], tmp_path)
    assert [file.name for file in found.files] == ["b", "c"]
    assert (found.num_fetched, found.missing) == (0, ("gone",))


def test_no_more_connections_than_allowed_and_requests_say_who_asks(offered, tmp_path):
    paths = [f"/{number}" for number in range(20)]
    offered.files |= dict.fromkeys(paths, BODY)
    http = Http(contact="me@example.org")
    download(http, [remote(offered, path) for path in paths], tmp_path)
    assert offered.most_busy <= http.connections
    assert len(left_in(tmp_path)) == 20
    (agent,) = offered.agents
    assert re.fullmatch(r"cloze/\S+ \(me@example\.org\)", agent)


# -- files that are there already -------------------------------------------------------------------------------


def test_changed_files_are_fetched_again_and_verify_finds_what_sizes_and_times_hide(offered, http, tmp_path):
    file, path = remote(offered), tmp_path / NAME
    download(http, [file], tmp_path)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(BODY[::-1])
    os.utime(path, ns=times)
    assert download(http, [file], tmp_path).num_fetched == 0
    assert download(http, [file], tmp_path, verify=True).num_fetched == 1
    path.write_bytes(BODY[::-1])
    assert download(http, [file], tmp_path).num_fetched == 1
    assert path.read_bytes() == BODY


def test_a_checksum_recognises_a_file_that_lost_its_record_and_one_that_was_published_anew(
    offered, http, fetch, tmp_path
):
    fetch(sha1=sha1(BODY))
    (tmp_path / downloads.INDEX_NAME).unlink()
    assert download(http, [remote(offered, sha1=sha1(BODY))], tmp_path).num_fetched == 0
    offered.files[PATH] = b"new"
    assert fetch(sha1=sha1(b"new")) == b"new"


def test_a_full_disk_ends_with_a_storage_error_and_keeps_the_part(offered, fetch, tmp_path, monkeypatch):
    with pytest.raises(StorageError):
        fetch(size=1 << 60)
    assert offered.asked == [], "a disk that is too small is told beforehand"
    real = Path.open

    def full(self, mode="r", *rest, **more):
        if self.suffix == ".part" and mode == "r+b":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return real(self, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError):
        fetch(Answer(cut_at=3000))
    assert (tmp_path / f"{NAME}.part").stat().st_size == 3000


def test_files_are_chosen_by_pattern_and_number_and_names_cannot_lead_out_of_the_directory():
    files = [RemoteFile(f"http://example.org/{name}", name) for name in ("a1", "b", "a2", "a3")]
    assert [file.name for file in choose(files, "a*", 2)] == ["a1", "a2"]
    with pytest.raises(DownloadError, match=r"\*\.zip"):
        choose(files, "*.zip")
    for name in ("../x", "a/b", "..", ""):
        with pytest.raises(DownloadError):
            choose([RemoteFile("http://example.org/x", name)])


PARTS = {
    "multistream1.xml-p1p9.bz2": b"first part",
    "multistream2.xml-p10p99.bz2": b"second part",
    "multistream-index1.txt-p1p9.bz2": b"index",
}
CATALOGUE = "/cache/epub/feeds/pg_catalog.csv.gz"
CRAWL = "crawl-data/CC-MAIN-2024-10"


def dump(date, status="done"):
    """The files of a dump by path, and its status page."""
    files = {f"/xxwiki/{date}/xxwiki-{date}-pages-articles-{name}": body for name, body in PARTS.items()}
    listed = {
        path.rpartition("/")[2]: {"size": len(body), "url": path, "sha1": hashlib.sha1(body).hexdigest()}
        for path, body in files.items()
    }
    job = {"status": status, "files": listed if status == "done" else {}}
    status_page = json.dumps({"jobs": {"articlesmultistreamdump": job}}).encode()
    return files | {f"/xxwiki/{date}/dumpstatus.json": status_page}


@pytest.fixture
def published(publisher):
    """A server with all that the three publishers have."""
    links = "".join(
        f'<a href="{name}/">{name}/</a>\n' for name in ("20251201", "20260101", "20260201", "latest")
    )
    publisher.files["/xxwiki/"] = f'<html><a href="../">../</a>\n{links}</html>'.encode()
    publisher.files |= dump("20251201") | dump("20260101") | dump("20260201", "waiting")
    paths = [f"{CRAWL}/segments/17{n}/wet/CC-MAIN-{n}.warc.wet.gz" for n in range(3)]
    publisher.files |= {f"/{path}": path.encode() for path in paths}
    publisher.files[f"/{CRAWL}/wet.paths.gz"] = gzip.compress("\n".join(paths).encode())
    publisher.files[f"/{CRAWL}/warc.paths.gz"] = b"<html>"
    news = gzip.compress(b"crawl-data/CC-NEWS/2024/09/CC-NEWS-1.warc.gz\n")
    publisher.files["/crawl-data/CC-NEWS/2024/09/warc.paths.gz"] = news
    publisher.files[CATALOGUE] = gzip.compress((reading.PAGES / "pg_catalog.csv").read_bytes())
    publisher.files |= {"/cache/epub/11/pg11.txt": b"Alice", "/cache/epub/84/pg84.txt": b"Victor"}
    return publisher


def test_other_dumps_crawls_and_languages_than_those_of_the_command_are_listed(published, http):
    assert "20251201" in list_wikipedia(http, "xxwiki", "20251201", published.url + "/")[0].name
    (news,) = list_common_crawl(http, "CC-NEWS-2024-09", "warc", published.url)
    assert news.name == "CC-NEWS-1.warc.gz"
    published.answers[CATALOGUE] = [Answer(503), Answer(cut_at=10)]
    found = list_gutenberg(http, "es", published.url)
    assert [file.name for file in found] == ["pg500.txt", "pg2000.txt"], "a busy server is asked again"


@pytest.mark.parametrize(
    ("listed", "arguments", "told"),
    [
        (list_wikipedia, ("xx", "20240101"), "20251201, 20260101, 20260201"),
        (list_wikipedia, ("xx", "20260201"), "waiting"),
        (list_wikipedia, ("zz-yy", "latest"), "/zz_yywiki/"),
        (list_wikipedia, ("../etc", "latest"), "'../etc'"),
        (list_common_crawl, ("CC-NEWS-2024-09", "wet"), "wet"),
        (list_common_crawl, ("CC-MAIN-24", "wet"), "'CC-MAIN-24'"),
        (list_common_crawl, ("CC-MAIN-2024-10", "warc"), r"warc\.paths\.gz"),
        (list_gutenberg, ("tlh",), "en, es"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(published, http, listed, arguments, told):
    with pytest.raises(DownloadError, match=told):
        listed(http, *arguments, published.url)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"jobs": {}}'])
def test_a_status_page_of_another_form_is_named(published, http, body):
    published.files["/xxwiki/20260101/dumpstatus.json"] = body
    with pytest.raises(DownloadError, match=r"dumpstatus\.json"):
        list_wikipedia(http, "xx", "20260101", published.url)


def run(publisher, *arguments):
    return cloze("data", "download", *arguments, "--base-url", publisher.url)


def test_the_command_shows_the_newest_finished_dump_and_then_fetches_it_without_indexes(published, tmp_path):
    command = ("wikipedia", "xx", "--out", tmp_path / "dumps")
    assert "2 files, 21 bytes" in run(published, *command, "--dry-run")
    assert not (tmp_path / "dumps").exists()
    found = json.loads(run(published, *command, "--json"))
    assert found["num_fetched"] == 2
    assert {path.read_bytes() for path in tmp_path.rglob("*-20260101-*.bz2")} == {
        b"first part",
        b"second part",
    }
    assert found["files"][0]["checksum"] == hashlib.sha1(b"first part").hexdigest()
    again = json.loads(run(published, *command, "--json"))
    assert (again["num_fetched"], again["files"]) == (0, found["files"])
    with pytest.raises(DownloadError):
        run(published, "wikipedia", "qq", "--out", tmp_path)


def test_the_command_chooses_by_pattern_and_number(published, tmp_path):
    chosen = ("--archive", "wet", "--match", "*.wet.gz", "--limit", "2", "--out", tmp_path)
    plan = json.loads(run(published, "commoncrawl", "CC-MAIN-2024-10", *chosen, "--json", "--dry-run"))
    assert [file["size_bytes"] for file in plan] == [None, None]
    run(published, "commoncrawl", "CC-MAIN-2024-10", *chosen)
    names = sorted(path.name for path in tmp_path.glob("*.gz"))
    assert names == [f"CC-MAIN-{n}.warc.wet.gz" for n in range(2)]


def test_the_command_counts_books_that_are_listed_but_not_there(published, tmp_path):
    found = json.loads(run(published, "gutenberg", "en", "--out", tmp_path, "--json"))
    assert found["missing"] == ["pg500.txt"]
    assert sorted(path.name for path in tmp_path.glob("*.txt")) == ["pg11.txt", "pg84.txt"]

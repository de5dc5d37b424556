"""What publishers list, in the formats in which they do, and the command over it."""

import gzip
import hashlib
import json

import pytest

from cluster.artefacts.errors import DownloadError
from data_prep.download.publishers import list_common_crawl, list_gutenberg, list_wikipedia
from tests.data_prep import reading
from tests.data_prep.download.conftest import Answer
from tests.pipeline.command import cloze

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

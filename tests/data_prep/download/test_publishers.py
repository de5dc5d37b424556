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
    "xxwiki-20260101-pages-articles-multistream1.xml-p1p9.bz2": b"first part",
    "xxwiki-20260101-pages-articles-multistream2.xml-p10p99.bz2": b"second part",
    "xxwiki-20260101-pages-articles-multistream-index1.txt-p1p9.bz2": b"index",
}


def dump_status(date, status="done"):
    files = {
        name.replace("20260101", date): {
            "size": len(body),
            "url": f"/xxwiki/{date}/{name.replace('20260101', date)}",
            "md5": hashlib.md5(body).hexdigest(),
            "sha1": hashlib.sha1(body).hexdigest(),
        }
        for name, body in PARTS.items()
    }
    job = {"status": status, "updated": "2026-01-03 10:00:00", "files": files if status == "done" else {}}
    return json.dumps({"jobs": {"articlesmultistreamdump": job}, "version": "0.8"}).encode()


@pytest.fixture
def wikipedia(publisher):
    links = "".join(f'<a href="{date}/">{date}/</a>\n' for date in ("20251201", "20260101", "20260201"))
    publisher.files |= {
        "/xxwiki/": f'<html><a href="../">../</a>\n{links}<a href="latest/">latest/</a></html>'.encode(),
        "/xxwiki/20251201/dumpstatus.json": dump_status("20251201"),
        "/xxwiki/20260101/dumpstatus.json": dump_status("20260101"),
        "/xxwiki/20260201/dumpstatus.json": dump_status("20260201", "waiting"),
    }
    publisher.files |= {f"/xxwiki/20260101/{name}": body for name, body in PARTS.items()}
    return publisher


@pytest.fixture
def common_crawl(publisher):
    paths = [f"crawl-data/CC-MAIN-2024-10/segments/17{n}/wet/CC-MAIN-{n}.warc.wet.gz" for n in range(3)]
    listed = gzip.compress("".join(f"{path}\n" for path in paths).encode())
    publisher.files["/crawl-data/CC-MAIN-2024-10/wet.paths.gz"] = listed
    news = gzip.compress(b"crawl-data/CC-NEWS/2024/09/CC-NEWS-1.warc.gz\n")
    publisher.files["/crawl-data/CC-NEWS/2024/09/warc.paths.gz"] = news
    publisher.files |= {f"/{path}": path.encode() for path in paths}
    return publisher


@pytest.fixture
def gutenberg(publisher):
    publisher.files["/cache/epub/feeds/pg_catalog.csv.gz"] = gzip.compress(
        (reading.PAGES / "pg_catalog.csv").read_bytes()
    )
    publisher.files |= {"/cache/epub/11/pg11.txt": b"Alice", "/cache/epub/84/pg84.txt": b"Victor"}
    return publisher


def test_latest_is_the_newest_finished_dump_without_its_indexes(wikipedia, http):
    files = list_wikipedia(http, "xx", "latest", wikipedia.url)
    assert [file.name for file in files] == [name for name in PARTS if "index" not in name]
    assert [file.size_bytes for file in files] == [10, 11]
    assert files[0].url == f"{wikipedia.url}/xxwiki/20260101/{files[0].name}"
    assert (files[0].algorithm, files[0].checksum) == ("sha1", hashlib.sha1(b"first part").hexdigest())
    assert "20251201" in list_wikipedia(http, "xxwiki", "20251201", wikipedia.url + "/")[0].name


@pytest.mark.parametrize(
    ("wiki", "date", "told"),
    [
        ("xx", "20240101", "20251201, 20260101, 20260201"),
        ("xx", "20260201", "waiting"),
        ("zz-yy", "latest", "/zz_yywiki/"),
        ("../etc", "latest", "not the code"),
    ],
)
def test_a_dump_or_a_wiki_that_is_not_there_is_named(wikipedia, http, wiki, date, told):
    with pytest.raises(DownloadError, match=told):
        list_wikipedia(http, wiki, date, wikipedia.url)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"jobs": {}}'])
def test_a_status_page_of_another_form_is_named(wikipedia, http, body):
    wikipedia.files["/xxwiki/20260101/dumpstatus.json"] = body
    with pytest.raises(DownloadError, match=r"dumpstatus\.json"):
        list_wikipedia(http, "xx", "20260101", wikipedia.url)


def test_crawls_are_listed_by_their_paths_and_those_that_do_not_exist_named(common_crawl, http):
    files = list_common_crawl(http, "CC-MAIN-2024-10", "wet", common_crawl.url)
    assert [file.name for file in files] == [f"CC-MAIN-{n}.warc.wet.gz" for n in range(3)]
    path = "crawl-data/CC-MAIN-2024-10/segments/171/wet/CC-MAIN-1.warc.wet.gz"
    assert files[1].url == f"{common_crawl.url}/{path}"
    (news,) = list_common_crawl(http, "CC-NEWS-2024-09", "warc", common_crawl.url)
    assert news.name == "CC-NEWS-1.warc.gz"
    common_crawl.files["/crawl-data/CC-MAIN-2024-10/warc.paths.gz"] = b"<html>"
    for crawl, archive, said in (
        ("CC-NEWS-2024-09", "wet", "archives are wet"),
        ("CC-MAIN-24", "wet", "'CC-MAIN-24'"),
        ("CC-MAIN-2024-10", "warc", "list"),
    ):
        with pytest.raises(DownloadError, match=said):
            list_common_crawl(http, crawl, archive, common_crawl.url)


def test_books_are_listed_by_language_and_lists_asked_for_again_when_the_server_is_busy(gutenberg, http):
    gutenberg.answers["/cache/epub/feeds/pg_catalog.csv.gz"] = [Answer(503), Answer(cut_at=10)]
    english = list_gutenberg(http, "en", gutenberg.url)
    assert [file.name for file in english] == ["pg11.txt", "pg84.txt", "pg500.txt"]
    assert english[0].url == f"{gutenberg.url}/cache/epub/11/pg11.txt"
    assert [file.name for file in list_gutenberg(http, "es", gutenberg.url)] == ["pg500.txt", "pg2000.txt"]
    with pytest.raises(DownloadError, match="en, es"):
        list_gutenberg(http, "tlh", gutenberg.url)


def run(publisher, *arguments):
    return cloze("data", "download", *arguments, "--base-url", publisher.url)


def test_the_command_shows_what_it_would_fetch_and_then_fetches_it(wikipedia, tmp_path):
    command = ("wikipedia", "xx", "--out", tmp_path / "dumps")
    assert "2 files, 21 bytes" in run(wikipedia, *command, "--dry-run")
    assert not (tmp_path / "dumps").exists()
    found = json.loads(run(wikipedia, *command, "--json"))
    assert found["num_fetched"] == 2
    assert {path.read_bytes() for path in tmp_path.rglob("*.bz2")} == {b"first part", b"second part"}
    again = json.loads(run(wikipedia, *command, "--json"))
    assert (again["num_fetched"], again["files"]) == (0, found["files"])
    with pytest.raises(DownloadError):
        run(wikipedia, "wikipedia", "qq", "--out", tmp_path)


def test_the_command_chooses_by_pattern_and_number(common_crawl, tmp_path):
    chosen = ("--archive", "wet", "--match", "*.wet.gz", "--limit", "2", "--out", tmp_path)
    plan = json.loads(run(common_crawl, "commoncrawl", "CC-MAIN-2024-10", *chosen, "--json", "--dry-run"))
    assert [file["size_bytes"] for file in plan] == [None, None]
    run(common_crawl, "commoncrawl", "CC-MAIN-2024-10", *chosen)
    names = sorted(path.name for path in tmp_path.glob("*.gz"))
    assert names == [f"CC-MAIN-{n}.warc.wet.gz" for n in range(2)]


def test_the_command_counts_books_that_are_listed_but_not_there(gutenberg, tmp_path):
    found = json.loads(run(gutenberg, "gutenberg", "en", "--out", tmp_path, "--json"))
    assert found["missing"] == ["pg500.txt"]
    assert sorted(path.name for path in tmp_path.glob("*.txt")) == ["pg11.txt", "pg84.txt"]

"""Lists of the files that publishers offer, and the choice of some of them."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import orjson

from cluster.artefacts.errors import DownloadError
from cluster.artefacts.reading import confined_name
from data_prep.download.fetch import GoneError, Http, RemoteFile

WIKIPEDIA_URL = "https://dumps.wikimedia.org"
COMMON_CRAWL_URL = "https://data.commoncrawl.org"
GUTENBERG_URL = "https://gutenberg.pglaf.org"
"""The mirror of the Project Gutenberg Literary Archive Foundation: the main site is for people, not for programs."""


def list_files(
    http: Http, publisher: str, what: str, base_url: str | None, *, date: str, archive: str
) -> list[RemoteFile]:
    """One publisher's files.

    Args:
        publisher: `wikipedia`, `commoncrawl` or `gutenberg`.
        what: a language; of Common Crawl, a crawl.
        base_url: a mirror; None for the usual server.
        date: of a Wikipedia dump; the others have none.
        archive: of Common Crawl; the others have none.

    Raises:
        DownloadError: there is no such thing, or the server fails.
    """
    match publisher:
        case "wikipedia":
            return list_wikipedia(http, what, date, base_url or WIKIPEDIA_URL)
        case "commoncrawl":
            return list_common_crawl(http, what, archive, base_url or COMMON_CRAWL_URL)
        case "gutenberg":
            return list_gutenberg(http, what, base_url or GUTENBERG_URL)
    raise ValueError(publisher)


def choose(files: Iterable[RemoteFile], match: str = "*", limit: int | None = None) -> list[RemoteFile]:
    """The first `limit` files, in the publisher's order, whose names match a shell pattern.

    Raises:
        DownloadError: a name leads out of the directory of downloads, or none matches.
    """
    matching = (file for file in files if fnmatchcase(file.name, match))
    chosen = list(islice(matching, limit))
    for file in chosen:
        try:
            is_name = "/" not in confined_name(file.name)
        except ValueError:
            is_name = False
        if not is_name:
            raise DownloadError(f"{file.url} is listed with the name {file.name!r}, which is no file name.")
    if not chosen:
        raise DownloadError(
            f"The publisher lists no file that matches {match}.", next_step="see the names with --dry-run"
        )
    return chosen


# -- Wikipedia's monthly dumps -----

_LATEST = "latest"
_JOB = "articlesmultistreamdump"
"""The part of a dump with the current text of all pages, in several files where the wiki is large."""
_DATE = re.compile(r'href="(?:[^"]*/)?(\d{8})/')
_INDEX = re.compile(r"-multistream-index\d*\.txt")
_WIKI = re.compile(r"[a-z][a-z0-9_]*")


def list_wikipedia(http: Http, language: str, date: str, base_url: str = WIKIPEDIA_URL) -> list[RemoteFile]:
    """The files of one dump, sorted by name, without the indexes that lie beside them.

    Args:
        language: code of a Wikipedia (`en`, `simple`, `zh-yue`), or the name of another wiki (`enwikibooks`).
        date: `YYYYMMDD`, or `latest` for the newest dump that is finished.

    Raises:
        DownloadError: there is no such dump, it is not finished, or the server fails.
    """
    wiki = language.lower().replace("-", "_")
    if not _WIKI.fullmatch(wiki):
        raise DownloadError(f"{language!r} is not the code of a Wikipedia, such as `en`.")
    root = f"{base_url.rstrip('/')}/{wiki if 'wik' in wiki else f'{wiki}wiki'}"
    job = _newest(http, root) if date == _LATEST else _of_date(http, root, date)
    try:
        return [
            RemoteFile(
                url=base_url.rstrip("/") + entry["url"],
                name=name,
                size_bytes=entry["size"],
                algorithm="sha1",
                checksum=entry["sha1"],
            )
            for name, entry in sorted(job["files"].items())
            if not _INDEX.search(name)
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"The list of {root} is not as it used to be: {error!r}.") from error


def _newest(http: Http, root: str) -> dict[str, Any]:
    dates = _dates(http, root)
    for date in reversed(dates):
        job = _job(http, root, date)
        if job and job.get("status") == "done":
            return job
    raise DownloadError(f"No dump at {root}/ is finished; dates there: {', '.join(dates) or 'none'}.")


def _of_date(http: Http, root: str, date: str) -> dict[str, Any]:
    job = _job(http, root, date)
    if job is None:
        raise DownloadError(
            f"{root}/ has no dump of {date}; dates there: {', '.join(_dates(http, root)) or 'none'}.",
            next_step="choose one of them with --date",
        )
    if job.get("status") != "done":
        raise DownloadError(
            f"The dump {root}/{date}/ is not finished: {job.get('status')}.",
            next_step="leave --date away for the newest that is",
        )
    return job


def _job(http: Http, root: str, date: str) -> dict[str, Any] | None:
    """The job's entry in `dumpstatus.json`; None if there is no such dump."""
    url = f"{root}/{date}/dumpstatus.json"
    try:
        return orjson.loads(http.get(url))["jobs"][_JOB]
    except GoneError:
        return None
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DownloadError(f"{url} is not as it used to be: {error!r}.") from error


def _dates(http: Http, root: str) -> list[str]:
    try:
        page = http.get(f"{root}/").decode("utf-8", errors="replace")
    except GoneError as error:
        raise DownloadError(f"There is no wiki at {root}/.", next_step="correct the language") from error
    return sorted(set(_DATE.findall(page)))


# -- Common Crawl's web and news archives -----

_MAIN_CRAWL = re.compile(r"CC-MAIN-\d{4}-(\d{2}|\d{2}-\d{2})|CC-MAIN-\d{4}")
_NEWS_CRAWL = re.compile(r"CC-NEWS-(?P<year>\d{4})-(?P<month>\d{2})")


def list_common_crawl(
    http: Http, crawl: str, archive: str, base_url: str = COMMON_CRAWL_URL
) -> list[RemoteFile]:
    """The archives of one crawl, in the order of its own list. Sizes and checksums are not published.

    Args:
        crawl: such as `CC-MAIN-2024-10`, or `CC-NEWS-2024-09` for the news of a month, which have no `wet`.
        archive: `warc` (pages as they were sent) or `wet` (their plain text).

    Raises:
        DownloadError: there is no such crawl, or the server fails.
    """
    root = base_url.rstrip("/")
    if news := _NEWS_CRAWL.fullmatch(crawl):
        folder = f"CC-NEWS/{news['year']}/{news['month']}"
    elif _MAIN_CRAWL.fullmatch(crawl):
        folder = crawl
    else:
        raise DownloadError(
            f"{crawl!r} is not the name of a crawl, such as CC-MAIN-2024-10 or CC-NEWS-2024-09."
        )
    url = f"{root}/crawl-data/{folder}/{archive}.paths.gz"
    try:
        paths = gzip.decompress(http.get(url)).decode("utf-8").split()
    except GoneError as error:
        raise DownloadError(
            f"{url} is not there: no such crawl, or none of its archives are {archive}.",
            next_step=f"see the names of crawls at {root}/crawl-data/index.html",
        ) from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DownloadError(f"{url} is no list of files: {error}.") from error
    return [RemoteFile(url=f"{root}/{path}", name=path.rpartition("/")[2]) for path in paths]


# -- Project Gutenberg's books as plain text -----

_CATALOGUE = "cache/epub/feeds/pg_catalog.csv.gz"


def list_gutenberg(http: Http, language: str, base_url: str = GUTENBERG_URL) -> list[RemoteFile]:
    """The books that are, at least in part, in a language, in the order of their numbers.

    Sizes and checksums are not published, and not every book that the catalogue lists is there as text.

    Args:
        language: ISO 639-1 code, or 639-2 for languages without one.

    Raises:
        DownloadError: the catalogue holds no such book, or the server fails.
    """
    root = base_url.rstrip("/")
    url = f"{root}/{_CATALOGUE}"
    try:
        text = gzip.decompress(http.get(url)).decode("utf-8")
    except GoneError as error:
        raise DownloadError(
            f"{url} is not there.", next_step="choose a mirror with generated files by --base-url"
        ) from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DownloadError(f"{url} is no catalogue: {error}.") from error
    try:
        rows = list(csv.DictReader(io.StringIO(text)))
        languages = {language for row in rows for language in _languages(row)}
        numbers = sorted(
            int(row["Text#"]) for row in rows if row["Type"] == "Text" and language in _languages(row)
        )
    except (KeyError, ValueError, AttributeError, csv.Error) as error:
        raise DownloadError(f"{url} is not as it used to be: {error!r}.") from error
    if not numbers:
        raise DownloadError(f"No text in {language!r} is listed; languages: {', '.join(sorted(languages))}.")
    return [
        RemoteFile(
            url=f"{root}/cache/epub/{number}/pg{number}.txt", name=f"pg{number}.txt", may_be_missing=True
        )
        for number in numbers
    ]


def _languages(row: dict[str, str]) -> list[str]:
    return [language.strip() for language in row["Language"].split(";")]

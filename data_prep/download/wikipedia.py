"""Wikipedia's monthly dumps: https://dumps.wikimedia.org and its mirrors."""

from __future__ import annotations

import re
from typing import Any

import orjson

from cluster.artefacts.errors import DownloadError
from data_prep.download.http import GoneError, Http
from data_prep.download.remote_file import RemoteFile

BASE_URL = "https://dumps.wikimedia.org"
LATEST = "latest"
JOB = "articlesmultistreamdump"
"""The part of a dump with the current text of all pages, in several files where the wiki is large."""
_DATE = re.compile(r'href="(?:[^"]*/)?(\d{8})/')
_INDEX = re.compile(r"-multistream-index\d*\.txt")
_WIKI = re.compile(r"[a-z][a-z0-9_]*")


def list_wikipedia(http: Http, language: str, date: str, base_url: str = BASE_URL) -> list[RemoteFile]:
    """The files of one dump, sorted by name, without the indexes that lie beside them.

    Args:
        language: code of a Wikipedia (`en`, `simple`, `zh-yue`), or the name of another wiki (`enwikibooks`).
        date: `YYYYMMDD`, or `latest` for the newest dump that is finished.

    Raises:
        DownloadError: there is no such dump, it is not finished, or the server fails.
    """
    wiki = _wiki_name(language)
    root = f"{base_url.rstrip('/')}/{wiki}"
    job = _newest(http, root) if date == LATEST else _of_date(http, root, date)
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


def _wiki_name(language: str) -> str:
    name = language.lower().replace("-", "_")
    if not _WIKI.fullmatch(name):
        raise DownloadError(f"{language!r} is not the code of a Wikipedia, such as `en`.")
    return name if "wik" in name else f"{name}wiki"


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
        return orjson.loads(http.get(url))["jobs"][JOB]
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

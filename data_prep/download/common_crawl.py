"""Common Crawl's web and news archives: https://data.commoncrawl.org."""

from __future__ import annotations

import gzip
import re

from cluster.artefacts.errors import DownloadError
from data_prep.download.http import GoneError, Http
from data_prep.download.remote_file import RemoteFile

BASE_URL = "https://data.commoncrawl.org"
ARCHIVES = ("warc", "wet")
"""Pages as they were sent, and their plain text."""
_MAIN = re.compile(r"CC-MAIN-\d{4}-(\d{2}|\d{2}-\d{2})|CC-MAIN-\d{4}")
_NEWS = re.compile(r"CC-NEWS-(?P<year>\d{4})-(?P<month>\d{2})")


def list_common_crawl(http: Http, crawl: str, archive: str, base_url: str = BASE_URL) -> list[RemoteFile]:
    """The archives of one crawl, in the order of its own list. Sizes and checksums are not published.

    Args:
        crawl: such as `CC-MAIN-2024-10`, or `CC-NEWS-2024-09` for the news of a month, which have no `wet`.
        archive: one of `ARCHIVES`.

    Raises:
        DownloadError: there is no such crawl, or the server fails.
    """
    root = base_url.rstrip("/")
    url = f"{root}/crawl-data/{_folder(crawl)}/{archive}.paths.gz"
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


def _folder(crawl: str) -> str:
    news = _NEWS.fullmatch(crawl)
    if news:
        return f"CC-NEWS/{news['year']}/{news['month']}"
    if _MAIN.fullmatch(crawl):
        return crawl
    raise DownloadError(f"{crawl!r} is not the name of a crawl, such as CC-MAIN-2024-10 or CC-NEWS-2024-09.")

"""Every publisher by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from data_prep.download import common_crawl, gutenberg, wikipedia
from data_prep.download.http import Http
from data_prep.download.remote_file import RemoteFile

_LISTERS: Mapping[str, Callable[[Http, str, str | None, str, str], list[RemoteFile]]] = MappingProxyType(
    {
        "wikipedia": lambda http, what, base_url, date, archive: wikipedia.list_wikipedia(
            http, what, date, base_url or wikipedia.BASE_URL
        ),
        "commoncrawl": lambda http, what, base_url, date, archive: common_crawl.list_common_crawl(
            http, what, archive, base_url or common_crawl.BASE_URL
        ),
        "gutenberg": lambda http, what, base_url, date, archive: gutenberg.list_gutenberg(
            http, what, base_url or gutenberg.BASE_URL
        ),
    }
)


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
    return _LISTERS[publisher](http, what, base_url, date, archive)

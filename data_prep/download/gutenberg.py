"""Project Gutenberg's books as plain text, from a mirror: the main site is for people, not for programs."""

from __future__ import annotations

import csv
import gzip
import io

from cluster.artefacts.errors import DownloadError
from data_prep.download.http import GoneError, Http
from data_prep.download.remote_file import RemoteFile

BASE_URL = "https://gutenberg.pglaf.org"
"""The mirror of the Project Gutenberg Literary Archive Foundation."""
CATALOGUE = "cache/epub/feeds/pg_catalog.csv.gz"


def list_gutenberg(http: Http, language: str, base_url: str = BASE_URL) -> list[RemoteFile]:
    """The books that are, at least in part, in a language, in the order of their numbers.

    Sizes and checksums are not published, and not every book that the catalogue lists is there as text.

    Args:
        language: ISO 639-1 code, or 639-2 for languages without one.

    Raises:
        DownloadError: the catalogue holds no such book, or the server fails.
    """
    root = base_url.rstrip("/")
    url = f"{root}/{CATALOGUE}"
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

"""A file that a publisher offers, and the choice of some of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice

from cluster.artefacts.confined import confined_name
from cluster.artefacts.errors import DownloadError


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a snapshot, as its publisher describes it."""

    url: str
    name: str
    """File name in the directory of downloads."""
    size_bytes: int | None = None
    """None where the publisher does not state it."""
    algorithm: str = ""
    """Name of a `hashlib` hash; empty where no checksum is published."""
    checksum: str = ""
    """Hexadecimal."""
    may_be_missing: bool = False
    """Whether the list may name files that the server lacks; a missing one is then no failure."""


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

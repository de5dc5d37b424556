"""One file: continued where it was broken off, complete and checked before it gets its name."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import requests

from cluster.artefacts.errors import DownloadError
from cluster.artefacts.storage import storage_errors
from data_prep.download.http import GoneError, Http, Stopped, TryAgainError, connection_errors

CHUNK_BYTES = 1 << 20
FRUITFUL_BYTES = 1 << 20
"""An attempt that breaks off after this many bytes is followed by the next one at once, and is not counted."""
WRONG_CONTENT_ATTEMPTS = 2
"""How often a file may arrive complete and wrong before that is called the publisher's mistake."""
UNPUBLISHED = "sha256"
"""Checksum kind recorded for files without a published checksum."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


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


@dataclass(frozen=True, slots=True)
class Fetched:
    """The state of the file on disk."""

    name: str
    url: str
    size_bytes: int
    algorithm: str
    checksum: str
    mtime_ns: int
    """When the file was last written, to notice later that something else wrote to it."""


@dataclass(slots=True)
class _Transfer:
    """One file under way: `NAME.part`, and `NAME.part.json` with what it is a part of."""

    http: Http
    file: RemoteFile
    directory: Path
    on_bytes: Callable[[int], None]
    wrong: list[str] = field(default_factory=list)
    """The fault of each complete copy so far."""

    @property
    def part(self) -> Path:
        return self.directory / f"{self.file.name}.part"

    @property
    def origin(self) -> Path:
        return self.directory / f"{self.file.name}.part.json"

    def attempt(self) -> Fetched:
        while True:
            before = self._part_bytes()
            try:
                with storage_errors(self.part):
                    if self._promised_bytes() != before:
                        self._receive()
                    return self._finish()
            except TryAgainError as error:
                if error.wait_s is not None or self._part_bytes() - before < FRUITFUL_BYTES:
                    raise

    def _receive(self) -> None:
        """Append to the part what the server has after it; all of the file where it has another version by now."""
        origin = self._read_origin()
        headers, start = {}, 0
        # Without a name for its version, only a published checksum will tell whether the rest belongs to the part.
        if origin is not None and (origin["validator"] or self.file.checksum):
            start = self._part_bytes()
            if start:
                headers = {"Range": f"bytes={start}-"}
                if origin["validator"]:
                    headers["If-Range"] = origin["validator"]
        with self.http.open(self.file.url, headers) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                self._discard()
                raise TryAgainError(f"the server has no byte {start} any more")
            start = self._agree_on_start(response, origin, start)
            promised, published = self._promised_bytes(), self.file.size_bytes
            if promised is not None and published is not None and promised != published:
                self._reject(f"the server offers {promised} bytes, {published} are published")
            chunked = response.headers.get("Transfer-Encoding", "").lower() == "chunked"
            if promised is None and published is None and not (chunked or self.file.checksum):
                raise DownloadError(f"{self.file.url}: the server reports neither size nor checksum nor end.")
            with self.part.open("r+b" if start else "wb") as out:
                out.seek(start)
                out.truncate()
                with connection_errors():
                    for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                        out.write(chunk)
                        self.on_bytes(len(chunk))
                        if self.http.stop.is_set():
                            raise Stopped

    def _agree_on_start(self, response: requests.Response, origin: dict | None, asked: int) -> int:
        """The byte that the answer begins with: the one asked for, or 0 after the server changed its mind."""
        # The server's name of this version of the file: a strong ETag, else its date, or nothing.
        tag = response.headers.get("ETag", "")
        is_strong = tag and not tag.startswith("W/")
        validator = tag if is_strong else response.headers.get("Last-Modified", "")
        if response.status_code == requests.codes.partial_content:
            found = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
            same = origin is not None and origin["validator"] == validator
            if not found or int(found[1]) != asked or not same:
                self._discard()
                raise TryAgainError("the server answered with another part than it was asked for")
            return asked
        self._discard()
        length = response.headers.get("Content-Length")
        stated = {"url": self.file.url, "validator": validator, "size_bytes": int(length) if length else None}
        self.origin.write_bytes(orjson.dumps(stated))
        return 0

    def _finish(self) -> Fetched:
        """Check the complete part and give it its name."""
        size = self._part_bytes()
        promised = self._promised_bytes()
        expected = self.file.size_bytes if self.file.size_bytes is not None else promised
        if expected is not None and size < expected:
            raise TryAgainError(f"the connection ended after {size} of {expected} bytes")
        if expected is not None and size > expected:
            self._reject(f"{size} bytes arrived, {expected} are expected")
        algorithm = self.file.algorithm or UNPUBLISHED
        checksum = checksum_of(self.part, algorithm)
        if self.file.checksum and checksum != self.file.checksum:
            self._reject(f"its {algorithm} is {checksum}, {self.file.checksum} is published")
        target = self.directory / self.file.name
        with self.part.open("rb") as arrived:
            os.fsync(arrived.fileno())
        self.part.replace(target)
        self.origin.unlink(missing_ok=True)
        mtime_ns = target.stat().st_mtime_ns
        return Fetched(self.file.name, self.file.url, size, algorithm, checksum, mtime_ns)

    def _reject(self, reason: str) -> None:
        """Throw a wrong copy away, and ask for another unless there were enough."""
        self._discard()
        self.wrong.append(reason)
        if len(self.wrong) < WRONG_CONTENT_ATTEMPTS:
            raise TryAgainError(reason)
        raise DownloadError(
            f"{self.file.name} from {self.file.url} is not the published file: {reason}. "
            f"{len(self.wrong)} attempts went like this.",
            kept="nothing of this file",
            next_step="try later, or another mirror with --base-url",
        )

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.origin.unlink(missing_ok=True)

    def _part_bytes(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _promised_bytes(self) -> int | None:
        origin = self._read_origin()
        return origin["size_bytes"] if origin else None

    def _read_origin(self) -> dict | None:
        """The version of the file that the partial download belongs to; None if unknown or another file."""
        try:
            origin = orjson.loads(self.origin.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return None
        return origin if origin.get("url") == self.file.url else None


def fetch(http: Http, file: RemoteFile, directory: Path, on_bytes: Callable[[int], None]) -> Fetched | None:
    """Download a file into `directory`, where it appears complete and right, or not at all.

    Bytes that an earlier attempt left in `NAME.part` are not asked for again, as long as the server still has the
    same version: its ETag or its date says so (RFC 9110, section 13.1.5), or the published checksum will.

    Args:
        on_bytes: called with the number of bytes that have just arrived.

    Returns:
        What arrived; None for a file that may be missing and is.

    Raises:
        DownloadError: it cannot be fetched, or differs from the published file.
        StorageError: the file system refused.
    """
    transfer = _Transfer(http, file, directory, on_bytes)
    try:
        return http.persist(transfer.attempt, file.name)
    except GoneError as error:
        if file.may_be_missing:
            return None
        raise DownloadError(f"{error}.", next_step="see what there is with --dry-run") from error


def checksum_of(path: Path, algorithm: str) -> str:
    """Hexadecimal hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()

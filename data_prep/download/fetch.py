"""Files of a publisher: polite requests, and one file, which is continued where it was broken off, and complete and
checked before it gets its name.

Who asks is named, waits that a server asks for are kept, and what may pass is tried again.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import TypeVar

import orjson
import requests
import tenacity
import urllib3

from cluster.artefacts.errors import DownloadError
from cluster.artefacts.storage import storage_errors

Result = TypeVar("Result")

PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be another one later."""
LONGEST_REQUESTED_WAIT_S = 3600.0
"""A server that asks for a longer wait is not waited for."""


class TryAgainError(Exception):
    """A failure that may pass."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        """How long the server asks to wait; None where it does not."""


class Stopped(Exception):
    """Another download failed, or Ctrl-C was pressed."""


CONNECT_TIMEOUT_S = 10.0
"""How long a server may take to be reached at all."""
LIST_ATTEMPTS = 4
"""Attempts to get a list: someone is waiting for it, and nothing is lost by asking again later."""


class GoneError(Exception):
    """The server says that there is no such file."""


@dataclass(slots=True)
class Http:
    """Requests of one command, and how the publisher's server is treated. Threads may share it."""

    contact: str = ""
    """Mail address or page of the user, for the operators of the server."""
    connections: int = 2
    """Files fetched at the same time; all are on one host."""
    attempts: int = 20
    """Attempts that may bring next to nothing before a file is given up: a quarter of an hour, as things are."""
    first_wait_s: float = 1.0
    """Wait before the second attempt, about; doubled before each further one."""
    longest_wait_s: float = 60.0
    timeout_s: float = 60.0
    """How long a server may stay silent."""
    stop: Event = field(default_factory=Event)
    """Once set, waits end with `Stopped`, and so do attempts."""
    session: requests.Session = field(default_factory=requests.Session)
    num_received: int = 0
    """Bytes of files that have arrived so far, about: threads add to it without a lock."""

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[requests.Response]:
        """The answer to one GET with a status below 400, or 416; its body is not yet read.

        Raises:
            TryAgainError: the connection failed, or the server has too much to do.
            GoneError: the server has no such file.
            DownloadError: the server refuses.
            Stopped: `stop` is set.
        """
        if self.stop.is_set():
            raise Stopped
        contact = f" ({self.contact})" if self.contact else ""
        agent = f"cloze/{version('cloze')}{contact}"
        # Bytes must arrive as they are stored, or neither sizes nor ranges mean anything.
        asked = {"User-Agent": agent, "Accept-Encoding": "identity"} | dict(headers or {})
        with _connection_errors():
            response = self.session.get(
                url, headers=asked, stream=True, timeout=(CONNECT_TIMEOUT_S, self.timeout_s)
            )
        with response:
            _check_status(response)
            yield response

    def get(self, url: str) -> bytes:
        """The body of a small answer, such as a list of files.

        Raises:
            GoneError: the server has no such file.
            DownloadError: the server refuses, or keeps failing.
        """

        def attempt() -> bytes:
            with self.open(url) as response, _connection_errors():
                return response.raw.read(decode_content=True)

        return self.persist(attempt, url, min(self.attempts, LIST_ATTEMPTS))

    def persist(self, attempt: Callable[[], Result], what: str, attempts: int | None = None) -> Result:
        """Call `attempt` until it does not raise TryAgainError, and print the reason for waiting on stderr.

        Args:
            attempts: how often at most; None takes `self.attempts`.

        Raises:
            DownloadError: too many attempts to get `what` failed.
        """

        most = attempts or self.attempts

        def log_retry(state: tenacity.RetryCallState) -> None:
            reason = state.outcome.exception() if state.outcome else ""
            message = f"{what}: {reason}; attempt {state.attempt_number + 1} of {most} in {state.upcoming_sleep:.0f} s"
            print(message, file=sys.stderr, flush=True)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TryAgainError),
            wait=self._wait_s,
            stop=tenacity.stop_after_attempt(most),
            before_sleep=log_retry,
            sleep=tenacity.sleep_using_event(self.stop),
            reraise=True,
        )
        try:
            return retrying(attempt)
        except TryAgainError as error:
            raise DownloadError(
                f"{what} could not be downloaded: {error}.",
                kept="what has arrived; it is not asked for again",
                next_step="run the same command again when the server answers",
            ) from error

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        own = tenacity.wait_exponential_jitter(
            initial=self.first_wait_s, max=self.longest_wait_s, jitter=self.first_wait_s
        )(state)
        error = state.outcome.exception() if state.outcome else None
        asked = error.wait_s if isinstance(error, TryAgainError) else None
        return own if asked is None else max(asked, own)


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Turn what goes wrong on the way into TryAgainError."""
    try:
        yield
    except (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema) as error:
        raise DownloadError(f"{error}.", next_step="correct --base-url") from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError) as error:
        raise TryAgainError(f"{type(error).__name__}: {error}") from error


def _check_status(response: requests.Response) -> None:
    status = response.status_code
    if status < 400 or status == requests.codes.requested_range_not_satisfiable:
        return
    answer = f"{response.url} answers {status} {response.reason}"
    if status in (requests.codes.not_found, requests.codes.gone):
        raise GoneError(answer)
    if status not in PASSING_STATUS:
        raise DownloadError(f"{answer}.", next_step="ask the publisher, or choose a mirror with --base-url")
    # Retry-After is a number of seconds or a date (RFC 9110, section 10.2.3).
    asked, wait_s = response.headers.get("Retry-After", ""), None
    if asked.strip().isdigit():
        wait_s = float(asked)
    else:
        with suppress(ValueError, TypeError):
            wait_s = max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
    if wait_s is None or wait_s <= LONGEST_REQUESTED_WAIT_S:
        raise TryAgainError(answer, wait_s)
    raise DownloadError(f"{answer} and asks to wait {wait_s:.0f} s.", next_step="come back after that time")


# -- one file ------------------------------------------------------------------------------------------------

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
                with _connection_errors():
                    for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                        out.write(chunk)
                        self.http.num_received += len(chunk)
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


def fetch(http: Http, file: RemoteFile, directory: Path) -> Fetched | None:
    """Download a file into `directory`, where it appears complete and right, or not at all.

    Bytes that an earlier attempt left in `NAME.part` are not asked for again, as long as the server still has the
    same version: its ETag or its date says so (RFC 9110, section 13.1.5), or the published checksum will.

    Returns:
        What arrived; None for a file that may be missing and is.

    Raises:
        DownloadError: it cannot be fetched, or differs from the published file.
        StorageError: the file system refused.
    """
    transfer = _Transfer(http, file, directory)
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

"""Polite requests: who asks is named, waits that a server asks for are kept, and what may pass is tried again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from threading import Event
from typing import TypeVar

import requests
import tenacity
import urllib3

from cluster.artefacts.errors import DownloadError

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


@dataclass(frozen=True, slots=True)
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

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[requests.Response]:
        """The answer to one GET with a status below 400, or 416; its body is not yet read.

        Raises:
            TryAgainError: the connection failed, or the server has too much to do.
            GoneError: the server has no such file.
            DownloadError: the server refuses.
        """
        contact = f" ({self.contact})" if self.contact else ""
        agent = f"cloze/{version('cloze')}{contact}"
        # Bytes must arrive as they are stored, or neither sizes nor ranges mean anything.
        asked = {"User-Agent": agent, "Accept-Encoding": "identity"} | dict(headers or {})
        with connection_errors():
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
            with self.open(url) as response, connection_errors():
                return response.raw.read(decode_content=True)

        return self.persist(attempt, url, min(self.attempts, LIST_ATTEMPTS))

    def persist(self, attempt: Callable[[], Result], what: str, attempts: int | None = None) -> Result:
        """Call `attempt` until it does not raise TryAgainError, and print the reason for waiting on stderr.

        Args:
            attempts: how often at most; None takes `self.attempts`.

        Raises:
            DownloadError: too many attempts to get `what` failed.
        """

        def unless_stopped() -> Result:
            if self.stop.is_set():
                raise Stopped
            return attempt()

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
            return retrying(unless_stopped)
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
def connection_errors() -> Iterator[None]:
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

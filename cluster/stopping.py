"""Graceful stop: a signal becomes a request file on disk, and the work ends where it can continue later.

Schedulers (Slurm, Kubernetes, Ray jobs) announce an end by SIGTERM, closed terminals by SIGHUP. Only the driver
gets them, and its workers run on other machines, so the request is a file in a directory that all share.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import orjson

from cluster import logs, signals
from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import write_durably

REQUEST_NAME = "stop.json"
LEAVE_S = 30
"""Seconds that a stopped verb has to end its workers and its tracking, after it has saved."""
_UNHEARD_S = 5.0
"""Seconds until an interruption is repeated, because a library may have swallowed it."""


class StopFile:
    """A request to stop, in a directory."""

    def __init__(self, directory: Path, *, poll_s: float = 1.0) -> None:
        """
        Args:
            poll_s: seconds between two checks of the file system, which may be slow.
        """
        self._path = directory / REQUEST_NAME
        self._poll_s = poll_s
        self._next_look_s = 0.0
        self._seen = False

    def request(self, reason: str, *, instead: bool = False) -> None:
        """Request the stop. The first reason is kept.

        Args:
            instead: replace an earlier reason.
        """
        contents = {"reason": reason, "time_s": time.time(), "host": platform.node(), "pid": os.getpid()}
        if instead:
            write_durably(self._path, orjson.dumps(contents))
        else:
            try:
                with self._path.open("xb") as stream:
                    stream.write(orjson.dumps(contents))
            except FileExistsError:
                pass
            except OSError:
                # A request without its reason would be another one.
                self._path.unlink(missing_ok=True)
                raise
        self._seen = True

    def take(self) -> str:
        """Remove the request, and return its reason; empty without a request. A request that comes meanwhile stays."""
        taken = self._path.with_name(f".{REQUEST_NAME}.taken")
        self._seen, self._next_look_s = False, 0.0
        try:
            os.replace(self._path, taken)
        except FileNotFoundError:
            return ""
        reason = _reason_in(taken)
        taken.unlink(missing_ok=True)
        return reason

    def requested(self) -> bool:
        """Whether the stop was requested. Checks the file once per `poll_s`."""
        if not self._seen and time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + self._poll_s
            self._seen = os.path.exists(self._path)
        return self._seen

    @property
    def reason(self) -> str:
        """The reason given with the request; empty without a request."""
        return _reason_in(self._path)

    def clear(self) -> None:
        """Remove the request; every start begins with this."""
        self._path.unlink(missing_ok=True)
        self._seen, self._next_look_s = False, 0.0


def _reason_in(path: Path) -> str:
    try:
        return str(orjson.loads(path.read_bytes())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


@contextmanager
def stop_on_sigterm(
    directory: Path,
    *,
    grace_s: float,
    next_step: str,
    kept: str = "all committed checkpoints",
    clears: bool = True,
    nothing_to_save: Callable[[], bool] = lambda: False,
) -> Iterator[StopFile]:
    """Inside the block, the first SIGTERM or SIGHUP requests a stop in `directory`; a later SIGTERM, or the end of the
    grace period, ends the block at once.

    Must be entered inside of all code that sets its own handlers, as `ray.init` does. Outside of the main thread, which
    alone can have handlers, it only removes an older request.

    Args:
        grace_s: grace period in seconds.
        next_step, kept: the command that continues and the work that it keeps, for the error's message.
        clears: whether this process removes an older request first; one process of a group does.
        nothing_to_save: whether the last checkpoint is up to date; the first signal then ends the block at once.

    Yields:
        The request.

    Raises:
        PreemptedError: in the main thread, wherever it is, when the grace period is over.
    """
    request = StopFile(directory)
    if clears:
        request.clear()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    ending = _Ending(request, grace_s, nothing_to_save)
    with signals.answered_by(ending.on_signal):
        try:
            yield request
        except BaseException as interrupt:
            # Libraries turn an interruption into other errors.
            if ending.why is None:
                raise
            raise PreemptedError(
                f"Ended at once, without saving again: {ending.why}.",
                kept=kept,
                next_step=next_step,
            ) from interrupt
        finally:
            ending.disarm()


@dataclass
class _Ending:
    """The handler of SIGTERM and SIGHUP: first it requests the stop, then it interrupts the main thread."""

    request: StopFile
    grace_s: float
    nothing_to_save: Callable[[], bool]
    why: str | None = None
    """Why the block ends at once; None until then."""
    _alarm: threading.Timer | None = None
    _first_s: float = 0.0
    _time_is_over: bool = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            signals.leave_closed_terminal()
        if self._alarm is not None:
            if not (self._time_is_over or signals.is_again(number, self._first_s)):
                return
            again = f"{self.grace_s:g} s were not enough" if self._time_is_over else "SIGTERM came again"
            self.why = self.why or again
            # The one exception that all libraries let through; Ray's waiting swallows others.
            raise KeyboardInterrupt
        self._first_s = time.monotonic()
        at_once = self.nothing_to_save()
        grace_s = min(self.grace_s, _UNHEARD_S) if at_once else self.grace_s
        self._alarm = threading.Timer(grace_s, self._end)
        self._alarm.daemon = True
        self._alarm.start()
        if at_once:
            self.why = "everything is saved"
            raise KeyboardInterrupt
        name = signal.Signals(number).name
        text = (
            f"{name}: saving, then ending; at the latest in {self.grace_s:g} s. Another SIGTERM ends at once."
        )
        # Written past Python's buffers: a handler may interrupt code that holds their lock.
        with suppress(OSError):
            os.write(sys.stderr.fileno(), logs.as_written(text, "warning").encode())
        try:
            # It outlasts a request to move, which the group would start again after.
            self.request.request(f"{name} to process {os.getpid()} on {platform.node()}", instead=True)
        except OSError as error:
            self.why = f"the request to save could not be written ({error})"
            raise KeyboardInterrupt from error

    def disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _end(self) -> None:
        self._time_is_over = True
        # Only a signal interrupts the main thread while it waits.
        os.kill(os.getpid(), signal.SIGTERM)

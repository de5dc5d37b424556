"""Stopping in good order: a signal becomes a request on disk, and the work ends where it can go on from.

SIGTERM is how schedulers (Slurm, Kubernetes, Ray jobs) announce an end. Only the main thread of a process can answer
signals, and workers under Ray Train run in others, so the request travels through a file in a directory that all share.
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
from pathlib import Path
from types import FrameType

import orjson

from cluster import signals
from cluster.artefacts.errors import PreemptedError

REQUEST_NAME = "stop.json"
_UNHEARD_S = 5.0
"""Seconds after which an interruption is repeated, because a library may have swallowed it."""


class StopFile:
    """A request to stop, in a directory."""

    def __init__(self, directory: Path, *, poll_s: float = 1.0) -> None:
        """
        Args:
            poll_s: seconds between looks at the file system, which may be a slow one.
        """
        self._path = directory / REQUEST_NAME
        self._poll_s = poll_s
        self._next_look_s = 0.0
        self._seen = False

    def request(self, reason: str) -> None:
        """Ask for the stop. The first reason stays."""
        contents = {"reason": reason, "time_s": time.time(), "host": platform.node(), "pid": os.getpid()}
        with suppress(FileExistsError), self._path.open("xb") as stream:
            stream.write(orjson.dumps(contents))
        self._seen = True

    def requested(self) -> bool:
        """Whether somebody asked for the stop. Costs one look per `poll_s`, and nothing in between."""
        if not self._seen and time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + self._poll_s
            self._seen = self._path.exists()
        return self._seen

    @property
    def reason(self) -> str:
        """Why, in the words of who asked; empty without a request."""
        try:
            return str(orjson.loads(self._path.read_bytes())["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def clear(self) -> None:
        """Take the request back; what every start does first."""
        self._path.unlink(missing_ok=True)
        self._seen, self._next_look_s = False, 0.0


@contextmanager
def stop_on_sigterm(
    directory: Path,
    *,
    grace_s: float,
    next_step: str,
    speaks: bool = True,
    nothing_to_save: Callable[[], bool] = lambda: False,
) -> Iterator[StopFile]:
    """For the time of the block, SIGTERM asks for a stop in `directory`; a second one, or `grace_s` over, ends at once.

    To be entered inside of everything that sets handlers of its own, as `ray.init` does. Outside of the main thread,
    which alone can have handlers, it only takes an older request back.

    Args:
        grace_s: seconds between the request and the end.
        next_step: how the work is taken up again, for the error's message.
        speaks: whether this process takes back an older request first, and says on stderr that it stops; of a group,
            one does.
        nothing_to_save: whether the work is where it would be taken up again; it then ends at once, too.

    Yields:
        The request.

    Raises:
        PreemptedError: from whatever the main thread was doing, when the time is over.
    """
    request = StopFile(directory)
    if speaks:
        request.clear()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    ending = _Ending(request, grace_s, speaks, nothing_to_save)
    with signals.answered_elsewhere():
        before = signal.signal(signal.SIGTERM, ending.on_signal)
        try:
            yield request
        except BaseException as interrupt:
            # Libraries make other errors of an interruption.
            if ending.why is None:
                raise
            raise PreemptedError(
                f"Ended at once, without waiting for another checkpoint: {ending.why}.",
                kept="all committed checkpoints",
                next_step=next_step,
            ) from interrupt
        finally:
            ending.disarm()
            signal.signal(signal.SIGTERM, before)


class _Ending:
    """What SIGTERM does: first ask, then end."""

    def __init__(
        self, request: StopFile, grace_s: float, speaks: bool, nothing_to_save: Callable[[], bool]
    ) -> None:
        self._request, self._grace_s, self._speaks = request, grace_s, speaks
        self._nothing_to_save = nothing_to_save
        self.why: str | None = None
        """Why it is to end at once; None as long as it is not."""
        self._alarm: threading.Timer | None = None
        self._time_is_over = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._alarm is not None:
            again = f"{self._grace_s:g} s were not enough" if self._time_is_over else "SIGTERM came again"
            self.why = self.why or again
            # The one exception that everybody lets through; Ray's waiting swallows others.
            raise KeyboardInterrupt
        at_once = self._nothing_to_save()
        grace_s = min(self._grace_s, _UNHEARD_S) if at_once else self._grace_s
        self._alarm = threading.Timer(grace_s, self._end)
        self._alarm.daemon = True
        self._alarm.start()
        if at_once:
            self.why = "there is nothing to save that is not saved"
            raise KeyboardInterrupt
        _say(
            f"SIGTERM: saving, then ending; at the latest in {self._grace_s:g} s. A second one ends at once."
        )
        self._request.request(f"SIGTERM to process {os.getpid()} on {platform.node()}")

    def disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _end(self) -> None:
        self._time_is_over = True
        # Only the main thread can be interrupted in what it waits for, and only by a signal.
        os.kill(os.getpid(), signal.SIGTERM)


def _say(text: str) -> None:
    # Written past Python's buffers: a handler may interrupt somebody who holds their lock.
    os.write(sys.stderr.fileno(), f"{text}\n".encode())

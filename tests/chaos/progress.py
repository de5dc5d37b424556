"""The updates of a run as they happen: how long it paused after a fault, and how many updates were made again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import orjson

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Seen:
    """A change of rank 0's heartbeat."""

    at_s: float
    """Monotonic."""
    process: tuple[int, float]
    """Its number, and when it began: in process name spaces numbers repeat."""
    step: int
    """The update that it works on; -1 while it starts."""


class Progress:
    """Follows rank 0's heartbeat from a thread."""

    def __init__(self, heartbeat: Path) -> None:
        self._heartbeat = heartbeat
        self.seen: list[Seen] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    @property
    def last_step(self) -> int:
        """The update that is being made; -1 before the first."""
        return self.seen[-1].step if self.seen else -1

    def has_moved_since(self, at_s: float) -> bool:
        """Whether an update was finished that began after a moment."""
        later = [one for one in self.seen if one.at_s > at_s and one.step >= 0]
        return any(a.process == b.process and b.step > a.step for a, b in pairwise(later))

    def pause_s(self, since_s: float, until_s: float) -> float:
        """The longest time without a finished update that ends between two moments, in seconds; where no update was
        finished between them, the time across them."""
        finished = [b.at_s for a, b in pairwise(self.seen) if a.process == b.process and b.step > a.step >= 0]
        if not any(at_s <= since_s for at_s in finished):
            finished = [since_s, *finished]
        pauses = [b - a for a, b in pairwise(finished) if since_s < b <= until_s]
        pauses = pauses or [b - a for a, b in pairwise(finished) if b > since_s and a < until_s]
        return max(pauses, default=0.0)

    def repeated(self, since_s: float, until_s: float) -> int:
        """Updates that processes that began between two moments made again."""
        count = 0
        for index, one in enumerate(self.seen):
            earlier = [other.step for other in self.seen[:index] if other.step >= 0]
            begins = one.step >= 0 and not any(
                other.process == one.process and other.step >= 0 for other in self.seen[:index]
            )
            if begins and earlier and since_s < one.at_s <= until_s:
                count += max(0, earlier[-1] - one.step)
        return count

    def _follow(self) -> None:
        while not self._over.wait(_POLL_S):
            try:
                beat = orjson.loads(self._heartbeat.read_bytes())
                process, step = (int(beat["pid"]), float(beat["started_s"])), int(beat["step"])
            except (OSError, ValueError, KeyError):
                continue
            if not self.seen or (self.seen[-1].process, self.seen[-1].step) != (process, step):
                self.seen.append(Seen(time.monotonic(), process, step))

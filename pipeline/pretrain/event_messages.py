"""Events of a run as messages of its driver, for log collectors: restarts, rollbacks, stalls, whichever rank and node.

On a terminal and in text they would stand between the lines of progress; there they are in `events.jsonl`.
"""

from __future__ import annotations

from cluster import logs
from pipeline.run.directory import RunDirectory
from pipeline.run.events import TROUBLES

_LONG = frozenset({"event", "time", "environment", "machine", "store_fingerprints", "attention"})
"""Members that are no news, or too long for a line."""


class EventMessages:
    """Log each event that is recorded from now on, where messages are JSON."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._num_logged = len(run.events()) if logs.in_json() else 0

    def log_new(self) -> None:
        """Log the events since the last call."""
        if not logs.in_json():
            return
        events = self._run.events()
        for event in events[self._num_logged :]:
            kind = event["event"]
            members = {name: value for name, value in event.items() if name not in _LONG}
            if "host" in members:
                members["node"] = members.pop("host")
            logs.say(
                f"{kind}: {members.pop('message')}" if "message" in members else kind,
                "warning" if kind in TROUBLES else "info",
                event=kind,
                **members,
            )
        self._num_logged = len(events)

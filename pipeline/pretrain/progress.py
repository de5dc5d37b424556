"""A run as its driver shows it: lines of progress from the run's log, and its events as messages for log collectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cluster import logs
from cluster.artefacts.owner import repeated
from cluster.progress import progress
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import TROUBLES
from pipeline.run.history import last_logged
from pipeline.run.log.lines import LogKind, entries_from, log_size
from pipeline.samples.batch_plan import UNBOUNDED_STEPS

_POLL_S = 0.5
_LONG = frozenset({"event", "time", "environment", "machine", "store_fingerprints", "attention"})
"""Members of events that are no news, or too long for a line."""


def log_events(run: RunDirectory, first: int) -> int:
    """Log the events of a run from index `first` on, where messages are JSON: restarts, rollbacks, stalls, whichever
    rank and node. On a terminal and in text they would interrupt the lines of progress; they are in `events.jsonl`.

    Returns:
        The index of the next event.
    """
    events = run.events()
    for event in events[first:]:
        kind = event["event"]
        members = {name: value for name, value in event.items() if name not in _LONG}
        if "host" in members:
            members["node"] = members.pop("host")
        text = f"{kind}: {members.pop('message')}" if "message" in members else kind
        logs.say(text, "warning" if kind in TROUBLES else "info", event=kind, **members)
    return len(events)


@contextmanager
def shown_progress(run: RunDirectory, config: PretrainConfig) -> Iterator[None]:
    """Follow the run's log from the driver and show it; the workers themselves print nothing.

    Progress is in seconds for a run that only its time budget ends, else in updates.
    """
    budget_s = config.budget.time_s if config.budget is not None else None
    in_seconds = config.num_steps == UNBOUNDED_STEPS
    total = int(budget_s or 0) if in_seconds else config.num_steps

    def done(step: int, data: Mapping[str, Any]) -> int:
        return min(int(data.get("elapsed_s", 0)), total) if in_seconds else step

    last = last_logged(run)
    shown, offset = 0, log_size(run)
    num_events = len(run.events()) if logs.in_json() else 0

    def look() -> None:
        nonlocal shown, offset, num_events
        if logs.in_json():
            num_events = log_events(run, num_events)
        steps = []
        for entry, after in entries_from(run, offset):
            offset = after
            if entry["kind"] == LogKind.STEP:
                steps.append((entry["step"], entry["data"]))
        if last is not None and not shown and steps:
            shown = done(*last)
            advance(shown)
        if steps:
            step, data = steps[-1]
            logs.bind(step=step)
            text = f"step {step}  loss {data['loss']:.3f}  {data['tokens_per_s']:,.0f} tokens/s"
            advance(done(step, data) - shown, text)
            shown = done(step, data)

    with (
        progress(f"pretrain {run.path.name}", total) as advance,
        repeated(look, _POLL_S, name="progress", once_more=True),
    ):
        yield

"""Progress for people: a bar on a terminal, periodic plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cluster import logs

_MIB = 1 << 20
PLAIN_INTERVAL_S = 10.0
"""Seconds between two plain lines."""


Advance = Callable[..., None]
"""`advance(count=1, shown="")` reports `count` more units as done; `shown` is a short text such as `loss 5.31`."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Show the progress of `total` units of work on stderr. Yields the function that reports advances."""
    if sys.stderr.isatty():
        yield from _bar(title, total)
    else:
        yield from _lines(title, total)


@contextmanager
def transfer(title: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of a transfer in MiB. Yields the function that reports bytes, from any thread."""
    lock, done, shown = threading.Lock(), 0, 0
    with progress(f"{title}, MiB", math.ceil(size_bytes / _MIB)) as advance:

        def add(count: int) -> None:
            nonlocal done, shown
            with lock:
                done += count
                if more := math.ceil(done / _MIB) - shown:
                    advance(more)
                shown += more

        yield add


def _bar(title: str, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = ("[bold]{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    texts = [TextColumn(column) if isinstance(column, str) else column for column in columns]
    with Progress(*texts, TextColumn("{task.fields[shown]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, shown="")

        def advance(count: int = 1, shown: str = "") -> None:
            bar.update(task, advance=count, shown=shown)

        yield advance


def _lines(title: str, total: int) -> Iterator[Advance]:
    started = time.monotonic()
    state = {"done": 0, "printed": started}

    def advance(count: int = 1, shown: str = "") -> None:
        state["done"] += count
        now = time.monotonic()
        if state["done"] >= total or now - state["printed"] >= PLAIN_INTERVAL_S:
            state["printed"] = now
            parts = [f"{title}: {int(state['done'])}/{total}", f"{now - started:.0f} s", shown]
            fields = {"task": title, "done": int(state["done"]), "total": total} if logs.in_json() else {}
            logs.say("  ".join(part for part in parts if part), **fields)

    yield advance

"""Ends rank 0 of a group that stands still with a message and an exit code, where no driver does.

The alarm of `heartbeat.py` comes a little later and ends every rank without a word, also where the interpreter hangs.
"""

from __future__ import annotations

import faulthandler
import os
import platform
from contextlib import AbstractContextManager, suppress
from functools import partial

from cluster import logs, signals
from pipeline.pretrain.guards.endings import stalled
from pipeline.pretrain.guards.stall_watch import Stall, StallWatch, watching
from pipeline.run.directory import RunDirectory
from pipeline.run.lifecycle import record_failure


def watching_without_driver(run: RunDirectory) -> AbstractContextManager[StallWatch]:
    """Watch a run from a thread of its rank 0 for the time of the block; a stall ends this process with 34."""
    return watching(run, at_end=partial(_end, run))


def _end(run: RunDirectory, stall: Stall) -> None:
    stacks = run.stack_file(0, platform.node(), os.getpid())
    with suppress(OSError), stacks.open("a") as stream:
        faulthandler.dump_traceback(stream)
    error = stalled(run, 0, str(stall), [stacks])
    record_failure(run, error)
    with suppress(OSError):
        logs.say(f"\n{error}", "error", **error.members)
    signals.end_children()
    # The main thread waits for the other ranks.
    os._exit(error.exit_code)

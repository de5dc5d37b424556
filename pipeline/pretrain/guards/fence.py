"""The group of workers that a run belongs to: the newest one, and no other may publish a checkpoint.

RUN/owner.json holds a token that every group replaces when it starts. Locks and signs of life keep a second group from
starting beside a living first one; but a machine may be cut off from both, and come back. Its workers then find another
token, and end without having written what others read: neither a checkpoint nor a line of the log.
"""

from __future__ import annotations

import os
import platform
import time
from uuid import uuid4

import orjson

from cluster.artefacts.errors import TakenOverError
from cluster.artefacts.manifest import write_durably
from pipeline.pretrain.guards.endings import taken_over
from pipeline.run.directory import RunDirectory

_POLL_S = 1.0


class Fence:
    """The token of one group, on its rank 0."""

    def __init__(self, run: RunDirectory) -> None:
        """Take the run over from all earlier groups.

        Raises:
            StorageError: the file system refuses.
        """
        self._run = run
        self._contents = orjson.dumps(
            {"token": uuid4().hex, "host": platform.node(), "pid": os.getpid()}, option=orjson.OPT_INDENT_2
        )
        self._next_look_s = 0.0
        self._found_lost = False
        with self._run.refusals():
            write_durably(self._run.owner, self._contents)

    def require(self) -> None:
        """Raise TakenOverError when another group has taken the run over."""
        try:
            found = self._run.owner.read_bytes()
        except FileNotFoundError:
            found = b""
        except OSError:
            # A file system that refuses now refuses the checkpoint too, with a better message.
            return
        if found == self._contents:
            return
        try:
            owner = orjson.loads(found)
            other = f"process {owner['pid']} on {owner['host']}"
        except (ValueError, KeyError, TypeError):
            other = "another group"
        raise taken_over(self._run, other)

    def is_lost(self, *, now: bool = False) -> bool:
        """Whether another group has taken the run over; looks once a second, or `now`."""
        if self._found_lost or (not now and time.monotonic() < self._next_look_s):
            return self._found_lost
        self._next_look_s = time.monotonic() + _POLL_S
        try:
            self.require()
        except TakenOverError:
            self._found_lost = True
        return self._found_lost

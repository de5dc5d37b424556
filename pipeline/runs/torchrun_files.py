"""Temporary directories of `torchrun`, which it leaves behind when it is killed.

RUN/torchrun/HOST-PID.json names the directory of the torchrun process with that id. The next start of the run on that
machine, or the next look at it there, removes directories of processes that have ended.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import orjson
import psutil

from pipeline.runs.directory import RunDirectory
from pipeline.runs.heartbeat import find_process, this_machine

_PREFIX = "torchelastic_"
_VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun tells its processes to report errors: a file in its directory."""


def note_torchrun(run: RunDirectory) -> None:
    """Remember the directory of the torchrun that started this process, if one did."""
    places = Path(os.environ.get(_VARIABLE, "")).parents
    directory = next((place for place in places if place.name.startswith(_PREFIX)), None)
    if directory is None:
        return
    agent = psutil.Process(os.getppid())
    note = {"directory": str(directory), "machine": this_machine(), "pid": agent.pid}
    with run.refusals():
        run.torchrun.mkdir(exist_ok=True)
        path = run.torchrun / f"{platform.node()}-{agent.pid}.json"
        path.write_bytes(orjson.dumps(note | {"started_s": agent.create_time()}))


def remove_torchrun_directories(run: RunDirectory) -> None:
    """Remove the directories that killed torchrun processes left on this machine."""
    for path in sorted(run.torchrun.glob("*.json")):
        # A note that cannot be read names nothing that could be removed.
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = orjson.loads(path.read_bytes())
            if note["machine"] != this_machine() or find_process(int(note["pid"]), float(note["started_s"])):
                continue
            _remove(Path(note["directory"]))
            path.unlink(missing_ok=True)


def _remove(directory: Path) -> None:
    """Remove a directory as torchrun makes it; a note may have been changed, so that nothing else is touched."""
    with suppress(FileNotFoundError):
        found = directory.lstat()
        if directory.name.startswith(_PREFIX) and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            shutil.rmtree(directory, ignore_errors=True)

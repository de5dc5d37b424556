"""Work in a process of its own that is killed as soon as so many shards are recorded."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, signal, sys
from pathlib import Path

from cluster.artefacts.shard_records import ShardLog
from cluster.runtime import ray_runtime

add, left = ShardLog.add, {count}

def add_and_die(log, file, *facts, **counts):
    global left
    add(log, file, *facts, **counts)
    left -= file.startswith({prefix!r})
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

ShardLog.add = add_and_die
with ray_runtime("local", num_cpus=1):
"""


def kill_after(count: int, work: str, *arguments: object, prefix: str = "") -> None:
    """Run Python lines with these `sys.argv[1:]` until `count` shards whose names have the prefix are recorded."""
    script = SCRIPT.format(count=count, prefix=prefix) + "\n".join(f"    {line}" for line in work.split("\n"))
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        assert process.wait() == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

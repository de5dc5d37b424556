"""What situations are made from: a corpus, copies of a run, and what goes wrong with them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.run.directory import RunDirectory
from pipeline.run.state import Beat, process_of, read_heartbeats
from tests.pipeline.process_group import PATIENCE_S, Group, forked_environment

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Situation:
    """Where a page is followed, by whom, and what must come of it."""

    directory: Path
    settings: Mapping[str, object]
    environment: Mapping[str, str]
    expected: tuple[str, ...] = field(default=())
    """What the commands must have printed, besides not failing."""


def named(run: RunDirectory, **settings: object) -> dict[str, object]:
    """The settings of a page about a run, and others."""
    return {"RUN": run.path.name, "RUNS": run.path.parent, **settings}


@dataclass(frozen=True)
class Corpus:
    """A preparation that can be run: the practice corpus and a package with a file that does not parse."""

    config: Path
    out: Path
    environment: Mapping[str, str]


def copy_run(run: RunDirectory, runs_dir: Path) -> RunDirectory:
    """A copy that a page may change, under another runs directory."""
    # The process that sends the log lives on for a moment after a kill, and replaces files.
    shutil.copytree(run.path, runs_dir / run.path.name, ignore=shutil.ignore_patterns(".*.tmp"))
    return RunDirectory(runs_dir / run.path.name)


def failed_run(
    run: RunDirectory, directory: Path, exit_code: int, *settings: str, shell: str = ""
) -> RunDirectory:
    """A copy that went on with other settings, on one worker, until it ended with that exit code.

    Args:
        shell: commands before it in the same shell, such as a limit.
    """
    failing = copy_run(run, directory / "runs")
    failing.reconfigure(failing.config(settings))
    training = shlex.join(
        [str(forked_environment() / "bin" / "python"), "-m", "pipeline.pretrain", str(failing.path)]
    )
    command = ["bash", "-c", f"{shell}exec {training}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == exit_code, done.stderr[-3000:]
    assert "Next: " in done.stderr
    assert "Traceback" not in done.stderr, done.stderr[-6000:]
    return failing


def wait_for_beat(
    run: RunDirectory, process: Group | subprocess.Popen[bytes], *, rank: int, num_steps: int = 0
) -> Beat:
    """The first sign of life of a rank that has made so many updates since its start."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for beat in read_heartbeats(run):
            if beat.rank == rank and beat.num_steps >= num_steps and process_of(beat) is not None:
                return beat
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def on_local_cluster(
    corpus: Corpus, directory: Path, settings: Mapping[str, object], expected: tuple[str, ...]
) -> Iterator[Situation]:
    """A situation on a machine without a cluster: the page starts a local one, which ends with the test."""
    inherited = {name: value for name, value in corpus.environment.items() if not name.startswith("RAY_")}
    environment = inherited | {"CLOZE_LOCAL_CLUSTER": str(directory / "cluster.json")}
    try:
        yield Situation(directory, settings, environment, expected)
    finally:
        subprocess.run(["cloze", "stop", "--cluster"], env=environment, check=True, capture_output=True)

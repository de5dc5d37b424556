"""Situations in which pages are followed as an operator does: what they are made from, and the shell that follows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.state import Beat, process_of, read_heartbeats
from tests.pipeline.process_group import PATIENCE_S, Group, forked_environment, wait_until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Situation:
    """Where a page is followed, by whom, and what must come of it."""

    directory: Path
    settings: Mapping[str, object]
    environment: Mapping[str, str]
    expected: tuple[str, ...]
    """What the commands must have printed, besides not failing."""


Prepares = Callable[..., Situation]
"""From a page's settings and what its commands must print: the fixture `situation`."""


@dataclass(frozen=True)
class Corpus:
    """A preparation that can be run: the practice corpus and a package with a file that does not parse."""

    config: Path
    out: Path
    environment: Mapping[str, str]

    def write(self, path: Path, out: Path) -> None:
        """Write a configuration that prepares it elsewhere, and leaves that file out."""
        path.write_text(f"base: {self.config}\nout: {out}\nmax_rejects: 1\n")


def follow(page: Path, situation: Situation) -> None:
    """Paste a page's blocks into a shell, with the situation's settings in place of the page's own."""
    (_, own), *commands = BLOCK.findall(page.read_text())
    assert set(re.findall(r"^(\w+)=", own, re.MULTILINE)) == set(situation.settings)
    settings = [f"{name}={shlex.quote(str(value))}" for name, value in situation.settings.items()]
    script = "\n".join([*settings, *(code for _, code in commands)])
    # To a file, not a pipe: what a page leaves running would keep a pipe open after the shell's end.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        shell = subprocess.Popen(
            ["bash", "-euxo", "pipefail", "-c", script],
            cwd=situation.directory,
            env=dict(situation.environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        output.seek(0)
        printed = output.read()
    assert shell.returncode == 0, printed[-6000:]
    assert [text for text in situation.expected if text not in printed] == [], printed


def wait_for_beat(
    run: RunDirectory, process: Group | subprocess.Popen[bytes], *, rank: int, num_steps: int = 0
) -> Beat:
    """The first sign of life of a rank that has made so many updates since its start."""

    def alive() -> list[Beat]:
        beats = [beat for beat in read_heartbeats(run) if beat.rank == rank and beat.num_steps >= num_steps]
        return [beat for beat in beats if process_of(beat) is not None]

    found: list[Beat] = []
    wait_until(lambda: found.extend(alive()) or found, process)
    return found[0]


def named(run: RunDirectory, **settings: object) -> dict[str, object]:
    """The settings of a page about a run, and others."""
    return {"RUN": run.path.name, "RUNS": run.path.parent, **settings}


def write_rows(directory: Path, count: int) -> str:
    """Write so many texts with labels; returns a task of them as YAML."""
    rows = "".join(f"word {number},{number % 2}\n" for number in range(count))
    (directory / "rows.csv").write_text(f"text,label\n{rows}")
    return "{kind: rows_classification, train: rows.csv, columns: {text: text, label: label}}"


def write_run(path: Path, tokens: Path, runs_dir: str, more: str = "") -> None:
    """Write a configuration that trains on tokens."""
    base = f"{ROOT}/configs/demo/practice-pretrain.yaml"
    path.write_text(f"base: {base}\nruns_dir: {runs_dir}\ndata: {{stores: [{{path: {tokens}}}]}}\n{more}\n")


def copy_run(run: RunDirectory, runs_dir: Path) -> RunDirectory:
    """A copy that a page may change, under another runs directory."""
    copy = runs_dir / run.path.name
    # The process that sends the log lives on for a moment after a kill, and replaces files.
    shutil.copytree(run.path, copy, ignore=shutil.ignore_patterns(".*.tmp"))
    return RunDirectory(copy)


def kill_workers(run: RunDirectory, process: Group) -> None:
    """SIGKILL for the ranks of the last start."""
    (*_, started) = run.events(Event.STARTED)
    for worker in started["workers"]:
        with suppress(ProcessLookupError):
            os.kill(worker["pid"], signal.SIGKILL)
    process.wait()


def failed_run(
    run: RunDirectory, directory: Path, exit_code: int, *settings: str, shell: str = ""
) -> RunDirectory:
    """A copy that went on with other settings, on one worker, until it ended with that exit code.

    Args:
        shell: commands before it in the same shell, such as a limit.
    """
    failing = copy_run(run, directory / "runs")
    failing.reconfigure(failing.config(settings))
    python = forked_environment() / "bin" / "python"
    training = shlex.join([str(python), "-m", "pipeline.pretrain", str(failing.path)])
    command = ["bash", "-c", f"{shell}exec {training}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == exit_code, done.stderr[-3000:]
    assert "Next: " in done.stderr
    assert "Traceback" not in done.stderr, done.stderr[-6000:]
    return failing


def with_path(environment: Mapping[str, str], *places: Path) -> dict[str, str]:
    """An environment in which programs of these places are found first."""
    return {**environment, "PATH": os.pathsep.join([*map(str, places), os.environ["PATH"]])}

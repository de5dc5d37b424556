"""A tiny pre-training that suffers faults: its updates as they happen, and what must hold when it has ended."""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.storage import open_artefact
from pipeline.checkpoint.checkpoint import MODEL_FILE, list_checkpoints, step_of
from pipeline.checkpoint.store import store_of
from pipeline.pretrain.launch import create_run
from pipeline.run.directory import RunDirectory
from pipeline.run.lifecycle import replay
from pipeline.run.log.lines import read_metrics
from pipeline.run.log.log import damage_of_log
from pipeline.run.state import read_heartbeats
from tests.chaos.injected import Injected
from tests.pipeline.process_group import PATIENCE_S, Group
from tests.pipeline.ranks import make_config
from tests.surroundings import plain_environment

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


STEPS = 160
SAVED_EVERY = 20
WORKERS = 2
SETTINGS = (
    f"steps={STEPS}",
    f"checkpoint.every_steps={SAVED_EVERY}",
    f"evaluation.every_steps={STEPS // 2}",
    f"cluster.workers={WORKERS}",
    "guards.stall_timeout_s=60",
)
LEFT_OVER = ("*.partial", "*.tmp", ".step-*")
ITSELF = "nothing"
AGAIN = "the same command again"


@dataclass
class Row:
    """One fault, as the table tells it."""

    name: str
    fault: str
    operator: str = ITSELF
    """What a person, or a scheduler, had to do."""
    exit_codes: list[int] = field(default_factory=list)
    """Of the command, before it was typed again."""
    repeated: int | None = None
    """Updates that were made again."""
    seconds: float | None = None
    """Longest time without a finished update, from the fault on."""
    identical: bool | None = None
    """Whether the final weights and all losses are those of a run without faults, bit for bit."""
    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    note: str = ""
    runbooks: list[str] = field(default_factory=list)
    """Pages that the command named."""

    def ended(self, code: int, said: str) -> None:
        """Note an end of the command: its exit code, and the pages that its message names."""
        self.exit_codes.append(code)
        named = re.findall(r"^Runbook: runbooks/(\S+)$", said, re.MULTILINE)
        self.runbooks = sorted({*self.runbooks, *named})


@dataclass
class Reference:
    """The run without faults."""

    weights: str
    """SHA-256 of its last weights."""
    losses: list[float]
    seconds: float


class Scene:
    """One run, the faults that it suffers, and what is found at its end."""

    def __init__(
        self,
        directory: Path,
        store: Path,
        seed: int,
        reference: Reference | None,
        *overrides: str,
        around: Any = None,
    ) -> None:
        """
        Args:
            directory: for configurations and marks; runs of all scenes share one directory and tracking store.
            overrides: settings besides those that all runs share.
            around: what the campaign set up around the run, such as a cluster.
        """
        self.directory, self.store, self.reference, self.around = directory, store, reference, around
        self.rows: list[Row] = []
        self.random = random.Random(seed)
        directory.mkdir(parents=True, exist_ok=True)
        shared = f"runs_dir={directory.parent / 'runs'}"
        config = make_config(directory, store, *SETTINGS, shared, *overrides)
        self.run = create_run(config)
        self.progress = Progress(self.run.heartbeat(0))
        self.struck_s = 0.0
        self._strikes: list[float] = []
        self._ends: dict[int, float] = {}
        """By row, when its fault was over, where that was before the next one."""
        self.group: Any = None
        """The processes of the training group, or None: a `Group`, or one that imitates it on several hosts."""
        self.driver: subprocess.Popen[bytes] | None = None
        self.driver_log = directory / "driver.log"

    def close(self) -> None:
        self.progress.close()
        if self.group is not None:
            self.group.kill()
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()

    def program(self, fault: Injected | None = None) -> list[str]:
        """The module that trains a rank of the run, with a fault in it, and its arguments."""
        module = ["pipeline.pretrain"] if fault is None else ["tests.chaos.injected", fault.to_argument()]
        return [*module, str(self.run.path)]

    def start(self, fault: Injected | None = None) -> Group:
        """Start both ranks without Ray, as torchrun does, with a fault in them."""
        module, *arguments = self.program(fault)
        group = self.group = Group(module, arguments, WORKERS)
        return group

    def drive(self, *overrides: str) -> subprocess.Popen[bytes]:
        """`cloze resume` of the run, on a Ray cluster."""
        environment = plain_environment()
        command = [str(Path(sys.executable).with_name("cloze")), "resume", str(self.run.path), *overrides]
        with self.driver_log.open("wb") as stream:
            self.driver = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
        return self.driver

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            running = self.group if self.driver is None else self.driver
            ended = running is not None and running.poll() is not None
            if (ended and not condition()) or time.monotonic() > deadline:
                raise TimeoutError(f"{what}: {self.said()[-1500:]}")
            time.sleep(0.02)

    def until_step(self, first: int, last: int | None = None) -> None:
        """Wait until an update is being made; with a last one, a drawn one between them."""
        step = first if last is None else self.random.randint(first, last)
        self.until(lambda: self.progress.last_step >= step, f"update {step}")

    def strike(self, name: str, fault: str, note: str = "") -> Row:
        """Note that a fault happens now."""
        self.struck_s = time.monotonic()
        self._strikes.append(self.struck_s)
        row = Row(name, fault, note=note)
        self.rows.append(row)
        return row

    @contextmanager
    def strikes(self, name: str, fault: str, first: int, last: int, note: str = "") -> Iterator[Row]:
        """Let a fault happen in the block, at a drawn update, and wait until training goes on."""
        self.until_step(first, last)
        yield self.strike(name, fault, note)
        self.until_trained_again()

    def over(self) -> None:
        """Note that what comes from here on until the next fault is none of this one's doing."""
        self._ends[len(self._strikes) - 1] = time.monotonic()

    def until_trained_again(self) -> None:
        self.until(lambda: self.progress.has_moved_since(self.struck_s), "training again")

    def until_ended(self, row: Row) -> int:
        """Wait for the end of the command, whose exit code goes into the row."""
        code = self.group.wait() if self.driver is None else self.driver.wait(timeout=PATIENCE_S)
        row.ended(code, self.said())
        return code

    def again(self, row: Row, fault: Injected | None = None) -> None:
        """The same command again, by a person or a scheduler."""
        row.operator = AGAIN
        self.start(fault) if self.driver is None else self.drive()

    def ends_and_starts_again(self, row: Row) -> None:
        self.until_ended(row)
        self.again(row)

    def finish(self) -> None:
        """Wait for a good end, and compare everything with the run without faults."""
        self.check(self.until_ended(Row("end", "the end")))

    def check(self, code: int) -> None:
        """Compare everything with the run without faults, after an end with this exit code."""
        assert self.reference is not None
        problems = [] if code == 0 else [f"it ended with {code}: {self.said()[-600:]}"]
        problems += [*self._problems(), *self._problems_of_tracking()]
        identical = (self.weights(), self.losses()) == (self.reference.weights, self.reference.losses)
        following = [*self._strikes[1:], float("inf")]
        ends = [self._ends.get(number, next_s) for number, next_s in enumerate(following)]
        for row, since_s, until_s in zip(self.rows, self._strikes, ends, strict=True):
            row.identical, row.problems = identical, [*row.problems, *problems]
            row.seconds = round(self.progress.pause_s(since_s, until_s), 1)
            # Before the next fault.
            row.repeated = self.progress.repeated(since_s, until_s)

    def said(self) -> str:
        told = self.driver_log.read_text(errors="replace") if self.driver_log.exists() else ""
        return told + (self.group.output if self.group is not None else "")

    def weights(self) -> str:
        path = Path(store_of(self.run).place(STEPS)) / MODEL_FILE
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"

    def losses(self) -> list[float]:
        return [metrics["loss"] for metrics in read_metrics(self.run)]

    def _problems(self) -> list[str]:
        found = []
        steps = [metrics["step"] for metrics in read_metrics(self.run)]
        if steps != list(range(1, STEPS + 1)):
            found.append(f"the log has {len(steps)} lines of updates, {len(set(steps))} different ones")
        if damage := damage_of_log(self.run):
            found.append(f"the log: {damage}")
        checkpoints = Path(store_of(self.run).place(STEPS)).parent
        for path in list_checkpoints(checkpoints):
            open_artefact(path)
        if not any(step_of(path) == STEPS for path in list_checkpoints(checkpoints)):
            found.append("there is no checkpoint of the last step")
        left = [path.name for pattern in LEFT_OVER for path in checkpoints.glob(pattern)]
        if left:
            found.append(f"half-written: {', '.join(sorted(set(left)))}")
        return found

    def _problems_of_tracking(self) -> list[str]:
        from pipeline.run.tracking import connect

        if not replay(self.run):
            return ["MLflow did not get everything"]
        info = self.run.info
        client = connect(info.tracking_uri)
        status = client.get_run(info.run_id).info.status
        steps = sorted(point.step for point in client.get_metric_history(info.run_id, "loss"))
        found = [] if status == "FINISHED" else [f"the run is {status} in MLflow"]
        if steps != list(range(1, STEPS + 1)):
            found.append(f"MLflow has {len(steps)} losses, {len(set(steps))} different ones")
        return found


def pid_of(run: RunDirectory, rank: int) -> int:
    return next(beat.pid for beat in read_heartbeats(run) if beat.rank == rank)


def make_reference(directory: Path, store: Path) -> Reference:
    scene = Scene(directory, store, 0, None)
    began = time.monotonic()
    try:
        group = scene.start()
        assert group.wait() == 0, group.output[-3000:]
    finally:
        scene.close()
    return Reference(scene.weights(), scene.losses(), round(time.monotonic() - began, 1))

"""Run the stages of a ladder, some side by side, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster import signals
from cluster.artefacts.errors import StagesFailedError
from cluster.artefacts.owner import exclusive
from cluster.artefacts.storage import storage_errors
from cluster.progress import announce
from pipeline.road.ladder.arms import Ladder
from pipeline.road.ladder.config import Cost, add_cost, read_costs
from pipeline.road.ladder.stages import Preparation, Stage, place_of, stages_of

_POLL_S = 0.5
_SAVING_S = 15.0
"""Seconds that stages have to save when the ladder is stopped."""
USUAL_FLOPS_PER_S = 4e10
"""Operations per second of one core, where no pre-training is finished yet: one of an AMD EPYC with AVX-512 did 5.3e10
in a run of `configs/ladder` that had it for itself."""
_LAST_LINES = 12
"""Lines of a failed stage's output that are shown."""


def run_stages(ladder: Ladder, command: str) -> None:
    """Run all stages that are not finished, in order, `at_once` at a time.

    A stage that fails stops only those that need it.

    Args:
        command: continues the ladder, as typed.

    Raises:
        StagesFailedError: some failed; names each with the end of its output.
        StorageError: another process runs this ladder, or files cannot be written.
    """
    with storage_errors(ladder.work):
        (ladder.work / "logs").mkdir(parents=True, exist_ok=True)
    with (
        exclusive(ladder.work, "a ladder", in_use="wait for it, or choose another `name`"),
        signals.goes_on_by(command, kept="finished stages, and checkpoints of the others"),
    ):
        prepare_tracking(ladder.config.runs_dir)
        running = _Running(ladder, stages_of(ladder))
        try:
            running.run()
        finally:
            running.stop()
        if running.failed:
            raise _failure(ladder, running, command)


def prepare_tracking(runs_dir: Path) -> None:
    """Make the tracking store before several processes would at the same time."""
    from pipeline.run.tracking import connect, tracking_uri

    with storage_errors(runs_dir):
        runs_dir.mkdir(parents=True, exist_ok=True)
    connect(tracking_uri(runs_dir)).search_experiments(max_results=1)


@dataclass(slots=True)
class _Process:
    stage: Stage
    process: subprocess.Popen[bytes]
    started: float


@dataclass(slots=True)
class _Running:
    """The state of a ladder that runs."""

    ladder: Ladder
    stages: Mapping[str, Stage]
    processes: list[_Process] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    failed: dict[str, int] = field(default_factory=dict)
    """Exit codes by stage; stages that need a failed one are not tried."""

    def run(self) -> None:
        """Return when nothing is left that could be started."""
        self.finished = {name for name, stage in self.stages.items() if place_of(stage) is not None}
        if self.finished:
            announce(f"{len(self.finished)} of {len(self.stages)} stages are finished already")
        while self._start_ready() or self.processes:
            time.sleep(_POLL_S)
            for one in list(self.processes):
                self._reap(one)

    def stop(self) -> None:
        """Ask processes that still run to save and end, and wait for them."""
        for one in self.processes:
            with suppress(OSError):
                one.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _SAVING_S
        while self.processes and time.monotonic() < deadline:
            time.sleep(_POLL_S / 5)
            for one in list(self.processes):
                self._reap(one, os.WNOHANG)

    def _start_ready(self) -> bool:
        """Start what can be started; whether anything was."""
        started = False
        for name, stage in self.stages.items():
            busy = {one.stage.name for one in self.processes}
            tried = name in self.finished or name in self.failed or name in busy
            if tried or not self.finished.issuperset(stage.needs):
                continue
            alone = stage.alone or any(one.stage.alone for one in self.processes)
            if len(busy) >= (1 if alone else self.ladder.config.at_once):
                # A stage that takes the whole machine waits for the others, and is not overtaken for ever.
                break
            self._start(stage)
            started = True
        return started

    def _start(self, stage: Stage) -> None:
        threads = max(1, (os.cpu_count() or 1) // (1 if stage.alone else self.ladder.config.at_once))
        command = stage.command()
        with storage_errors(log := log_file(self.ladder, stage.name)), log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # So many threads, wherever a library takes their number from.
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            )
        self.processes.append(_Process(stage, process, time.monotonic()))
        announce(f"start     {stage.name}")

    def _reap(self, one: _Process, options: int = os.WNOHANG) -> None:
        """Take note of a process that has ended."""
        pid, status, usage = os.wait4(one.process.pid, options)
        if not pid:
            return
        one.process.returncode = code = os.waitstatus_to_exitcode(status)
        self.processes.remove(one)
        cost = Cost(
            one.stage.name,
            round(time.monotonic() - one.started, 1),
            round(usage.ru_utime + usage.ru_stime, 1),
            code,
        )
        add_cost(self.ladder.work, cost)
        if code == 0 and place_of(one.stage) is not None:
            self.finished.add(one.stage.name)
        elif not signals.received():
            self.failed[one.stage.name] = code
        ending = "finished" if one.stage.name in self.finished else f"exit {code} "
        left = [stage for name, stage in self.stages.items() if name not in self.finished]
        seconds = estimated_seconds(self.ladder, left)
        announce(
            f"{ending}  {cost.stage} in {cost.wall_s:,.0f} s, {cost.cpu_s:,.0f} s of processor;"
            f" {len(left)} of {len(self.stages)} stages left"
            + ("" if seconds is None else f", about {seconds / 60:,.0f} min")
        )


def log_file(ladder: Ladder, stage: str) -> Path:
    """The output of a stage."""
    return ladder.work / "logs" / f"{stage}.log"


def estimated_seconds(ladder: Ladder, left: list[Stage]) -> float | None:
    """How long stages will take by the clock, `at_once` of them at a time, if they go on as the finished ones: as much
    for each FLOP of pre-training, and for each fine-tuning. None before one of each is finished; the preparation of
    data does not count."""
    stages, costs = stages_of(ladder), read_costs(ladder.work)
    total = 0.0
    for kind in {type(stage) for stage in left} - {Preparation}:
        done = [
            (stages[name], cost.wall_s)
            for name, cost in costs.items()
            if type(stages.get(name)) is kind and not cost.exit_code
        ]
        if not done:
            return None
        seconds_per_unit = sum(seconds for _, seconds in done) / sum(stage.flops or 1.0 for stage, _ in done)
        total += seconds_per_unit * sum(stage.flops or 1.0 for stage in left if type(stage) is kind)
    return total / ladder.config.at_once


def _failure(ladder: Ladder, running: _Running, command: str) -> StagesFailedError:
    endings = []
    for name, code in running.failed.items():
        lines = log_file(ladder, name).read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        endings.append("\n  ".join([f"{name} ended with exit code {code}; its output ends:", *lines]))
    return StagesFailedError(
        "\n".join(endings),
        kept=f"{len(running.finished)} of {len(running.stages)} finished stages",
        next_step=f"mend it (whole output: {ladder.work / 'logs'}), then {command}",
    )

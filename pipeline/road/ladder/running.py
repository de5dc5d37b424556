"""Run the stages of a ladder, some side by side, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cluster import signals
from cluster.artefacts.errors import ClozeError, StagesFailedError
from cluster.artefacts.owner import exclusive
from cluster.artefacts.storage import storage_errors
from cluster.progress import announce
from pipeline.road.ladder.arms import Ladder
from pipeline.road.ladder.stages import Stage, place_of, seconds_of, stages_of

_POLL_S = 0.5
_SAVING_S = 15.0
"""Seconds that stages have to save when the ladder is stopped."""
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
        signals.continued_by(command, kept="finished stages, and checkpoints of the others"),
    ):
        prepare_tracking(ladder.config.runs_dir)
        stages = stages_of(ladder)
        finished = {name for name, stage in stages.items() if place_of(ladder, stage) is not None}
        if finished:
            announce(f"{len(finished)} of {len(stages)} stages are finished already")
        if failed := _run(ladder, stages, finished):
            raise StagesFailedError(
                "\n".join(_ending(ladder, name, code) for name, code in failed.items()),
                kept=f"{len(finished)} of {len(stages)} finished stages",
                next_step=f"mend it (whole output: {ladder.work / 'logs'}), then {command}",
            )


def prepare_tracking(runs_dir: Path) -> None:
    """Make the tracking store before several processes would at the same time."""
    from pipeline.run.tracking import connect, tracking_uri

    with storage_errors(runs_dir):
        runs_dir.mkdir(parents=True, exist_ok=True)
    connect(tracking_uri(runs_dir)).search_experiments(max_results=1)


def _run(ladder: Ladder, stages: Mapping[str, Stage], finished: set[str]) -> dict[str, int]:
    """Run stages until nothing is left that could be started, and add those that finish to `finished`.

    Returns:
        Exit codes by stage of those that failed; stages that need a failed one are not tried.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: dict[str, int] = {}
    try:
        while True:
            for name, stage in stages.items():
                tried = name in finished or name in failed or name in running
                if tried or not finished.issuperset(stage.needs):
                    continue
                alone = stage.alone or any(stages[one].alone for one in running)
                if len(running) >= (1 if alone else ladder.config.at_once):
                    # A stage that takes the whole machine waits for the others, and is not overtaken for ever.
                    break
                running[name] = _start(ladder, stage)
            if not running:
                return failed
            time.sleep(_POLL_S)
            for name, process in list(running.items()):
                if (code := process.poll()) is None:
                    continue
                del running[name]
                if code == 0 and place_of(ladder, stages[name]) is not None:
                    finished.add(name)
                else:
                    failed[name] = code
                left = [stage for name, stage in stages.items() if name not in finished]
                try:
                    seconds = estimated_seconds(ladder, left)
                except ClozeError:
                    # An estimate ends no training.
                    seconds = None
                announce(
                    f"{f'exit {code} ' if name in failed else 'finished'}  {name};"
                    f" {len(left)} of {len(stages)} stages left"
                    + ("" if seconds is None else f", about {seconds / 60:,.0f} min")
                )
    finally:
        # Those that still run save and end.
        for process in running.values():
            process.terminate()
        deadline = time.monotonic() + _SAVING_S
        for process in running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def _start(ladder: Ladder, stage: Stage) -> subprocess.Popen[bytes]:
    threads = max(1, (os.cpu_count() or 1) // (1 if stage.alone else ladder.config.at_once))
    command = stage.command()
    with storage_errors(log := log_file(ladder, stage.name)), log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # So many threads, wherever a library takes their number from.
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
    announce(f"start     {stage.name}")
    return process


def log_file(ladder: Ladder, stage: str) -> Path:
    """The output of a stage."""
    return ladder.work / "logs" / f"{stage}.log"


def _ending(ladder: Ladder, stage: str, code: int) -> str:
    lines = log_file(ladder, stage).read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
    return "\n  ".join([f"{stage} ended with exit code {code}; its output ends:", *lines])


def estimated_seconds(ladder: Ladder, left: Sequence[Stage]) -> float | None:
    """How long stages will take by the clock, `at_once` of them at a time, if they take as long as the finished ones
    for each FLOP of pre-training and for each fine-tuning. None before one of each is finished; the preparation of
    data does not count."""
    total = 0.0
    for kind in {stage.kind for stage in left} - {"data"}:
        done = [
            (stage.size()[1] or 1.0, seconds)
            for stage in stages_of(ladder).values()
            if stage.kind == kind and (seconds := seconds_of(ladder, stage)) is not None
        ]
        if not done:
            return None
        units, seconds = map(sum, zip(*done, strict=True))
        total += seconds / units * sum(stage.size()[1] or 1.0 for stage in left if stage.kind == kind)
    return total / ladder.config.at_once

"""The stages of a ladder: each makes one artefact of cloze, by a command that can be typed; some run side by side.

A stage is finished when its artefact is committed with the ladder's settings, so that a ladder needs no memory of its
own: a killed one continues where its artefacts end, and a killed training from its checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from cluster import logs, signals
from cluster.artefacts.errors import ClozeError, StagesFailedError
from cluster.artefacts.manifest import Manifest, hash_file, read_manifest, write_durably
from cluster.artefacts.owner import exclusive
from cluster.artefacts.storage import is_committed, storage_errors
from data_prep.layout import TOKENS
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.checkpoint.store import store_of
from pipeline.config.loading import to_yaml
from pipeline.config.shipped import find_beside
from pipeline.road.ladder.config import Ladder
from pipeline.run.directory import RunDirectory
from pipeline.tune.scores import START

_CLOZE = (sys.executable, "-m", "pipeline.cli")


@dataclass(frozen=True)
class Stage:
    """One artefact that a ladder needs."""

    kind: Literal["data", "pretrain", "finetune"]
    name: str
    """Unique, and safe in names of files."""
    place: Callable[[], Path | None]
    """Look for the finished artefact."""
    command: Callable[[], list[str]]
    """Prepare a process that makes or continues it."""
    needs: tuple[str, ...] = ()
    """Names of stages that must be finished before."""
    size: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
    """Tokens and model FLOPs of a pre-training."""

    @property
    def alone(self) -> bool:
        """Whether it takes the whole machine."""
        return self.kind == "data"


def preparation(ladder: Ladder, file: Path) -> Stage:
    """Token stores from source files, by a data configuration as the ladder names it."""
    config = ladder.data[file]

    def place() -> Path | None:
        tokens = config.out / TOKENS
        return tokens if is_committed(tokens) else None

    def command() -> list[str]:
        return [*_CLOZE, "data", "prepare", str(find_beside(ladder.path.parent, file))]

    return Stage("data", f"data-{config.name}", place, command)


def pretraining(ladder: Ladder, arm: str, seed: int) -> Stage:
    """The run of an arm, shared by the arms that differ in fine-tuning alone."""

    # The tokens of a run, and so its settings, may depend on the vocabulary, which is known once the data is prepared.
    def place() -> Path | None:
        from pipeline.pretrain.launch import find_same_run, is_finished

        run = find_same_run(ladder.run_of(arm, seed))
        return run.path if run is not None and is_finished(run) else None

    def command() -> list[str]:
        from pipeline.pretrain.launch import create_run, find_same_run

        config = ladder.run_of(arm, seed)
        run = find_same_run(config) or create_run(config)
        return [sys.executable, "-m", "pipeline.pretrain", str(run.path)]

    name = f"pretrain-{ladder.run_name(arm, seed)}"
    needs = tuple(preparation(ladder, file).name for file in ladder.makers(arm))
    return Stage("pretrain", name, place, command, needs, partial(ladder.size_of, arm))


def finetuning(ladder: Ladder, arm: str, seed: int) -> Stage:
    """The scores of an arm on its tasks, with predictions."""
    name, run = f"finetune-{arm}-seed{seed}", pretraining(ladder, arm, seed)
    is_random = ladder.arms[arm].is_random

    def place() -> Path | None:
        config = ladder.finetuning_of(arm, seed)
        places = sorted((config.out / config.name).glob("*"))
        return next(
            (path for path in places if is_committed(path) and _is_wanted(ladder, arm, seed, path)), None
        )

    def command() -> list[str]:
        file = ladder.work / "settings" / f"{name}.yaml"
        with storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(file, to_yaml(ladder.finetuning_of(arm, seed)).encode())
        reference = "random" if is_random else f"{place_of(ladder, run)}@latest"
        return [*_CLOZE, "finetune", str(file), "--from", reference, "--replace"]

    return Stage("finetune", name, place, command, run.needs if is_random else (run.name,))


def _is_wanted(ladder: Ladder, arm: str, seed: int, path: Path) -> bool:
    """Whether scores are of an arm's weights, tasks and settings."""
    config, manifest = ladder.finetuning_of(arm, seed), read_manifest(path)
    wanted = {
        name: task.identity() | {"training": config.training_of(name).model_dump(mode="json")}
        for name, task in config.tasks.items()
    }
    settings = manifest.config
    if settings.get("tasks") != wanted or settings.get("seeds") != [seed] or START in settings:
        return False
    started_from = {entry.fingerprint for entry in manifest.inputs if entry.kind == CHECKPOINT_KIND}
    if config.scratch is not None:
        files = {entry.fingerprint for entry in manifest.inputs}
        tokenizer = config.scratch.tokenizer
        return (
            not started_from
            and isinstance(tokenizer, Path)
            and tokenizer.exists()
            and hash_file(tokenizer)[0] in files
        )
    run = place_of(ladder, pretraining(ladder, arm, seed))
    return run is not None and started_from == {_last_checkpoint(run).fingerprint}


def _last_checkpoint(run: Path) -> Manifest:
    """The manifest, which is read where the checkpoint is: that may be another machine."""
    store = store_of(RunDirectory(run))
    return store.manifest(store.steps()[-1])


def place_of(ladder: Ladder, stage: Stage) -> Path | None:
    """The finished artefact of a stage; None where it is not finished. A finished one is looked for once."""
    if stage.name not in ladder.places and (found := stage.place()) is not None:
        ladder.places[stage.name] = found
    return ladder.places.get(stage.name)


def seconds_of(ladder: Ladder, stage: Stage) -> float | None:
    """Seconds by the clock that a finished training recorded; None for another stage."""
    place = place_of(ladder, stage)
    if place is None or stage.kind == "data":
        return None
    if stage.kind == "pretrain":
        return _last_checkpoint(place).stats["run"]["elapsed_s"]
    return sum(read_manifest(place).stats.get("seconds", {}).values())


def stages_of(ladder: Ladder) -> dict[str, Stage]:
    """All stages by name, seed after seed, so that what is finished early is finished for all arms; data is prepared
    when the first stage needs it."""
    stages: list[Stage] = []
    for seed in ladder.config.seeds:
        for arm in ladder.arms.values():
            stages += [preparation(ladder, file) for file in ladder.makers(arm.name)]
            stages += [] if arm.is_random else [pretraining(ladder, arm.name, seed)]
            stages.append(finetuning(ladder, arm.name, seed))
    # Arms may share a run: its first one makes it.
    found: dict[str, Stage] = {}
    for stage in stages:
        found.setdefault(stage.name, stage)
    return found


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
        stages = stages_of(ladder)
        finished = {name for name, stage in stages.items() if place_of(ladder, stage) is not None}
        if finished:
            logs.say(f"{len(finished)} of {len(stages)} stages are finished already")
        if failed := _run(ladder, stages, finished):
            raise StagesFailedError(
                "\n".join(_ending(ladder, name, code) for name, code in failed.items()),
                kept=f"{len(finished)} of {len(stages)} finished stages",
                next_step=f"mend it (whole output: {ladder.work / 'logs'}), then {command}",
            )


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
                logs.say(
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
    logs.say(f"start     {stage.name}")
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

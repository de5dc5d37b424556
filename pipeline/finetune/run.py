"""Everything that a fine-tuning configuration asks for, from a checkpoint to committed scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.artefacts.errors import ConfigError, CorruptArtefactError
from cluster.artefacts.manifest import Manifest, read_manifest, write_durably
from cluster.artefacts.parts import describe_changes
from cluster.artefacts.storage import (
    commit,
    find_damage,
    is_committed,
    quarantine,
    staging_directory,
    storage_errors,
)
from cluster.progress import Advance, progress
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.results import (
    TOKENIZER_FILE,
    Trial,
    TrialRecord,
    adopt,
    artefact_files,
    good_record,
    write_scores,
)
from pipeline.finetune.scores import KIND, Score, read_scores
from pipeline.finetune.workload import Workload, make_workload
from pipeline.runs.tracking import start_run

if TYPE_CHECKING:
    from accelerate import Accelerator

    from pipeline.checkpoints.references import PretrainedModel
    from pipeline.finetune.trials import StartRun


def finetune(
    config: FinetuneConfig,
    pretrained: PretrainedModel | None,
    *,
    replace: bool = False,
    track: StartRun = start_run,
) -> list[Score]:
    """Train every task from the checkpoint (and from random weights, if asked), once per seed.

    Finished trainings are never repeated: a killed run continues after them, a finished artefact is only
    verified, damaged files cost only their own training. Of several processes all call this; the first
    one writes.

    Args:
        pretrained: the checkpoint; None trains the network of `config.scratch`.
        replace: allow committed scores of other settings to be replaced; unchanged trainings are kept.

    Returns:
        The scores, also in the artefact `scores_directory(config, pretrained)`, ordered by task, initial
        weights and seed as the configuration has them.

    Raises:
        ConfigError: committed scores of other settings are in the way, or a task's data is wrong.
        MissingInputError, MismatchError: see `make_workload`.
        CorruptArtefactError: damaged scores do not come out as they were.
        TrackingUnreachableError: MLflow does not answer; finished trainings are kept.
    """
    workload = make_workload(config, pretrained)
    directory = workload.directory
    committed = read_manifest(directory) if is_committed(directory) else None
    same = committed is not None and committed.stats.get("build_key") == workload.key
    if committed and not same and not replace:
        raise ConfigError(
            f"{directory} holds scores of other settings:"
            f" {describe_changes(committed, workload.settings, workload.inputs)}.",
            kept="the committed scores are untouched",
            next_step="add --replace to make them anew (what is unchanged is kept), or choose another `name`",
        )
    if not (committed and same and not find_damage(directory, committed)):
        _make(workload, committed, same, track)
    return read_scores(directory)


def _make(workload: Workload, committed: Manifest | None, same: bool, track: StartRun) -> None:
    """Train what is missing and commit, or repair the committed artefact in place."""
    # Everything from here on needs torch; a finished artefact is confirmed without it.
    from pipeline.finetune.processes import make_accelerator, on_first

    accelerator = make_accelerator(workload.config)
    directory = workload.directory
    workspace = directory if same else staging_directory(directory, workload.key)
    finished = on_first(accelerator, lambda: _prepare(workload, workspace, committed, same))
    records = _train_missing(accelerator, workload, workspace, finished, track)

    def conclude() -> None:
        with storage_errors(workspace):
            if workload.config.save_models:
                write_durably(workspace / TOKENIZER_FILE, workload.tokenizer.path.read_bytes())
            write_scores(workspace, records, {name: task.labels for name, task in workload.tasks.items()})
        if committed and same:
            _confirm_repair(directory, committed)
        else:
            _commit(workload, workspace, records)

    on_first(accelerator, conclude)


def _prepare(
    workload: Workload, workspace: Path, committed: Manifest | None, same: bool
) -> dict[str, TrialRecord]:
    """Make the workspace, move damaged files out of it, and find the trainings that need no repeating."""
    directory = workload.directory
    with storage_errors(workspace):
        workspace.mkdir(parents=True, exist_ok=True)
        if committed and same:
            for damage in find_damage(directory, committed):
                quarantine(directory, damage)
        finished: dict[str, TrialRecord] = {}
        for trial in workload.trials:
            identity = workload.identity(trial)
            record = good_record(workspace, trial, identity)
            if record is None and committed and (record := good_record(directory, trial, identity)):
                adopt(directory, workspace, trial, record)
            if record is not None:
                finished[trial.name] = record
    return finished


def _train_missing(
    accelerator: Accelerator,
    workload: Workload,
    workspace: Path,
    finished: dict[str, TrialRecord],
    track: StartRun,
) -> list[TrialRecord]:
    """The records of all trials, in order; trains those that `finished` does not have."""
    from pipeline.finetune.trials import TrialRunner

    runner = TrialRunner(accelerator, workload, workspace, track)
    records: list[TrialRecord] = []
    with _progress(accelerator, sum(map(runner.num_updates, workload.trials))) as advance:
        for trial in workload.trials:
            if trial.name in finished:
                records.append(finished[trial.name])
                advance(runner.num_updates(trial), f"{trial.name} already done")
            else:
                records.append(runner.run(trial, advance))
    return records


def _commit(workload: Workload, workspace: Path, records: Sequence[TrialRecord]) -> None:
    trials: Sequence[Trial] = workload.trials
    with storage_errors(workspace):
        # What a killed run left half-written.
        for leftover in workspace.glob(".*.tmp"):
            leftover.unlink()
    commit(
        workspace,
        workload.directory,
        KIND,
        config=workload.settings,
        inputs=workload.inputs,
        files=artefact_files(workspace, records, [TOKENIZER_FILE] if workload.config.save_models else []),
        stats={
            "build_key": workload.key,
            "trainings": len(records),
            "tracked_runs": {t.name: r.tracked_run for t, r in zip(trials, records, strict=True)},
        },
    )


def _confirm_repair(directory: Path, manifest: Manifest) -> None:
    if remaining := find_damage(directory, manifest):
        listed = "\n".join(f"  {damage}" for damage in remaining)
        raise CorruptArtefactError(
            f"{directory} was damaged, and the repeated trainings differ from the first ones:\n{listed}",
            kept="the damaged files, in its quarantine directory",
            next_step="repeat them on the kind of machine that made them, or move the directory away first",
        )


@contextmanager
def _progress(accelerator: Accelerator, total: int) -> Iterator[Advance]:
    """Progress from the first process; the others stay silent."""
    if accelerator.is_main_process:
        with progress("fine-tuning", total) as advance:
            yield advance
    else:
        yield lambda count=1, shown="": None

"""Everything that a fine-tuning configuration asks for, from a checkpoint to committed scores."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.artefacts.errors import ClozeError, ConfigError, StorageError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.parts import PartedArtefact
from cluster.artefacts.storage import storage_errors
from cluster.progress import progress
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.scores import (
    IN_PROGRESS,
    KIND,
    SCORES_FILE,
    TOKENIZER_FILE,
    TRIAL_RECORDS,
    Score,
    TrialRecord,
    file_entries,
    read_scores,
    write_scores,
)
from pipeline.tune.trials import Trials, plan_trials

if TYPE_CHECKING:
    from accelerate import Accelerator

    from pipeline.checkpoint.references import PretrainedModel


def finetune(
    config: FinetuneConfig,
    pretrained: PretrainedModel | None,
    *,
    replace: bool = False,
    on_page: Callable[[str], object] | None = None,
) -> list[Score]:
    """Train every task from the checkpoint (and from random weights, if asked), once per seed.

    Finished trainings are never repeated: a killed run continues after them, and in the middle of a training after its
    last saved update. A finished artefact is only verified, and a damaged file costs only its own training. All
    processes call this; the first one writes.

    Args:
        pretrained: the checkpoint; None trains the network of `config.scratch`.
        replace: allow committed scores of other settings to be replaced; unchanged trainings are kept.
        on_page: takes the HTML of the page of the scores. A page that cannot be made or taken is reported on stderr and
            is no failure.

    Returns:
        The scores, also in the artefact `scores_directory(config, pretrained)`, ordered by task, initial
        weights and seed as the configuration has them.

    Raises:
        ConfigError: committed scores of other settings are in the way, or a task's data is wrong.
        MissingInputError, MismatchError: as `plan_trials`; MissingInputError also for `wandb` without its client.
        CorruptArtefactError: repaired files of damaged scores differ from the first ones.
        TrackingUnreachableError: MLflow does not answer; finished trainings are kept.
    """
    if config.wandb is not None:
        from pipeline.run.log.wandb_sink import require_client

        require_client(config.wandb)
    trials = plan_trials(config, pretrained)
    artefact = PartedArtefact(
        trials.directory,
        KIND,
        trials.key,
        trials.settings,
        trials.inputs,
        {trial.name: trials.identity(trial) for trial in trials.all},
        TRIAL_RECORDS,
        records_are_content=False,
        place_setting="name",
    )
    tracked_runs = [] if artefact.inspect(replace=replace) else _make(trials, artefact)
    if config.publish is not None and os.environ.get("RANK", "0") == "0":
        from cluster.publication import push

        place = artefact.directory.relative_to(config.out).as_posix()
        push(artefact.directory, f"{config.publish}/{place}", replace=replace)
    scores = read_scores(artefact.directory)
    if tracked_runs or on_page is not None:
        from pipeline.tune.report.page import publish_page

        publish_page(artefact.directory, scores, config.runs_dir, tracked_runs, on_page)
    return scores


def _make(trials: Trials, artefact: PartedArtefact[TrialRecord]) -> list[str]:
    """Run the missing trainings and commit the artefact, or repair a committed one in place.

    Returns:
        The MLflow runs of all trainings, in the first process.
    """
    # Everything from here on needs torch; a finished artefact is confirmed without it.
    from pipeline.checkpoint.references import with_logged_model
    from pipeline.tune.learner import make_accelerator, on_first

    if trials.pretrained:
        pretrained = with_logged_model(trials.pretrained, trials.config.runs_dir)
        trials = dataclasses.replace(trials, pretrained=pretrained)

    def prepare() -> tuple[Path, dict[str, TrialRecord]]:
        workspace = artefact.prepare()
        return workspace, TRIAL_RECORDS.finished(workspace, artefact.parts)

    def conclude() -> None:
        with storage_errors(workspace):
            shutil.rmtree(workspace / IN_PROGRESS, ignore_errors=True)
            write_scores(workspace, records, {name: task.labels for name, task in trials.tasks.items()})
            files = [*file_entries(workspace, [SCORES_FILE], rows=len(records))]
            if trials.config.save_models:
                write_durably(workspace / TOKENIZER_FILE, trials.tokenizer.path.read_bytes())
                files += file_entries(workspace, [TOKENIZER_FILE])
        files += [entry for record in records for entry in record.files]
        tracked = {record.part_name: record.tracked_run for record in records}
        seconds = {record.part_name: record.seconds for record in records}
        speeds = {
            record.part_name: record.examples_per_second for record in records if record.examples_per_second
        }
        stats = {"trainings": len(records), "tracked_runs": tracked, "seconds": seconds} | (
            {"examples_per_second": speeds} if speeds else {}
        )
        artefact.conclude(files, stats)

    accelerator = make_accelerator(trials.config)
    workspace, finished = on_first(accelerator, prepare)
    with _noticing_removal(workspace):
        records = _train_missing(accelerator, trials, workspace, finished)
    on_first(accelerator, conclude)
    return [record.tracked_run for record in records] if accelerator.is_main_process else []


def _train_missing(
    accelerator: Accelerator, trials: Trials, workspace: Path, finished: dict[str, TrialRecord]
) -> list[TrialRecord]:
    """The records of all trials, in order; trains those that `finished` does not have, one after another or side by
    side."""
    from pipeline.tune.runner import TrialRunner, stopping

    runner = TrialRunner(accelerator, trials, workspace)
    sizes = {trial.name: runner.num_updates(trial) for trial in trials.all}
    missing = [trial for trial in trials.all if trial.name not in finished]
    is_first = accelerator.is_main_process
    if is_first:
        for name in dict.fromkeys(trial.task for trial in missing):
            for note in runner.task(name).notes:
                print(f"Note: {name}: {note}.", file=sys.stderr)
    # The other processes stay silent.
    silent = nullcontext(lambda count=1, shown="": None)
    with progress("fine-tuning", sum(sizes.values())) if is_first else silent as advance:
        for name in finished:
            advance(sizes[name], f"{name} already done")
        if trials.config.side_by_side == 1 or len(missing) < 2:
            with stopping(workspace, clears=is_first) as request:
                finished |= {trial.name: runner.run(trial, advance, request) for trial in missing}
        elif accelerator.num_processes > 1:
            raise ConfigError(
                f"side_by_side starts trainings by itself, but {accelerator.num_processes} processes were launched.",
                next_step="start one process, or set side_by_side=1 to share each training among the processes",
            )
        else:
            from pipeline.tune.side_by_side import train_side_by_side

            finished |= train_side_by_side(trials, workspace, missing, sizes, advance)
    return [finished[trial.name] for trial in trials.all]


@contextmanager
def _noticing_removal(workspace: Path) -> Iterator[None]:
    """Say so where errors come from a workspace that was removed."""
    try:
        yield
    except ClozeError:
        raise
    except Exception as error:
        if workspace.is_dir():
            raise
        raise StorageError(
            f"The directory of the unfinished trainings, {workspace}, was removed while they ran.",
            kept="committed scores; nothing of these trainings",
            next_step="run the same command again",
        ) from error

"""The errors that end a run: with the step, the samples, the parts that are kept, and the command to type next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cluster.artefacts.errors import (
    CorruptCheckpointError,
    LossSpikeError,
    NonFiniteError,
    PreemptedError,
    StalledError,
    TakenOverError,
)
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.history import last_logged
from pipeline.run.log.kinds import LogKind
from pipeline.run.skipped_data import SkippedStep


def require_not_lost(run: RunDirectory, start: Path | None) -> None:
    """Raise CorruptCheckpointError if a run has had checkpoints and none is left: it would begin anew."""
    if start is not None or (last := last_logged(run, LogKind.CHECKPOINT)) is None:
        return
    raise CorruptCheckpointError(
        f"{run.path.name} had a checkpoint of step {last[0]} at {last[1]['directory']}, and none is left there.",
        kept="the run's log and history",
        next_step="bring the place back (is it mounted?), or restore a checkpoint from a backup; to begin anew, start a"
        " new run with `cloze pretrain`",
    )


def samples_of(config: PretrainConfig, data_step: int) -> str:
    """The training samples of a global batch, in words; they are counted from the start of their phase."""
    since = number = 0
    for number, phase in enumerate(config.phases):
        if number + 1 == len(config.phases) or data_step < since + phase.steps:
            break
        since += phase.steps
    plan = config.batch_plan
    first, last = (plan.samples_between(since, step) for step in (data_step, data_step + 1))
    place = f" of phase {number}" if len(config.phases) > 1 else ""
    return f"samples {first} to {last - 1}{place}"


def preempted(run: RunDirectory, step: int, reason: str) -> PreemptedError:
    """The error of a run that was asked to stop and saved at `step`."""
    return PreemptedError(
        f"{run.path.name} stopped at step {step}, as asked: {reason or 'a request in its directory'}.",
        kept=f"the checkpoint of step {step}; nothing has to be computed again",
        next_step=f"cloze resume {run.typed}",
    )


def taken_over(run: RunDirectory, by: str = "another group") -> TakenOverError:
    """The error of a group whose run another group has taken over."""
    return TakenOverError(
        f"{run.path} is trained by {by} now; this group has lost it.",
        kept="what this group saved before, and all that the other one saves",
        next_step=f"nothing, if that one trains; else, once both have ended: cloze resume {run.typed}",
    )


def loss_spike(
    run: RunDirectory,
    config: PretrainConfig,
    spike: SkippedStep,
    skipped: Sequence[SkippedStep],
    checkpoint: Path | str | None,
) -> LossSpikeError:
    """The error after one spike more than `guards.max_rollbacks` allows.

    Args:
        spike: the spike too many; not in the ledger.
        skipped: the ledger.
        checkpoint: the last good one; None where there is none yet.
    """
    listed = "\n".join(
        f"  update {one.at_update}: loss {one.loss:.4f}, {_score(one)}; global batch {one.data_step},"
        f" {samples_of(config, one.data_step)}"
        for one in (*skipped, spike)
    )
    allowed = config.guards.max_rollbacks
    return LossSpikeError(
        f"The loss of {run.path.name} jumped up again, and guards.max_rollbacks {allowed} is spent:\n{listed}",
        kept=_kept(checkpoint),
        next_step=f"look at the learning rate and the data; to leave out more: cloze resume {run.typed}"
        f" guards.max_rollbacks={allowed + 3}",
    )


def not_finite(
    run: RunDirectory,
    config: PretrainConfig,
    update: int,
    data_steps: Sequence[int],
    checkpoint: Path | str | None,
) -> NonFiniteError:
    """The error after one skipped update more than `guards.max_skipped_updates` allows.

    Args:
        update: the last skipped one.
        data_steps: the global batches of the updates that were skipped in a row.
        checkpoint: the last good one; None where there is none yet.
    """
    listed = "\n".join(f"  global batch {step}, {samples_of(config, step)}" for step in data_steps)
    fp16 = " or precision=bf16" if config.precision == "fp16" else ""
    return NonFiniteError(
        f"{len(data_steps)} updates of {run.path.name} in a row could not be made, up to update {update}: their losses"
        f" or gradients are not finite. The samples:\n{listed}",
        kept=_kept(checkpoint),
        next_step=f"go on more carefully: cloze resume {run.typed} optimizer.lr={config.optimizer.lr / 2:g}{fp16}"
        " --allow-changed optimizer.lr" + (" --allow-changed precision" if fp16 else ""),
    )


def stalled(run: RunDirectory, num_restarts: int, where: str, stacks: Sequence[Path]) -> StalledError:
    """The error of a run that stood still after all restarts, if it has any.

    Args:
        where: rank, host, process, step and part of the rank that is behind.
        stacks: files of stacks that were written.
    """
    shown = f"; the stacks are in {', '.join(map(str, stacks))}" if stacks else ""
    spent = f", and {num_restarts} restarts are spent" if num_restarts else ""
    return StalledError(
        f"{run.path.name} stood still{spent}. Behind was {where}{shown}.",
        kept="all committed checkpoints",
        next_step=f"look after that machine, then: cloze resume {run.typed}",
    )


def _score(one: SkippedStep) -> str:
    return "far above" if one.score is None else f"{one.score:.1f} deviations above the last ones"


def _kept(checkpoint: Path | str | None) -> str:
    return (
        "no checkpoint yet; the run's directory"
        if checkpoint is None
        else f"the last checkpoint {checkpoint}"
    )

"""The path without Ray: `torchrun --nproc-per-node N -m pipeline.pretrain RUN_DIRECTORY`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cluster import logs, signals

if TYPE_CHECKING:
    from cluster.group import Rank
    from pipeline.run.directory import RunDirectory

_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
"""Variables that torchrun would set for a group of one."""


def main() -> None:
    """Join the group that torchrun started, or be a group of one, and train the run to its end.

    A ClozeError ends the process with its message and its exit code.
    """
    (directory,) = sys.argv[1:]
    try:
        signals.answer_signals(f"cloze resume {directory}")
        _main(directory)
    except BaseException:
        if signals.received():
            signals.end()
        raise
    signals.finish(0)


def _main(directory: str) -> None:
    from contextlib import ExitStack, suppress
    from pathlib import Path

    from cluster.artefacts.errors import ClozeError
    from cluster.group import rank_from_environment
    from pipeline.pretrain.ownership import end_leftovers
    from pipeline.run.directory import RunDirectory
    from pipeline.run.lifecycle import record_launch

    if "RANK" not in os.environ:
        os.environ |= _ALONE
    run, rank = RunDirectory(Path(directory)), rank_from_environment()
    logs.start()
    logs.bind(run=run.path.name, rank=rank.rank)
    try:
        with ExitStack() as held:
            if rank.rank == 0:
                # Before the process group starts, which the other ranks wait for.
                held.enter_context(run.held("its training"))
                end_leftovers(run)
                record_launch(run)
            _train(run, rank)
    except ClozeError as error:
        if signals.received():
            raise
        if rank.rank == 0 or not error.everywhere:
            # Standard error may be a file on the disk that is full.
            with suppress(OSError):
                logs.say(f"\n{error}", "error", **error.members)
        signals.end_children()
        # At once: the other ranks may wait in a collective for this one, and a clean exit would wait for them.
        os._exit(error.exit_code)


def _train(run: RunDirectory, rank: Rank) -> None:
    from contextlib import nullcontext
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

    from cluster.artefacts.errors import ClozeError
    from cluster.collectives import GROUP_TIMEOUT_S, from_rank_zero
    from cluster.stopping import stop_on_sigterm
    from pipeline.engine.device import trains_on_cuda
    from pipeline.pretrain.launch import run_rank
    from pipeline.pretrain.stall_watch import watching
    from pipeline.run.lifecycle import record_end, record_failure, replay
    from pipeline.run.state import has_made_updates

    first = rank.rank == 0
    if trains_on_cuda():
        torch.cuda.set_device(rank.local_rank)
    # A process alone opens no port.
    store = None if "MASTER_ADDR" in os.environ else HashStore()
    dist.init_process_group(
        "nccl" if trains_on_cuda() else "gloo",
        store=store,
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timedelta(seconds=GROUP_TIMEOUT_S),
    )
    grace_s = from_rank_zero(run.config().guards.grace_s if first else None)
    next_step = f"cloze resume {run.typed}"
    try:
        with (
            stop_on_sigterm(
                run.path,
                grace_s=grace_s,
                next_step=next_step,
                clears=first,
                nothing_to_save=lambda: not has_made_updates(run),
            ),
            watching(run, without_driver=True) if first else nullcontext(),
        ):
            run_rank(run.path, rank)
    except ClozeError as error:
        if first or not error.everywhere:
            record_failure(run, error)
            replay(run)
        raise
    dist.destroy_process_group()
    if first:
        record_end(run)
        # No driver follows the run to its end.
        replay(run)


if __name__ == "__main__":
    main()

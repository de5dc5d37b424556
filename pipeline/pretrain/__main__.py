"""The path without Ray: `torchrun --nproc-per-node N -m pipeline.pretrain RUN_DIRECTORY`."""

from __future__ import annotations

import os
import sys

from cluster import logs, signals

_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""Variables that torchrun would set for a group of one."""


def main() -> None:
    """Join the group that torchrun started, or be a group of one, and train the run to its end.

    A ClozeError ends the process with its message and its exit code.
    """
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("Usage: torchrun --nproc-per-node N -m pipeline.pretrain RUN_DIRECTORY", file=sys.stderr)
        sys.exit(2)
    directory = sys.argv[1]
    signals.run(f"cloze resume {directory}", lambda: _train(directory))


def _train(directory: str) -> int | None:
    from cluster.artefacts.errors import ClozeError, ConfigError

    logs.start()
    if "RANK" not in os.environ:
        os.environ |= _ALONE
    try:
        number, world_size, local = (int(os.environ.get(name, "")) for name in _ALONE)
    except ValueError:
        given = " ".join(f"{name}={os.environ.get(name, '')}" for name in _ALONE)
        error = ConfigError(
            f"these variables describe no process of a group: {given}.",
            next_step="start it by torchrun, or unset RANK to train with one process",
        )
        logs.say(f"\n{error}", "error", **error.members)
        return error.exit_code
    from contextlib import nullcontext, suppress
    from datetime import timedelta
    from pathlib import Path

    from cluster.collectives import GROUP_TIMEOUT_S, from_rank_zero
    from cluster.group import Rank
    from pipeline.pretrain.launch import driven, run_rank, stopped
    from pipeline.pretrain.stall_watch import watching
    from pipeline.run.directory import RunDirectory
    from pipeline.run.lifecycle import record_failure, replay

    run = RunDirectory(Path(directory))
    rank = Rank(number, world_size, local, int(os.environ.get("OMP_NUM_THREADS", "1")))
    is_first = rank.rank == 0
    logs.bind(run=run.path.name, rank=rank.rank)
    try:
        # Before the process group starts, which the other ranks wait for. Other errors may follow from another rank's.
        with driven(run, recorded=ClozeError) if is_first else nullcontext():
            import torch
            import torch.distributed as dist
            from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

            from pipeline.engine.device import trains_on_cuda

            if trains_on_cuda():
                torch.cuda.set_device(rank.local_rank)
            dist.init_process_group(
                "nccl" if trains_on_cuda() else "gloo",
                # A process alone opens no port.
                store=None if "MASTER_ADDR" in os.environ else HashStore(),
                rank=rank.rank,
                world_size=rank.world_size,
                timeout=timedelta(seconds=GROUP_TIMEOUT_S),
            )
            grace_s = from_rank_zero(run.config().guards.grace_s if is_first else None)
            with (
                stopped(run, grace_s, clears=is_first),
                watching(run, without_driver=True) if is_first else nullcontext(),
            ):
                run_rank(run.path, rank)
            dist.destroy_process_group()
    except ClozeError as error:
        if signals.received():
            raise
        if not (is_first or error.everywhere):
            record_failure(run, error)
            replay(run)
        if is_first or not error.everywhere:
            # Standard error may be a file on the disk that is full.
            with suppress(OSError):
                logs.say(f"\n{error}", "error", **error.members)
        signals.end_children()
        # At once: the other ranks may wait in a collective for this one, and a clean exit would wait for them.
        os._exit(error.exit_code)


if __name__ == "__main__":
    main()

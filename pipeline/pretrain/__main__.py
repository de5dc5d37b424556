"""The path without Ray: `torchrun --nproc-per-node N -m pipeline.pretrain RUN_DIRECTORY`."""

from __future__ import annotations

import sys

import torch.distributed as dist

from cluster.train_group import rank_from_environment
from pipeline.pretrain.trainer import run_rank


def main() -> None:
    """Join the group that torchrun started and train the run to its end."""
    (directory,) = sys.argv[1:]
    dist.init_process_group("gloo" if not _has_cuda() else "nccl")
    try:
        run_rank({"run": directory}, rank_from_environment())
    finally:
        dist.destroy_process_group()


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()

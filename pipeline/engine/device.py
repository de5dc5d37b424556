"""Whether a process trains on a GPU: asked in one place, so that DeepSpeed, torch and our own tensors agree."""

from __future__ import annotations

import os

import torch


def trains_on_cuda() -> bool:
    """Whether this process has a GPU and was not told to train on CPUs beside it.

    A group without GPUs of its own (`cluster.gpus_per_worker: 0`) sees those of its machine all the same; it is told
    by the variable that decides for DeepSpeed.
    """
    return torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"

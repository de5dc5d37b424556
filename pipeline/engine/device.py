"""Whether a process trains on a GPU: decided in one place, so that DeepSpeed, torch and our own tensors agree."""

from __future__ import annotations

import os

import torch


def trains_on_cuda() -> bool:
    """Whether this process has a GPU and may train on it.

    Workers without GPUs of their own (`cluster.gpus_per_worker: 0`) still see the GPUs of their machine. They have
    DS_ACCELERATOR=cpu in their environment, which keeps DeepSpeed off the GPUs too.
    """
    return torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"

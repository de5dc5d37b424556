"""Teacher and student side by side: parameters, size, speed and score."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from models.weights import count_parameters
from pipeline.tune.distillation.task import DistilledTask
from pipeline.tune.distillation.teacher import Teacher
from pipeline.tune.forms.base import Metrics, PreparedTask
from pipeline.tune.scores import Distillation

TIMED_ROWS = 256
"""Evaluation rows that are timed at most."""
ROUNDS = 3
"""Times that each network reads them, by turns; the median counts."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Teacher and student after a training."""

    sizes: Distillation
    metrics: Metrics
    """Of the teacher, on the evaluation examples."""
    examples_per_second: dict[str, float]
    """Evaluation rows that `teacher` and `student` read per second."""


def compare(task: DistilledTask, student: nn.Module, teacher: Teacher) -> Compared:
    """Measure both networks where they are, in one process."""
    rows = np.arange(len(task.taught.evaluation))
    return Compared(
        sizes=Distillation(
            teacher=teacher.pretrained.fingerprint,
            teacher_parameters=count_parameters(task.teacher),
            student_parameters=count_parameters(student),
            teacher_bytes=_bytes_of(task.teacher),
            student_bytes=_bytes_of(student),
        ),
        metrics=task.taught.measure(_outputs(task.taught, task.teacher, rows)),
        examples_per_second=_examples_per_second(task, student),
    )


def _examples_per_second(task: DistilledTask, student: nn.Module) -> dict[str, float]:
    """Evaluation rows that each network reads per second where it is, both measured by turns."""
    rows = np.arange(min(TIMED_ROWS, len(task.evaluation)))
    networks: Mapping[str, tuple[PreparedTask, nn.Module]] = {
        "teacher": (task.taught, task.teacher),
        "student": (task.own, student),
    }
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for number in range(ROUNDS + 1):
        for name, (own, model) in networks.items():
            started = time.perf_counter()
            _outputs(own, model, rows)
            # The first round allocates memory.
            seconds[name] += [time.perf_counter() - started] if number else []
    return {name: round(len(rows) / statistics.median(found), 1) for name, found in seconds.items()}


@torch.no_grad()
def _outputs(task: PreparedTask, model: nn.Module, rows: np.ndarray) -> np.ndarray:
    device = next(model.parameters()).device
    model.eval()
    found = []
    for first in range(0, len(rows), task.evaluation_batch_size):
        chosen = rows[first : first + task.evaluation_batch_size]
        found.append(task.outputs(model, task.batch(task.evaluation, chosen).to(device)))
    return torch.cat(found).cpu().numpy()


def _bytes_of(model: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())

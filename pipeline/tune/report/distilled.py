"""Teachers and their students in one table: size, speed, and the share of the score that was kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.tune.report.scores import ScoresDirectory
from pipeline.tune.results import Trial
from pipeline.tune.scores import TEACHER


@dataclass(frozen=True, slots=True)
class DistilledRow:
    """One network of a training with a teacher."""

    training: str
    role: str
    """`teacher` or `student`."""
    parameters: int
    size_bytes: int
    """Of the weights as they are saved."""
    examples_per_second: float | None
    """Evaluation rows read on the machine of the training; None where it was not measured."""
    metric: str
    score: float
    """The main metric, a share of 1."""
    kept: float | None
    """The student's score as a share of the teacher's; None where that is not above 0."""


def distilled_rows(scores: ScoresDirectory) -> Iterator[DistilledRow]:
    """Two rows for every training with a teacher, the teacher first."""
    for score in scores.scores:
        sizes = score.distillation
        if sizes is None:
            continue
        trial = Trial.of(score)
        speeds = scores.speeds(trial) or {}
        teacher = score.baselines[TEACHER][score.main_metric]
        for role, parameters, size_bytes, value in (
            (TEACHER, sizes.teacher_parameters, sizes.teacher_bytes, teacher),
            ("student", sizes.student_parameters, sizes.student_bytes, score.value),
        ):
            kept = value / teacher if teacher > 0 else None
            facts = (parameters, size_bytes, speeds.get(role), score.main_metric)
            yield DistilledRow(trial.name, role, *facts, value, kept)

"""The forms of tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.tune.forms.base import PreparedTask, TaskContext
from pipeline.tune.forms.choices.task import ChoicesTask
from pipeline.tune.forms.classification.task import ClassificationTask
from pipeline.tune.forms.generation.task import GenerationTask
from pipeline.tune.forms.instructions.task import InstructionTask
from pipeline.tune.forms.spans.task import SpanTask
from pipeline.tune.forms.tags.task import TagsTask

FORMS: Mapping[str, Callable[[TaskContext], PreparedTask]] = {
    "classification": ClassificationTask.prepare,
    "spans": SpanTask.prepare,
    "tags": TagsTask.prepare,
    "choices": ChoicesTask.prepare,
    "generation": GenerationTask.prepare,
    "instructions": InstructionTask.prepare,
}
"""Functions that encode the examples of a task for a network, by form."""

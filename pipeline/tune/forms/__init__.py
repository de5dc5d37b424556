"""How each form of task is trained: network, loss, predictions and metrics.

`pipeline/tasks/forms.py` has their examples and settings, without heavy imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.tune.forms.base import PreparedTask, TaskContext
from pipeline.tune.forms.classification import ChoicesTask, ClassificationTask
from pipeline.tune.forms.generation import GenerationTask
from pipeline.tune.forms.instructions import instruction_task
from pipeline.tune.forms.spans import SpanTask
from pipeline.tune.forms.tags import TagsTask

FORMS: Mapping[str, Callable[[TaskContext], PreparedTask]] = {
    "classification": ClassificationTask,
    "spans": SpanTask,
    "tags": TagsTask,
    "choices": ChoicesTask,
    "generation": GenerationTask,
    "instructions": instruction_task,
}
"""Make a task for a network, by form: the examples are encoded."""

"""The demo's own tasks, and the configuration of fine-tuning that knows them beside the published ones."""

from __future__ import annotations

from pipeline.road.demo.tasks.docstring_code import DocstringCodeConfig
from pipeline.road.demo.tasks.docstring_package import DocstringPackageConfig
from pipeline.road.demo.tasks.docstring_word_order import DocstringWordOrderConfig
from pipeline.tune.config import with_tasks
from pipeline.tune.task import Tasks, by_kind
from pipeline.tune.tasks import TASKS as PUBLISHED_TASKS

TASKS: Tasks = {
    **PUBLISHED_TASKS,
    **by_kind(DocstringPackageConfig | DocstringCodeConfig | DocstringWordOrderConfig),
}
"""Every kind of task that the command line offers."""
FinetuneConfig = with_tasks(TASKS)
FinetuneConfig.__module__ = __name__

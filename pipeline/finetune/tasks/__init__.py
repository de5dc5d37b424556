"""The tasks that a configuration can name, told apart by `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipeline.finetune.tasks import cola, docstring_package, docstring_word_order, mrpc, rte, sst2
from pipeline.finetune.tasks.base import Task, TaskData
from pipeline.finetune.tasks.cola import ColaConfig
from pipeline.finetune.tasks.docstring_package import DocstringPackageConfig
from pipeline.finetune.tasks.docstring_word_order import DocstringWordOrderConfig
from pipeline.finetune.tasks.mrpc import MrpcConfig
from pipeline.finetune.tasks.rte import RteConfig
from pipeline.finetune.tasks.sst2 import Sst2Config

TaskChoice = Annotated[
    ColaConfig | Sst2Config | MrpcConfig | RteConfig | DocstringPackageConfig | DocstringWordOrderConfig,
    Field(discriminator="kind"),
]
"""Settings of any task."""

TASKS: Mapping[str, Task] = {
    "cola": Task(cola.load, cola.METRICS),
    "sst2": Task(sst2.load, sst2.METRICS),
    "mrpc": Task(mrpc.load, mrpc.METRICS),
    "rte": Task(rte.load, rte.METRICS),
    "docstring_package": Task(docstring_package.load, docstring_package.METRICS),
    "docstring_word_order": Task(docstring_word_order.load, docstring_word_order.METRICS),
}
"""Every kind of task."""


def load_task(config: TaskChoice) -> TaskData:
    """Read or make the examples of a task.

    Raises:
        MissingInputError: a file of the task does not exist.
        ConfigError: a file has a wrong line, or there is too little text to make the examples from.
    """
    return TASKS[config.kind].load(config)

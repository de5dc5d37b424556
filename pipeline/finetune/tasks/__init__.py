"""The tasks that a configuration can name, told apart by `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from pipeline.demo.tasks import docstring_package, docstring_word_order
from pipeline.demo.tasks.docstring_package import DocstringPackageConfig
from pipeline.demo.tasks.docstring_word_order import DocstringWordOrderConfig
from pipeline.finetune.tasks import cola, mrpc, rte, squad, sst2, xsum
from pipeline.finetune.tasks.base import Task, TaskData
from pipeline.finetune.tasks.cola import ColaConfig
from pipeline.finetune.tasks.mrpc import MrpcConfig
from pipeline.finetune.tasks.rte import RteConfig
from pipeline.finetune.tasks.squad import SquadConfig
from pipeline.finetune.tasks.sst2 import Sst2Config
from pipeline.finetune.tasks.xsum import XsumConfig

TaskChoice = Annotated[
    ColaConfig
    | Sst2Config
    | MrpcConfig
    | RteConfig
    | SquadConfig
    | XsumConfig
    | DocstringPackageConfig
    | DocstringWordOrderConfig,
    Field(discriminator="kind"),
]
"""Settings of any task."""

TASKS: Mapping[str, Task] = {
    "cola": Task("classification", cola.load, cola.METRICS),
    "sst2": Task("classification", sst2.load, sst2.METRICS),
    "mrpc": Task("classification", mrpc.load, mrpc.METRICS),
    "rte": Task("classification", rte.load, rte.METRICS),
    "squad": Task("spans", squad.load, squad.METRICS),
    "xsum": Task("generation", xsum.load, xsum.METRICS),
    "docstring_package": Task("classification", docstring_package.load, docstring_package.METRICS),
    "docstring_word_order": Task("classification", docstring_word_order.load, docstring_word_order.METRICS),
}
"""Every kind of task."""


def load_task(config: TaskChoice) -> TaskData[Any]:
    """Read or make the examples of a task.

    Raises:
        MissingInputError: a file of the task does not exist.
        ConfigError: a file has a wrong line, or there is too little text to make the examples from.
    """
    return TASKS[config.kind].load(config)

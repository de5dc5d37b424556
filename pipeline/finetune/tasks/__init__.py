"""The kinds of tasks on published data, one per file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.finetune.task import by_kind
from pipeline.finetune.tasks.cola import ColaConfig
from pipeline.finetune.tasks.mrpc import MrpcConfig
from pipeline.finetune.tasks.rte import RteConfig
from pipeline.finetune.tasks.squad import SquadConfig
from pipeline.finetune.tasks.sst2 import Sst2Config
from pipeline.finetune.tasks.xsum import XsumConfig

TaskChoice = Annotated[
    ColaConfig | Sst2Config | MrpcConfig | RteConfig | SquadConfig | XsumConfig,
    Field(discriminator="kind"),
]
"""Settings of any task on published data."""
TASKS = by_kind(TaskChoice)

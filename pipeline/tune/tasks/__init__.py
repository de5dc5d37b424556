"""The kinds of tasks on published data and on one's own rows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.tune.task import by_kind
from pipeline.tune.tasks.choices import RaceConfig, SwagConfig
from pipeline.tune.tasks.classification import MnliConfig, SnliConfig, Sst5Config
from pipeline.tune.tasks.glue import (
    ColaConfig,
    MrpcConfig,
    QnliConfig,
    QqpConfig,
    RteConfig,
    Sst2Config,
    StsbConfig,
    WnliConfig,
)
from pipeline.tune.tasks.instructions import InstructionsConfig
from pipeline.tune.tasks.question_answering import MrqaConfig, Squad2Config, SquadConfig
from pipeline.tune.tasks.rows import (
    RowsClassificationConfig,
    RowsGenerationConfig,
    RowsRegressionConfig,
    RowsTagsConfig,
)
from pipeline.tune.tasks.rows_questions import RowsChoicesConfig, RowsSpansConfig
from pipeline.tune.tasks.summaries import CnnDailymailConfig, XsumConfig
from pipeline.tune.tasks.superglue import BoolqConfig, CbConfig, CopaConfig, SuperglueRteConfig, WicConfig
from pipeline.tune.tasks.superglue_passages import MultircConfig, RecordConfig
from pipeline.tune.tasks.tagging import ConllNerConfig, ConlluPosConfig
from pipeline.tune.tasks.translation import TranslationConfig

TaskChoice = Annotated[
    ColaConfig
    | Sst2Config
    | MrpcConfig
    | StsbConfig
    | QqpConfig
    | MnliConfig
    | QnliConfig
    | RteConfig
    | WnliConfig
    | SnliConfig
    | Sst5Config
    | BoolqConfig
    | CbConfig
    | CopaConfig
    | MultircConfig
    | RecordConfig
    | SuperglueRteConfig
    | WicConfig
    | SquadConfig
    | Squad2Config
    | MrqaConfig
    | ConllNerConfig
    | ConlluPosConfig
    | SwagConfig
    | RaceConfig
    | XsumConfig
    | CnnDailymailConfig
    | TranslationConfig
    | InstructionsConfig
    | RowsClassificationConfig
    | RowsRegressionConfig
    | RowsSpansConfig
    | RowsTagsConfig
    | RowsChoicesConfig
    | RowsGenerationConfig,
    Field(discriminator="kind"),
]
"""Settings of any task."""
TASKS = by_kind(TaskChoice)

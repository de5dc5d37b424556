"""The kinds of tasks on published data, one per file or benchmark, and on one's own rows (`rows/`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.tune.task import by_kind
from pipeline.tune.tasks.cnn_dailymail import CnnDailymailConfig
from pipeline.tune.tasks.conll_ner import ConllNerConfig
from pipeline.tune.tasks.conllu_pos import ConlluPosConfig
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
from pipeline.tune.tasks.mnli import MnliConfig
from pipeline.tune.tasks.mrqa import MrqaConfig
from pipeline.tune.tasks.multirc import MultircConfig
from pipeline.tune.tasks.race import RaceConfig
from pipeline.tune.tasks.record import RecordConfig
from pipeline.tune.tasks.rows.choices import RowsChoicesConfig
from pipeline.tune.tasks.rows.classification import RowsClassificationConfig, RowsRegressionConfig
from pipeline.tune.tasks.rows.generation import RowsGenerationConfig
from pipeline.tune.tasks.rows.spans import RowsSpansConfig
from pipeline.tune.tasks.rows.tags import RowsTagsConfig
from pipeline.tune.tasks.snli import SnliConfig
from pipeline.tune.tasks.squad import Squad2Config, SquadConfig
from pipeline.tune.tasks.sst5 import Sst5Config
from pipeline.tune.tasks.superglue import BoolqConfig, CbConfig, CopaConfig, WicConfig
from pipeline.tune.tasks.superglue_rte import SuperglueRteConfig
from pipeline.tune.tasks.swag import SwagConfig
from pipeline.tune.tasks.translation import TranslationConfig
from pipeline.tune.tasks.xsum import XsumConfig

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

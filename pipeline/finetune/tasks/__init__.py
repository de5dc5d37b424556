"""The kinds of tasks on published data, one per file, and on one's own rows (`rows/`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.finetune.task import by_kind
from pipeline.finetune.tasks.boolq import BoolqConfig
from pipeline.finetune.tasks.cb import CbConfig
from pipeline.finetune.tasks.cnn_dailymail import CnnDailymailConfig
from pipeline.finetune.tasks.cola import ColaConfig
from pipeline.finetune.tasks.conll_ner import ConllNerConfig
from pipeline.finetune.tasks.conllu_pos import ConlluPosConfig
from pipeline.finetune.tasks.copa import CopaConfig
from pipeline.finetune.tasks.instructions import InstructionsConfig
from pipeline.finetune.tasks.mnli import MnliConfig
from pipeline.finetune.tasks.mrpc import MrpcConfig
from pipeline.finetune.tasks.mrqa import MrqaConfig
from pipeline.finetune.tasks.multirc import MultircConfig
from pipeline.finetune.tasks.qnli import QnliConfig
from pipeline.finetune.tasks.qqp import QqpConfig
from pipeline.finetune.tasks.race import RaceConfig
from pipeline.finetune.tasks.record import RecordConfig
from pipeline.finetune.tasks.rows.choices import RowsChoicesConfig
from pipeline.finetune.tasks.rows.classification import RowsClassificationConfig
from pipeline.finetune.tasks.rows.generation import RowsGenerationConfig
from pipeline.finetune.tasks.rows.regression import RowsRegressionConfig
from pipeline.finetune.tasks.rows.spans import RowsSpansConfig
from pipeline.finetune.tasks.rows.tags import RowsTagsConfig
from pipeline.finetune.tasks.rte import RteConfig
from pipeline.finetune.tasks.snli import SnliConfig
from pipeline.finetune.tasks.squad import SquadConfig
from pipeline.finetune.tasks.squad2 import Squad2Config
from pipeline.finetune.tasks.sst2 import Sst2Config
from pipeline.finetune.tasks.sst5 import Sst5Config
from pipeline.finetune.tasks.stsb import StsbConfig
from pipeline.finetune.tasks.superglue_rte import SuperglueRteConfig
from pipeline.finetune.tasks.swag import SwagConfig
from pipeline.finetune.tasks.translation import TranslationConfig
from pipeline.finetune.tasks.wic import WicConfig
from pipeline.finetune.tasks.wnli import WnliConfig
from pipeline.finetune.tasks.xsum import XsumConfig

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

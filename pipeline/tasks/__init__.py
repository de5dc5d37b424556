"""The kinds of tasks on published data and on one's own rows: a file for each family of data.

task              the interface of a kind of task, and its examples
forms             examples and settings of each form: a label, a span, tags, a choice, a text
settings          how one network is trained on a task
files             readers of the published files, for training and for decontamination
evaluation_sets   the texts that pre-training corpora are decontaminated against
metrics           from predictions and right answers to a number
tokenizer         a network's tokenizer, the special tokens of its sequences, and the tokenizer of an export
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, get_args

from pydantic import Field

from pipeline.tasks.classification import MnliConfig, SnliConfig, Sst5Config
from pipeline.tasks.generation import CnnDailymailConfig, TranslationConfig, XsumConfig
from pipeline.tasks.glue import (
    ColaConfig,
    MrpcConfig,
    QnliConfig,
    QqpConfig,
    RteConfig,
    Sst2Config,
    StsbConfig,
    WnliConfig,
)
from pipeline.tasks.instructions import InstructionsConfig
from pipeline.tasks.questions import MrqaConfig, RaceConfig, Squad2Config, SquadConfig, SwagConfig
from pipeline.tasks.rows import (
    RowsChoicesConfig,
    RowsClassificationConfig,
    RowsGenerationConfig,
    RowsRegressionConfig,
    RowsSpansConfig,
    RowsTagsConfig,
)
from pipeline.tasks.superglue import (
    BoolqConfig,
    CbConfig,
    CopaConfig,
    MultircConfig,
    RecordConfig,
    SuperglueRteConfig,
    WicConfig,
)
from pipeline.tasks.tagging import ConllNerConfig, ConlluPosConfig
from pipeline.tasks.task import TaskConfig

TaskChoice = Annotated[
    ColaConfig
    | Sst2Config
    | MrpcConfig
    | StsbConfig
    | QqpConfig
    | QnliConfig
    | RteConfig
    | WnliConfig
    | MnliConfig
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
TASKS: Mapping[str, type[TaskConfig]] = {
    task.model_fields["kind"].default: task for task in get_args(get_args(TaskChoice)[0])
}
"""Settings by kind of task."""

"""`python -m tests.benchmarks [NAME ...]`: run the benchmarks, print their ratios."""

from __future__ import annotations

import sys

from tests.benchmarks import (
    article_extraction,
    bpe_training,
    checkpointing,
    denoising,
    elmo_layer,
    encoding,
    featurising,
    finetuning,
    generation,
    language,
    line_wrapping,
    low_rank,
    near_duplicates,
    noising,
    packing,
    pii,
    plan_memory,
    reading,
    resume,
    stage_memory,
    tracking,
    trainer,
    training_step,
    web_archive,
)

BENCHMARKS = {
    "noising": noising,
    "reading": reading,
    "packing": packing,
    "pii": pii,
    "denoising": denoising,
    "training_step": training_step,
    "elmo_layer": elmo_layer,
    "finetuning": finetuning,
    "featurising": featurising,
    "generation": generation,
    "line_wrapping": line_wrapping,
    "low_rank": low_rank,
    "encoding": encoding,
    "language": language,
    "bpe_training": bpe_training,
    "near_duplicates": near_duplicates,
    "web_archive": web_archive,
    "article_extraction": article_extraction,
    "stage_memory": stage_memory,
    "checkpointing": checkpointing,
    "plan_memory": plan_memory,
    "tracking": tracking,
    "trainer": trainer,
    "resume": resume,
}

for name in sys.argv[1:] or BENCHMARKS:
    for comparison in BENCHMARKS[name].run():
        print(comparison, flush=True)

"""`python -m tests.benchmarks.one NAME FILE`: one benchmark in this process; its outcomes as lines here and in FILE."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from tests.benchmarks import (
    article_extraction,
    bpe_training,
    checkpointing,
    control_plane,
    denoising,
    elmo_layer,
    encoding,
    encoding_mixture,
    featurising,
    filters,
    finetuning,
    generation,
    growth,
    language,
    line_wrapping,
    long_histories,
    low_rank,
    many_inputs,
    near_duplicates,
    noising,
    packing,
    pii,
    plan_memory,
    reading,
    resume,
    stage_memory,
    start,
    tracking,
    trainer,
    training_step,
    web_archive,
)
from tests.benchmarks.results import line_of

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
    "encoding_mixture": encoding_mixture,
    "language": language,
    "filters": filters,
    "bpe_training": bpe_training,
    "near_duplicates": near_duplicates,
    "web_archive": web_archive,
    "article_extraction": article_extraction,
    "stage_memory": stage_memory,
    "growth": growth,
    "checkpointing": checkpointing,
    "plan_memory": plan_memory,
    "tracking": tracking,
    "trainer": trainer,
    "resume": resume,
    "start": start,
    "control_plane": control_plane,
    "many_inputs": many_inputs,
    "long_histories": long_histories,
}

IN_README = (
    "reading",
    "noising",
    "denoising",
    "encoding",
    "bpe_training",
    "near_duplicates",
    "web_archive",
    "training_step",
    "finetuning",
    "trainer",
    "checkpointing",
    "start",
)
"""Those whose figures README has. The others ask how large things may grow, or decided between ways to do something."""


def main() -> None:
    """Print every outcome when it is there, and append it to the file."""
    name, path = sys.argv[1:]
    with Path(path).open("ab") as lines:
        for outcome in BENCHMARKS[name].run():
            print(outcome, flush=True)
            lines.write(orjson.dumps(line_of(name, outcome), option=orjson.OPT_APPEND_NEWLINE))
            lines.flush()


if __name__ == "__main__":
    main()

"""MRPC: do two sentences mean the same? (Dolan and Brockett 2005; GLUE, Wang et al. 2019, section 3.2).

3,668 training and 408 evaluation pairs in the official release; copies with fewer are accepted, too. GLUE's
download_glue_data.py makes the files from msr_paraphrase_train.txt, which can be read as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.tune.files.lines import read_lines, require_file, wrong_line
from pipeline.tune.files.tables import GlueFiles, read_columns
from pipeline.tune.forms.classification.settings import Example
from pipeline.tune.tasks.glue import GlueTaskConfig, Split

FILES = GlueFiles(folder="MRPC", texts=("#1 String", "#2 String"), label="Quality", labels=("0", "1"))
MSR_TRAIN, DEV_IDS = "msr_paraphrase_train.txt", "dev_ids.tsv"


class MrpcConfig(GlueTaskConfig):
    """The Microsoft Research Paraphrase Corpus."""

    kind: Literal["mrpc"] = "mrpc"
    path: Path
    """The folder `MRPC`, with train.tsv and dev.tsv, or with msr_paraphrase_train.txt and GLUE's dev_ids.tsv; or a data
    set with the splits train and validation, as `datasets` saves it or the Hugging Face Hub keeps it."""

    files = FILES
    label_names = ("different", "paraphrase")
    hub_texts = ("sentence1", "sentence2")
    metrics = ("f1", "accuracy")
    leaderboard = (("", "test", "MRPC.tsv"),)
    evaluation_sets = (FILES.evaluation_set("mrpc"),)

    def split(self, stem: str, group: str = "") -> Split:
        """The examples of `STEM.tsv`; without it, the pairs of msr_paraphrase_train.txt that are, or are not, in
        dev_ids.tsv."""
        if (self.path / f"{stem}.tsv").is_file() or not (self.path / MSR_TRAIN).is_file():
            return super().split(stem, group)
        ids = require_file(self.path / DEV_IDS, f"GLUE's {DEV_IDS} ({FILES.origin})", "`path`")
        held_out = _pairs_of_ids(ids)
        columns = (*FILES.texts, "#1 ID", "#2 ID", FILES.label)
        path = self.path / MSR_TRAIN
        examples = [
            Example(name, first, second, FILES.label_number(path, name, label), group)
            for name, (first, second, *pair, label) in read_columns(path, columns, exact=True)
            if (tuple(pair) in held_out) == (stem == "dev")
        ]
        return [path, ids], examples


def _pairs_of_ids(path: Path) -> set[tuple[str, ...]]:
    pairs = set()
    for name, line in read_lines(path):
        pair = tuple(line.split("\t"))
        if len(pair) != 2:
            raise wrong_line(path, name, f"{len(pair)} columns, 2 are needed")
        pairs.add(pair)
    return pairs

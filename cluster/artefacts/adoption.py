"""Shards of an artefact that is being replaced serve again in the new one, where they were made from the same.

Adding a source, or changing the settings of one, must not cost the work that was done for the others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.storage import storage_errors
from cluster.shards import RECORDS_NAME, Shard, read_records, write_record


def adopt_shards(directory: Path, staging: Path, shards: Sequence[Shard]) -> int:
    """Take from the artefact in `directory` the shards that `staging` lacks and that have the same identity there,
    under whatever name; returns how many. Their bytes are checked when the new artefact is made.
    """
    made = {record.identity: record for record in read_records(directory)}
    num_adopted = 0
    with storage_errors(staging):
        (staging / RECORDS_NAME).mkdir(parents=True, exist_ok=True)
        for shard in shards:
            record, target = made.get(shard.identity), staging / shard.file
            if record is None or target.exists():
                continue
            try:
                source = record.entry.under(directory)
            except CorruptArtefactError:
                continue
            if not source.is_file():
                continue
            _link(source, target)
            entry = record.entry.model_copy(update={"path": shard.file})
            write_record(staging, record.model_copy(update={"entry": entry}))
            num_adopted += 1
    return num_adopted


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)

"""The rejects of a preparation, finished or not: unreadable records, and records with the id of another one."""

from __future__ import annotations

from pathlib import Path

from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.shard_records import SHARD_RECORDS, Reject
from data_prep.layout import DEDUP, DOCUMENTS


def list_rejects(out: Path) -> list[Reject]:
    """All rejects that are recorded under a preparation's output directory, by shard and place.

    Raises:
        MissingInputError: nothing was prepared there.
    """
    stages = (DOCUMENTS, DEDUP)
    directories = [
        path for stage in stages for path in (out / stage, *sorted(out.glob(f".{stage}.*.partial")))
    ]
    found = [directory for directory in directories if (directory / SHARD_RECORDS.directory_name).is_dir()]
    if not found:
        raise MissingInputError(
            f"No documents were prepared in {out}.", next_step="name the `out` of a preparation"
        )
    return [
        reject
        for directory in found
        for record in SHARD_RECORDS.read_all(directory, anyone=True)
        for reject in record.rejects
    ]

"""Selections without the documents that must not be trained on any more."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cluster.artefacts.manifest import Manifest, hash_json
from cluster.artefacts.shard_records import ShardRecord
from cluster.shards import ShardResult, WriteShard
from data_prep.documents import read_selected
from data_prep.layout import SELECTION_FILES, TAKEDOWN
from data_prep.selection import load_selection, write_selection
from data_prep.workspace import Workspace

VERSION = 1
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""


def take_down(job: Workspace, selection: Manifest, ids: Sequence[str]) -> Manifest:
    """Make the `takedown` artefact: the selection of every document shard.

    Its settings hold a hash of the ids, not the ids: they may be what is to be forgotten.
    """
    config = {"version": VERSION, "ids": hash_json(list(ids))}

    def finish(_: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        return {"ids_listed": len(ids), "sources": job.by_source(records)}

    def make(shard: int) -> WriteShard:
        return partial(leave_out, job.documents_path(shard), job.selection_path(selection, shard), ids)

    made = job.build(
        TAKEDOWN,
        SELECTION_FILES,
        make,
        config=config,
        inputs=[job.documents, selection],
        finish=finish,
    )
    if (missing := len(ids) - made.stats["documents_taken_down"]) > 0:
        logging.getLogger(__name__).warning(
            "%d of the %d ids to take down are of no document that was kept.", missing, len(ids)
        )
    return made


def leave_out(documents: Path, selection: Path, ids: Sequence[str], path: Path) -> ShardResult:
    """Write the selection of a document shard, made by earlier stages, without the documents of the list."""
    import pyarrow.compute as pc  # a plan, which only reads the list, does not wait for it

    before = load_selection(selection)
    listed = pa.array(ids, type=pa.string())
    columns = [table["doc_id"] for table in read_selected(documents, ["doc_id"], before)]
    found = [
        pc.is_in(column, value_set=listed).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
        for column in columns
    ]
    is_listed = np.concatenate([np.empty(0, dtype=bool), *found])
    write_selection(path, before.take(np.flatnonzero(~is_listed)))
    taken = int(is_listed.sum())
    return ShardResult(rows=len(before) - taken, stats={"documents_taken_down": taken})

"""Documents that must not be trained on any more: the list of their ids, and a selection without them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.shards import ShardResult
from data_prep.documents import read_selected
from data_prep.selection import load_selection, write_selection


@dataclass(frozen=True, slots=True)
class TakedownSplit:
    """The input of one selection."""

    documents: Path
    """A document shard."""
    selection: Path
    """The selection of earlier stages."""
    ids: tuple[str, ...]


def read_ids(path: Path) -> tuple[str, ...]:
    """The ids of a list, sorted.

    Raises:
        MissingInputError: there is no such file.
        ConfigError: it is not text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MissingInputError(
            f"The list of documents to take down, {path}, cannot be read: {error.strerror}.",
            next_step="write it with an id a line (`cloze data find` prints ids), or correct `takedown`",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not UTF-8 text.", next_step="write it with an id a line, or correct `takedown`"
        ) from None
    return tuple(
        sorted({line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")})
    )


def leave_out(split: TakedownSplit, path: Path) -> ShardResult:
    """Write the selection of a document shard without the documents of the list."""
    import pyarrow.compute as pc  # a plan, which only reads the list, does not wait for it

    before = load_selection(split.selection)
    listed = pa.array(split.ids, type=pa.string())
    columns = [table["doc_id"] for table in read_selected(split.documents, ["doc_id"], before)]
    found = [
        pc.is_in(column, value_set=listed).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
        for column in columns
    ]
    is_listed = np.concatenate([np.empty(0, dtype=bool), *found])
    write_selection(path, before.take(np.flatnonzero(~is_listed)))
    taken = int(is_listed.sum())
    return ShardResult(rows=len(before) - taken, stats={"documents_taken_down": taken})

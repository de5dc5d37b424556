"""Ids of documents that repeat an earlier document's id, distinguished by the place of their record.

Whether an id repeats is known when all documents are read, and noted in the selection of their shard; the name that
such a document then has depends on its own record alone, so it is the same whatever else is read, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARK = " @ "
"""Between a repeated id and the place. An id that a record itself gives with this in it always gets its place, so that
no document can have the name of another."""


def named_by_place(doc_id: str, uri: str, meta: Mapping[str, Any]) -> str:
    """`wiki:12 @ dump.xml:4711`: the id with the file and the byte (or row) at which the document's record begins."""
    place = [str(meta[key]) for key in ("stream_start", "byte_start", "row") if key in meta]
    return f"{doc_id}{MARK}{uri.replace(MARK, '%20@%20')}:{'+'.join(place)}"

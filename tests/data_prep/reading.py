"""Results of sources, read as a whole or in parts."""

import os
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from data_prep.document import Document
from data_prep.sources import Gap, Skipped, SourceConfig

T = TypeVar("T")
PAGES = Path(__file__).parent / "pages"
"""Pages and books, each beside the text that is read of it."""


def stored(name: str) -> str:
    """The contents of one of these files."""
    return (PAGES / name).read_text("utf-8").removesuffix("\n")


class Results(list[Any]):
    """Everything that a source gives of its files, in order."""

    @property
    def documents(self) -> list[Document]:
        return [result for result in self if isinstance(result, Document)]

    @property
    def rejects(self) -> list[Gap]:
        return [result for result in self if isinstance(result, Gap)]

    @property
    def reasons(self) -> list[str]:
        """Why records were skipped."""
        return [result.reason for result in self if isinstance(result, Skipped)]

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.documents]

    @property
    def ids(self) -> list[str]:
        return [document.doc_id for document in self.documents]

    @property
    def titles(self) -> list[str]:
        return [document.title for document in self.documents]

    @property
    def langs(self) -> list[str]:
        return [document.lang for document in self.documents]

    @property
    def offsets(self) -> list[int]:
        """First bytes of what was rejected."""
        return [reject.byte_offset for reject in self.rejects]

    def only(self) -> Document:
        """The document that is the only result."""
        (document,) = self
        assert isinstance(document, Document), document
        return document

    def rejected(self) -> Gap:
        """The reject that is the only result."""
        (reject,) = self
        assert isinstance(reject, Gap), reject
        return reject


def read(config: SourceConfig, bounds: Sequence[int] = (), part_bytes: int | None = None) -> Results:
    """All results of all files, in parts that begin at 0 and at every bound, or in those that the source makes."""
    found = Results()
    for file in config.list_files():
        parts = [
            replace(file, start=start, end=end)
            for start, end in zip([0, *bounds], [*bounds, None], strict=True)
        ]
        if part_bytes:
            parts = config.split_file(file, os.path.getsize(file.path), part_bytes)
        found += (result for part in parts for result in config.read(part))
    return found


def read_file(
    kind: type[SourceConfig], path: Path, data: bytes, bounds: Sequence[int] = (), **settings: Any
) -> Results:
    """Results of a file with these bytes, by the source `s`."""
    path.write_bytes(data)
    return read(kind.model_validate({"name": "s", "paths": [str(path)], **settings}), bounds)


def traced(run: Callable[[], T]) -> tuple[T, int]:
    """What a function returns, and the most bytes that Python's objects took at a time meanwhile."""
    tracemalloc.start()
    try:
        return run(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

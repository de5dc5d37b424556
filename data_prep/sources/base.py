"""The interface of a source: the files it reads, their parts for parallel reading, and the documents in a part.

A source is a module in this package with a frozen pydantic config class and three functions, `list_files(config)`,
`split(config, file, size_bytes, part_bytes)` and `read(config, part)`. `data_prep/sources/__init__.py` names them
all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.filters import AnyFilter
from data_prep.sources.listing import SourceFile, expand_patterns
from data_prep.sources.streams import storage_of


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file, or what one task reads of it."""

    file: SourceFile
    start: int = 0
    """First byte of the file as it is stored (compressed or not)."""
    end: int | None = None
    """Byte behind the last; None reads to the end of the file. The part's documents are those whose record (page,
    block, line, compressed stream) begins in `start <= byte < end`, wherever they end."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was read and is no document, such as a picture in a web archive; it is only counted."""

    reason: str
    """A short snake_case name, the same for all records that are skipped for it."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Counts of markup that a source left out of the texts of a part, such as templates that it cannot show."""

    what: str
    """A short plural, such as `templates`."""
    counts: Mapping[str, int]
    """How often, by name."""


def list_paths(config: Any) -> Sequence[SourceFile]:
    """The `list_files` of sources whose setting `paths` names their files."""
    return expand_patterns(config.paths)


def whole_file(config: Any, file: SourceFile, size_bytes: int, part_bytes: int) -> list[FilePart]:
    """The `split` of a format that can only be read from its beginning."""
    return [FilePart(file)]


def even_parts(file: SourceFile, size_bytes: int, part_bytes: int) -> list[FilePart]:
    """The file in parts of about `part_bytes`, for formats whose next record can be found from any byte."""
    count = max(1, round(size_bytes / part_bytes))
    bounds = [size_bytes * number // count for number in range(count)]
    return [FilePart(file, start, end) for start, end in itertools.zip_longest(bounds, bounds[1:])]


def plain_parts(config: Any, file: SourceFile, size_bytes: int, part_bytes: int) -> list[FilePart]:
    """The `split` of formats whose plain files can be cut at any byte; compressed ones are read as a whole."""
    is_plain = storage_of(file.path) == "plain"
    return even_parts(file, size_bytes, part_bytes) if is_plain else [FilePart(file)]


class SourceConfig(BaseModel):
    """Settings of all sources."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """Which source it is; every source narrows it to its own name."""
    name: str
    """Value of the `source` column; also the key for mixing weights."""
    lang: str = "en"
    """ISO 639-1 code of the text."""
    filters: tuple[AnyFilter, ...] | None = None
    """Filters of this source's documents, in order; None takes the `filters` of the preparation."""

    places: ClassVar[frozenset[str]] = frozenset({"paths"})
    """The settings that name where its files lie."""

    def identity(self) -> dict[str, Any]:
        """The settings as they enter fingerprints: no places, which do not change contents, and no filters, which
        have identities of their own."""
        return self.model_dump(mode="json", exclude={*self.places, "filters"})


class Source(Protocol):
    """The interface of a source module."""

    def list_files(self, config: Any) -> Sequence[SourceFile]:
        """All input files, sorted by name. MissingInputError when a path or pattern matches nothing."""
        ...

    def split(self, config: Any, file: SourceFile, size_bytes: int, part_bytes: int) -> list[FilePart]:
        """The file in parts of about `part_bytes` bytes as stored, that together read as the file does.

        Depends on the file's bytes and the arguments only, and reads little of it: it runs before any task does.
        """
        ...

    def read(self, config: Any, part: FilePart) -> Iterator[Document | Reject | Skipped | LeftOut]:
        """Stream the documents of a part, bounded in memory. Unreadable records come out as Reject."""
        ...

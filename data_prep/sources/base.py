"""The interface of a source: the files it reads, their parts for parallel reading, and the documents in a part."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.places import as_place, expand
from data_prep.document import Document
from data_prep.filters import AnyFilter
from data_prep.sources.streams import Gap, read_chunks
from data_prep.text import UnreadableError


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file, or the part of it that one task reads."""

    path: str
    """A local path or an fsspec URI."""
    name: str
    """Path below the pattern's fixed part, equal on every machine. Enters the fingerprints."""
    start: int = 0
    """First byte of the part, in the file as it is stored (compressed or not)."""
    end: int | None = None
    """Byte after the last; None reads to the end of the file. The part's documents are those whose record (page,
    block, line, compressed stream) begins in `start <= byte < end`, wherever they end."""


def expand_patterns(patterns: Iterable[str], *, folders: bool = False) -> list[SourceFile]:
    """Files matching local glob patterns or fsspec URIs, sorted by name, each once, whatever links lead to it.

    The name of a file is its path below the last directory of the pattern that has no wildcard. Wildcards match no
    hidden files and directories.

    Args:
        folders: a directory stands for all files in it.

    Raises:
        MissingInputError: a pattern matches nothing, or the store that it names cannot be reached.
        ConfigError: two patterns give different files the same name.
    """
    found: list[tuple[str, str, str]] = []
    for pattern in patterns:
        before = len(found)
        found += expand(pattern, folders=folders)
        if len(found) == before:
            place = as_place(pattern)
            is_directory = isinstance(place, Path) and place.expanduser().is_dir()
            raise MissingInputError(
                f"No file matches {pattern}." + (" It is a directory." if is_directory else ""),
                next_step="correct the path in the source's `paths`; a directory's files are `DIR/**/*`"
                + ("; a bracket that belongs to a name is written `[[]`" if "[" in pattern else ""),
            )
    # Sorting is stable: the first pattern that matches a file names it.
    found.sort(key=itemgetter(1))
    found = [next(same) for _, same in itertools.groupby(found, key=itemgetter(1))]
    found.sort(key=itemgetter(2))
    for (path, _, name), (other, _, other_name) in itertools.pairwise(found):
        if name == other_name:  # documents and rejects could not be distinguished
            raise ConfigError(
                f"{path} and {other} are both named {name} below their patterns.",
                next_step="name both by one pattern with a wildcard for the directory, such as `DIR/*/FILE`",
            )
    return [SourceFile(path, name) for path, _, name in found]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was read and is no document, such as a picture in a web archive; it is only counted."""

    reason: str
    """A short snake_case name, the same for all records that are skipped for it."""


NO_TEXT = Skipped("no_text")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Counts of markup that a source left out of the texts of a part, such as templates that it cannot show."""

    what: str
    """A short plural, such as `templates`."""
    counts: Mapping[str, int]
    """How often, by name."""


Item = Document | Gap | Skipped | LeftOut
"""What a source gives."""


class SourceConfig(BaseModel, ABC):
    """A source: its settings, and how its files are found, cut and read. `data_prep/sources/__init__.py` names all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """Says which settings these are."""
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

    def list_files(self) -> Sequence[SourceFile]:
        """All input files, sorted by name: those that match the patterns in `places`.

        Raises:
            MissingInputError: a path or pattern matches nothing.
            ConfigError: the source cannot read what is there.
        """
        return expand_patterns(pattern for place in sorted(self.places) for pattern in getattr(self, place))

    def is_divisible(self, file: SourceFile) -> bool:
        """Whether the next document can be found from any byte of the file as it is stored; where not, it is read from
        its beginning. Reads little of the file: it is asked before any task runs."""
        return False

    def split_file(self, file: SourceFile, size_bytes: int, part_bytes: int) -> list[SourceFile]:
        """The file in parts of about `part_bytes` bytes as stored, that together read as the file does; as a whole
        where it is not divisible. Depends on the file's bytes and the arguments only."""
        count = max(1, round(size_bytes / part_bytes)) if self.is_divisible(file) else 1
        bounds = [size_bytes * number // count for number in range(count)]
        return [
            replace(file, start=start, end=end) for start, end in itertools.zip_longest(bounds, bounds[1:])
        ]

    def document(
        self,
        file: SourceFile,
        own_id: str,
        text: str,
        meta: dict[str, Any],
        *,
        title: str = "",
        lang: str = "",
    ) -> Document | Skipped:
        """The document of a clean text and title; Skipped without text.

        Args:
            own_id: unique in the source.
            lang: where it is not known, the source's.
        """
        if not text:
            return NO_TEXT
        return Document(f"{self.name}:{own_id}", self.name, file.name, title, lang or self.lang, text, meta)

    @abstractmethod
    def read(self, part: SourceFile) -> Iterator[Item]:
        """Stream the documents of a part, bounded in memory. Unreadable records come out as Gap."""


class WholeFiles(SourceConfig):
    """A source whose files are read as a whole, and rejected as a whole where something is wrong with them."""

    def read(self, part: SourceFile) -> Iterator[Item]:
        """The documents of a file, or one Gap."""
        try:
            yield from list(self.documents_of(part))
        except UnreadableError as error:
            yield Gap(error.offset, error.reason)

    @abstractmethod
    def documents_of(self, file: SourceFile) -> Iterable[Document | Skipped]:
        """The documents of a file.

        Raises:
            UnreadableError: it is damaged, longer than the limit, or of another kind.
        """


def read_whole(file: SourceFile, max_bytes: int) -> bytes:
    """The decompressed bytes of a file.

    Raises:
        UnreadableError: it is damaged, or longer than the limit.
    """
    data = bytearray()
    for chunk in read_chunks(file.path):
        if isinstance(chunk, Gap):
            raise UnreadableError(chunk.reason, len(data))
        data += chunk
        if len(data) > max_bytes:
            raise UnreadableError(f"longer than the limit of {max_bytes} bytes")
    return bytes(data)

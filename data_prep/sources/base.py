"""The interface of a source: the files it reads, their parts for parallel reading, and the documents in a part.

A source is a module in this package with a frozen pydantic config class and three functions, `list_files(config)`,
`split(config, file, size_bytes, part_bytes)` and `read(config, part)`. `data_prep/sources/__init__.py` names them
all.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.filters import AnyFilter
from data_prep.sources.streams import storage_of


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file."""

    path: str
    """Where to read it: a local path or an fsspec URI."""
    name: str
    """Path below the pattern's fixed part, equal on every machine. Enters the fingerprints."""


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


def list_paths(config: Any) -> list[SourceFile]:
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

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: str
    """Which source it is; every source narrows it to its own name."""
    name: str
    """Value of the `source` column; also the key for mixing weights."""
    lang: str = "en"
    """ISO 639-1 code of the text."""
    filters: tuple[AnyFilter, ...] | None = None
    """Filters of this source's documents, in order; None takes the `filters` of the preparation."""


class Source(Protocol):
    """The interface of a source module."""

    def list_files(self, config: Any) -> list[SourceFile]:
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


def expand_patterns(patterns: Iterable[str]) -> list[SourceFile]:
    """Files matching local glob patterns or fsspec URIs, sorted by name, each once.

    The name of a file is its path below the last directory of the pattern that has no wildcard.

    Raises:
        MissingInputError: a pattern matches nothing, or the store that it names cannot be reached.
        ConfigError: two patterns give different files the same name.
    """
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        pattern = os.path.expanduser(pattern)
        paths = _expand_uri(pattern) if "://" in pattern else _expand_local(pattern)
        if not paths:
            raise MissingInputError(
                f"No file matches {pattern}." + (" It is a directory." if os.path.isdir(pattern) else ""),
                next_step="correct the path in the source's `paths`; a directory's files are `DIR/**/*`"
                + ("; a bracket that belongs to a name is written `[[]`" if "[" in pattern else ""),
            )
        root = os.path.dirname(pattern) if paths == [pattern] else _fixed_part(pattern)
        for path in paths:
            # A parameter of a URI that lets its holder in is no part of the file's name.
            shown, root = without_credentials(path), without_credentials(root)
            name = os.path.relpath(shown, root or ".").replace(os.sep, "/")
            found.setdefault(path, SourceFile(path=path, name=name))
    files = sorted(found.values(), key=lambda file: (file.name, file.path))
    _check_names(files)
    return files


def _check_names(files: list[SourceFile]) -> None:
    """Two files of one name could not be told apart in documents and rejects.

    Raises:
        ConfigError: two patterns give different files the same name.
    """
    for first, second in itertools.pairwise(files):
        if first.name == second.name:
            raise ConfigError(
                f"{first.path} and {second.path} are both named {first.name} below their patterns.",
                next_step="name both by one pattern with a wildcard for the directory, such as `DIR/*/FILE`",
            )


def _expand_local(pattern: str) -> list[str]:
    if os.path.isfile(pattern):
        return [pattern]
    return [path for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]


def _expand_uri(pattern: str) -> list[str]:
    import fsspec

    try:
        file_system, path = fsspec.core.url_to_fs(pattern)
        found: dict[str, dict[str, Any]] = file_system.glob(path, detail=True)  # type: ignore[assignment]
    except Exception as error:  # every store's client raises classes of its own
        raise MissingInputError(
            f"{pattern} cannot be listed: {type(error).__name__}: {error}.",
            next_step="check the address and the credentials, and install what fsspec needs for this store, such as"
            " s3fs, gcsfs or adlfs",
        ) from error
    return [file_system.unstrip_protocol(name) for name in sorted(found) if found[name]["type"] == "file"]


def _fixed_part(pattern: str) -> str:
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            return "/".join(parts[:number]) or ("/" if pattern.startswith("/") else ".")
    return os.path.dirname(pattern) or "."

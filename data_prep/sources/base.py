"""What every source offers: the files it reads, and the documents in one file.

A source is a module in this package with a frozen pydantic config class and two functions,
`list_files(config)` and `read(config, file)`. `data_prep/sources/__init__.py` names them all.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from cluster.errors import ConfigError, MissingInputError
from cluster.shards import Reject


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus; a row of a documents artefact."""

    doc_id: str
    """Unique in the corpus and the same on every machine, such as `wikipedia:12`."""
    source: str
    """The source's name in the configuration."""
    uri: str
    """The file it came from, relative to the source: the same on every machine."""
    title: str
    lang: str
    """ISO 639-1 code."""
    text: str
    meta: dict[str, Any] = field(default_factory=dict)
    """At least `byte_start` and `byte_end`: where it lies in the (decompressed) file."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file."""

    path: str
    """Where to read it: a local path or an fsspec URI."""
    name: str
    """The same on every machine: the path below the pattern's fixed part. Enters the fingerprints."""


class SourceConfig(BaseModel):
    """What all sources have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """Which source it is; every source narrows it to its own name."""
    name: str
    """Value of the `source` column; also the key for mixing weights."""
    lang: str = "en"
    """ISO 639-1 code of the text."""


class Source(Protocol):
    """The interface of a source module."""

    def list_files(self, config: Any) -> list[SourceFile]:
        """All input files, sorted by name. MissingInputError when a path or pattern matches nothing."""
        ...

    def read(self, config: Any, file: SourceFile) -> Iterator[Document | Reject]:
        """Stream the documents of one file, bounded in memory. Unreadable parts come out as Reject."""
        ...


def expand_patterns(patterns: Iterable[str]) -> list[SourceFile]:
    """Files matching local glob patterns or fsspec URIs, sorted by name, each once.

    The name of a file is its path below the last directory of the pattern that has no wildcard.

    Raises:
        MissingInputError: a pattern matches nothing.
        ConfigError: two patterns give different files the same name.
    """
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        pattern = os.path.expanduser(pattern)
        paths = _expand_uri(pattern) if "://" in pattern else _expand_local(pattern)
        if not paths:
            raise MissingInputError(
                f"No file matches {pattern}." + (" It is a directory." if os.path.isdir(pattern) else ""),
                next_step="correct the path in the source's `paths`; a directory's files are `DIR/**/*`",
            )
        root = os.path.dirname(pattern) if paths == [pattern] else _fixed_part(pattern)
        for path in paths:
            name = os.path.relpath(path, root or ".").replace(os.sep, "/")
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

    file_system, path = fsspec.core.url_to_fs(pattern)
    found: dict[str, dict[str, Any]] = file_system.glob(path, detail=True)  # type: ignore[assignment]
    return [file_system.unstrip_protocol(name) for name in sorted(found) if found[name]["type"] == "file"]


def _fixed_part(pattern: str) -> str:
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            return "/".join(parts[:number]) or ("/" if pattern.startswith("/") else ".")
    return os.path.dirname(pattern) or "."

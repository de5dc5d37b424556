"""The files of a source: paths and patterns expanded, and the list of them, of which there may be millions."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.packed_strings import Columns, PackedStrings

_ODD = re.compile(r"(^|/)\.{0,2}(/|$)")
"""Matches relative paths that normalising changes."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file."""

    path: str
    """Where to read it: a local path or an fsspec URI."""
    name: str
    """Path below the pattern's fixed part, equal on every machine. Enters the fingerprints."""


class SourceFiles(Columns[SourceFile]):
    """Source files as columns: objects of a million take gigabytes."""

    __slots__ = ("names", "paths")

    def __init__(self, files: Iterable[SourceFile] = ()) -> None:
        self.paths, self.names = PackedStrings(), PackedStrings()
        for file in files:
            self.append(file)

    def append(self, file: SourceFile) -> None:
        """Add a file at the end."""
        self.paths.append(file.path)
        self.names.append(file.name)

    def __len__(self) -> int:
        return len(self.paths)

    def item(self, place: int) -> SourceFile:
        """The file at a place."""
        return SourceFile(self.paths[place], self.names[place])

    def __iter__(self) -> Iterator[SourceFile]:
        return map(SourceFile, self.paths, self.names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SourceFiles):
            return self.paths == other.paths and self.names == other.names
        return NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def expand_patterns(patterns: Iterable[str]) -> SourceFiles:
    """Files matching local glob patterns or fsspec URIs, sorted by name, each once.

    The name of a file is its path below the last directory of the pattern that has no wildcard.

    Raises:
        MissingInputError: a pattern matches nothing, or the store that it names cannot be reached.
        ConfigError: two patterns give different files the same name.
    """
    found: list[str] = []
    names: list[str] = []
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
        # A parameter of a URI that lets its holder in is no part of the file's name.
        root = without_credentials(root)
        found += paths
        names += (_name_below(root, without_credentials(path)) for path in paths)
    return _sorted(found, names)


def _name_below(root: str, path: str) -> str:
    above = "" if root in ("", ".") else os.path.join(root, "")
    if path.startswith(above) and not _ODD.search(name := path[len(above) :]):
        return name
    return os.path.relpath(path, root or ".").replace(os.sep, "/")


def _sorted(paths: list[str], names: list[str]) -> SourceFiles:
    """The files by name, each once, as the first pattern that matches it names it.

    Raises:
        ConfigError: two patterns give different files the same name, which could not be told apart in documents and
            rejects.
    """
    order = list(range(len(paths)))
    # Sorting is stable: the last one decides first. No keys are made of both.
    order.sort(key=paths.__getitem__)
    order = [next(same) for _, same in itertools.groupby(order, key=paths.__getitem__)]
    order.sort(key=names.__getitem__)
    files = SourceFiles()
    for number in order:
        files.append(SourceFile(paths[number], names[number]))
    for first, second in itertools.pairwise(order):
        if names[first] == names[second]:
            raise ConfigError(
                f"{paths[first]} and {paths[second]} are both named {names[first]} below their patterns.",
                next_step="name both by one pattern with a wildcard for the directory, such as `DIR/*/FILE`",
            )
    return files


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

"""The files of a source: paths and patterns expanded, and the list of them, of which there may be millions."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.packed_strings import Columns, PackedStrings

_ODD = re.compile(r"(^|/)\.{0,2}(/|$)")
"""Matches relative paths that normalising changes."""
_RECURSIVE = re.compile(r"(?:(?<=/)|^)\*\*/")
_HIDDEN = re.compile(r"(?:^|/)\.[^/]")
"""A hidden file or directory."""


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
    """Files matching local glob patterns or fsspec URIs, sorted by name, each once, whatever links lead to it.

    The name of a file is its path below the last directory of the pattern that has no wildcard. Wildcards match no
    hidden files and directories.

    Raises:
        MissingInputError: a pattern matches nothing, or the store that it names cannot be reached.
        ConfigError: two patterns give different files the same name.
    """
    found: list[str] = []
    names: list[str] = []
    for pattern in patterns:
        pattern = os.path.expanduser(pattern.removeprefix("file://"))
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
    directories: dict[str, str] = {}
    real = [_real_path(path, directories) for path in paths]
    # Sorting is stable: the last one decides first. No keys are made of both.
    order.sort(key=real.__getitem__)
    order = [next(same) for _, same in itertools.groupby(order, key=real.__getitem__)]
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


def _real_path(path: str, directories: dict[str, str]) -> str:
    """A local path without links; those of directories are remembered."""
    if "://" in path:
        return path
    if os.path.islink(path):
        return os.path.realpath(path)
    directory, name = os.path.split(path)
    if directory not in directories:
        directories[directory] = os.path.realpath(directory)
    return os.path.join(directories[directory], name)


def _expand_local(pattern: str) -> list[str]:
    """The files of a local pattern; those that are links come last."""
    if os.path.isfile(pattern):
        return [pattern]
    if pattern.endswith("/**"):
        pattern += "/*"
    top, *behind = _RECURSIVE.split(pattern, maxsplit=1)
    if behind:
        tops = glob.glob(top or os.curdir)
        places = (os.path.join(glob.escape(each), behind[0]) for each in _directories(tops))
        found = [path for place in places for path in _expand_local(place)]
        found = [path.removeprefix("./") for path in found] if not top else found
    else:
        found = list(filter(os.path.isfile, glob.glob(pattern)))
    return sorted(found, key=lambda path: (os.path.islink(path), path))


def _directories(tops: list[str]) -> Iterator[str]:
    """Directories and all that are not hidden below them, each real one once; those behind links come last."""
    pending, links, seen = sorted(tops, reverse=True), deque[str](), set[str]()
    while pending or links:
        directory = pending.pop() if pending else links.popleft()
        if (real := os.path.realpath(directory)) in seen or not os.path.isdir(directory):
            continue
        seen.add(real)
        yield directory
        with suppress(PermissionError), os.scandir(directory) as entries:
            inner = sorted(entries, key=lambda entry: entry.name, reverse=True)
            pending += [each.path for each in inner if each.name[0] != "." and not each.is_symlink()]
            links += [each.path for each in reversed(inner) if each.name[0] != "." and each.is_symlink()]


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
    files = [name for name in sorted(found) if found[name]["type"] == "file" and name[-1] != "/"]
    if not _HIDDEN.search(path):
        fixed = len(_fixed_part(path))
        files = [name for name in files if not _HIDDEN.search(name[fixed:])]
    return [file_system.unstrip_protocol(name) for name in files]


def _fixed_part(pattern: str) -> str:
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            return "/".join(parts[:number]) or ("/" if pattern.startswith("/") else ".")
    return os.path.dirname(pattern) or "."

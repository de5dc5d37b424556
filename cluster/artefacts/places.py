"""Places of artefacts and of source files, which are paths or fsspec URIs such as s3://bucket/corpus/tokens; and sizes
as people write them. No other module asks whether a text is a URI.
"""

from __future__ import annotations

import glob
import os
import re
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import ByteSize, PlainSerializer, PlainValidator, TypeAdapter, ValidationError, WithJsonSchema

from cluster.artefacts.credentials import require_no_credentials, without_credentials
from cluster.artefacts.errors import ConfigError, MissingInputError


class Uri(str):
    """The URI of a directory or a file, with pathlib's names for what paths have too. No URI is ever seen as a relative
    path: pathlib would make `s3:/bucket` of it."""

    __slots__ = ()

    def __truediv__(self, name: str) -> Uri:
        return Uri(f"{self}/{name}")

    @property
    def parent(self) -> Uri:
        """The directory that it lies in; a bucket lies in none but itself."""
        head = self.rpartition("/")[0]
        return self if head.endswith(":/") else Uri(head)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.rpartition("/")[2]


Place = Path | Uri
"""A directory, or the URI of one."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FOLDED = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)
"""A URI as pathlib leaves it."""
_NAMELESS = re.compile(r"(?!(file|local|memory|hdfs)://).*://(/.*)?|.*://", re.DOTALL)
"""A URI without a bucket or a host. Stores that need neither begin with a path."""
_WEB = ("http://", "https://")

_READ_BYTES = 1 << 20
"""Size of the reads of a source file at a URI."""
_RECURSIVE = re.compile(r"(?:(?<=/)|^)\*\*/")
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)")
"""Matches relative paths that normalising changes."""
_HIDDEN = re.compile(r"(?:^|/)\.[^/]")
"""A hidden file or directory."""
_SIZE = re.compile(r"\s*(\d*\.)?\d+\s*[A-Za-z]*\s*", re.ASCII)
"""pydantic ignores what follows a size: it reads 1,000GB as one byte."""


def is_web(uri: str) -> bool:
    """Whether a URI is on a web server, which is only read, and has no listings."""
    return uri.startswith(_WEB)


def as_place(text: Place | str) -> Place:
    """The place that a text names; `file://` URIs are directories.

    Raises:
        ConfigError: it is a URI without a bucket.
    """
    if isinstance(text, Path | Uri):
        return text
    if not _URI.match(text):
        return Path(text)
    if _NAMELESS.fullmatch(text):
        raise ConfigError(f"{text} names no bucket; write it like s3://bucket/corpus")
    return Path(text.removeprefix("file://")) if text.startswith("file://") else Uri(text.rstrip("/"))


def folded_uri(path: Path) -> str:
    """The URI that became a path by mistake; empty for a path."""
    found = _FOLDED.fullmatch(str(path))
    return f"{found['scheme']}://{found['rest']}" if found else ""


def is_below(place: Place, directories: Iterable[Place]) -> bool:
    """Whether a place is one of some directories, or lies in one, whatever `..` in its name says."""
    if isinstance(place, Uri):
        return ".." not in place.split("/") and any(f"{place}/".startswith(f"{one}/") for one in directories)
    return any(isinstance(one, Path) and place.resolve().is_relative_to(one.resolve()) for one in directories)


def absolute(place: Place) -> Place:
    """The place as it is named from any other working directory, and by any other user."""
    return Path(os.path.expanduser(place)).resolve() if isinstance(place, Path) else place


# -- source files: of millions, paths and URIs are plain texts ---------------------------------------------------


def _is_remote(path: str) -> bool:
    """Whether fsspec opens a source file; its URIs may be chained, as in `simplecache::s3://bucket/file`."""
    return "://" in path


def open_file(path: str) -> BinaryIO:
    """Open a local path or an fsspec URI for reading bytes."""
    if not _is_remote(path):
        return open(path, "rb")
    import fsspec

    opened = fsspec.open(path, "rb", block_size=_READ_BYTES)
    stream: BinaryIO = opened.open()  # type: ignore[assignment]
    # A zip archive closes its own file when it is collected, and its members do not keep it alive.
    weakref.finalize(stream, bool, opened.fs)  # type: ignore[union-attr]
    return stream


def size_and_version(path: str) -> tuple[int, str]:
    """Bytes of a file as it is stored, and a text that changes when the file does: its size and time of modification,
    or what its store offers."""
    if not _is_remote(path):
        status = os.stat(path)
        return status.st_size, f"{status.st_size}:{status.st_mtime_ns}"
    import fsspec

    file_system, remote = fsspec.core.url_to_fs(path)
    return int(file_system.size(remote) or 0), str(file_system.ukey(remote))


def expand(pattern: str, *, folders: bool = False) -> Iterator[tuple[str, str, str]]:
    """The files that match a glob pattern of local paths or an fsspec URI. Wildcards match no hidden files and
    directories.

    Args:
        folders: a local directory stands for all files in it.

    Yields:
        The path of a file, the same without links, and its name: the path below the last directory of the pattern that
        has no wildcard.

    Raises:
        MissingInputError: the store cannot be reached.
    """
    pattern = os.path.expanduser(pattern.removeprefix("file://"))
    if _is_remote(pattern):
        # In a chain such as `simplecache::s3://bucket/*` or `zip://*::s3://bucket/a.zip`, the first URI has the files.
        links = pattern.split("::")
        number = next((number for number, link in enumerate(links) if "://" in link), 0)
        files, pattern = _expand_uri(pattern), links[number]
        found = [("::".join([*links[:number], file, *links[number + 1 :]]), file) for file in files]
    else:
        if folders and os.path.isdir(pattern):
            pattern = os.path.join(glob.escape(pattern), "**", "*")
        found = [(path, path) for path in _expand_local(pattern)]
    is_itself = [file for _, file in found] == [pattern]
    # A parameter of a URI that lets its holder in is no part of a file's name.
    root = without_credentials(os.path.dirname(pattern) if is_itself else _fixed_part(pattern))
    directories: dict[str, str] = {}
    for path, file in found:
        real = path if _is_remote(path) else _real_path(path, directories)
        yield path, real, _name_below(root, without_credentials(file))


def _name_below(root: str, path: str) -> str:
    above = "" if root in ("", ".") else os.path.join(root, "")
    if path.startswith(above) and not _ODD.search(name := path[len(above) :]):
        return name
    return os.path.relpath(path, root or ".").replace(os.sep, "/")


def _real_path(path: str, directories: dict[str, str]) -> str:
    """A local path without links; those of directories are remembered."""
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
    top, *below = _RECURSIVE.split(pattern, maxsplit=1)
    if below:
        tops = glob.glob(top or os.curdir)
        places = (os.path.join(glob.escape(each), below[0]) for each in _directories(tops))
        found = [path for place in places for path in _expand_local(place)]
        found = [path.removeprefix("./") for path in found] if not top else found
    else:
        found = list(filter(os.path.isfile, glob.glob(pattern)))
    return sorted(found, key=lambda path: (os.path.islink(path), path))


def _directories(tops: list[str]) -> Iterator[str]:
    """Directories and all that are not hidden below them, each real one once; linked ones come last."""
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


# -- settings ----------------------------------------------------------------------------------------------------


def parse_size(text: str, name: str) -> int:
    """Bytes of a size with or without a unit.

    Args:
        name: the setting, with the sign before its value, for the error message.

    Raises:
        ConfigError: it is no size.
    """
    try:
        if _SIZE.fullmatch(text):
            return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        pass
    raise ConfigError(
        f"{name}{text} is no size.", next_step=f"write it like {name}85TB, {name}600GB or {name}512MiB"
    )


def shown_size(size_bytes: int) -> str:
    """A size for people, in binary units."""
    return ByteSize(size_bytes).human_readable()


def _checked(value: Any) -> Place:
    if not isinstance(value, str | Path):
        raise ValueError("must be a path or a URI")
    return as_place(require_no_credentials(value) if isinstance(value, str) else value)


def _checked_uri(value: Any) -> Uri:
    place = _checked(value)
    if isinstance(place, Path):
        raise ValueError(
            "must be a URI, such as s3://bucket/corpus; files are copied to a directory by `cp -r`"
        )
    if is_web(place):
        raise ValueError(
            "must be a store that can be written to, such as s3://bucket/corpus; this is a web server"
        )
    return place


PlaceSetting = Annotated[
    Place,
    PlainValidator(_checked),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "path"}),
]
"""A setting that names a directory, or the URI of one without credentials."""
UriSetting = Annotated[
    Uri,
    PlainValidator(_checked_uri),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string"}),
]
"""A setting that names a URI without credentials."""

"""Places of artefacts, directories and fsspec URIs such as s3://bucket/corpus/tokens; and sizes as people write them.

A directory is a `Path` and a URI a `str`, so that no URI is ever seen as a relative path: pathlib would make
`s3:/bucket` of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ByteSize, TypeAdapter, ValidationError, WithJsonSchema

from cluster.artefacts.credentials import require_no_credentials
from cluster.artefacts.errors import ConfigError

Place = Path | str
"""A directory, or the URI of one."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FOLDED = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)
"""A URI as pathlib leaves it."""
_NAMELESS = re.compile(r"(?!(file|local|memory|hdfs)://).*://(/.*)?|.*://", re.DOTALL)
"""A URI without a bucket or a host. Stores that need neither begin with a path."""
_WEB = ("http://", "https://")


_SIZE = re.compile(r"\s*(\d*\.)?\d+\s*[A-Za-z]*\s*", re.ASCII)
"""pydantic ignores what follows a size: it reads 1,000GB as one byte."""


def is_uri(text: str) -> bool:
    """Whether a text is a URI."""
    return _URI.match(text) is not None


def is_web(uri: str) -> bool:
    """Whether a URI is on a web server, which is only read, and has no listings."""
    return uri.startswith(_WEB)


def as_place(text: Place) -> Place:
    """The place that a text names; `file://` URIs are directories.

    Raises:
        ConfigError: it is a URI without a bucket.
    """
    if isinstance(text, Path) or not is_uri(text):
        return Path(text)
    if _NAMELESS.fullmatch(text):
        raise ConfigError(f"{text} names no bucket; write it like s3://bucket/corpus")
    return Path(text.removeprefix("file://")) if text.startswith("file://") else text.rstrip("/")


def folded_uri(path: Path) -> str:
    """The URI that became a path by mistake; empty for a path."""
    found = _FOLDED.fullmatch(str(path))
    return f"{found['scheme']}://{found['rest']}" if found else ""


def inner(place: Place, name: str) -> Place:
    """The place called `name` in a directory."""
    return place / name if isinstance(place, Path) else f"{place}/{name}"


def outer(place: Place) -> Place:
    """The directory that a place lies in."""
    return place.parent if isinstance(place, Path) else place.rpartition("/")[0]


def is_below(place: Place, directories: Iterable[Place]) -> bool:
    """Whether a place is one of some directories, or lies in one, whatever `..` in its name says."""
    if isinstance(place, str):
        return ".." not in place.split("/") and any(f"{place}/".startswith(f"{one}/") for one in directories)
    return any(isinstance(one, Path) and place.resolve().is_relative_to(one.resolve()) for one in directories)


def absolute(place: Place) -> Place:
    """The place as it is named from any other working directory."""
    return place.resolve() if isinstance(place, Path) else place


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


def _checked(value: Any) -> Any:
    return as_place(require_no_credentials(value)) if isinstance(value, str) else value


def _require_uri(value: str) -> str:
    place = as_place(value)
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
    Place, BeforeValidator(_checked), WithJsonSchema({"type": "string", "format": "path"})
]
"""A setting that names a directory, or the URI of one without credentials."""
UriSetting = Annotated[str, AfterValidator(require_no_credentials), AfterValidator(_require_uri)]
"""A setting that names a URI without credentials."""

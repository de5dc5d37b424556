"""Files of lines, of text or of JSON objects, and the errors that name a file and its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.errors import ConfigError, MissingInputError


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(name such as `dev-17`, line) of a file whose lines end with LF or CRLF; numbers count from 1.

    Only these characters end a line. `str.splitlines` would also cut at U+0085 and other characters that occur in
    texts.

    Raises:
        ConfigError: a line is not valid UTF-8.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                # Some editors and download scripts left a byte order mark at the start of a file.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise wrong_line(path, number, f"byte {error.start} is not valid UTF-8") from None
            yield f"{path.stem}-{number}", text.rstrip("\r\n")


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name such as `dev-17`, object) of a file with one JSON object per line.

    Raises:
        ConfigError: a line is not a JSON object.
    """
    for name, line in read_lines(path):
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise wrong_line(path, name, f"no valid JSON: {error}") from None
        if not isinstance(found, dict):
            raise wrong_line(path, name, "no JSON object")
        yield name, found


def text_of(path: Path, name: str, found: dict[str, Any], key: str) -> str:
    """The text under a key of an object from `read_objects`.

    Raises:
        ConfigError: there is no text under this key.
    """
    if not isinstance(found.get(key), str):
        raise wrong_line(path, name, f"there is no text `{key}`")
    return found[key]


def wrong_line(path: Path, line: int | str, problem: str) -> ConfigError:
    """The error for a line of a wrong format; `line` is its number, or a name that ends with it, such as `dev-17`."""
    number = str(line).rpartition("-")[2]
    return wrong_file(f"{path}, line {number}: {problem}")


def wrong_file(problem: str) -> ConfigError:
    """The error for a file of a wrong format."""
    return ConfigError(
        f"{problem}.",
        next_step="compare the file with the official release, or leave its task out",
    )


def require_file(path: Path, origin: str, settings: str) -> Path:
    """`path`, which a task's `settings` name.

    Raises:
        MissingInputError: there is no such file; the message says where to get it.
    """
    if not path.is_file():
        raise MissingInputError(
            f"There is no {path}.", next_step=f"put {origin} there, or correct the task's {settings}"
        )
    return path

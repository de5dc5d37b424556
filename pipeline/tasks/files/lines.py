"""Files of lines, of text or of JSON objects, gzipped or plain, and the errors that name a file and its line."""

from __future__ import annotations

import gzip
import shlex
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from cluster.artefacts.errors import ConfigError, MissingInputError

_SAMPLE_LINES = 1000
"""An encoding is detected from so many lines beyond ASCII."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed where its name ends with `.gz`.

    Raises:
        ConfigError: the file cannot be read, or not decompressed.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as stream:
            yield cast(BinaryIO, stream)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}.", next_step="write or copy the file again"
        ) from None


def stem_of(path: Path) -> str:
    """The name of a file without its last suffix, and without `.gz`."""
    return Path(path.name.removesuffix(".gz")).stem


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(name such as `dev-17`, line) of a file whose lines end with LF or CRLF; numbers count from 1.

    Only these characters end a line. `str.splitlines` would also cut at U+0085 and other characters that occur in
    texts.

    Raises:
        ConfigError: a line is not valid UTF-8.
    """
    stem = stem_of(path)
    with opened(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                # Some editors and download scripts left a byte order mark at the start of a file.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise wrong_encoding(path, number, error) from None
            yield f"{stem}-{number}", text.rstrip("\r\n")


def wrong_line(path: Path, line: int | str, problem: str, next_step: str = "") -> ConfigError:
    """The error for a line of a wrong format; `line` is its number, or a name that ends with it, such as `dev-17`."""
    number = str(line).rpartition("-")[2]
    return wrong_file(f"{path}, line {number}: {problem}", next_step)


def wrong_encoding(path: Path, line: int | str, error: UnicodeDecodeError) -> ConfigError:
    """The error for a line that is not valid UTF-8, with the encodings that make the file's lines probable."""
    from data_prep.text.encodings import probable_encodings

    with opened(path) as stream:
        sample = b"".join(islice((each for each in stream if not each.isascii()), _SAMPLE_LINES))
    is_utf16 = sample.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    names = ["utf-16"] if is_utf16 else probable_encodings(sample)[:3] or ["ENCODING"]
    first, *others = [
        name.replace("_", "-").replace("utf-16-", "utf-16") for name in names
    ]  # as iconv has them
    remedy = f"convert the file, such as with: iconv -f {first} -t utf-8 {shlex.quote(str(path))} > NEW"
    if others:
        remedy += f" (it may also be {' or '.join(others)})"
    elif first == "ENCODING":
        remedy += ", where ENCODING is what the program that wrote it calls its own"
    return wrong_line(path, line, f"byte {error.start} is not valid UTF-8", remedy)


def wrong_file(problem: str, next_step: str = "") -> ConfigError:
    """The error for a file of a wrong format; without `next_step`, for a published one."""
    return ConfigError(
        f"{problem}.",
        next_step=next_step or "compare the file with the official release, or leave its task out",
    )


def require_file(path: Path, origin: str, settings: str) -> Path:
    """`path`, which a task's `settings` name.

    Raises:
        MissingInputError: there is no such file; the message says where to get it.
    """
    if not path.is_file():
        raise MissingInputError(
            f"{path} is a directory, but a file is needed." if path.is_dir() else f"There is no {path}.",
            next_step=f"put {origin} there, or correct the task's {settings}",
        )
    return path


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """One JSON object per line."""
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)

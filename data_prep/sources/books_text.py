"""Books as plain text, one document per file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from pydantic import Field, field_validator

from cluster.shards import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart, SourceConfig, SourceFile, expand_patterns, whole_file
from data_prep.sources.streams import Gap, read_chunks
from data_prep.sources.text import clean_text

MAX_WRAP_CHARACTERS = 100
"""Hard-wrapped text keeps its lines shorter than this."""
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_GUTENBERG_START = re.compile(r"\*\*\*[ ]?START OF [^*]{1,500}\*\*\*[^\n]*\n")
_GUTENBERG_END = re.compile(r"\*\*\*[ ]?END OF (?:THE|THIS) PROJECT GUTENBERG")
_GUTENBERG_LAST_LINE = re.compile(r"\nEnd of (?:the )?Project Gutenberg[^\n]{0,300}\n*$", re.IGNORECASE)


class BooksTextConfig(SourceConfig):
    """Plain-text books."""

    kind: Literal["books_text"] = "books_text"
    paths: tuple[str, ...] = Field(min_length=1)
    """Text files, plain, .bz2 or .gz: local glob patterns or fsspec URIs."""
    encoding: str = "utf-8"
    """Encoding of files without a byte order mark; such a mark always wins."""
    line_wrap: Literal["auto", "joined", "kept"] = "auto"
    """Whether lines are wrapped paragraphs to be joined, or paragraphs themselves; `auto` tells per book."""
    max_book_bytes: int = Field(default=64 << 20, gt=0)
    """A longer book (decompressed bytes) is rejected, and never held in memory."""

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, encoding: str) -> str:
        try:
            b"\0\0\0\0".decode(encoding, "ignore")
            return codecs.lookup(encoding).name
        except LookupError:
            raise ValueError(
                f"unknown encoding {encoding!r}; name one that Python knows, such as latin-1"
            ) from None


def list_files(config: BooksTextConfig) -> list[SourceFile]:
    """All books, sorted by name. MissingInputError when a pattern matches nothing."""
    return expand_patterns(config.paths)


split = whole_file


def read(config: BooksTextConfig, part: FilePart) -> Iterator[Document | Reject]:
    """The book as one document; nothing when it is empty. An unreadable byte rejects the whole book."""
    file = part.file
    data = _read_whole(file, config.max_book_bytes)
    if isinstance(data, Reject):
        yield data
        return
    text = _decode(data, config.encoding)
    if isinstance(text, UnicodeDecodeError):
        yield Reject(file.name, text.start, f"invalid {text.encoding}: {text.reason}")
        return
    text = _WRAPS[config.line_wrap](_strip_gutenberg(clean_text(text)))
    if text:
        yield Document(
            doc_id=f"{config.name}:{file.name}",
            source=config.name,
            uri=file.name,
            title=_title(file.name),
            lang=config.lang,
            text=text,
            meta={"byte_start": 0, "byte_end": len(data)},
        )


def _read_whole(file: SourceFile, max_bytes: int) -> bytes | Reject:
    data = bytearray()
    for chunk in read_chunks(file.path):
        if isinstance(chunk, Gap):
            return Reject(file.name, len(data), chunk.reason)
        data += chunk
        if len(data) > max_bytes:
            return Reject(file.name, 0, f"longer than the limit of {max_bytes} bytes")
    return bytes(data)


def _decode(data: bytes, encoding: str) -> str | UnicodeDecodeError:
    """The text without byte order mark, or the first error with its offset in `data`."""
    mark = b""
    for mark, marked_encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            encoding = marked_encoding
            break
    else:
        mark = b""
    try:
        return data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        error.start += len(mark)
        return error


def _strip_gutenberg(text: str) -> str:
    """What lies between Project Gutenberg's markers, where the text has them."""
    if start := _GUTENBERG_START.search(text):
        text = text[start.end() :]
    if end := _GUTENBERG_END.search(text):
        text = _GUTENBERG_LAST_LINE.sub("", text[: end.start()])
    return text.strip("\n")


def _title(name: str) -> str:
    """`novels/Eliot_Felix_1866.txt.gz` is titled `Eliot Felix 1866`."""
    stem = re.sub(r"(\.txt)?(\.gz|\.bz2)?$", "", name.rsplit("/", 1)[-1])
    return stem.replace("_", " ").strip()


# -- lines and paragraphs -----------------------------------------------------------------------------------


def _unwrap(text: str) -> str:
    """Join hard-wrapped lines into paragraphs, separated by one blank line."""
    lines = text.split("\n")
    num_filled = sum(1 for line in lines if line)
    if (len(lines) - num_filled) * 50 < num_filled:
        return _join(_short_line_paragraphs(lines))
    return _join(_blank_line_paragraphs(lines))


def _unwrap_if_wrapped(text: str) -> str:
    return _unwrap(text) if _is_wrapped(text) else _keep(text)


def _keep(text: str) -> str:
    """Every line is a paragraph."""
    return "\n\n".join(filter(None, (line.strip() for line in text.split("\n"))))


_WRAPS: dict[str, Callable[[str], str]] = {"auto": _unwrap_if_wrapped, "joined": _unwrap, "kept": _keep}


def _is_wrapped(text: str) -> bool:
    """Whether nearly all of the text is in lines of a printed line's length."""
    lengths = [len(line) for line in text.split("\n")]
    return sum(length for length in lengths if length > MAX_WRAP_CHARACTERS) < 0.2 * sum(lengths)


def _blank_line_paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    paragraph: list[str] = []
    for line in lines:
        if line:
            paragraph.append(line.strip())
        elif paragraph:
            yield paragraph
            paragraph = []
    if paragraph:
        yield paragraph


def _short_line_paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs of a book without blank lines: one ends where the next word would still have fit.

    Wrapping fills lines, so a line that had room for the next line's first word was ended on purpose.
    """
    filled = [line.strip() for line in lines if line.strip()]
    width = _wrap_width(filled)
    paragraph: list[str] = []
    for line, following in zip(filled, [*filled[1:], ""], strict=True):
        paragraph.append(line)
        if len(line) + 1 + len(following.split(" ", 1)[0]) < width:
            yield paragraph
            paragraph = []
    if paragraph:
        yield paragraph


def _wrap_width(lines: list[str]) -> int:
    """The length that at most one line in twenty exceeds, less a few characters for uneven wrapping."""
    if not lines:
        return 0
    return sorted(map(len, lines))[len(lines) * 19 // 20] - 5


def _join(paragraphs: Iterable[list[str]]) -> str:
    return "\n\n".join(_join_lines(lines) for lines in paragraphs)


def _join_lines(lines: list[str]) -> str:
    """One paragraph. A hyphen or dash at a line's end joins without a space; a soft hyphen disappears."""
    joined = "\n".join(lines)
    if "-\n" in joined or "—\n" in joined:
        joined = _DASH_BREAK.sub(r"\1", joined)
    return joined.replace("\u00ad\n", "").replace("\u00ad", "").replace("\n", " ")


_DASH_BREAK = re.compile(r"(?<=\w)(--?|—)\n(?=\w)")

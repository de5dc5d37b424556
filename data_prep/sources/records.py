"""Records with named fields, as JSON lines, Parquet and Hugging Face data sets hold them, to documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import Skipped, SourceConfig, SourceFile
from data_prep.text import clean_text

_MAX_LANGUAGE_CHARACTERS = 35
"""The longest tag that RFC 5646 (section 4.4.1) asks programs to hold."""

_FIRST_INEXACT_NUMBER = 2.0**53
MISSING = object()
"""The value of a field that is not there."""
NO_TEXT = Skipped("no_text")


class RecordsConfig(SourceConfig):
    """Fields of a record that make a document. A dot leads into a field: `metadata.title`."""

    text_field: str = Field(default="text", min_length=1)
    """The text. A record in which it is missing, or no string, is rejected; one in which it is null or empty
    is skipped."""
    id_field: str | None = Field(default=None, min_length=1)
    """A string or number that should be unique in the source (see `repeated_ids`); without it, file and place
    in it name a document."""
    title_field: str | None = Field(default=None, min_length=1)
    """The title; records without it have none."""
    lang_field: str | None = Field(default=None, min_length=1)
    """ISO 639-1 code; records without it have the source's `lang`."""


def document_of(
    config: RecordsConfig, file: SourceFile, record: Any, place: int, meta: dict[str, Any]
) -> Document | Reject | Skipped:
    """The document of a record; Skipped when its text is null or empty.

    Args:
        place: where it stands in the file, in bytes or rows; its name where it has no other.
        meta: with `byte_start`, to which a reject points.
    """
    text = value_at(record, config.text_field)
    if text is None:
        return NO_TEXT
    if not isinstance(text, str):
        return Reject(file.name, meta["byte_start"], _no_text(record, config.text_field, text))
    text = clean_text(text)
    if not text:
        return NO_TEXT
    given = value_at(record, config.id_field) if config.id_field else None
    title = value_at(record, config.title_field) if config.title_field else None
    lang = value_at(record, config.lang_field) if config.lang_field else None
    name = _name_in(given)
    return Document(
        doc_id=f"{config.name}:{name}" if name else f"{config.name}:{file.name}:{place}",
        source=config.name,
        uri=file.name,
        title=clean_text(title) if isinstance(title, str) else "",
        lang=lang[:_MAX_LANGUAGE_CHARACTERS] if isinstance(lang, str) and lang else config.lang,
        text=text,
        meta=meta,
    )


def value_at(record: Any, field: str) -> Any:
    """The value of a field, which a dotted name finds in nested records; MISSING where there is none.

    A field of a record that is null is null, and bytes, which stand for text that is no UTF-8, hold nothing else.
    """
    if isinstance(record, bytes):
        return record
    if not isinstance(record, Mapping):
        return MISSING
    if field in record:
        return record[field]
    first, dot, rest = field.partition(".")
    if not dot or first not in record:
        return MISSING
    return None if record[first] is None else value_at(record[first], rest)


def _name_in(value: Any) -> str:
    """An id as text; "" for a missing one. pandas turns whole numbers into fractions where some are missing."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _FIRST_INEXACT_NUMBER:
        value = int(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _no_text(record: Any, field: str, value: Any) -> str:
    if isinstance(record, list):
        return "a list in place of a record; `jq -c '.[]' FILE` writes its records as lines"
    if not isinstance(record, Mapping):
        return f"a record must be an object with fields, not {type(record).__name__}"
    if isinstance(value, bytes):
        return f"invalid UTF-8 in field {field!r}, at its byte {_first_invalid(value)}"
    if value is not MISSING:
        return f"field {field!r} holds no string but {type(value).__name__}"
    return f"no field {field!r}; there are {', '.join(sorted(map(str, record))[:20])}"


def _first_invalid(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)

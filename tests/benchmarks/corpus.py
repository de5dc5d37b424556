"""English text for benchmarks: real articles and novels where CLOZE_DATA names them, else docstrings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import orjson

from data_prep.sources.base import SourceConfig
from data_prep.text import clean_text

FILES = 8


def documents() -> Iterator[str]:
    """Texts of at least 200 characters, in an order that does not change."""
    from data_prep.sources.books import BooksTextConfig
    from data_prep.sources.python_docs import PythonDocsConfig
    from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig

    root = os.environ.get("CLOZE_DATA")
    if root is None:
        yield from read_texts(PythonDocsConfig(name="docs", packages=("torch", "scipy", "sklearn", "pandas")))
        return
    yield from read_texts(
        WikipediaExtractedConfig(name="wikipedia", paths=(f"{root}/wikipedia/extracted-en/*",))
    )
    yield from read_texts(BooksTextConfig(name="books", paths=(f"{root}/books/en/*.txt",)))


def read_texts(config: SourceConfig) -> Iterator[str]:
    """Texts of a source of at least 200 characters, as clean as a preparation makes them."""
    for file in config.list_files():
        for part in config.split_file(file, 1, 1 << 40):
            for document in config.read(part):
                if len(text := clean_text(getattr(document, "text", ""))) >= 200:
                    yield text


def write_json_lines(directory: Path, num_bytes: int) -> int:
    """At least `num_bytes` of text as JSON lines (`text`, `id`) in FILES files; returns the bytes of text.

    The documents are repeated, each time with a mark in front, until there is enough.
    """
    directory.mkdir(parents=True)
    streams = [(directory / f"part-{number}.jsonl").open("wb") for number in range(FILES)]
    texts = list(documents())
    written = number = 0
    while written < num_bytes:
        text = texts[number % len(texts)]
        text = text if number < len(texts) else f"Copy {number // len(texts)}.\n{text}"
        streams[number % FILES].write(orjson.dumps({"id": f"d{number}", "text": text}) + b"\n")
        written += len(text.encode("utf-8"))
        number += 1
    for stream in streams:
        stream.close()
    return written

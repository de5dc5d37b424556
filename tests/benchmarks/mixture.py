"""Documents in several languages for benchmarks: what CLOZE_DATA and CLOZE_CHINESE hold, equally many bytes of each.

English and Korean Wikipedia, French and Romanian novels in pieces, and the text files (UTF-8, a paragraph a line) in
the folder that CLOZE_CHINESE names, a few lines to a document.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import orjson

from data_prep.sources.base import SourceConfig
from data_prep.text import clean_text

PIECE_CHARACTERS = 4_000
"""Of novels, about: as long as a page of the web."""
CHINESE_CHARACTERS = 1_000
SENTENCES_OF_A_LINE, LINES_OF_A_DOCUMENT = 4, 8
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n")


@cache
def texts() -> dict[str, list[str]]:
    """Documents of at least 200 characters by language, in an order that does not change; empty without CLOZE_DATA."""
    root = os.environ.get("CLOZE_DATA")
    if not root:
        return {}
    found = {label: [*_read(config)] for label, config in _sources(root)}
    found["ro"] += found.pop("fr")
    if folder := os.environ.get("CLOZE_CHINESE"):
        found["zh"] = list(_chinese(Path(folder)))
    return {label: [text for text in own if len(text) >= 200] for label, own in found.items()}


def _sources(root: str) -> Iterator[tuple[str, SourceConfig]]:
    from data_prep.sources.books_tei import BooksTeiConfig
    from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig

    for label in ("en", "ko"):
        paths = (f"{root}/wikipedia/extracted-{label}/*",)
        yield label, WikipediaExtractedConfig(name=label, lang=label, paths=paths)
    for label in ("fr", "ro"):
        yield label, BooksTeiConfig(name=label, lang=label, paths=(f"{root}/books/{label}/*.xml",))


def _read(config: SourceConfig) -> Iterator[str]:
    for file in config.list_files():
        for part in config.split_file(file, 1, 1 << 40):
            for document in config.read(part):
                yield from _pieces(getattr(document, "text", "").splitlines(), 2 * PIECE_CHARACTERS)


def _pieces(lines: Iterable[str], size: int) -> Iterator[str]:
    """Lines in documents of about so many characters, and the rest."""
    own, count = list[str](), 0
    for line in lines:
        own.append(line)
        count += len(line)
        if count >= size:
            yield clean_text("\n".join(own))
            own, count = [], 0
    yield clean_text("\n".join(own))


def _chinese(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.txt")):
        yield from _pieces(path.read_text("utf-8").splitlines(), CHINESE_CHARACTERS)


def shuffled_documents(num_bytes: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """(language, text) in turn, as many bytes of each language, until there are `num_bytes`: sentences in ever new
    orders, so that hardly any two documents or lines are alike."""
    draw = random.Random(seed)
    sentences = {
        label: [sentence for text in own for sentence in _SENTENCE_ENDS.split(text) if len(sentence) > 5]
        for label, own in texts().items()
    }
    written = dict.fromkeys(sentences, 0)
    while sum(written.values()) < num_bytes:
        label = min(written, key=lambda own: (written[own], own))
        glue = "" if label == "zh" else " "
        lines = (
            glue.join(draw.choices(sentences[label], k=SENTENCES_OF_A_LINE))
            for _ in range(LINES_OF_A_DOCUMENT)
        )
        text = "\n".join(lines)
        written[label] += len(text.encode())
        yield label, text


def write_json_lines(path: Path, found: Iterable[tuple[str, str]], prefix: str = "") -> int:
    """A file of JSON lines (`id`, `lang`, `text`); returns the bytes of text. Ids begin with `prefix`."""
    size = 0
    with path.open("wb") as stream:
        for number, (label, text) in enumerate(found):
            stream.write(orjson.dumps({"id": f"{prefix}{number}", "lang": label, "text": text}) + b"\n")
            size += len(text.encode())
    return size

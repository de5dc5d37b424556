"""Documents of one small corpus for each kind of source, with each filter, each deduplication, and decontamination."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from cluster.runtime import ray_runtime
from data_prep.decontaminate.config import EvaluationText
from data_prep.document import Document
from data_prep.filters import FILTERS
from data_prep.sources import AnySource
from tests.data_prep import warc_files
from tests.golden.book import shown
from tests.golden.preparations import INPUTS, RECORDS, identities, kept, make

FIELDS = {"id_field": "id", "title_field": "title"}
SETTINGS: dict[str, dict[str, Any]] = {
    "books_text": {"paths": ["book.txt"]},
    "books_tei": {"paths": ["book.xml"]},
    "books_epub": {"paths": ["book.epub"]},
    "text_files": {"paths": ["note.txt"]},
    "json_lines": {"paths": ["rows.jsonl"], **FIELDS, "lang_field": "lang"},
    "parquet": {"paths": ["rows.parquet"], **FIELDS, "lang_field": "lang"},
    "hf_datasets": {"path": "saved", **FIELDS},
    "python_docs": {"packages": ["golden_docs"], "stdlib": False, "min_characters": 50},
    "wikipedia_dump": {"paths": ["dump.xml"]},
    "wikipedia_extracted": {"paths": ["wiki_00"]},
    "wikipedia_html": {"paths": ["enterprise.ndjson"]},
    "common_crawl": {"paths": ["pages.warc.gz"]},
}
FILTER_SETTINGS: dict[str, dict[str, Any]] = {
    "language": {"allowed": ["en"]},
    "length": {"min_words": 30, "max_characters": 700},
    "pii": {"cards": True, "keys": True, "public_ips_only": False},
}
"""Of filters that need some, or do nothing by default."""
DEDUP: dict[str, Any] = {
    "none": "none",
    "exact": "exact",
    "full": "full",
    "near, verified": {"near": {"threshold": 0.6}},
    "near, folded digits": {"near": {"threshold": 0.9, "fold_digits": True}},
    "near, bands alone": {"near": {"verify": False, "bands": 32, "rows": 3}},
    "paragraphs within": {"paragraphs": "within"},
    "paragraphs of the corpus": {"paragraphs": {"scope": "corpus", "fold_digits": True, "max_removed": 0.9}},
}
TEST = "how many wheels does the old mill beside the river have, and who has counted them?"
CUT = {"action": "cut", "window_characters": 20, "min_piece_characters": 40}
DECONTAMINATION: dict[str, Any] = {"drop": {}, "cut": CUT, "shorter n-grams": {"ngram": 5, "min_words": 4}}


def values(directory: Path) -> dict[str, Any]:
    """By what is tried, what became of the documents."""
    inputs = write_inputs(directory / "inputs")
    kinds = TypeAdapter(AnySource).json_schema()["discriminator"]["mapping"]
    missing = kinds.keys() - SETTINGS
    assert not missing, f"say in SETTINGS how {', '.join(missing)} are tried"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(inputs))
        patch.chdir(inputs)
        with ray_runtime("local", num_cpus=2):
            return {
                "sources": _sources(directory),
                "filters": _filters(directory),
                "deduplication": {name: _deduplicated(directory / name, DEDUP[name]) for name in DEDUP},
                "decontamination": {
                    name: _decontaminated(directory / name, own) for name, own in DECONTAMINATION.items()
                },
            }


def write_inputs(place: Path) -> Path:
    """A folder with a small file for every source."""
    shutil.copytree(INPUTS, place)
    (place / "golden_docs").mkdir()
    (place / "module.py.txt").rename(place / "golden_docs" / "__init__.py")
    members = {"META-INF/container.xml": "container.xml"} | {
        name: name for name in ("book.opf", "chapter1.xhtml", "chapter2.xhtml")
    }
    with zipfile.ZipFile(place / "book.epub", "w") as book:
        # A fixed time: documents are known by the bytes of their files.
        book.writestr(zipfile.ZipInfo("mimetype"), "application/epub+zip")
        for name, file in members.items():
            book.writestr(zipfile.ZipInfo(name), (place / file).read_bytes())
    rows = [orjson.loads(line) for line in (place / "rows.jsonl").read_bytes().splitlines()]
    pq.write_table(pa.Table.from_pylist([row | {"more": None} for row in rows]), place / "rows.parquet")
    (place / "saved").mkdir()
    (place / "saved" / "train.jsonl").write_bytes((place / "rows.jsonl").read_bytes())
    page = (place / "page.html").read_bytes()
    plain = warc_files.http(b"A picture", content_type="image/png")
    records = [warc_files.record(warc_files.http(page), 1), warc_files.record(plain, 2)]
    warc_files.write(place / "pages.warc.gz", [warc_files.warcinfo(), *records])
    return place


def _records(name: str) -> dict[str, Any]:
    return {**RECORDS, "name": name, "paths": [f"{name}.jsonl"]}


def _sources(directory: Path) -> dict[str, Any]:
    sources = [{"kind": kind, "name": kind, **settings} for kind, settings in SETTINGS.items()]
    made = make(directory / "sources", sources, dedup="none")
    documents = dict(zip(SETTINGS, kept(made), strict=True))
    by_kind = {
        kind: {
            "file": entry.xxh3_128,
            "counts": made.documents.stats["sources"][kind],
            "documents": {
                each.doc_id: {
                    "title": each.title,
                    "lang": each.lang,
                    "uri": each.uri,
                    "text": shown(each.text),
                    "meta": each.meta,
                }
                for each in documents[kind]
            },
        }
        for kind, entry in zip(SETTINGS, made.documents.files, strict=False)
    }
    return {"artefacts": identities(made), **by_kind, "left out": made.documents.stats["left_out"]}


def _filters(directory: Path) -> dict[str, Any]:
    """Every filter by itself, as the filter of a source of its own."""
    chosen = {kind: [{"kind": kind, **FILTER_SETTINGS.get(kind, {})}] for kind in FILTERS}
    sources = [_records("messy") | {"name": kind, "filters": own} for kind, own in chosen.items()]
    made = make(directory / "filters", sources, dedup="none")
    found: dict[str, Any] = {"artefacts": identities(made)}
    for kind, documents in zip(chosen, kept(made), strict=True):
        languages = sorted({each.lang for each in documents})
        counts = made.documents.stats["sources"][kind]
        found[kind] = {"counts": counts, "languages": languages, **_changes("messy", documents)}
    return found


def _changes(name: str, documents: Sequence[Document]) -> dict[str, Any]:
    """What became of the texts of a file."""
    lines = map(orjson.loads, (INPUTS / f"{name}.jsonl").read_bytes().splitlines())
    before = {line["id"]: line["text"] for line in lines}
    now = {each.doc_id.partition(":")[2].partition(" @ ")[0]: each.text for each in documents}
    changed = {own: shown(text) for own, text in now.items() if text != before[own]}
    return {"left out": sorted(before.keys() - now.keys()), "changed": changed}


def _deduplicated(out: Path, settings: Any) -> dict[str, Any]:
    made = make(out, [_records("copies")], dedup=settings)
    (documents,) = kept(made)
    counts = made.dedup.stats["sources"]["copies"]
    return {"artefacts": identities(made), "counts": counts, **_changes("copies", documents)}


def _decontaminated(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    def texts(config: Any) -> Iterator[EvaluationText]:
        return iter([EvaluationText("questions", "dev-1", TEST)])

    wanted = {"tasks": ["questions"], **settings}
    made = make(out, [_records("copies")], decontaminate=wanted, evaluation_texts=texts)
    (documents,) = kept(made)
    counts = made.selection.stats["tasks"]["questions"]
    return {"artefacts": identities(made), "counts": counts, **_changes("copies", documents)}

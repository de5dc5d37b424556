"""What people are shown of a token store: statistics, one page, a document on its whole way, and rejects."""

import io
import json
import re
import zipfile
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.manifest import FileEntry
from cluster.artefacts.shard_records import SHARD_RECORDS, Reject, ShardRecord
from cluster.copies import beside, manifest_at
from data_prep import provenance
from data_prep.dedup.config import NearDedup
from data_prep.layout import DOCUMENTS
from data_prep.provenance import trace_document
from data_prep.sources import SourceFile
from data_prep.sources.records import JsonLinesConfig
from data_prep.stages.collect import collect_documents
from data_prep.stats import SAMPLED_DOCUMENTS, describe_store, render_report
from data_prep.token_store import TokenStore
from data_prep.verify import list_rejects
from pipeline.commands.data import print_stats
from tests.conftest import write_store
from tests.pipeline.command import cloze


@pytest.fixture(scope="module")
def store(finished):
    return TokenStore.open(finished.out)


def tags_of(page: str) -> list[str]:
    """The names of a page's tags, each of them closed in its turn."""
    opened, names = [], []
    for closes, name, ends in re.findall(r"<(/?)([a-zA-Z][\w:]*)[^>]*?(/?)>", page):
        if closes:
            assert opened.pop() == name
        else:
            names.append(name)
            opened += [name] if not ends and name not in ("meta", "br") else []
    assert not opened
    return names


def test_languages_have_their_own_documents_and_add_up_to_the_whole(tmp_path):
    found = describe_store(TokenStore.open(write_store(tmp_path / "tokens", langs=("en", "de", "ko"))))
    assert {lang: own["documents"] for lang, own in found["languages"].items()} == {
        "en": 100,
        "de": 100,
        "ko": 100,
    }
    for name in ("tokens", "sentences"):
        assert sum(own[name] for own in found["languages"].values()) == found["total"][name]


def test_the_page_is_well_formed_loads_nothing_and_is_the_same_every_time(store):
    facts = describe_store(store)
    assert {"documents", "tokens"} <= set(facts["stages"])
    text = render_report(store, facts)
    tags = tags_of(text)
    assert (tags.count("svg"), tags.count("script"), tags.count("link")) == (1, 0, 0)
    assert not re.search(r"""(?:src|href)=["'](?!#)|url\((?!#)""", text)
    assert text.count("<pre>") == SAMPLED_DOCUMENTS
    assert text == render_report(store, describe_store(store))
    with_curve = render_report(store, facts | {"near_duplicates": NearDedup(threshold=0.7).describe()})
    assert "threshold: 95." in with_curve
    assert tags_of(with_curve).count("svg") == 2


def test_text_that_looks_like_markup_is_shown_as_text(store, monkeypatch):
    hostile = [replace(each, text="<script>alert(1)</script>") for each in store.documents(np.arange(3))]
    monkeypatch.setattr(TokenStore, "documents", lambda self, numbers: iter(hostile))
    text = render_report(store, describe_store(store))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_a_document_is_followed_from_its_bytes_to_its_tokens(store, corpus):
    for number in range(0, store.num_documents, 7):
        found = trace_document(store, number)
        path = Path(found.source_path)
        meta = found.document.meta
        data = path.read_bytes()[meta["byte_start"] : meta["byte_end"]].decode()
        assert path.is_relative_to(corpus)
        assert found.source_text == data[: len(found.source_text)] != ""
        assert found.document.text.split()[0] in data
        assert sum(map(len, found.sentences)) == store.lengths[number]
        assert len(found.sentences) == store.sentence_counts[number]
    path = Path(str(trace_document(store, 0).source_path))
    moved = path.rename(path.with_suffix(".moved"))
    assert trace_document(store, 0).source_text is None
    moved.rename(path)


def test_a_document_is_followed_into_a_zip_archive(store, tmp_path, monkeypatch):
    plain, manifest = trace_document(store, 0), manifest_at(beside(store.path, DOCUMENTS))
    inputs = []
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for entry in manifest.inputs:
            archive.write(entry.uri)
            inputs.append(replace(entry, uri=f"zip:/{entry.uri}::{tmp_path}/in.zip"))
    zipped = manifest.model_copy(update={"inputs": tuple(inputs)})
    monkeypatch.setattr(provenance, "manifest_at", lambda place: zipped)
    found = trace_document(store, 0)
    assert found.source_path.endswith("in.zip")
    assert found.source_text == plain.source_text != ""


def test_rejects_are_listed_before_and_after_a_preparation_is_finished_and_name_their_source(
    finished, tmp_path
):
    assert list_rejects(finished.out) == []
    with pytest.raises(MissingInputError):
        list_rejects(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\nnot json\n')
    source = JsonLinesConfig(name="mine", paths=(str(tmp_path / "bad.jsonl"),))
    parts = (SourceFile(str(tmp_path / "bad.jsonl"), "bad.jsonl"),)
    (reject,) = collect_documents(source, parts, [], 0, tmp_path / "d").rejects
    assert isinstance(reject, Reject)
    assert str(reject).startswith("bad.jsonl of mine at byte 14: ")
    entry = FileEntry(path="d", size_bytes=0, xxh3_128="")
    for name in ("documents", ".documents.0123.partial"):
        out = tmp_path / name
        (out / name).mkdir(parents=True)
        SHARD_RECORDS.write(out / name, ShardRecord(identity="", entry=entry, stats={}, rejects=(reject,)))
        assert list_rejects(out) == [reject]


def test_ten_sources_are_ten_rows_of_the_plan_and_of_the_statistics(store, tmp_path):
    (tmp_path / "a.jsonl").touch()
    names = [f"a-source-with-a-long-name-{number}" for number in range(10)]
    sources = [{"kind": "json_lines", "name": name, "paths": [str(tmp_path / "a.jsonl")]} for name in names]
    config = {"name": "ten", "out": str(tmp_path / "out"), "sources": sources}
    (tmp_path / "ten.yaml").write_text(json.dumps(config))
    plan = cloze("data", "prepare", tmp_path / "ten.yaml", "--dry-run").splitlines()
    assert [line.split()[1] for line in plan if "json_lines" in line] == names
    assert not any("{" in line for line in plan), "no Python literals"
    facts = describe_store(store)
    filters = {name: {"00_length": {"kept": 1, "dropped": 2, "dropped.short": 2}} for name in names}
    facts |= {"sources": dict.fromkeys(names, facts["sources"]["wiki"]), "filters": filters}
    with redirect_stdout(io.StringIO()) as printed:
        print_stats(facts)
    lines = [line for line in printed.getvalue().splitlines() if "a-source" in line]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert [row[0] for row in rows[:10]] == names
    for name in names:
        assert [name, "duplicates", "2"] in rows
        assert [name, "00_length", "1", "0", "2", "short 2"] in rows

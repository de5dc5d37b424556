"""JSON lines: fields, parts that begin at any byte, and lines that are broken, endless or damaged."""

import gzip
import json
import tracemalloc

import pytest

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart, Skipped, SourceFile
from data_prep.sources.records import JsonLinesConfig
from tests.data_prep import reading

RECORDS = [
    {"id": f"r{n}", "text": f"Text {n} – é\nline", "info": {"title": f"T{n}", "lang": "de"}}
    for n in range(20)
]
DATA = (
    "\n".join(json.dumps(record, ensure_ascii=n % 2 == 0) for n, record in enumerate(RECORDS)).encode()
    + b"\n"
)


def config(tmp_path, **changes) -> JsonLinesConfig:
    return JsonLinesConfig(name="json", paths=(f"{tmp_path}/data*",), **changes)


def read(
    tmp_path, data: bytes, start: int = 0, end: int | None = None, **changes
) -> list[Document | Reject | Skipped]:
    path = tmp_path / "data.jsonl"
    path.write_bytes(data)
    settings = config(tmp_path, **changes)
    return list(settings.read(FilePart(SourceFile(str(path), "data.jsonl"), start, end)))


def test_fields_are_found_by_dotted_names(tmp_path):
    documents = read(tmp_path, DATA, id_field="id", title_field="info.title", lang_field="info.lang")
    assert [
        (item.doc_id, item.title, item.lang, item.text) for item in documents if isinstance(item, Document)
    ] == [(f"json:r{n}", f"T{n}", "de", f"Text {n} – é\nline") for n in range(20)]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_in_place_of_lines_is_one_reject_and_one_part(tmp_path, indent):
    data = json.dumps(RECORDS, indent=indent).encode()
    assert [type(item) for item in read(tmp_path, data)] == [Reject]
    file = SourceFile(str(tmp_path / "data.jsonl"), "data.jsonl")
    assert config(tmp_path).split_file(file, len(data), 10) == [FilePart(file)]


def test_a_field_whose_name_has_a_dot_wins(tmp_path):
    (document,) = read(tmp_path, b'{"a.b": "dotted", "a": {"b": "nested"}}', text_field="a.b")
    assert isinstance(document, Document)
    assert document.text == "dotted"


def test_without_an_id_file_and_byte_name_the_document_and_the_bytes_are_the_record(tmp_path):
    for document, record in zip(read(tmp_path, DATA, id_field="nothing"), RECORDS, strict=True):
        assert isinstance(document, Document)
        start, end = document.meta["byte_start"], document.meta["byte_end"]
        assert document.doc_id == f"json:data.jsonl:{start}"
        assert json.loads(DATA[start:end]) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "no JSON"),
        (b'{"text": "\xff"}', "no JSON"),
        (b"\0\0\0", "no JSON"),
        (b'{"a":' * 100_000, "no JSON"),
        (b"[1]", "a list"),
        (b'{"body": "x"}', "no field 'text'; there are body"),
        (b'{"text": ["a"]}', "no string but list"),
    ],
)
def test_a_bad_line_is_one_reject_at_its_byte_and_costs_no_other(tmp_path, line, reason):
    first, bad, last = read(tmp_path, b'{"text": "a"}\n' + line + b'\n{"text": "b"}')
    assert isinstance(bad, Reject)
    assert bad.byte_offset == 14
    assert reason in bad.reason
    assert [item.text for item in (first, last) if isinstance(item, Document)] == ["a", "b"]


def test_what_python_writes_is_read(tmp_path):
    data = b'\xef\xbb\xbf{"text": "a\\ud800b", "score": NaN}\r\n\r\n{"text": "", "x": 1}\n{"text": "c"}\r\n'
    assert [item.text for item in read(tmp_path, data) if isinstance(item, Document)] == ["ab", "c"]
    assert read(tmp_path, data)[1] == Skipped("no_text")


def test_text_that_is_null_is_skipped_and_counted_wherever_the_null_stands(tmp_path):
    data = b'{"a": {"text": null}}\n{"a": null}\n{"a": {}}\n{"a": [1]}\n'
    *skipped, missing, no_record = read(tmp_path, data, text_field="a.text")
    assert skipped == [Skipped("no_text")] * 2
    assert [isinstance(item, Reject) for item in (missing, no_record)] == [True, True]


def test_an_id_is_a_string_or_a_number_and_never_a_truth(tmp_path):
    data = b"".join(b'{"text": "a", "id": %s}\n' % value for value in (b'"x"', b"7", b"8.0", b"true", b"[1]"))
    names = [item.doc_id for item in read(tmp_path, data, id_field="id") if isinstance(item, Document)]
    assert names == ["json:x", "json:7", "json:8", "json:data.jsonl:73", "json:data.jsonl:99"]


def test_utf16_as_windows_programs_write_it_is_read(tmp_path):
    results = read(tmp_path, '{"text": "é"}\r\n{"text": "b"}\r\n'.encode("utf-16"))
    assert [item.text for item in results if isinstance(item, Document)] == ["é", "b"]


def test_an_endless_line_is_skipped_in_bounded_memory(tmp_path):
    data = b'{"text": "a"}\n' + b"x" * 40_000_000 + b'\n{"text": "b"}\n'
    (tmp_path / "data.jsonl").write_bytes(data)
    settings = config(tmp_path, max_line_bytes=1_000_000)
    (file,) = settings.list_files()
    del data
    tracemalloc.start()
    _, bad, last = settings.read(FilePart(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(bad, Reject)
    assert (bad.byte_offset, bad.reason) == (14, "a line longer than the limit of 1000000 bytes")
    assert isinstance(last, Document)
    assert last.meta["byte_start"] == 14 + 40_000_001
    assert peak < 12_000_000


@pytest.mark.corpora
def test_real_web_documents_are_read(corpora):
    settings = JsonLinesConfig(
        name="dolma",
        paths=(f"{corpora}/commoncrawl/dolma/cc_en_*.jsonl.gz",),
        id_field="id",
        title_field="metadata.title",
        lang_field="metadata.language",
    )
    documents = reading.read(settings)
    assert len(documents) == 20
    assert all(
        isinstance(item, Document) and item.doc_id.startswith("dolma:http") and item.title
        for item in documents
    )


def test_a_truncated_gz_file_keeps_its_whole_lines(tmp_path):
    lines = b"".join(b'{"text": "%d %s"}\n' % (n, str(n * n).encode() * 40) for n in range(3000))
    *good, bad = read(tmp_path, gzip.compress(lines)[:-2000])
    assert isinstance(bad, Reject)
    assert "gzip stream truncated" in bad.reason
    assert 1000 < len(good) < 3000
    assert all(isinstance(item, Document) for item in good)

"""JSON lines: fields, ids, and lines that are broken, endless or damaged."""

import gzip
import json
import tracemalloc

import pytest

from data_prep.sources.base import FilePart
from data_prep.sources.records import JsonLinesConfig
from tests.data_prep import reading

RECORDS = [
    {"id": f"r{n}", "text": f"Text {n} – é\nline", "info": {"title": f"T{n}", "lang": "de"}}
    for n in range(20)
]
LINES = [json.dumps(record, ensure_ascii=n % 2 == 0) for n, record in enumerate(RECORDS)]
DATA = ("\n".join(LINES) + "\n").encode()


def read(tmp_path, data: bytes, **settings) -> reading.Results:
    return reading.read_file(JsonLinesConfig, tmp_path / "data.jsonl", data, **settings)


def test_fields_are_found_by_dotted_names(tmp_path):
    found = read(tmp_path, DATA, id_field="id", title_field="info.title", lang_field="info.lang")
    assert [(each.doc_id, each.title, each.lang, each.text) for each in found] == [
        (f"s:r{n}", f"T{n}", "de", f"Text {n} – é\nline") for n in range(20)
    ]
    dotted = b'{"a.b": "dotted", "a": {"b": "nested"}}'
    assert read(tmp_path, dotted, text_field="a.b").texts == ["dotted"]


def test_without_an_id_file_and_byte_name_the_document_and_the_bytes_are_the_record(tmp_path):
    for document, record in zip(read(tmp_path, DATA, id_field="nothing"), RECORDS, strict=True):
        start, end = document.meta["byte_start"], document.meta["byte_end"]
        assert document.doc_id == f"s:data.jsonl:{start}"
        assert json.loads(DATA[start:end]) == record


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_in_place_of_lines_is_one_reject_and_one_part(tmp_path, indent):
    data = json.dumps(RECORDS, indent=indent).encode()
    read(tmp_path, data).rejected()
    config = JsonLinesConfig(name="s", paths=(f"{tmp_path}/data.jsonl",))
    (file,) = config.list_files()
    assert config.split_file(file, len(data), 10) == [FilePart(file)]


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
    found = read(tmp_path, b'{"text": "a"}\n' + line + b'\n{"text": "b"}')
    assert (found.texts, found.offsets) == (["a", "b"], [14])
    assert reason in found.rejects[0].reason


@pytest.mark.parametrize(
    ("data", "texts", "num_skipped"),
    [
        (
            b'\xef\xbb\xbf{"text": "a\\ud800b", "score": NaN}\r\n\r\n{"text": "", "x": 1}\n{"text": "c"}\r\n',
            ["ab", "c"],
            1,
        ),
        ('{"text": "é"}\r\n{"text": "b"}\r\n'.encode("utf-16"), ["é", "b"], 0),
    ],
    ids=["Python", "Windows"],
)
def test_what_other_programs_write_is_read(tmp_path, data, texts, num_skipped):
    found = read(tmp_path, data)
    assert (found.texts, found.reasons, found.rejects) == (texts, ["no_text"] * num_skipped, [])


def test_text_that_is_null_is_skipped_and_counted_wherever_the_null_stands(tmp_path):
    found = read(
        tmp_path, b'{"a": {"text": null}}\n{"a": null}\n{"a": {}}\n{"a": [1]}\n', text_field="a.text"
    )
    assert (found.reasons, len(found.rejects), len(found)) == (["no_text"] * 2, 2, 4)


def test_an_id_is_a_string_or_a_number_and_never_a_truth(tmp_path):
    data = b"".join(b'{"text": "a", "id": %s}\n' % value for value in (b'"x"', b"7", b"8.0", b"true", b"[1]"))
    ids = ["s:x", "s:7", "s:8", "s:data.jsonl:73", "s:data.jsonl:99"]
    assert read(tmp_path, data, id_field="id").ids == ids


def test_an_endless_line_is_skipped_in_bounded_memory(tmp_path):
    data = b'{"text": "a"}\n' + b"x" * 40_000_000 + b'\n{"text": "b"}\n'
    (tmp_path / "data.jsonl").write_bytes(data)
    del data
    tracemalloc.start()
    found = reading.read(
        JsonLinesConfig(name="s", paths=(f"{tmp_path}/data.jsonl",), max_line_bytes=1_000_000)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.offsets == [14]
    assert "limit of 1000000 bytes" in found.rejects[0].reason
    assert found.documents[1].meta["byte_start"] == 14 + 40_000_001
    assert peak < 12_000_000


def test_compressed_web_documents_in_the_layout_of_dolma_are_read(tmp_path):
    rows = [
        {
            "added": "2023-04-07T15:24:38.743534+00:00",
            "id": f"http://rivers.org/{n}/",
            "metadata": {"language": "en", "line_ids": [4, 5], "perplexity": 304.6, "title": f"Rivers — {n}"},
            "source": "common-crawl",
            "text": f"The river is long.\nIt has {n} bridges.",
        }
        for n in range(20)
    ]
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    (tmp_path / "cc_en_head-0091.jsonl.gz").write_bytes(data)
    fields = {"id_field": "id", "title_field": "metadata.title", "lang_field": "metadata.language"}
    paths = (f"{tmp_path}/cc_en_*.jsonl.gz",)
    found = reading.read(JsonLinesConfig(name="dolma", paths=paths, **fields))
    assert len(found) == 20
    assert [(each.doc_id, each.title, each.lang, each.text) for each in found.documents] == [
        (f"dolma:{row['id']}", row["metadata"]["title"], "en", row["text"]) for row in rows
    ]

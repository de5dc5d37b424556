"""Small files of sources that read text, and every document, skipped record and reject that comes of them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from data_prep.sources import AnySource
from data_prep.sources.base import LeftOut
from data_prep.sources.records import JsonLinesConfig
from tests.data_prep import reading
from tests.data_prep.test_source_books_epub import epub

FILES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "source_files.yaml").read_text("utf-8"))
CASES = [(kind, file | case) for kind, file in FILES.items() for case in file["cases"]]


def data_of(file: dict[str, Any]) -> bytes:
    """The bytes of a file as `source_files.yaml` describes them."""
    if "pages" in file:
        return epub(file["pages"], file.get("members"), file.get("stored"))
    items = [
        file["item"].replace("{text}", text).replace("{n}", str(number))
        for number, text in enumerate(file.get("items", ()), 1)
    ]
    text = file.get("data", file.get("head", "") + "".join(items) + file.get("foot", ""))
    for old, new in file.get("replace", {}).items():
        assert old in text
        text = text.replace(old, new, 1)
    return text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(("kind", "file"), CASES, ids=[f"{kind}: {file['of']}" for kind, file in CASES])
def test_a_file_gives_these_documents_and_rejects(tmp_path, kind, file):
    (tmp_path / "file").write_bytes(data_of(file))
    settings = {"kind": kind, "name": "s", "paths": [f"{tmp_path}/file"], **file.get("settings", {})}
    found = reading.read(TypeAdapter(AnySource).validate_python(settings))
    left_out = {name: n for each in found if isinstance(each, LeftOut) for name, n in each.counts.items()}
    told = {name: getattr(found, name) for name in ("ids", "titles", "texts", "langs")}
    told |= {"authors": [each.meta.get("author", "") for each in found.documents]}
    told |= {"skipped": found.reasons, "left_out": left_out}
    expected = {"skipped": [], "left_out": {}} | {name: file[name] for name in told if name in file}
    if not {"ids", "titles", "texts", "langs"} & expected.keys():
        expected["ids"] = []
    assert {name: told[name] for name in expected} == expected
    reasons = file.get("rejects", {})
    assert found.offsets == list(reasons)
    assert [
        own for own, reject in zip(reasons.values(), found.rejects, strict=True) if own not in reject.reason
    ] == []


@pytest.mark.parametrize(
    ("kind", "data"), [("json_lines", b'{"a":' * 100_000), ("books_tei", b"<TEI><text>" + b"<div>" * 100_000)]
)
def test_nesting_without_end_is_a_reject(tmp_path, kind, data):
    (tmp_path / "file").write_bytes(data)
    config = TypeAdapter(AnySource).validate_python(
        {"kind": kind, "name": "s", "paths": [f"{tmp_path}/file"]}
    )
    assert reading.read(config).rejected().byte_offset < len(data)


def test_an_endless_line_is_skipped_in_bounded_memory(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"x" * 40_000_000 + b'\n{"text": "b"}\n')
    config = JsonLinesConfig(name="s", paths=(str(path),), max_line_bytes=1_000_000)
    found, peak = reading.traced(lambda: reading.read(config))
    assert (found.texts, found.offsets) == (["a", "b"], [14])
    assert found.documents[1].meta["byte_start"] == 14 + 40_000_001
    assert peak < 12_000_000


def test_a_list_in_place_of_lines_is_one_part(tmp_path):
    (tmp_path / "file").write_bytes(b' [{"text": "a"}]')
    config = JsonLinesConfig(name="s", paths=(f"{tmp_path}/file",))
    (file,) = config.list_files()
    assert config.split_file(file, 16, 5) == [file]

"""Small files of sources that read text, and every document, skipped record and reject that comes of them."""

import bz2
import gzip
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from data_prep.sources import AnySource, SourceConfig
from data_prep.sources.base import LeftOut
from tests.data_prep import reading

FILES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "source_files.yaml").read_text("utf-8"))
CASES = [(kind, file | case) for kind, file in FILES.items() for case in file["cases"]]
PACK = {"bzip2": bz2.compress, "gzip": gzip.compress}


def data_of(file: dict[str, Any]) -> bytes:
    """The bytes of a file as `source_files.yaml` describes them."""
    if "pages" in file:
        return epub(**{part: file[part] for part in ("pages", "members", "stored") if part in file})
    items = [
        file["item"].replace("{text}", text).replace("{n}", str(number))
        for number, text in enumerate(file.get("items", ()), 1)
    ]
    text = file.get("data", file.get("head", "") + "".join(items) + file.get("foot", ""))
    if "input" in file:
        text = reading.stored(file["input"])
    for old, new in file.get("replace", {}).items():
        assert old in text
        text = text.replace(old, new, 1)
    encoding = file.get("encoding", "utf-8")
    return PACK.get(file.get("pack", ""), bytes)(
        text.encode(encoding, "surrogateescape" if encoding == "utf-8" else "strict")
    )


CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
XHTML = (
    '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"'
    ' xmlns:epub="http://www.idpf.org/2007/ops"><head><title>hidden</title></head><body>{}</body></html>'
)
PACKAGE = (
    '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
    "<dc:title>The Road</dc:title><dc:creator>Ann Walker</dc:creator><dc:creator>B. C.</dc:creator>"
    "<dc:language>en-GB</dc:language></metadata><manifest>{}</manifest><spine>{}</spine></package>"
)


def epub(
    pages: Mapping[str, str],
    members: Mapping[str, str] = MappingProxyType({}),
    stored: Mapping[str, str] = MappingProxyType({}),
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    """A book of these pages.

    Args:
        members: added, or in the place of the usual ones.
        stored: names under which members are stored.
    """
    items = spine = ""
    for number, name in enumerate(pages):
        properties = 'properties="nav"' if name == "nav.xhtml" else ""
        linear = 'linear="no"' if name == "notes.xhtml" else ""
        href = name.replace(" ", "%20")
        items += f'<item id="i{number}" href="{href}" media-type="application/xhtml+xml" {properties}/>'
        spine += f'<itemref idref="i{number}" {linear}/>'
    files = {"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": PACKAGE.format(items, spine)}
    for name, own in pages.items():
        files[f"OEBPS/{name}"] = own if own.startswith(("<html", "<!")) else XHTML.format(own)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        file.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, data in (files | dict(members)).items():
            file.writestr(stored.get(name, name), data.encode("utf-8", "surrogateescape"))
    return buffer.getvalue()


def source(path: Path, kind: str, **settings: Any) -> SourceConfig:
    places = {} if kind == "python_docs" else {"paths": [str(path)]}
    return TypeAdapter(AnySource).validate_python({"kind": kind, "name": "s"} | places | settings)


def read(path: Path, data: bytes, kind: str, **settings: Any) -> reading.Results:
    path.write_bytes(data)
    return reading.read(source(path, kind, **settings))


@pytest.mark.parametrize(("kind", "file"), CASES, ids=[f"{kind}: {file['of']}" for kind, file in CASES])
def test_a_file_gives_these_documents_and_rejects(tmp_path, monkeypatch, kind, file):
    monkeypatch.syspath_prepend(str(tmp_path))
    found = read(tmp_path / file.get("name", "file"), data_of(file), kind, **file.get("settings", {}))
    left_out = {name: n for each in found if isinstance(each, LeftOut) for name, n in each.counts.items()}
    told = {name: getattr(found, name) for name in ("ids", "titles", "texts", "langs")}
    told |= {key: [each.meta.get(key[:-1], "") for each in found.documents] for key in ("authors", "urls")}
    told |= {"chapters": [each.meta.get("chapters") for each in found.documents]}
    told |= {"skipped": found.reasons, "left_out": left_out}
    expected = {"skipped": [], "left_out": {}} | {name: file[name] for name in told if name in file}
    if "output" in file:
        expected["texts"] = [reading.stored(file["output"])]
    if not {"ids", "titles", "texts", "langs"} & expected.keys():
        expected["ids"] = []
    assert {name: told[name] for name in expected} == expected
    reasons = file.get("rejects", {})
    assert found.offsets == list(reasons)
    assert [
        own for own, reject in zip(reasons.values(), found.rejects, strict=True) if own not in reject.reason
    ] == []


NAMES = {
    "ten of ten": "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12)) + "~&e11;",
    "long": f'<!ENTITY e1 "{"&e0;" * 10_000}">~' + "&e1;" * 500,
    "loop": '<!ENTITY e1 "&e2;"><!ENTITY e2 "&e1;">~&e1;',
}


@pytest.mark.parametrize("bomb", NAMES)
@pytest.mark.parametrize("body", ['<text n="{}"/>', "<text><p>{}</p></text>"], ids=["attribute", "text"])
def test_an_entity_bomb_is_rejected(tmp_path, bomb, body):
    entities, reference = NAMES[bomb].split("~")
    data = f'<!DOCTYPE TEI [<!ENTITY e0 "lollollollol">{entities}]><TEI>{body.format(reference)}</TEI>'
    reason = read(tmp_path / "file", data.encode(), "books_tei").rejected().reason
    assert ("loop" if bomb == "loop" else "amplification") in reason


def test_a_book_with_an_endless_list_of_members_or_an_endless_page_is_rejected_unread(tmp_path):
    data = bytearray(epub({"a.xhtml": "<p>Text.</p>"}))
    at = data.rindex(b"PK\x05\x06") + 12
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    assert "list of members is longer" in read(tmp_path / "file", data, "books_epub").rejected().reason
    bomb = epub({"a.xhtml": f"<p>{'0' * 50_000_000}</p>"}, compression=zipfile.ZIP_DEFLATED)
    found, peak = reading.traced(lambda: read(tmp_path / "file", bomb, "books_epub", max_book_bytes=1 << 20))
    assert found.rejected().reason.endswith("limit of 1048576 bytes")
    assert peak < 10 << 20


@pytest.mark.parametrize(
    ("kind", "data"),
    [("json_lines", b'{"a":' * 100_000), ("books_tei", b"<TEI><text>" + b"<div>" * 100_000)],
)
def test_nesting_without_end_is_a_reject(tmp_path, kind, data):
    assert read(tmp_path / "file", data, kind).rejected().byte_offset < len(data)


def test_an_endless_line_is_skipped_in_bounded_memory(tmp_path):
    data = b'{"text": "a"}\n' + b"x" * 40_000_000 + b'\n{"text": "b"}\n'
    found, peak = reading.traced(lambda: read(tmp_path / "file", data, "json_lines", max_line_bytes=1 << 20))
    assert (found.texts, found.offsets) == (["a", "b"], [14])
    assert found.documents[1].meta["byte_start"] == 14 + 40_000_001
    assert peak < 12_000_000


def test_a_list_in_place_of_lines_is_one_part(tmp_path):
    (tmp_path / "file").write_bytes(b' [{"text": "a"}]')
    config = source(tmp_path / "file", "json_lines")
    (file,) = config.list_files()
    assert config.split_file(file, 16, 5) == [file]

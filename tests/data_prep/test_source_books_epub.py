"""EPUB books that are made to exhaust their reader, and how the books of `source_files.yaml` are packed."""

import io
import zipfile
from collections.abc import Mapping

from data_prep.sources.books_epub import BooksEpubConfig
from tests.data_prep import reading

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
)


def page(body: str) -> str:
    return (
        '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"'
        f' xmlns:epub="http://www.idpf.org/2007/ops"><head><title>hidden</title></head><body>{body}</body></html>'
    )


def package(names: list[str]) -> str:
    items = spine = ""
    for number, name in enumerate(names):
        properties = 'properties="nav"' if name == "nav.xhtml" else ""
        linear = 'linear="no"' if name == "notes.xhtml" else ""
        href = name.replace(" ", "%20")
        items += f'<item id="i{number}" href="{href}" media-type="application/xhtml+xml" {properties}/>'
        spine += f'<itemref idref="i{number}" {linear}/>'
    return (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        "<dc:title>The Road</dc:title><dc:creator>Ann Walker</dc:creator><dc:creator>B. C.</dc:creator>"
        f"<dc:language>en-GB</dc:language></metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )


def epub(
    pages: Mapping[str, str],
    members: Mapping[str, str] | None = None,
    stored: Mapping[str, str] | None = None,
) -> bytes:
    """A book of these pages.

    Args:
        members: added, or in the place of the usual ones.
        stored: names under which members are stored.
    """
    files = {
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": package([*pages]),
        **{
            f"OEBPS/{name}": own if own.startswith(("<html", "<!")) else page(own)
            for name, own in pages.items()
        },
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, data in (files | dict(members or {})).items():
            file.writestr((stored or {}).get(name, name), data.encode("utf-8", "surrogateescape"))
    return buffer.getvalue()


def read(tmp_path, data: bytes, **settings) -> reading.Results:
    return reading.read_file(BooksEpubConfig, tmp_path / "The_Road.epub", data, **settings)


def test_an_endless_list_of_members_is_rejected_unread(tmp_path):
    data = bytearray(epub({"a.xhtml": "<p>Text.</p>"}))
    at = data.rindex(b"PK\x05\x06") + 12
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    assert "list of members is longer" in read(tmp_path, bytes(data)).rejected().reason


def test_the_limit_is_of_the_whole_book_and_a_bomb_is_a_reject(tmp_path):
    pages = {f"{number}.xhtml": f"<p>{'x' * 1000}</p>" for number in range(100)}
    assert "limit of 50000 bytes" in read(tmp_path, epub(pages), max_book_bytes=50_000).rejected().reason
    assert len(read(tmp_path, epub(pages), max_book_bytes=500_000).only().text) == 100_000 + 99 * 3
    bomb = epub({"a.xhtml": f"<p>{'0' * 50_000_000}</p>"})
    assert "limit of 1000000 bytes" in read(tmp_path, bomb, max_book_bytes=1_000_000).rejected().reason


def test_a_damaged_package_is_a_reject_at_its_place(tmp_path):
    reject = read(tmp_path, data := epub({}, {"OEBPS/book.opf": "<package>"})).rejected()
    assert "malformed XML" in reject.reason
    assert data[reject.byte_offset :].startswith(b"PK\x03\x04")

"""EPUB books: reading order, chapters, what is left out, and zip files that are damaged or hostile."""

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import Skipped
from data_prep.sources.books_epub import BooksEpubConfig
from tests.data_prep import reading

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
)
HEAD = '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"'
NAMESPACE = ' xmlns:epub="http://www.idpf.org/2007/ops"><head><title>hidden</title></head><body>'


def page(body: str) -> str:
    return f"{HEAD}{NAMESPACE}{body}</body></html>"


PAGES = {
    "cover.xhtml": page("<p>Cover</p>"),
    "nav.xhtml": page("<nav><ol><li>Contents</li></ol></nav>"),
    "part 1.xhtml": page("<h1>Part One</h1>"),
    "c1.xhtml": page("<h2>I</h2><h2>The Road</h2><p>He went&#160;on<br/>and on.</p><p>It &amp; he.</p>"),
    "c1b.xhtml": page(
        '<p>Still <i>on</i><a epub:type="noteref">1</a>.</p><aside epub:type="footnote">1 x</aside>'
    ),
    "c2.xhtml": page("<h2>II</h2><blockquote><p>Sung.</p></blockquote><ul><li>a</li><li>b</li></ul>"),
    "notes.xhtml": page("<p>Skipped</p>"),
}
TEXT = "Part One\n\nI\n\nThe Road\n\nHe went on\nand on.\n\nIt & he.\n\nStill on.\n\n\nII\n\nSung.\n\na\n\nb"


def package(names: list[str]) -> str:
    properties = {"nav.xhtml": 'properties="nav"'}
    items = "".join(
        f'<item id="i{number}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"'
        f" {properties.get(name, '')}/>"
        for number, name in enumerate(names)
    )
    linear = {"notes.xhtml": 'linear="no"'}
    spine = "".join(
        f'<itemref idref="i{number}" {linear.get(name, "")}/>' for number, name in enumerate(names)
    )
    return (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        "<dc:title>The Road</dc:title><dc:creator>Ann Walker</dc:creator><dc:creator>B. C.</dc:creator>"
        f"<dc:language>en-GB</dc:language></metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )


def epub(pages: dict[str, str | bytes], **members: str | bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, data in {
            "META-INF/container.xml": CONTAINER,
            "OEBPS/book.opf": package([*pages]),
            **members,
        }.items():
            file.writestr(name, data)
        for name, data in pages.items():
            file.writestr(f"OEBPS/{name}", data)
    return buffer.getvalue()


def read(tmp_path, data: bytes, **changes) -> list[Document | Reject | Skipped]:
    (tmp_path / "The_Road.epub").write_bytes(data)
    return reading.read(BooksEpubConfig(name="epub", paths=(f"{tmp_path}/*.epub",), **changes))


def rejected(tmp_path, data: bytes, **changes) -> Reject:
    (result,) = read(tmp_path, data, **changes)
    assert isinstance(result, Reject)
    return result


def test_a_book_is_its_spine_without_cover_contents_and_notes(tmp_path):
    data = epub(PAGES)
    (document,) = read(tmp_path, data)
    assert document.text == TEXT
    assert (document.title, document.lang) == ("The Road", "en")
    assert document.meta == {
        "byte_start": 0,
        "byte_end": len(data),
        "chapters": 2,
        "author": "Ann Walker; B. C.",
    }


def test_without_headings_every_file_is_a_chapter(tmp_path):
    (document,) = read(tmp_path, epub({"a.xhtml": page("<p>a</p>"), "b.xhtml": page("<p>b</p>")}))
    assert document.text == "a\n\n\nb"


def test_html_that_is_no_xml_is_read_as_html(tmp_path):
    broken = "<html><body><p>Fish &nbsp; chips<br>& <b>more<p>caf\u00e9</body>"
    (document,) = read(tmp_path, epub({"a.xhtml": broken, "b.xhtml": broken.encode("cp1252")}))
    assert document.text == "Fish chips\n& more\n\ncafé\n\n\nFish chips\n& more\n\ncafé"


def test_named_entities_of_xhtml_are_characters(tmp_path):
    doctype = (
        '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">'
    )
    (document,) = read(
        tmp_path, epub({"a.xhtml": f"{doctype}<html><body><p>a&mdash;&eacute;</p></body></html>"})
    )
    assert document.text == "a—é"


@pytest.mark.parametrize(
    "external", ["", 'PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11.dtd"']
)
def test_a_books_own_entities_are_expanded_and_unknown_ones_stay_visible(tmp_path, external):
    doctype = f'<!DOCTYPE html {external} [<!ENTITY hero "Anna K.">]>'
    unknown = "&villain;&nbsp;" if external else ""
    chapter = f"{doctype}<html><body><p>&hero; met {unknown}him.</p></body></html>"
    (document,) = read(tmp_path, epub({"a.xhtml": chapter}))
    assert document.text == f"Anna K. met {unknown.replace('&nbsp;', ' ')}him."
    assert "'OEBPS/a.xhtml' is malformed" in rejected(tmp_path, epub({"a.xhtml": chapter[:-7]})).reason


def test_project_gutenbergs_frame_is_taken_off(tmp_path):
    header = page("<p>*** START OF THE PROJECT GUTENBERG EBOOK X ***</p><h2>I</h2><p>Text.</p>")
    footer = page("<p>*** END OF THE PROJECT GUTENBERG EBOOK X ***</p><p>Licence</p>")
    (document,) = read(tmp_path, epub({"a.xhtml": header, "b.xhtml": footer}))
    assert document.text == "I\n\nText."


def test_a_book_without_text_is_skipped_and_counted(tmp_path):
    assert read(tmp_path, epub({"a.xhtml": page("<img src='x'/>"), "b.xhtml": ""})) == [Skipped("no_text")]


@pytest.mark.parametrize(("told", "stored"), [("a.xhtml", "A.XHTML"), ("part 1.xhtml", "part%201.xhtml")])
def test_members_are_found_whatever_their_capitals_and_escapes(tmp_path, told, stored):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("META-INF/container.xml", CONTAINER.replace("OEBPS/book.opf", "./OEBPS/Book.opf"))
        file.writestr("OEBPS/book.opf", package([told]))
        file.writestr(f"OEBPS/{stored}", page("<p>Found.</p>"))
    (document,) = read(tmp_path, packed.getvalue())
    assert isinstance(document, Document)
    assert document.text == "Found."


def test_a_zip_bomb_is_rejected_before_it_is_expanded(tmp_path):
    bomb = epub({"a.xhtml": page("<p>" + "0" * 50_000_000 + "</p>")})
    assert len(bomb) < 100_000
    assert "limit of 1000000 bytes" in rejected(tmp_path, bomb, max_book_bytes=1_000_000).reason


def test_the_limit_is_of_the_whole_book(tmp_path):
    pages = {f"{number}.xhtml": page(f"<p>{'x' * 1000}</p>") for number in range(100)}
    assert "limit of 50000 bytes" in rejected(tmp_path, epub(pages), max_book_bytes=50_000).reason
    assert len(read(tmp_path, epub(pages), max_book_bytes=500_000)[0].text) == 100_000 + 99 * 3


def test_an_endless_list_of_members_is_rejected_unread(tmp_path):
    data = bytearray(epub(PAGES))
    at = data.rindex(b"PK\x05\x06") + 12
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    assert "list of members is longer" in rejected(tmp_path, bytes(data)).reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a zip file"),
        (b"\0" * 1000, "not a zip file"),
        (b"PK\x05\x06" + b"\0" * 18, "container.xml' is missing"),
        (epub({}, **{"META-INF/container.xml": "<x/>"}), "names no package"),
        (epub({}, **{"OEBPS/book.opf": "<package>"}), "malformed XML"),
        (epub(PAGES).replace(b"OEBPS/c2", b"OEBPS/c3"), "c2.xhtml' is missing"),
    ],
)
def test_what_is_no_intact_book_is_rejected_with_the_reason(tmp_path, data, reason):
    assert reason in rejected(tmp_path, data).reason


def test_a_protected_book_is_rejected(tmp_path):
    encryption = '<encryption><CipherReference URI="OEBPS/c1.xhtml"/></encryption>'
    assert (
        "rights management"
        in rejected(tmp_path, epub(PAGES, **{"META-INF/encryption.xml": encryption})).reason
    )
    fonts = encryption.replace("c1.xhtml", "font.otf")
    assert len(read(tmp_path, epub(PAGES, **{"META-INF/encryption.xml": fonts}))) == 1


@given(cut=st.integers(0, len(epub(PAGES)) - 1))
def test_a_file_cut_anywhere_is_one_reject(tmp_path_factory, cut):
    assert isinstance(read(tmp_path_factory.getbasetemp(), epub(PAGES)[:cut])[0], Reject)

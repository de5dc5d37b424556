"""EPUB books: reading order, chapters, what is left out, and zip files that are damaged or hostile."""

import io
import zipfile

import pytest

from data_prep.sources.base import Skipped
from data_prep.sources.books_epub import BooksEpubConfig
from tests.data_prep import reading

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
)
XHTML = '"-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd"'
ENCRYPTION = '<encryption><CipherReference URI="OEBPS/{}"/></encryption>'


def page(body: str) -> str:
    return (
        '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"'
        f' xmlns:epub="http://www.idpf.org/2007/ops"><head><title>hidden</title></head><body>{body}</body></html>'
    )


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


def epub(pages: dict[str, str | bytes], members: dict[str, str] | None = None) -> bytes:
    """A book of these pages; members are added, or take the place of the usual ones."""
    files = {
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": package([*pages]),
        **{f"OEBPS/{name}": data for name, data in pages.items()},
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, data in (files | (members or {})).items():
            file.writestr(name, data)
    return buffer.getvalue()


def read(tmp_path, data: bytes, **settings) -> reading.Results:
    return reading.read_file(BooksEpubConfig, tmp_path / "The_Road.epub", data, **settings)


def test_a_book_is_its_spine_without_cover_contents_and_notes(tmp_path):
    data = epub(PAGES)
    document = read(tmp_path, data).only()
    assert document.text == TEXT
    assert (document.title, document.lang) == ("The Road", "en")
    place = {"byte_start": 0, "byte_end": len(data)}
    assert document.meta == place | {"chapters": 2, "author": "Ann Walker; B. C."}


BROKEN = "<html><body><p>Fish &nbsp; chips<br>& <b>more<p>caf\u00e9</body>"


@pytest.mark.parametrize(
    ("pages", "text"),
    [
        ([page("<p>a</p>"), page("<p>b</p>")], "a\n\n\nb"),
        ([BROKEN, BROKEN.encode("cp1252")], "Fish chips\n& more\n\ncafé\n\n\nFish chips\n& more\n\ncafé"),
        ([f"<!DOCTYPE html PUBLIC {XHTML}><html><body><p>a&mdash;&eacute;</p></body></html>"], "a—é"),
        (
            [
                page("<p>*** START OF THE PROJECT GUTENBERG EBOOK X ***</p><h2>I</h2><p>Text.</p>"),
                page("<p>*** END OF THE PROJECT GUTENBERG EBOOK X ***</p><p>Licence</p>"),
            ],
            "I\n\nText.",
        ),
    ],
    ids=["files are chapters", "HTML that is no XML", "entities of XHTML", "frame"],
)
def test_pages_of_any_form_are_read(tmp_path, pages, text):
    assert read(tmp_path, epub({f"{n}.xhtml": data for n, data in enumerate(pages)})).only().text == text


@pytest.mark.parametrize("external", ["", f"PUBLIC {XHTML}"])
def test_a_books_own_entities_are_expanded_and_unknown_ones_stay_visible(tmp_path, external):
    doctype = f'<!DOCTYPE html {external} [<!ENTITY hero "Anna K.">]>'
    unknown = "&villain;&nbsp;" if external else ""
    chapter = f"{doctype}<html><body><p>&hero; met {unknown}him.</p></body></html>"
    text = read(tmp_path, epub({"a.xhtml": chapter})).only().text
    assert text == f"Anna K. met {unknown.replace('&nbsp;', ' ')}him."
    assert "'OEBPS/a.xhtml'" in read(tmp_path, epub({"a.xhtml": chapter[:-7]})).rejected().reason


def test_a_book_without_text_is_skipped_and_counted(tmp_path):
    assert read(tmp_path, epub({"a.xhtml": page("<img src='x'/>"), "b.xhtml": ""})) == [Skipped("no_text")]


@pytest.mark.parametrize(("told", "stored"), [("a.xhtml", "A.XHTML"), ("part 1.xhtml", "part%201.xhtml")])
def test_members_are_found_whatever_their_capitals_and_escapes(tmp_path, told, stored):
    container = CONTAINER.replace("OEBPS/book.opf", "./OEBPS/Book.opf")
    members = {"META-INF/container.xml": container, "OEBPS/book.opf": package([told])}
    assert read(tmp_path, epub({stored: page("<p>Found.</p>")}, members)).only().text == "Found."


def test_an_endless_list_of_members_is_rejected_unread(tmp_path):
    data = bytearray(epub(PAGES))
    at = data.rindex(b"PK\x05\x06") + 12
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    assert "list of members is longer" in read(tmp_path, bytes(data)).rejected().reason


def test_the_limit_is_of_the_whole_book(tmp_path):
    pages = {f"{number}.xhtml": page(f"<p>{'x' * 1000}</p>") for number in range(100)}
    assert "limit of 50000 bytes" in read(tmp_path, epub(pages), max_book_bytes=50_000).rejected().reason
    assert len(read(tmp_path, epub(pages), max_book_bytes=500_000).only().text) == 100_000 + 99 * 3


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a zip file"),
        (b"\0" * 1000, "not a zip file"),
        (b"PK\x05\x06" + b"\0" * 18, "container.xml' is missing"),
        (epub({}, {"META-INF/container.xml": "<x/>"}), "names no package"),
        (epub({}, {"OEBPS/book.opf": "<package>"}), "malformed XML"),
        (epub(PAGES).replace(b"OEBPS/c2", b"OEBPS/c3"), "c2.xhtml' is missing"),
        (epub({"a.xhtml": page("<p>" + "0" * 50_000_000 + "</p>")}), "limit of 1000000 bytes"),
        (epub(PAGES, {"META-INF/encryption.xml": ENCRYPTION.format("c1.xhtml")}), "rights management"),
    ],
    ids=["empty", "zeros", "no members", "no package", "bad package", "lost page", "bomb", "protected"],
)
def test_what_is_no_intact_book_is_rejected_with_the_reason(tmp_path, data, reason):
    assert reason in read(tmp_path, data, max_book_bytes=1_000_000).rejected().reason


def test_a_book_with_protected_fonts_is_read(tmp_path):
    fonts = {"META-INF/encryption.xml": ENCRYPTION.format("font.otf")}
    assert read(tmp_path, epub(PAGES, fonts)).only().text == TEXT

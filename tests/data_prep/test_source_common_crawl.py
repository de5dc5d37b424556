"""Web archives: what becomes of each kind of record, and of pages in any encoding."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import ConfigError
from data_prep.sources import FilePart
from data_prep.stages.collect import DocumentsSplit, collect_documents
from data_prep.text.encodings import decode_html
from data_prep.text.html import PageError, read_page
from tests.data_prep.reading import documents, reasons, rejects
from tests.data_prep.warc_files import (
    config_of,
    http,
    page,
    read,
    record,
    warcinfo,
    write,
)

ENCODED = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "identity": bytes,
    "gzip, br": lambda body: brotli.compress(gzip.compress(body)),
}


def read_one(tmp_path: Path, *records: bytes, **config: Any):
    return read(write(tmp_path / "a.warc.gz", [warcinfo(), *records]), **config)


def chunked(body: bytes, size: int = 100) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def test_a_page_becomes_its_main_content_with_title_and_place(tmp_path):
    archive = write(tmp_path / "a.warc.gz", [warcinfo(), record(http(page(7)), 7)])
    (document,) = documents(read(archive))
    lines = document.text.split("\n\n")
    assert lines[0] == "Page 7"
    assert [line[:21] for line in lines[1:]] == [f"Paragraph {n} of page 7" for n in range(3)]
    assert (document.doc_id, document.title, document.uri) == ("cc:urn:uuid:00000007", "Page 7", "a.warc.gz")
    assert document.meta["url"] == "https://example.org/7"
    assert document.meta["date"] == "2024-02-29T12:00:00Z"


@pytest.mark.parametrize("ending", ["warc", "warc.gz", "warc.zst"])
def test_meta_leads_back_to_the_very_bytes_of_the_record(tmp_path, ending):
    records = [warcinfo(), *(record(http(page(n)), n) for n in range(1, 4))]
    path = write(tmp_path / f"a.{ending}", records)
    for document, expected in zip(documents(read(path)), records[1:], strict=True):
        stream = path.read_bytes()[document.meta.get("stream_start", 0) :]
        if ending == "warc.gz":
            stream = zlib.decompressobj(31).decompress(stream)
        elif ending == "warc.zst":
            import zstandard

            stream = zstandard.ZstdDecompressor().decompressobj().decompress(stream)
        assert stream[document.meta["byte_start"] : document.meta["byte_end"]] == expected[:-4]


def test_extraction_of_everything_keeps_navigation_and_footer(tmp_path):
    (document,) = documents(read_one(tmp_path, record(http(page(1))), extraction="all"))
    assert "About us" in document.text
    assert "Copyright notice" in document.text
    (document,) = documents(read_one(tmp_path, record(http(page(1)))))
    assert "About us" not in document.text
    assert "Copyright notice" not in document.text


def test_a_wet_record_is_taken_as_it_is(tmp_path):
    text = "Une première ligne.\r\n\r\n\r\nUne deuxième.\x00"
    wet = record(text.encode(), 5, kind="conversion", Content_Type="text/plain")
    (document,) = documents(read_one(tmp_path, wet, lang="fr"))
    assert document.text == "Une première ligne.\n\nUne deuxième."
    assert (document.doc_id, document.title, document.lang) == ("cc:urn:uuid:00000005", "", "fr")


def test_a_wet_record_is_read_by_the_charset_that_it_declares(tmp_path):
    declared = "text/plain; charset=iso-8859-1"
    wet = record("Une première ligne.".encode("latin-1"), kind="conversion", Content_Type=declared)
    assert [document.text for document in documents(read_one(tmp_path, wet))] == ["Une première ligne."]


def test_records_that_are_no_pages_are_counted_by_their_reason(tmp_path):
    records = [
        record(b"GET / HTTP/1.1\r\n\r\n", kind="request"),
        record(b"a: b\r\n", kind="metadata", Content_Type="application/warc-fields"),
        record(http(b""), kind="revisit"),
        record(b"more", kind="continuation"),
        record(b"?", kind="novelty"),
        record(http(b"\x89PNG", content_type="image/png")),
        record(b"20240229\r\nexample.org 1.2.3.4", Content_Type="text/dns"),
        record(http(page(1), status="404 Not Found")),
        record(http(b"<html><body> </body></html>")),
        record(http(b"")),
    ]
    results = read_one(tmp_path, *records)
    assert reasons(results) == [
        *("warcinfo", "request", "metadata", "revisit", "continuation", "unknown", "not_html", "not_html"),
        *("not_successful", "no_text", "no_text"),
    ]
    assert len(results) == len(records) + 1


def test_wat_files_are_refused_by_name_before_anything_is_read(tmp_path):
    write(tmp_path / "a.warc.gz", [warcinfo()])
    (tmp_path / "a.warc.wat.gz").touch()
    with pytest.raises(ConfigError, match="WAT file"):
        read(tmp_path / "a.*")


def test_a_record_without_an_id_is_named_by_its_place(tmp_path):
    nameless = [record(http(page(n)), n, WARC_Record_ID="") for n in (1, 2)]
    ids = [document.doc_id for document in documents(read_one(tmp_path, *nameless))]
    first = len(gzip.compress(warcinfo(), mtime=0))
    assert ids[0] == f"cc:a.warc.gz#{first}"
    assert len(set(ids)) == 2


PAGE = page(1)
CHUNKED = "Transfer-Encoding: chunked"


def in_chunks(size_line: bytes, line_end: bytes) -> bytes:
    """A compressed page in chunks as careless servers write them."""
    body = gzip.compress(PAGE)
    pieces = [body[start : start + 50] for start in range(0, len(body), 50)]
    sent = b"".join(size_line % len(piece) + piece + line_end for piece in pieces) + b"0\nTrailer: x\n\n"
    return http(sent, "Content-Encoding: gzip", CHUNKED)


RESPONSES = {
    **{f"{coding}": http(encode(PAGE), f"Content-Encoding: {coding}") for coding, encode in ENCODED.items()},
    **{
        f"{coding} in chunks": http(chunked(encode(PAGE)), f"Content-Encoding: {coding}", CHUNKED)
        for coding, encode in ENCODED.items()
    },
    "chunks with an extension": in_chunks(b"%x;ext=1\r\n", b"\r\n"),
    "chunks with quoted extensions": in_chunks(b'%x ; name="a;b" ; other\r\n', b"\r\n"),
    "chunks with bare line feeds": in_chunks(b"%x\n", b"\n"),
    "chunks with capitals": in_chunks(b"%X;a=b\n", b"\n"),
    "chunks with zeros and spaces": in_chunks(b"  000%x  \r\n", b"\n"),
    "several gzip members and more bytes": http(
        gzip.compress(PAGE[:200]) + gzip.compress(PAGE[200:]) + b"\r\n rubbish", "Content-Encoding: gzip"
    ),
    "bare deflate": http(zlib.compress(PAGE)[2:-4], "Content-Encoding: deflate"),
    "gzip that no header names": http(gzip.compress(PAGE)),
    **{
        f"{header}, undone by the crawler": http(PAGE, header)
        for header in ("Content-Encoding: gzip", "Content-Encoding: br", CHUNKED)
    },
    "header with bare line feeds": http(PAGE).replace(b"\r\n", b"\n"),
    "header with a long line": http(PAGE, "X-Policy: " + "a" * 60_000, "Content-Language: en"),
    "header of many lines": http(PAGE, *(f"X-{number}: {'a' * 1000}" for number in range(60))),
    "two types": http(
        b'<?xml version="1.0" encoding="utf-8"?>\n' + PAGE, content_type="text/html, text/html; charset=utf-8"
    ),
    "no type": http(b'<?xml version="1.0" encoding="utf-8"?>\n' + PAGE, content_type=""),
}


@pytest.mark.parametrize("response", RESPONSES.values(), ids=list(RESPONSES))
def test_responses_are_decoded(tmp_path, response):
    (document,) = documents(read_one(tmp_path, record(response)))
    assert document.title == "Page 1"
    assert document.text.startswith("Page 1\n\nParagraph 0")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "chunked", "gzip that no header tells of"])
def test_bodies_that_are_cut_short_anywhere_are_rejects_and_never_pages(tmp_path, coding):
    body = {**ENCODED, "chunked": chunked}.get(coding, gzip.compress)(page(1))
    header = {"chunked": "Transfer-Encoding: chunked"}.get(coding, f"Content-Encoding: {coding.split()[0]}")
    headers = [] if "no header" in coding else [header]
    cut = [body[:size] for size in range(3, len(body), 7 if coding != "chunked" else 40)]
    results = read_one(tmp_path, *(record(http(piece, *headers)) for piece in cut))
    assert len(rejects(results)) == len(cut)


def test_a_damaged_body_is_a_reject_at_its_record(tmp_path):
    bad = record(http(b"\x1f\x8b\x08 no gzip at all", "Content-Encoding: gzip"))
    results = read_one(tmp_path, record(http(page(1))), bad, record(http(page(2))))
    (reject,) = rejects(results)
    assert reject.byte_offset == sum(
        len(gzip.compress(r, mtime=0)) for r in (warcinfo(), record(http(page(1))))
    )
    assert "no gzip body" in reject.reason
    assert len(documents(results)) == 2


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate"])
def test_a_body_that_unfolds_beyond_the_limit_is_a_reject(tmp_path, coding):
    bomb = ENCODED[coding](b"<html>" + bytes(20 << 20))
    results = read_one(tmp_path, record(http(bomb, f"Content-Encoding: {coding}")), record(http(page(2))))
    assert [reject.reason for reject in rejects(results)] == ["a body longer than the limit of 5242880 bytes"]
    assert len(documents(results)) == 1


def test_a_resource_is_a_page_without_http_header_and_a_picture_sold_as_a_page_has_no_text(tmp_path):
    resource = record(page(1), kind="resource", Content_Type="text/html")
    picture = record(http(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8), 2)
    results = read_one(tmp_path, resource, picture)
    assert [document.title for document in documents(results)] == ["Page 1"]
    assert reasons(results) == ["warcinfo", "no_text"]


def test_what_the_crawler_identified_counts_more_than_what_the_server_declared(tmp_path):
    pdf = record(http(page(1)), WARC_Identified_Payload_Type="application/pdf")
    html = record(
        http(page(2), content_type="application/octet-stream"), WARC_Identified_Payload_Type="text/html"
    )
    results = read_one(tmp_path, pdf, html)
    assert [document.title for document in documents(results)] == ["Page 2"]


RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 5
JAPANESE = "いろはにほへと ちりぬるを わかよたれそ つねならむ。" * 5
KOREAN = "대한민국의 수도는 서울이다. 오늘 아침 날씨가 매우 맑고 바람이 조금 불었다. " * 5
GERMAN = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 5


@pytest.mark.parametrize(
    ("text", "encoding", "http_charset", "meta"),
    [
        (RUSSIAN, "cp1251", "windows-1251", ""),
        (RUSSIAN, "cp1251", None, "windows-1251"),
        (RUSSIAN, "koi8-r", None, "koi8-r"),
        (RUSSIAN, "cp1251", None, ""),
        (RUSSIAN, "utf-8", "iso-8859-1", "iso-8859-1"),
        (RUSSIAN, "utf-16", "utf-8", ""),
        (JAPANESE, "shift_jis", "Shift_JIS", ""),
        (JAPANESE, "euc_jp", None, "euc-jp"),
        (JAPANESE, "iso2022_jp", None, "iso-2022-jp"),
        (JAPANESE, "utf-8", None, ""),
        (GERMAN, "cp1252", "iso-8859-1", ""),
        (GERMAN, "latin-1", "utf-8", ""),
        (GERMAN, "latin-1", "no-such-charset", ""),
        (KOREAN, "euc-kr", None, ""),
        (KOREAN, "euc-kr", "utf-8", ""),
    ],
)
def test_charsets_are_told_by_header_meta_and_bytes(text, encoding, http_charset, meta):
    tag = f'<meta charset="{meta}">' if meta else ""
    html = f"<html><head>{tag}</head><body><p>{text}</p></body></html>"
    assert text.strip() in decode_html(html.encode(encoding), http_charset)


def test_a_page_in_no_known_encoding_is_a_reject_and_not_a_page_without_text(tmp_path):
    body = b"<p>An English paragraph.</p><p>" + bytes([0xFF, 0xFE, 0xF8, 0x81, 0x20]) * 200
    results = read_one(tmp_path, record(http(body, content_type="text/html")))
    assert (reasons(results), len(rejects(results))) == (["warcinfo"], 1)


def test_one_wrong_byte_does_not_change_the_encoding_of_a_page():
    data = (RUSSIAN * 20).encode()[:-1]  # cut within a character
    decoded = decode_html(data + b" end", "utf-8")
    assert decoded.count("\ufffd") == 0 or decoded.startswith(RUSSIAN)
    assert decoded.startswith(RUSSIAN)


@given(
    st.binary(max_size=300),
    st.sampled_from([None, "utf-8", "shift_jis", "x-user-defined", "\ufffd", "hex", "idna"]),
)
def test_any_bytes_are_decoded_to_something(data, charset):
    assert isinstance(decode_html(data, charset), str)


@given(st.text(alphabet="<>/abdivpul= \"'&;!-\n", max_size=300))
def test_any_markup_is_read(html):
    read_page(html, main_content=True, max_depth=512)


HOSTILE = {
    "deep": "<div>" * 400_000 + "text",
    "deep lists": "<ul><li>x" * 300_000,
    "deep, closed by others": "<div></p>" * 300_000,
    "attributes": "<p " + " ".join(f"a{n}=1" for n in range(200_000)) + ">text",
    "quoted attributes": "<p " + "".join(f"a{n}='>'" for n in range(200_000)) + ">text",
    "indented lists": ("<ul><li>x" * 250 + "</ul>" * 250) * 300,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_pages_made_to_exhaust_their_reader_are_refused_in_seconds(name):
    with pytest.raises(PageError):
        read_page(HOSTILE[name], main_content=False, max_depth=512)


@pytest.mark.parametrize(
    "html", ["<" * 2_000_000, "<p>" + "a" * 4_000_000, "\x00\x01" * 500_000, "<b>x" * 400, "&" * 1_000_000]
)
def test_odd_pages_are_read_in_seconds(html):
    assert "\x00" not in read_page(html, main_content=True, max_depth=512).text


def test_a_page_of_control_characters_alone_has_no_text(tmp_path):
    assert reasons(read_one(tmp_path, record(http(b"\x01\x02\x03" * 50)))) == ["warcinfo", "no_text"]


def test_a_shard_counts_what_its_source_skipped(tmp_path):
    path = write(tmp_path / "a.warc.gz", [warcinfo(), record(http(page(1))), record(b"", kind="request")])
    config = config_of(path)
    parts = tuple(FilePart(file) for file in config.list_files())
    result = collect_documents(DocumentsSplit(config, parts, (), 0), tmp_path / "shard.parquet")
    assert result.rows == 1
    assert {key: result.stats[key] for key in ("documents_read", "skipped.warcinfo", "skipped.request")} == {
        "documents_read": 1,
        "skipped.warcinfo": 1,
        "skipped.request": 1,
    }


INTACT = [
    "aut/example.docs",
    "aut/example.txt",
    "dolma/sample-0000",
    "dolma/sample-0001",
    "warcio/example",
    "warcio/example-resource",
    "warcio/post-test",
    "whirlwind/whirlwind",
]


@pytest.mark.corpora
@pytest.mark.parametrize("name", INTACT)
def test_every_record_that_warcio_finds_is_a_document_or_counted(corpora, name):
    from warcio.archiveiterator import ArchiveIterator

    path = corpora / "commoncrawl" / f"{name}.warc.gz"
    with path.open("rb") as file:
        ids = [record.rec_headers["WARC-Record-ID"] for record in ArchiveIterator(file)]
    results = read(path)
    assert len(results) == len(ids)
    assert rejects(results) == []
    assert {f"<{document.doc_id.removeprefix('cc:')}>" for document in documents(results)} <= set(ids)
    assert read(path, 10_000) == results


@pytest.mark.corpora
def test_the_three_forms_of_one_capture_give_the_same_page(corpora):
    folder = corpora / "commoncrawl" / "whirlwind"
    plain, compressed, wet = (
        documents(read(folder / f"whirlwind.warc{ending}"))[0] for ending in ("", ".gz", ".wet.gz")
    )
    assert plain.text == compressed.text
    assert plain.title == "Escopete - Biquipedia, a enciclopedia libre"
    assert plain.meta["url"] == wet.meta["url"] == "https://an.wikipedia.org/wiki/Escopete"
    words = set(plain.text.split())
    assert len(words & set(wet.text.split())) > 0.9 * len(words)


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("name", "num_documents", "num_rejects"),
    [
        ("aut/badexample.arc.gz", 0, 1),
        ("aut/issue-493.warc", 3, 0),
        ("aut/issue-514.warc", 1, 0),
        ("warcio/bad.arc", 0, 1),
        ("warcio/example-bad-non-chunked.warc.gz", 1, 0),
        ("warcio/example-bad.warc.gz.bad", 1, 0),
        ("warcio/example-iana.org-chunked.warc", 1, 0),
        ("warcio/example-trunc.warc", 0, 1),
        ("warcio/example-wget-bad-target-uri.warc.gz", 1, 0),
        ("warcio/example-wrong-chunks.warc.gz", 1, 0),
    ],
)
def test_odd_files_give_what_can_be_read_of_them(corpora, name, num_documents, num_rejects):
    results = read(corpora / "commoncrawl" / name)
    assert (len(documents(results)), len(rejects(results))) == (num_documents, num_rejects)


def test_soft_hyphens_do_not_cut_the_words_of_a_page():
    html = f"<main><p>{'Donau&shy;dampf&shy;schiff ' * 20}</p></main>"
    assert "Donaudampfschiff" in read_page(html, main_content=True, max_depth=99).text

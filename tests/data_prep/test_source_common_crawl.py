"""Web archives: what becomes of each kind of record, and of pages in any encoding."""

import gzip
import zlib
from itertools import accumulate

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import ConfigError
from data_prep.stages.collect import collect_documents
from data_prep.text import UnreadableError
from data_prep.text.encodings import decode_html
from data_prep.text.html import read_page
from tests.data_prep import reading
from tests.data_prep.warc_files import COMPRESS, config_of, http, page, read, record, warcinfo, write

ENCODED = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "identity": bytes,
    "gzip, br": lambda body: brotli.compress(gzip.compress(body)),
}
CHUNKED = "Transfer-Encoding: chunked"
PAGE = page(1)


def read_records(tmp_path, *records: bytes, **settings) -> reading.Results:
    return read(write(tmp_path / "a.warc.gz", [warcinfo(), *records]), **settings)


def chunked(body: bytes) -> bytes:
    pieces = [body[start : start + 100] for start in range(0, len(body), 100)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def test_a_page_becomes_its_main_content_or_all_of_its_text_with_title_and_place(tmp_path):
    document = read_records(tmp_path, record(http(page(7)), 7)).documents[0]
    lines = document.text.split("\n\n")
    assert lines[0] == "Page 7"
    assert [line[:21] for line in lines[1:]] == [f"Paragraph {n} of page 7" for n in range(3)]
    assert (document.doc_id, document.title, document.uri) == ("cc:urn:uuid:00000007", "Page 7", "a.warc.gz")
    assert document.meta["url"] == "https://example.org/7"
    assert document.meta["date"] == "2024-02-29T12:00:00Z"
    (whole,) = read_records(tmp_path, record(http(page(7)), 7), extraction="all").texts
    assert "About us" in whole
    assert "Copyright notice" in whole


@pytest.mark.parametrize("ending", COMPRESS)
def test_meta_leads_back_to_the_very_bytes_of_the_record(tmp_path, ending):
    records = [warcinfo(), *(record(http(page(n)), n) for n in range(1, 4))]
    path = write(tmp_path / f"a.{ending}", records)
    for document, expected in zip(read(path).documents, records[1:], strict=True):
        stream = path.read_bytes()[document.meta.get("stream_start", 0) :]
        if ending == "warc.gz":
            stream = zlib.decompressobj(31).decompress(stream)
        elif ending == "warc.zst":
            stream = zstandard.ZstdDecompressor().decompressobj().decompress(stream)
        assert stream[document.meta["byte_start"] : document.meta["byte_end"]] == expected[:-4]


@pytest.mark.parametrize(
    ("content_type", "encoding"), [("text/plain", "utf-8"), ("text/plain; charset=iso-8859-1", "latin-1")]
)
def test_a_wet_record_is_taken_as_it_is_in_the_charset_that_it_declares(tmp_path, content_type, encoding):
    text = "Une première ligne.\r\n\r\n\r\nUne deuxième.\x00"
    wet = record(text.encode(encoding), 5, kind="conversion", Content_Type=content_type)
    (document,) = read_records(tmp_path, wet, lang="fr").documents
    assert document.text == "Une première ligne.\n\nUne deuxième."
    assert (document.doc_id, document.title, document.lang) == ("cc:urn:uuid:00000005", "", "fr")


NO_PAGES = [
    ("request", record(b"GET / HTTP/1.1\r\n\r\n", kind="request")),
    ("metadata", record(b"a: b\r\n", kind="metadata", Content_Type="application/warc-fields")),
    ("revisit", record(http(b""), kind="revisit")),
    ("continuation", record(b"more", kind="continuation")),
    ("unknown", record(b"?", kind="novelty")),
    ("not_html", record(http(b"\x89PNG", content_type="image/png"))),
    ("not_html", record(b"20240229\r\nexample.org 1.2.3.4", Content_Type="text/dns")),
    ("not_html", record(http(PAGE), WARC_Identified_Payload_Type="application/pdf")),
    ("not_successful", record(http(PAGE, status="404 Not Found"))),
    ("no_text", record(http(b"<html><body> </body></html>"))),
    ("no_text", record(http(b""))),
    ("no_text", record(http(b"\x01\x02\x03" * 50))),
    ("no_text", record(http(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8))),
]


def test_records_that_are_no_pages_are_counted_by_their_reason(tmp_path):
    found = read_records(tmp_path, *(data for _, data in NO_PAGES))
    assert found.reasons == ["warcinfo", *(reason for reason, _ in NO_PAGES)]
    assert len(found) == len(NO_PAGES) + 1
    source = config_of(tmp_path / "a.warc.gz")
    stats = collect_documents(source, source.list_files(), [], 0, tmp_path / "shard.parquet").stats
    assert (stats["documents_read"], stats["skipped.no_text"], stats["skipped.request"]) == (0, 4, 1)


def test_resources_and_what_the_crawler_identified_are_pages_which_without_an_id_are_named_by_their_place(
    tmp_path,
):
    resource = record(page(1), kind="resource", Content_Type="text/html", WARC_Record_ID="")
    binary = http(page(2), content_type="application/octet-stream")
    identified = record(binary, WARC_Identified_Payload_Type="text/html", WARC_Record_ID="")
    found = read_records(tmp_path, resource, identified)
    assert found.titles == ["Page 1", "Page 2"]
    places = accumulate(len(gzip.compress(data, mtime=0)) for data in (warcinfo(), resource))
    assert found.ids == [f"cc:a.warc.gz#{place}" for place in places]


def test_wat_files_are_refused_by_name_before_anything_is_read(tmp_path):
    write(tmp_path / "a.warc.gz", [warcinfo()])
    (tmp_path / "a.warc.wat.gz").touch()
    with pytest.raises(ConfigError, match="WAT file"):
        read(tmp_path / "a.*")


# -- bodies -----------------------------------------------------------------------------------------------------


def in_chunks(size_line: bytes, line_end: bytes) -> bytes:
    """A compressed page in chunks as careless servers write them."""
    body = gzip.compress(PAGE)
    pieces = [body[start : start + 50] for start in range(0, len(body), 50)]
    sent = b"".join(size_line % len(piece) + piece + line_end for piece in pieces) + b"0\nTrailer: x\n\n"
    return http(sent, "Content-Encoding: gzip", CHUNKED)


XML = b'<?xml version="1.0" encoding="utf-8"?>\n'
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
    "gzip, undone by the crawler": http(PAGE, "Content-Encoding: gzip"),
    "br, undone by the crawler": http(PAGE, "Content-Encoding: br"),
    "chunks, undone by the crawler": http(PAGE, CHUNKED),
    "header with bare line feeds": http(PAGE).replace(b"\r\n", b"\n"),
    "header with a long line": http(PAGE, "X-Policy: " + "a" * 60_000, "Content-Language: en"),
    "header of many lines": http(PAGE, *(f"X-{number}: {'a' * 1000}" for number in range(60))),
    "two types": http(XML + PAGE, content_type="text/html, text/html; charset=utf-8"),
    "no type": http(XML + PAGE, content_type=""),
}


@pytest.mark.parametrize("response", RESPONSES.values(), ids=list(RESPONSES))
def test_responses_are_decoded(tmp_path, response):
    (document,) = read_records(tmp_path, record(response)).documents
    assert document.title == "Page 1"
    assert document.text.startswith("Page 1\n\nParagraph 0")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "chunked", "gzip that no header tells of"])
def test_bodies_that_are_cut_short_anywhere_are_rejects_and_never_pages(tmp_path, coding):
    body = {**ENCODED, "chunked": chunked}.get(coding, gzip.compress)(PAGE)
    named = [CHUNKED if coding == "chunked" else f"Content-Encoding: {coding}"]
    headers = [] if "no header" in coding else named
    cut = [body[:size] for size in range(3, len(body), 40 if coding == "chunked" else 7)]
    found = read_records(tmp_path, *(record(http(piece, *headers)) for piece in cut))
    assert len(found.rejects) == len(cut)


BOMB = b"<html>" + bytes(20 << 20)


@pytest.mark.parametrize(
    ("coding", "body", "reason"),
    [
        ("gzip", b"\x1f\x8b\x08 no gzip at all", "no gzip body"),
        ("identity", b"<p>English.</p><p>" + b"\xff\xfe\xf8\x81 " * 200, ""),
        *((coding, ENCODED[coding](BOMB), "limit of 5242880 bytes") for coding in ("gzip", "br", "deflate")),
    ],
    ids=["damaged", "no known encoding", "gzip bomb", "br bomb", "deflate bomb"],
)
def test_a_damaged_or_endless_body_is_a_reject_at_its_record(tmp_path, coding, body, reason):
    response = http(body, f"Content-Encoding: {coding}", content_type="text/html")
    found = read_records(tmp_path, record(http(page(1))), record(response), record(http(page(2))))
    before = (warcinfo(), record(http(page(1))))
    assert found.offsets == [sum(len(gzip.compress(data, mtime=0)) for data in before)]
    assert reason in found.rejects[0].reason
    assert found.titles == ["Page 1", "Page 2"]


# -- characters -------------------------------------------------------------------------------------------------

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


def test_one_wrong_byte_does_not_change_the_encoding_of_a_page():
    cut_within_a_character = (RUSSIAN * 20).encode()[:-1]
    assert decode_html(cut_within_a_character + b" end", "utf-8").startswith(RUSSIAN)


@given(
    st.binary(max_size=300),
    st.sampled_from([None, "utf-8", "shift_jis", "x-user-defined", "\ufffd", "hex", "idna"]),
)
def test_any_bytes_are_decoded_to_something(data, charset):
    assert isinstance(decode_html(data, charset), str)


HOSTILE = {
    "deep": "<div>" * 400_000 + "text",
    "deep lists": "<ul><li>x" * 300_000,
    "deep, closed by others": "<div></p>" * 300_000,
    "attributes": "<p " + " ".join(f"a{n}=1" for n in range(200_000)) + ">text",
    "quoted attributes": "<p " + "".join(f"a{n}='>'" for n in range(200_000)) + ">text",
    "tags as attributes": ("<a b" * 1998 + ">") * 400,
    "indented lists": ("<ul><li>x" * 250 + "</ul>" * 250) * 300,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_pages_made_to_exhaust_their_reader_are_refused_in_seconds(name):
    with pytest.raises(UnreadableError):
        read_page(HOSTILE[name], main_content=False, max_depth=512)


# -- real archives ----------------------------------------------------------------------------------------------

INTACT = """
    aut/example.docs aut/example.txt dolma/sample-0000 dolma/sample-0001 warcio/example warcio/example-resource
    warcio/post-test whirlwind/whirlwind
"""
ODD = {
    "aut/badexample.arc.gz": (0, 1),
    "aut/issue-493.warc": (3, 0),
    "aut/issue-514.warc": (1, 0),
    "warcio/bad.arc": (0, 1),
    "warcio/example-bad-non-chunked.warc.gz": (1, 0),
    "warcio/example-bad.warc.gz.bad": (1, 0),
    "warcio/example-iana.org-chunked.warc": (1, 0),
    "warcio/example-trunc.warc": (0, 1),
    "warcio/example-wget-bad-target-uri.warc.gz": (1, 0),
    "warcio/example-wrong-chunks.warc.gz": (1, 0),
}


@pytest.mark.corpora
@pytest.mark.parametrize("name", INTACT.split())
def test_every_record_that_warcio_finds_is_a_document_or_counted(corpora, name):
    from warcio.archiveiterator import ArchiveIterator

    path = corpora / "commoncrawl" / f"{name}.warc.gz"
    with path.open("rb") as file:
        ids = [record.rec_headers["WARC-Record-ID"] for record in ArchiveIterator(file)]
    found = read(path)
    assert (len(found), found.rejects) == (len(ids), [])
    assert {f"<{name.removeprefix('cc:')}>" for name in found.ids} <= set(ids)
    assert read(path, 10_000) == found


@pytest.mark.corpora
def test_the_three_forms_of_one_capture_give_the_same_page(corpora):
    folder = corpora / "commoncrawl" / "whirlwind"
    plain, compressed, wet = (
        read(folder / f"whirlwind.warc{ending}").documents[0] for ending in ("", ".gz", ".wet.gz")
    )
    assert plain.text == compressed.text
    assert plain.title == "Escopete - Biquipedia, a enciclopedia libre"
    assert plain.meta["url"] == wet.meta["url"] == "https://an.wikipedia.org/wiki/Escopete"
    words = set(plain.text.split())
    assert len(words & set(wet.text.split())) > 0.9 * len(words)


@pytest.mark.corpora
@pytest.mark.parametrize("name", ODD)
def test_odd_files_give_what_can_be_read_of_them(corpora, name):
    found = read(corpora / "commoncrawl" / name)
    assert (len(found.documents), len(found.rejects)) == ODD[name]

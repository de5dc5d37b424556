"""MediaWiki dumps: what a reader sees, exact bytes, and poison that costs only itself."""

import bz2
import gzip
import html
import random
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.artefacts.errors import MissingInputError
from data_prep.document import Document
from data_prep.sources.base import FilePart, LeftOut, Skipped
from data_prep.sources.wikipedia_dump import WikipediaDumpConfig
from tests.data_prep import reading

HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">
  <siteinfo><sitename>Wikipedia</sitename><dbname>dewiki</dbname><namespaces>
    <namespace key="-2" case="first-letter">Medium</namespace>
    <namespace key="0" case="first-letter" />
    <namespace key="6" case="first-letter">Datei</namespace>
    <namespace key="14" case="first-letter">Kategorie</namespace>
  </namespaces></siteinfo>
"""
FOOTER = "</mediawiki>\n"


def page(number: int, wikitext: str, *, ns: int = 0, extra: str = "") -> str:
    return (
        f"  <page>\n    <title>Page {number}</title>\n    <ns>{ns}</ns>\n    <id>{number}</id>\n"
        f"    {extra}<revision><id>{number + 1000}</id><timestamp>2020-01-01T00:00:00Z</timestamp>"
        f"<model>wikitext</model><text>{html.escape(wikitext)}</text></revision>\n  </page>\n"
    )


def dump(*pages: str) -> bytes:
    return (HEADER + "".join(pages) + FOOTER).encode()


def read(tmp_path, data: bytes, name: str = "dump.xml", **settings):
    path = tmp_path / name
    path.write_bytes(data)
    config = WikipediaDumpConfig(name="wiki", lang="de", paths=(str(path),), **settings)
    results = reading.read(config)
    return reading.documents(results), reading.rejects(results)


def read_in_parts(path, bounds, **settings):
    """All results of parts that begin at 0 and at every bound, in order."""
    return reading.read(WikipediaDumpConfig(name="wiki", lang="de", paths=(str(path),), **settings), bounds)


def multistream(*pages: str, pages_per_stream: int = 2) -> bytes:
    """A dump packed as dumps.wikimedia.org packs `pages-articles-multistream`."""
    groups = [
        "".join(pages[first : first + pages_per_stream]) for first in range(0, len(pages), pages_per_stream)
    ]
    return b"".join(bz2.compress(part.encode()) for part in (HEADER, *groups, FOOTER))


THREE = [page(number, f"Text of page {number}. " * 20) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("a.xml", lambda data: data.decode().encode("utf-16")),
        ("a.xml.bz2", lambda data: bz2.compress(data.decode().encode("utf-16-be"))),
    ],
)
def test_utf16_gives_the_same_documents(tmp_path, name, encode):
    documents, rejects = read(tmp_path, encode(dump(*THREE)), name)
    assert not rejects
    assert [document.doc_id for document in documents] == ["wiki:1", "wiki:2", "wiki:3"]
    assert documents[0].text == ("Text of page 1. " * 20).strip()
    assert (documents[0].title, documents[0].lang, documents[0].uri) == ("Page 1", "de", name)


def test_meta_gives_the_exact_bytes_of_the_page(tmp_path):
    data = dump(*THREE)
    documents, _ = read(tmp_path, bz2.compress(data))
    for document in documents:
        element = data[document.meta["byte_start"] : document.meta["byte_end"]]
        assert element.startswith(b"<page>")
        assert element.endswith(b"</page>")
        assert document.title.encode() in element


def test_links_to_files_and_categories_vanish_under_the_names_of_the_dumps_language(tmp_path):
    text = "[[Datei:A.jpg|mini|Ein [[Bild]]]]Ein [[Haus|Gebäude]].[[Kategorie:Bau]][[bild:alt.png|thumb|x]]"
    documents, _ = read(tmp_path, dump(page(1, text)))
    assert documents[0].text == "Ein Gebäude."


def test_a_truncated_bz2_is_rejected_with_its_offset_and_earlier_pages_are_kept(tmp_path):
    words = random.Random(0)
    pages = [page(n, " ".join(words.choices("abcdefghij klmnop", k=40_000))) for n in range(1, 60)]
    data = dump(*pages)
    compressed = bz2.compress(data, 1)
    cut = len(compressed) // 2
    documents, rejects = read(tmp_path, compressed[:cut], "a.xml.bz2")
    assert len(documents) > 10
    assert len(rejects) == 1
    assert f"bzip2 stream truncated at compressed byte {cut}" in rejects[0].reason
    assert rejects[0].byte_offset == data.index(b"<page>", documents[-1].meta["byte_end"])


def test_pages_behind_a_damaged_stream_of_a_multistream_dump_are_kept(tmp_path):
    streams = [bz2.compress(part.encode()) for part in (HEADER, *THREE, FOOTER)]
    streams[2] = streams[2][:40] + b"damage" + streams[2][46:]
    documents, rejects = read(tmp_path, b"".join(streams), "a.xml.bz2")
    assert [document.doc_id for document in documents] == ["wiki:1", "wiki:3"]
    assert len(rejects) == 1
    assert "bzip2 stream damaged" in rejects[0].reason


@pytest.mark.parametrize("end", ["</revision>", FOOTER])
def test_a_dump_cut_in_its_last_page_or_behind_it_is_rejected_where_it_is_not_whole(tmp_path, end):
    data = dump(*THREE)
    cut = data.rindex(end.encode())
    documents, rejects = read(tmp_path, data[:cut])
    assert len(documents) == (3 if end == FOOTER else 2)
    assert [reject.byte_offset for reject in rejects] == [cut if end == FOOTER else data.rindex(b"<page>")]


@pytest.mark.parametrize("packing", ["plain", "multistream"])
@given(data=st.data())
def test_a_cut_anywhere_never_raises_and_keeps_a_prefix_and_is_told_once(tmp_path_factory, packing, data):
    whole = multistream(*THREE) if packing == "multistream" else dump(*THREE)
    cut = data.draw(st.integers(0, len(whole) - 1))
    documents, rejects = read(tmp_path_factory.mktemp("cut"), whole[:cut])
    assert [document.doc_id for document in documents] == ["wiki:1", "wiki:2", "wiki:3"][: len(documents)]
    if packing == "plain":
        assert len(documents) == whole[:cut].count(b"</page>")
    is_whole = whole[:cut].rstrip().endswith(b"</mediawiki>")
    assert len(rejects) == (0 if is_whole else 1)


@pytest.mark.parametrize(
    "damage",
    [
        (b"Text of page 2", b"Te\xffxt of page 2"),
        (b"Text of page 2", b"Text <unclosed> of page 2"),
        (b"Text of page 2", b"Text &undefined; page 2"),
        (b"Text of page 2", b"Text \x03 page 2"),
        (b"<id>2</id>", b"<id>two</id>"),
        (b"<id>2</id>", b""),
        (b"<id>2</id>", b"<unexpected/>"),
        (b"<title>Page 2</title>", b"<title/>"),
        (b"2020-01-01T00:00:00Z</timestamp><model>wikitext</model><text>Text of page 2", b"never"),
    ],
)
def test_a_malformed_page_costs_only_itself(tmp_path, damage):
    data = dump(*THREE)
    start = data.index(b"<page>", data.index(b"</page>"))
    documents, rejects = read(tmp_path, data[:start] + data[start:].replace(*damage, 1))
    assert [document.doc_id for document in documents] == ["wiki:1", "wiki:3"]
    assert [reject.byte_offset for reject in rejects] == [start]


def test_a_page_over_the_limit_is_rejected(tmp_path):
    data = dump(THREE[0], page(2, "long " * 10_000), THREE[2])
    documents, rejects = read(tmp_path, data, max_page_bytes=10_000)
    assert [document.doc_id for document in documents] == ["wiki:1", "wiki:3"]
    assert "limit of 10000 bytes" in rejects[0].reason


@pytest.mark.parametrize(
    "data", [b"", b"plain text", b"<html><body>404</body></html>", bytes(range(256)) * 50]
)
def test_a_file_that_is_no_export_is_one_reject(tmp_path, data):
    documents, rejects = read(tmp_path, data)
    assert not documents
    assert len(rejects) == 1
    assert "not a MediaWiki XML export" in rejects[0].reason


def test_an_export_without_pages_is_whole(tmp_path):
    assert read(tmp_path, dump()) == ([], [])


def test_an_unreadable_header_is_told_and_the_pages_are_read(tmp_path):
    documents, rejects = read(tmp_path, dump(*THREE).replace(b"</namespaces>", b"</names>"))
    assert len(documents) == 3
    assert [reject.byte_offset for reject in rejects] == [0]


# -- parts --------------------------------------------------------------------------------------------------

MANY = [page(n, f"Text of [[Datei:A.jpg|mini|x]] page {n}. " * (n % 7), ns=n % 5 // 4) for n in range(1, 22)]
PACKINGS = {
    "plain": dump(*MANY),
    "plain, cut in a page": dump(*MANY)[:-60],
    "plain, cut between pages": dump(*MANY).removesuffix(FOOTER.encode()),
    "plain, damaged": dump(*MANY).replace(b"</page>", b"</pge>", 3).replace(b"<id>20</id>", b"<id/>"),
    "plain, no dump": b"not a dump " * 999,
    "plain, bad header": dump(*MANY).replace(b"</namespaces>", b"</names>"),
    "multistream": multistream(*MANY),
    "multistream, cut": multistream(*MANY)[:-150],
    "multistream, cut between streams": multistream(*MANY).removesuffix(bz2.compress(FOOTER.encode())),
}


@pytest.mark.parametrize("packing", PACKINGS)
@settings(max_examples=15)
@given(data=st.data())
def test_parts_together_read_as_the_whole_file_does(tmp_path_factory, packing, data):
    stored = bytearray(PACKINGS[packing])
    if packing == "multistream" and data.draw(st.booleans()):
        stored[data.draw(st.integers(400, len(stored) - 1))] ^= 0xFF
    path = tmp_path_factory.mktemp("parts") / "dump"
    path.write_bytes(stored)
    bounds = sorted(data.draw(st.sets(st.integers(1, len(stored)), max_size=6)))
    assert read_in_parts(path, bounds) == read_in_parts(path, [])


def test_documents_of_a_multistream_dump_name_their_stream_and_their_bytes_in_it(tmp_path):
    stored = multistream(*MANY)
    path = tmp_path / "dump"
    path.write_bytes(stored)
    documents = reading.documents(read_in_parts(path, []))
    assert len({document.meta["stream_start"] for document in documents}) > 5
    for document in documents:
        stream = bz2.BZ2Decompressor().decompress(stored[document.meta["stream_start"] :])
        element = stream[document.meta["byte_start"] : document.meta["byte_end"]]
        assert element.startswith(b"<page>")
        assert f"<title>{document.title}</title>".encode() in element
    (whole, _) = read(tmp_path, dump(*MANY))
    assert [document.text for document in documents] == [document.text for document in whole]


@pytest.mark.parametrize(
    "stored",
    [
        bz2.compress(dump(*MANY)),
        gzip.compress(dump(*MANY)),
        dump(*MANY).decode().encode("utf-16"),
        # pbzip2 cuts streams where their size is reached.
        bz2.compress(dump(*MANY)[:1500]) + bz2.compress(dump(*MANY)[1500:]),
        bz2.compress(HEADER.encode())
        + bz2.compress("".join(MANY).encode()[:1500])
        + bz2.compress("".join(MANY).encode()[1500:] + FOOTER.encode()),
    ],
)
def test_what_can_only_be_read_from_its_beginning_is_one_part(tmp_path, stored):
    path = tmp_path / "dump"
    path.write_bytes(stored)
    config = WikipediaDumpConfig(name="wiki", lang="de", paths=(str(path),))
    (file,) = config.list_files()
    assert config.split_file(file, len(stored), 100) == [FilePart(file)]
    (whole, _) = read(tmp_path, dump(*MANY))
    found = reading.documents(read_in_parts(path, []))
    assert [document.text for document in found] == [document.text for document in whole]


def test_indexes_beside_a_dump_are_not_read_as_dumps(tmp_path):
    for name in ("", "1"):
        (tmp_path / f"dewiki-pages-articles-multistream{name}.xml.bz2").write_bytes(multistream(*THREE))
        (tmp_path / f"dewiki-pages-articles-multistream-index{name}.txt.bz2").write_bytes(
            bz2.compress(b"5:1:A")
        )
    config = WikipediaDumpConfig(name="wiki", paths=(f"{tmp_path}/dewiki-*",))
    assert len(config.list_files()) == 2
    config = WikipediaDumpConfig(name="wiki", paths=(f"{tmp_path}/*index*",))
    with pytest.raises(MissingInputError, match="only indexes"):
        config.list_files()


# -- what is read at all ----------------------------------------------------------------------------------------


def test_what_is_no_article_is_counted_by_its_kind(tmp_path):
    path = tmp_path / "dump"
    pages = [page(1, "#REDIRECT [[B]]", extra='<redirect title="B" />'), page(2, "#WEITERLEITUNG [[B]]")]
    pages += [page(3, "Talk.", ns=1), page(4, "{{Disambig}}"), page(5, "{{Infobox}}"), page(6, "An article.")]
    path.write_bytes(dump(*pages))
    *skipped, document = read_in_parts(path, [])
    reasons = ["redirect", "redirect", "other_namespace", "disambiguation", "no_text"]
    assert skipped == [Skipped(reason) for reason in reasons]
    assert document.text == "An article."


def test_disambiguation_pages_are_dropped_unless_they_are_asked_for(tmp_path):
    data = dump(page(1, "'''A''' may refer to:\n* [[B]]\n{{Disambiguation|geo}}"), page(2, "An article."))
    for setting, numbers in (("drop", ["wiki:2"]), ("keep", ["wiki:1", "wiki:2"])):
        documents, rejects = read(tmp_path, data, disambiguation=setting)
        assert not rejects
        assert [document.doc_id for document in documents] == numbers


def test_formulas_are_kept_as_their_source_only_where_asked(tmp_path):
    text = r"So <math display='block'>\frac{{a}}{b} | [[c]]''</math> holds, and <ce>H2O</ce>."
    data = dump(page(1, text))
    assert read(tmp_path, data)[0][0].text == "So holds, and."
    kept = read(tmp_path, data, math="keep")[0][0].text
    assert kept == r"So $\frac{{a}}{b} | [[c]]''$ holds, and $H2O$."


def test_namespaces_are_told_by_number_or_else_by_title(tmp_path):
    pages = [page(1, "Film."), page(2, "Template.", ns=10), page(3, "B."), page(4, "C.")]
    pages[2] = pages[2].replace("<ns>0</ns>", "")
    pages[3] = pages[3].replace("<ns>0</ns>", "").replace("Page 4", "Datei:Page 4")
    documents, rejects = read(tmp_path, dump(*(each.replace("Page 1", "Alien: A") for each in pages)))
    assert not rejects
    assert [document.title for document in documents] == ["Alien: A", "Page 3"]


# -- too big ------------------------------------------------------------------------------------------------


def peak_bytes(tmp_path, stored: bytes, **settings) -> tuple[int, list, list]:
    tracemalloc.start()
    documents, rejects = read(tmp_path, stored, **settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, documents, rejects


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, zstandard.compress])
def test_a_bomb_inside_a_page_costs_that_page_and_little_memory(tmp_path, compress):
    bomb = page(2, "BOMB").encode().replace(b"BOMB", bytes(40 << 20))
    stored = compress((HEADER + THREE[0]).encode() + bomb + (THREE[2] + FOOTER).encode())
    del bomb
    peak, documents, rejects = peak_bytes(tmp_path, stored, max_page_bytes=1 << 20)
    assert [document.doc_id for document in documents] == ["wiki:1", "wiki:3"]
    assert [reject.reason for reject in rejects] == ["longer than the limit of 1048576 bytes"]
    assert peak < 32 << 20


def test_an_endless_line_without_pages_is_read_in_bounded_memory(tmp_path):
    peak, documents, rejects = peak_bytes(tmp_path, b"<mediawiki>" + b"x" * (24 << 20))
    assert not documents
    assert len(rejects) == 1
    assert peak < 10 << 20


@pytest.mark.parametrize(
    ("header", "lang", "found"),
    [
        ('<mediawiki version="0.10" xml:lang="it">', None, "it"),
        ("<mediawiki xml:lang='zh-Hans'>", None, "zh"),
        ('<mediawiki xml:lang="it">', "fr", "fr"),
        ("<mediawiki><siteinfo><dbname>frwiki</dbname></siteinfo>", None, "fr"),
        ("<mediawiki><siteinfo><base>https://es.wikipedia.org/wiki/X</base></siteinfo>", None, "es"),
        ("<mediawiki>", None, "en"),
    ],
)
def test_a_dump_tells_its_own_language(tmp_path, header, lang, found):
    path = tmp_path / "dump.xml"
    path.write_bytes((header + page(1, "A {{formatnum:1234.5}} b {{nowhere}} c") + FOOTER).encode())
    config = WikipediaDumpConfig(name="wiki", paths=(str(path),), lang=lang)
    document, left_out = reading.read(config)
    assert isinstance(document, Document)
    assert document.lang == found
    numbers = {"it": "1 234,5", "fr": "1 234,5", "es": "1234,5", "zh": "1,234.5", "en": "1,234.5"}
    assert document.text == f"A {numbers[found]} b c"
    assert left_out == LeftOut("templates", {"nowhere": 1})

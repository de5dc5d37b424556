"""MediaWiki dumps: what a reader sees, exact bytes, and poison that costs only itself."""

import bz2
import gzip
import html

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.artefacts.errors import MissingInputError
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


def multistream(*pages: str) -> bytes:
    """A dump packed as dumps.wikimedia.org packs `pages-articles-multistream`, two pages in a stream."""
    groups = ["".join(pages[first : first + 2]) for first in range(0, len(pages), 2)]
    return b"".join(bz2.compress(part.encode()) for part in (HEADER, *groups, FOOTER))


def read(tmp_path, data: bytes, bounds=(), **settings) -> reading.Results:
    return reading.read_file(WikipediaDumpConfig, tmp_path / "dump", data, bounds, **settings)


THREE = [page(number, f"Text of page {number}. " * 20) for number in (1, 2, 3)]
IDS = ["s:1", "s:2", "s:3"]


@pytest.mark.parametrize("pack", [bytes, bz2.compress])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be"])
def test_every_encoding_gives_the_same_documents(tmp_path, encoding, pack):
    found = read(tmp_path, pack(dump(*THREE).decode().encode(encoding)))
    assert (found.ids, len(found)) == (IDS, 3)
    assert found.texts[0] == ("Text of page 1. " * 20).strip()
    assert (found[0].title, found[0].lang) == ("Page 1", "de")


def test_meta_gives_the_exact_bytes_of_the_page_in_its_stream(tmp_path):
    stored = multistream(*MANY)
    documents = read(tmp_path, stored).documents
    assert len({document.meta["stream_start"] for document in documents}) > 5
    for document in documents:
        data = bz2.BZ2Decompressor().decompress(stored[document.meta["stream_start"] :])
        element = data[document.meta["byte_start"] : document.meta["byte_end"]]
        assert element.startswith(b"<page>")
        assert element.endswith(b"</page>")
        assert f"<title>{document.title}</title>".encode() in element


# -- damage -----------------------------------------------------------------------------------------------------


def test_pages_behind_a_damaged_stream_of_a_multistream_dump_are_kept(tmp_path):
    streams = [bz2.compress(part.encode()) for part in (HEADER, *THREE, FOOTER)]
    streams[2] = streams[2][:40] + b"damage" + streams[2][46:]
    found = read(tmp_path, b"".join(streams))
    assert found.ids == ["s:1", "s:3"]
    assert ["bzip2 stream damaged" in reject.reason for reject in found.rejects] == [True]


@given(data=st.data())
def test_a_multistream_dump_cut_anywhere_keeps_a_prefix_and_is_told_once(tmp_path_factory, data):
    whole = multistream(*THREE)
    found = read(tmp_path_factory.getbasetemp(), whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert (found.ids, len(found.rejects)) == (IDS[: len(found.ids)], 1)


def test_a_cut_within_a_page_or_behind_one_is_told_at_its_place(tmp_path):
    whole = dump(*THREE)
    page_start, page_end = whole.rindex(b"<page>"), whole.rindex(b"</page>") + len("</page>")
    assert read(tmp_path, whole[: page_end - 5]).offsets == [page_start]
    assert read(tmp_path, whole[:page_end]).offsets == [page_end]


@pytest.mark.parametrize(
    ("pack", "most"),
    [(bz2.compress, 32), (gzip.compress, 32), (zstandard.compress, 32), (None, 10)],
    ids=["bzip2", "gzip", "zstd", "endless line"],
)
def test_a_bomb_inside_a_page_or_before_any_costs_that_page_and_little_memory(tmp_path, pack, most):
    stored = b"<mediawiki>" + b"x" * (24 << 20)
    if pack:
        bomb = page(2, "BOMB").encode().replace(b"BOMB", bytes(40 << 20))
        stored = pack((HEADER + THREE[0]).encode() + bomb + (THREE[2] + FOOTER).encode())
        del bomb
    found, peak = reading.traced(lambda: read(tmp_path, stored, max_page_bytes=1 << 20))
    assert (found.ids, len(found.rejects)) == (["s:1", "s:3"] if pack else [], 1)
    assert peak < most << 20


# -- parts ------------------------------------------------------------------------------------------------------

MANY = [page(n, f"Text of [[Datei:A.jpg|mini|x]] page {n}. " * (n % 7), ns=n % 5 // 4) for n in range(1, 22)]
PACKINGS = {
    "plain, cut in a page": dump(*MANY)[:-60],
    "plain, cut between pages": dump(*MANY).removesuffix(FOOTER.encode()),
    "plain, bad header": dump(*MANY).replace(b"</namespaces>", b"</names>"),
    "multistream": multistream(*MANY),
    "multistream, cut": multistream(*MANY)[:-150],
    "multistream, cut between streams": multistream(*MANY).removesuffix(bz2.compress(FOOTER.encode())),
}


@pytest.mark.parametrize("packing", PACKINGS)
@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_parts_together_read_as_the_whole_file_does(tmp_path_factory, packing, data):
    stored = bytearray(PACKINGS[packing])
    if packing == "multistream" and data.draw(st.booleans()):
        stored[data.draw(st.integers(400, len(stored) - 1))] ^= 0xFF
    place = tmp_path_factory.getbasetemp()
    bounds = sorted(data.draw(st.sets(st.integers(1, len(stored)), max_size=6)))
    assert read(place, stored, bounds) == read(place, stored)


@pytest.mark.parametrize(
    "stored",
    [
        bz2.compress(dump(*MANY)),
        gzip.compress(dump(*MANY), mtime=0),
        dump(*MANY).decode().encode("utf-16"),
        # pbzip2 cuts streams where their size is reached.
        bz2.compress(dump(*MANY)[:1500]) + bz2.compress(dump(*MANY)[1500:]),
        bz2.compress(HEADER.encode())
        + bz2.compress("".join(MANY).encode()[:1500])
        + bz2.compress("".join(MANY).encode()[1500:] + FOOTER.encode()),
    ],
    ids=["bzip2", "gzip", "UTF-16", "pbzip2", "pages across streams"],
)
def test_what_can_only_be_read_from_its_beginning_is_one_part(tmp_path, stored):
    whole = read(tmp_path, dump(*MANY))
    assert read(tmp_path, stored).texts == whole.texts
    config = WikipediaDumpConfig(name="s", paths=(f"{tmp_path}/dump",))
    (file,) = config.list_files()
    assert config.split_file(file, len(stored), 100) == [file]


def test_indexes_beside_a_dump_are_not_read_as_dumps(tmp_path):
    for name in ("multistream.xml", "multistream1.xml", "multistream-index.txt", "multistream-index1.txt"):
        (tmp_path / f"dewiki-pages-articles-{name}.bz2").touch()
    config = WikipediaDumpConfig(name="s", paths=(f"{tmp_path}/dewiki-*",))
    assert [".xml" in file.name for file in config.list_files()] == [True, True]
    with pytest.raises(MissingInputError, match="index"):
        WikipediaDumpConfig(name="s", paths=(f"{tmp_path}/*index*",)).list_files()


# -- what is read at all ----------------------------------------------------------------------------------------

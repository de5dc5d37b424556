"""Wikipedia's dumps: exact bytes, damage and bombs that cost only themselves, archives of HTML, and real dumps."""

import bz2
import gzip
import io
import json
import random
import re
import tarfile

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.artefacts.errors import MissingInputError
from data_prep.sources.wikipedia_dump import WikipediaDumpConfig
from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig, WikipediaHtmlConfig
from tests.data_prep import reading

HEADER = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de"><siteinfo><namespaces>'
    '<namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">Datei</namespace>'
    "</namespaces></siteinfo>\n"
)
FOOTER = "</mediawiki>\n"


def page(number: int, wikitext: str, ns: int = 0) -> str:
    return (
        f"  <page>\n    <title>Page {number}</title>\n    <ns>{ns}</ns>\n    <id>{number}</id>\n    <revision>"
        f"<id>{number + 1000}</id><text>{wikitext}</text></revision>\n  </page>\n"
    )


def dump(*pages: str) -> bytes:
    return "".join([HEADER, *pages, FOOTER]).encode()


def multistream(*pages: str) -> bytes:
    """A dump packed as dumps.wikimedia.org packs `pages-articles-multistream`, two pages in a stream."""
    groups = ["".join(pages[first : first + 2]) for first in range(0, len(pages), 2)]
    return b"".join(bz2.compress(part.encode()) for part in (HEADER, *groups, FOOTER))


def read(tmp_path, data: bytes, bounds=(), **settings) -> reading.Results:
    return reading.read_file(WikipediaDumpConfig, tmp_path / "dump", data, bounds, **settings)


THREE = [page(number, f"Text of page {number}. " * 20) for number in (1, 2, 3)]
IDS = ["s:1", "s:2", "s:3"]
MANY = [page(n, f"Text of [[Datei:A.jpg|mini|x]] page {n}. " * (n % 7), n % 5 // 4) for n in range(1, 22)]


def test_meta_gives_the_exact_bytes_of_the_page_in_its_stream(tmp_path):
    stored = multistream(*MANY)
    documents = read(tmp_path, stored).documents
    assert len({document.meta["stream_start"] for document in documents}) > 5
    for document in documents:
        data = bz2.BZ2Decompressor().decompress(stored[document.meta["stream_start"] :])
        element = data[document.meta["byte_start"] : document.meta["byte_end"]].decode()
        assert re.fullmatch(rf"<page>\s*<title>{document.title}</title>.*</page>", element, re.DOTALL)


@pytest.mark.parametrize(
    "whole",
    [dump(*MANY), dump(*MANY).replace(b"</namespaces>", b"</names>"), multistream(*MANY)],
    ids=["plain", "bad header", "multistream"],
)
@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_parts_know_the_header_and_read_together_as_the_whole_file_does(tmp_path_factory, whole, data):
    stored = bytearray(whole)
    damage = data.draw(st.sampled_from(["none", "changed", "cut"]))
    place = data.draw(st.integers(len(stored) // 2, len(stored) - 1))
    if damage == "changed":
        stored[place] ^= 0xFF
    elif damage == "cut":
        del stored[place:]
    starts = [found.start() for found in re.finditer(b"BZh9|<page>", stored)][1:]
    places = st.integers(1, len(stored)) | st.sampled_from(starts)
    bounds = sorted(data.draw(st.sets(places, max_size=6)))
    found = read(tmp_path_factory.getbasetemp(), stored, bounds)
    assert found == read(tmp_path_factory.getbasetemp(), stored)
    assert found.documents


@given(data=st.data())
def test_a_multistream_dump_cut_anywhere_keeps_a_prefix_and_is_told_once(tmp_path_factory, data):
    whole = multistream(*THREE)
    found = read(tmp_path_factory.getbasetemp(), whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert (found.ids, len(found.rejects)) == (IDS[: len(found.ids)], 1)


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


@pytest.mark.parametrize(
    "stored",
    [
        bz2.compress(dump(*MANY)),
        dump(*MANY).decode().encode("utf-16"),
        # pbzip2 cuts streams where their size is reached.
        bz2.compress(dump(*MANY)[:1500]) + bz2.compress(dump(*MANY)[1500:]),
        bz2.compress(HEADER.encode())
        + bz2.compress(MANY[0].encode()[:99])
        + bz2.compress(dump(*MANY)[len(HEADER) + 99 :]),
    ],
    ids=["bzip2", "UTF-16", "pbzip2", "page across streams"],
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
    with pytest.raises(MissingInputError):
        WikipediaDumpConfig(name="s", paths=(f"{tmp_path}/*index*",)).list_files()


# -- HTML of Wikimedia Enterprise -------------------------------------------------------------------------------


def lines(*pages: tuple[int, str]) -> bytes:
    """Records of articles with these numbers."""
    return b"".join(
        json.dumps(
            {
                "name": f"Page {number}",
                "identifier": number,
                "url": f"https://it.wikipedia.org/wiki/Page_{number}",
                "in_language": {"identifier": "it"},
                "article_body": {"html": html},
            },
            ensure_ascii=False,
        ).encode()
        + b"\n"
        for number, html in pages
    )


def archive(*files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number, data in enumerate(files):
            member = tarfile.TarInfo(f"it_{number}.ndjson")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def read_html(tmp_path, data: bytes, **settings) -> reading.Results:
    return reading.read_file(WikipediaHtmlConfig, tmp_path / "itwiki-NS0.json", data, **settings)


@pytest.mark.parametrize("math", ["drop", "keep"])
def test_an_article_reads_as_on_the_page_without_its_furniture(tmp_path, math):
    html = reading.stored("crimean_mountains.html")
    document = read_html(tmp_path, lines((4016366, html)), math=math).only()
    assert document.text.replace(" $x^{2}$", "") == reading.stored("crimean_mountains.txt")
    assert document.text.count(" $x^{2}$") == (math == "keep")
    assert (document.doc_id, document.title, document.lang) == ("s:4016366", "Page 4016366", "it")
    assert document.meta["url"] == "https://it.wikipedia.org/wiki/Page_4016366"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_every_article_of_an_archive_knows_its_bytes(tmp_path, pack):
    tar = archive(lines((1, "<p>A.</p>"), (2, "<p>È così.</p>")), lines((3, "<p>B.</p>"))[:-1])
    documents = read_html(tmp_path, pack(tar))
    assert documents.ids == IDS
    for document in documents:
        line = tar[document.meta["byte_start"] : document.meta["byte_end"]]
        assert f"s:{json.loads(line)['identifier']}" == document.doc_id


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_a_damaged_archive_gives_what_comes_before_the_damage_and_one_reject(tmp_path, cut):
    noise = random.Random(1)
    pages = [(number, f"<p>{noise.randbytes(1000).hex()}</p>") for number in range(40)]
    tar = archive(lines(*pages), lines((99, "<p>C.</p>")))
    data = gzip.compress(tar)
    found = read_html(tmp_path, data[: int(len(data) * cut)])
    assert 0 < len(found.ids) < 40
    assert found.ids == [f"s:{number}" for number in range(len(found) - 1)]
    (offset,) = found.offsets
    assert tar[offset : offset + 8] == b'{"name":'


def test_furniture_is_found_in_thousands_of_sections_and_in_other_furniture(tmp_path):
    section = (
        "<h2>A<span class='mw-editsection'>[edit]</span></h2><p>b<sup class='x reference'>[1]</sup></p>"
        "<div class='navbox'><table><tr><td><div class='hatnote'>c</div></td></tr></table></div>"
    )
    assert read_html(tmp_path, lines((1, section * 3000))).texts == ["\n\n".join(["A\nb"] * 3000)]


# -- real dumps -------------------------------------------------------------------------------------------------

MARKUP = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||<ref|thumb\||Category:|'''")


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("pattern", "num_articles"), [("enwiki-table-markup*", 5), ("Wikipedia-2017*", 88), ("bgwiki*", 1)]
)
def test_real_dumps_give_articles_without_markup_in_their_script(corpora, pattern, num_articles):
    found = reading.read(WikipediaDumpConfig(name="s", paths=(f"{corpora}/wikipedia/dumps/{pattern}",)))
    assert (len(found.documents), found.rejects) == (num_articles, [])
    assert [document.title for document in found.documents if MARKUP.search(document.text)] == []
    assert all(len(text) > 100 for text in found.texts)
    letters = re.findall(r"[^\W\d_]", found.texts[0])
    share = sum("а" <= letter.lower() <= "я" for letter in letters) / len(letters)
    assert share > 0.95 if pattern == "bgwiki*" else share < 0.05


@pytest.mark.corpora
def test_extracted_english_articles_come_from_every_block(corpora):
    paths = [corpora / "wikipedia" / "extracted-en" / f"wiki_{number}" for number in ("00", "57")]
    found = reading.read(WikipediaExtractedConfig(name="s", paths=tuple(map(str, paths))))
    blocks = sum(path.read_bytes().count(b'<doc id="') for path in paths)
    assert found.rejects == []
    assert max(80, blocks - 2) <= len(found.documents) <= min(200, blocks)
    assert not any(document.text.startswith(document.title + "\n") for document in found.documents)

"""Wikimedia Enterprise's HTML dumps: what a reader sees, exact bytes in and out of archives, damage."""

import gzip
import io
import json
import random
import tarfile

import pytest

from data_prep.sources.wikipedia_extracted import WikipediaHtmlConfig
from tests.data_prep import reading


def record(number: int, html: str | None = "<p>Some text.</p>", **others) -> dict:
    return {
        "name": f"Page {number}",
        "identifier": number,
        "url": f"https://it.wikipedia.org/wiki/Page_{number}",
        "namespace": {"identifier": 0},
        "in_language": {"identifier": "it"},
        "is_part_of": {"identifier": "itwiki"},
        "article_body": {"html": html, "wikitext": "x"},
    } | others


def lines(*records) -> bytes:
    return b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in records)


def archive(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def read(tmp_path, data: bytes, **settings) -> reading.Results:
    return reading.read_file(WikipediaHtmlConfig, tmp_path / "itwiki-NS0.json", data, **settings)


@pytest.mark.parametrize("math", ["drop", "keep"])
def test_an_article_reads_as_on_the_page_without_its_furniture(tmp_path, math):
    html = reading.stored("crimean_mountains.html")
    document = read(tmp_path, lines(record(4016366, html)), math=math).only()
    assert document.text.replace(" $x^{2}$", "") == reading.stored("crimean_mountains.txt")
    assert document.text.count(" $x^{2}$") == (math == "keep")
    assert (document.doc_id, document.title, document.lang) == ("s:4016366", "Page 4016366", "it")
    assert document.meta["url"] == "https://it.wikipedia.org/wiki/Page_4016366"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_every_article_of_an_archive_knows_its_bytes(tmp_path, pack):
    first = lines(record(1), record(2, "<p>È così.</p>"))
    tar = archive(**{"it_0.ndjson": first, "it_1.ndjson": lines(record(3))[:-1]})
    documents = read(tmp_path, pack(tar))
    assert documents.ids == ["s:1", "s:2", "s:3"]
    for document in documents:
        line = tar[document.meta["byte_start"] : document.meta["byte_end"]]
        assert f"s:{json.loads(line)['identifier']}" == document.doc_id


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_a_damaged_archive_gives_what_comes_before_the_damage_and_one_reject(tmp_path, cut):
    noise = random.Random(1).randbytes(40_000).hex()
    pages = [record(number, f"<p>{noise[2000 * number :][:2000]}</p>") for number in range(40)]
    tar = archive(a=lines(*pages), b=lines(record(99)))
    data = gzip.compress(tar)
    found = read(tmp_path, data[: int(len(data) * cut)])
    assert 0 < len(found.ids) < 40
    assert found.ids == [f"s:{number}" for number in range(len(found) - 1)]
    (offset,) = found.offsets
    assert tar[offset : offset + 8] == b'{"name":'


def test_furniture_is_found_in_thousands_of_sections_and_in_other_furniture(tmp_path):
    section = (
        "<h2>A<span class='mw-editsection'>[edit]</span></h2><p>b<sup class='x reference'>[1]</sup></p>"
        "<div class='navbox'><table><tr><td><div class='hatnote'>c</div></td></tr></table></div>"
    )
    assert read(tmp_path, lines(record(1, section * 3000))).texts == ["\n\n".join(["A\nb"] * 3000)]

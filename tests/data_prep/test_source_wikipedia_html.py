"""Wikimedia Enterprise's HTML dumps: what a reader sees, exact bytes in and out of archives, damage."""

import gzip
import io
import json
import random
import tarfile

import pytest

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import Skipped
from data_prep.sources.wikipedia_html import WikipediaHtmlConfig
from tests.data_prep import reading

CRIMEAN_MOUNTAINS = (
    '<!DOCTYPE html>\n<html about="https://en.wikipedia.org/wiki/Special:Redirect/revision/1147024636"><head>'
    '<meta charset="utf-8"/><title>Crimean Mountains</title></head><body lang="en" class="mw-parser-output">'
    '<section data-mw-section-id="0"><div class="shortdescription noprint" style="display:none">Mountain range</div>'
    '<div role="note" class="hatnote">For the song, see <a href="./X">X</a>.</div>'
    '<style typeof="mw:Extension/templatestyles">.a{color:red}</style><table class="infobox vcard"><tbody><tr>'
    "<th>Elevation</th><td>1,545 m</td></tr></tbody></table>\n"
    '<p>The <b>Crimean Mountains</b> (<a rel="mw:WikiLink" href="./Ukrainian_language">Ukrainian</a><span>: </span>'
    '<span lang="uk">Кримські гори</span>) are about <span typeof="mw:Transclusion" data-mw=\'{"parts":[]}\'>1,545 '
    'metres (5,069</span><span typeof="mw:Entity">\u00a0</span><span>ft)</span> high.<sup typeof="mw:Extension/ref" '
    'class="mw-ref reference" id="cite_ref-1"><a href="#cite_note-1"><span class="mw-reflink-text">[1]</span></a></sup>'
    ' It is H<sub>2</sub>O<sup class="noprint Inline-Template">[<i>citation needed</i>]</sup> at '
    '<span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display: none;"><math alttext="'
    '{\\displaystyle x^{2}}"><semantics><mi>x</mi><annotation encoding="application/x-tex">{\\displaystyle x^{2}}'
    '</annotation></semantics></math></span><img class="mwe-math-fallback-image-inline" alt="{\\displaystyle x^{2}}"/>'
    '</span> m.</p><figure typeof="mw:File/Thumb"><a href="./File:A.jpg"><img/></a><figcaption>A caption</figcaption>'
    '</figure></section><section data-mw-section-id="1"><div class="mw-heading mw-heading2"><h2 id="Peaks"><i>Highest'
    '</i> peaks</h2><span class="mw-editsection">[edit]</span></div><ul><li>Ai-Petri</li><li>Roman-Kosh</li></ul>'
    "<pre>a\n  b</pre></section>"
    '<section data-mw-section-id="2"><h2 id="References">References</h2><section><h3>Notes</h3><div class="mw-'
    'references-wrap"><ol class="mw-references references"><li><span class="mw-cite-backlink">↑</span> Smith</li></ol>'
    '</div></section></section><div role="navigation" class="navbox">Mountains of Europe</div></body></html>'
)  # fmt: skip
TEXT = (
    "The Crimean Mountains (Ukrainian: Кримські гори) are about 1,545 metres (5,069 ft) high. It is H2O at{formula} m."
    "\n\nHighest peaks\n  Ai-Petri\n  Roman-Kosh\na\n  b"
)


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


def read(tmp_path, data: bytes, name: str = "itwiki-NS0-20240101-ENTERPRISE-HTML.json.tar.gz", **settings):
    path = tmp_path / name
    path.write_bytes(data)
    return reading.read_split(
        WikipediaHtmlConfig(name="wiki", paths=(str(path),), **settings), len(data), 1000
    )


@pytest.mark.parametrize(("math", "formula"), [("drop", ""), ("keep", " $x^{2}$")])
def test_an_article_reads_as_on_the_page_without_its_furniture(tmp_path, math, formula):
    (document,) = read(tmp_path, lines(record(4016366, CRIMEAN_MOUNTAINS)), "a.ndjson", math=math)
    assert document.text == TEXT.format(formula=formula)
    assert (document.doc_id, document.title, document.lang) == ("wiki:4016366", "Page 4016366", "it")
    assert document.meta["url"] == "https://it.wikipedia.org/wiki/Page_4016366"


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["tar", "tar.gz"])
def test_every_article_of_an_archive_knows_its_bytes(tmp_path, pack):
    first = lines(record(1), record(2, "<p>È così.</p>"))
    tar = archive(**{"it_0.ndjson": first, "it_1.ndjson": lines(record(3))[:-1]})
    documents = read(tmp_path, pack(tar))
    assert [document.doc_id for document in documents] == ["wiki:1", "wiki:2", "wiki:3"]
    for document in documents:
        line = tar[document.meta["byte_start"] : document.meta["byte_end"]]
        assert f"wiki:{json.loads(line)['identifier']}" == document.doc_id


def test_lines_that_are_no_articles_are_told_and_cost_only_themselves(tmp_path):
    bad = [b'{"name": "cut', b"[1]", b'{"article_body": {"html": 5}}', b'{"article_body": {"html": "<p>x"}}']
    data = b"\n".join([*bad, b"", lines(record(9))])
    rejects = read(tmp_path, data, "a.json")
    document = rejects.pop()
    assert isinstance(document, Document)
    assert [type(each) for each in rejects] == [Reject] * 4
    offsets = [reject.byte_offset for reject in rejects]
    assert offsets == [data.index(line) for line in bad]


def test_pages_that_are_no_articles_are_skipped_by_their_reason(tmp_path):
    disambiguation = '<meta property="mw:PageProp/disambiguation"/><p>A may be:</p>'
    results = read(
        tmp_path,
        lines(
            record(1, namespace={"identifier": 14}),
            record(2, disambiguation),
            record(3, None),
            record(4, "<table><tr><td>x</td></tr></table>"),
            record(5, in_language=None, is_part_of={"in_language": {"identifier": "pt-br"}}),
        ),
        "a.json",
    )
    reasons = ["other_namespace", "disambiguation", "no_text", "no_text"]
    assert results[:4] == [Skipped(reason) for reason in reasons]
    assert results[4].lang == "pt"
    assert (
        read(tmp_path, lines(record(2, disambiguation)), "a.json", disambiguation="keep", lang="fr")[0].lang
        == "fr"
    )


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_a_damaged_archive_gives_what_comes_before_the_damage_and_one_reject(tmp_path, cut):
    noise = random.Random(1).randbytes(40_000).hex()
    pages = [record(number, f"<p>{noise[2000 * number :][:2000]}</p>") for number in range(40)]
    tar = archive(a=lines(*pages), b=lines(record(99)))
    data = gzip.compress(tar)
    *documents, reject = read(tmp_path, data[: int(len(data) * cut)])
    assert [document.doc_id for document in documents] == [
        f"wiki:{number}" for number in range(len(documents))
    ]
    assert 0 < len(documents) < 40
    assert isinstance(reject, Reject)
    assert tar[reject.byte_offset : reject.byte_offset + 8] == b'{"name":'


def test_deep_pages_and_long_lines_are_rejected(tmp_path):
    deep = record(1, "<div>" * 600 + "x")
    first, second = read(tmp_path, lines(deep, record(2, "y" * 9000)), "a.json", max_line_bytes=8000)
    assert "elements inside each other" in first.reason
    assert "longer than the limit" in second.reason


def test_furniture_is_found_in_thousands_of_sections_and_in_other_furniture(tmp_path):
    section = (
        "<h2>A<span class='mw-editsection'>[edit]</span></h2><p>b<sup class='x reference'>[1]</sup></p>"
        "<div class='navbox'><table><tr><td><div class='hatnote'>c</div></td></tr></table></div>"
    )
    (document,) = read(tmp_path, lines(record(1, section * 3000)), "a.json")
    assert document.text == "\n\n".join(["A\nb"] * 3000)

"""WikiExtractor's files: blocks with exact bytes, and damage that costs one block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig
from tests.data_prep import reading


def block(number: int, body: str, title: str = "") -> str:
    title = title or f"Title {number}"
    url = f"https://ko.wikipedia.org/wiki?curid={number}"
    return f'<doc id="{number}" url="{url}" title="{title}">\n{title}\n\n{body}\n\n</doc>\n'


THREE = "".join(block(number, f"Body of {number}.\nSecond line.") for number in (1, 2, 3)).encode()


def read(tmp_path, data: bytes, **settings):
    (tmp_path / "AA").mkdir(exist_ok=True)
    (tmp_path / "AA" / "wiki_00").write_bytes(data)
    config = WikipediaExtractedConfig(name="ko", lang="ko", paths=(f"{tmp_path}/**/wiki_*",), **settings)
    results = reading.read(config)
    return reading.documents(results), reading.rejects(results)


def test_every_block_is_a_document_without_its_repeated_title(tmp_path):
    documents, rejects = read(tmp_path, THREE)
    assert not rejects
    assert [document.doc_id for document in documents] == ["ko:1", "ko:2", "ko:3"]
    assert documents[1].title == "Title 2"
    assert documents[1].text == "Body of 2.\nSecond line."
    assert documents[1].uri == "AA/wiki_00"


def test_meta_gives_the_exact_bytes_of_the_block(tmp_path):
    for document in read(tmp_path, THREE)[0]:
        found = THREE[document.meta["byte_start"] : document.meta["byte_end"]]
        assert found.startswith(b'<doc id="')
        assert found.endswith(b"</doc>")
        assert document.title.encode() in found


def test_entities_are_resolved_and_other_ampersands_stay(tmp_path):
    text = "a &lt; b &amp;&#8212; AT&T &B; http://x?a=1&copy=2"
    documents, _ = read(tmp_path, block(1, text, title="Q&amp;A").encode())
    assert documents[0].text == "a < b &— AT&T &B; http://x?a=1&copy=2"
    assert documents[0].title == "Q&A"


@pytest.mark.parametrize(
    "attributes",
    [
        'id="7" revid="9" url="u" title="The "Best" of"',
        'id="7" url="u" title="The "Best" of" nonfiltered="2" processed="1" dbindex="3"',
    ],
)
def test_titles_with_quotes_and_extra_attributes_are_read(tmp_path, attributes):
    (document,), rejects = read(tmp_path, f'<doc {attributes}>\nThe "Best" of\n\nText.\n</doc>\n'.encode())
    assert not rejects
    assert (document.title, document.text) == ('The "Best" of', "Text.")


def test_blocks_with_nothing_but_a_title_are_skipped(tmp_path):
    assert read(tmp_path, block(1, "").encode()) == ([], [])


def test_tags_shown_within_a_line_do_not_end_a_block(tmp_path):
    documents, rejects = read(tmp_path, block(1, "Solr writes <doc id=1> and </doc> for records.").encode())
    assert not rejects
    assert "for records." in documents[0].text


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ((b"Body of 2", b"Body \xff of 2"), "invalid UTF-8"),
        ((b'id="2"', b"id=2"), "malformed block header"),
        ((b'Second line.\n\n</doc>\n<doc id="3"', b'Second line.\n<doc id="3"'), "again before"),
        ((b"Body of 2", b"Body of 2" * 100), "longer than the limit"),
    ],
)
def test_a_malformed_block_costs_only_itself(tmp_path, damage, reason):
    start = THREE.index(b'<doc id="2"')
    data = THREE[:start] + THREE[start:].replace(*damage, 1)
    documents, rejects = read(tmp_path, data, max_block_bytes=500)
    assert [document.doc_id for document in documents] == ["ko:1", "ko:3"]
    assert [reject.byte_offset for reject in rejects] == [start]
    assert reason in rejects[0].reason


def test_text_outside_of_blocks_is_rejected_at_its_offset(tmp_path):
    documents, rejects = read(tmp_path, b"\nstray" + b"\n" + THREE)
    assert len(documents) == 3
    assert [reject.byte_offset for reject in rejects] == [1]


def test_the_address_of_an_article_tells_its_language(tmp_path):
    path = tmp_path / "wiki_00"
    path.write_text(
        '<doc id="5" url="https://ko.wikipedia.org/wiki?curid=5" title="a">\na\n\n지미 카터\n</doc>\n'
        '<doc id="6" url="" title="b">\nb\n\ntext\n</doc>\n'
    )
    langs = []
    for lang in (None, "de"):
        config = WikipediaExtractedConfig(name="wiki", paths=(str(path),), lang=lang)
        langs.append([document.lang for document in reading.read(config)])
    assert langs == [["ko", "en"], ["de", "de"]]


@given(cut=st.integers(0, len(THREE)))
def test_a_cut_anywhere_never_raises_and_keeps_a_prefix(tmp_path_factory, cut):
    documents, rejects = read(tmp_path_factory.mktemp("cut"), THREE[:cut])
    assert [document.doc_id for document in documents] == ["ko:1", "ko:2", "ko:3"][: len(documents)]
    assert len(rejects) <= 1
    assert (
        rejects or THREE[:cut].rstrip() in (b"", THREE.rstrip()) or THREE[:cut].rstrip().endswith(b"</doc>")
    )

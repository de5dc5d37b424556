"""WikiExtractor's files: blocks with exact bytes, and damage that costs one block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.sources.base import Skipped
from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig
from tests.data_prep import reading


def block(number: int, body: str, title: str = "") -> str:
    title = title or f"Title {number}"
    url = f"https://ko.wikipedia.org/wiki?curid={number}"
    return f'<doc id="{number}" url="{url}" title="{title}">\n{title}\n\n{body}\n\n</doc>\n'


THREE = "".join(block(number, f"Body of {number}.\nSecond line.") for number in (1, 2, 3)).encode()


def read(tmp_path, data: str | bytes, **settings) -> reading.Results:
    data = data.encode() if isinstance(data, str) else data
    return reading.read_file(WikipediaExtractedConfig, tmp_path / "wiki_00", data, **settings)


def test_every_block_is_a_document_without_its_repeated_title_that_knows_its_bytes(tmp_path):
    found = read(tmp_path, THREE)
    assert (found.ids, len(found)) == (["s:1", "s:2", "s:3"], 3)
    assert found.texts[1] == "Body of 2.\nSecond line."
    for number, document in enumerate(found.documents, 1):
        element = THREE[document.meta["byte_start"] : document.meta["byte_end"]].decode()
        assert document.title == f"Title {number}"
        assert element + "\n" == block(number, f"Body of {number}.\nSecond line.")


def test_entities_are_resolved_and_other_ampersands_stay(tmp_path):
    text = "a &lt; b &amp;&#8212; AT&T &B; http://x?a=1&copy=2"
    document = read(tmp_path, block(1, text, title="Q&amp;A")).only()
    assert (document.title, document.text) == ("Q&A", "a < b &— AT&T &B; http://x?a=1&copy=2")


@pytest.mark.parametrize(
    "attributes",
    [
        'id="7" revid="9" url="u" title="The "Best" of"',
        'id="7" url="u" title="The "Best" of" nonfiltered="2" processed="1" dbindex="3"',
    ],
)
def test_titles_with_quotes_and_extra_attributes_are_read(tmp_path, attributes):
    document = read(tmp_path, f'<doc {attributes}>\nThe "Best" of\n\nText.\n</doc>\n').only()
    assert (document.title, document.text) == ('The "Best" of', "Text.")


def test_blocks_with_nothing_but_a_title_are_skipped_and_tags_within_a_line_end_none(tmp_path):
    inside = "Solr writes <doc id=1> and </doc> for records."
    skipped, document = read(tmp_path, block(1, "") + block(2, inside))
    assert isinstance(skipped, Skipped)
    assert document.text == inside


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
    found = read(tmp_path, THREE[:start] + THREE[start:].replace(*damage, 1), max_block_bytes=500)
    assert (found.ids, found.offsets) == (["s:1", "s:3"], [start])
    assert reason in found.rejects[0].reason


def test_text_outside_of_blocks_is_rejected_at_its_offset(tmp_path):
    found = read(tmp_path, b"\nstray\n" + THREE)
    assert (len(found.documents), found.offsets) == (3, [1])


def test_the_address_of_an_article_tells_its_language(tmp_path):
    data = block(5, "지미 카터") + '<doc id="6" url="" title="b">\nb\n\ntext\n</doc>\n'
    assert [each.lang for each in read(tmp_path, data)] == ["ko", "en"]
    assert [each.lang for each in read(tmp_path, data, lang="de")] == ["de", "de"]


@given(cut=st.integers(0, len(THREE)))
def test_a_cut_anywhere_keeps_a_prefix_and_is_told(tmp_path_factory, cut):
    found = read(tmp_path_factory.getbasetemp(), THREE[:cut])
    kept = THREE[:cut].rstrip()
    assert found.ids == ["s:1", "s:2", "s:3"][: kept.count(b"</doc>")]
    assert len(found.rejects) == (0 if not kept or kept.endswith(b"</doc>") else 1)

"""The sources on real corpora. They need the folder named by CLOZE_DATA."""

import itertools
import re
from pathlib import Path

import pytest

from data_prep.document import Document
from data_prep.sources.base import SourceConfig
from data_prep.sources.books import BooksTextConfig
from data_prep.sources.wikipedia_dump import WikipediaDumpConfig
from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig
from tests.data_prep import reading
from tests.data_prep.test_wrapping import mid_sentence

pytestmark = pytest.mark.corpora
MARKUP = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||<ref|thumb\||Category:|'''")


def read(kind: type[SourceConfig], *paths: str, **settings) -> list[Document]:
    """All documents; there must be no reject."""
    found = reading.read(kind.model_validate({"name": "s", "paths": paths, **settings}))
    assert found.rejects == []
    return found.documents


@pytest.mark.parametrize(
    ("pattern", "num_articles"), [("enwiki-table-markup*", 5), ("Wikipedia-2017*", 88), ("bgwiki*", 1)]
)
def test_real_dumps_give_articles_without_markup_in_their_script(corpora, pattern, num_articles):
    documents = read(WikipediaDumpConfig, f"{corpora}/wikipedia/dumps/{pattern}")
    assert len(documents) == num_articles
    assert [document.title for document in documents if MARKUP.search(document.text)] == []
    assert all(len(document.text) > 100 for document in documents)
    letters = re.findall(r"[^\W\d_]", documents[0].text)
    share = sum("а" <= letter.lower() <= "я" for letter in letters) / len(letters)
    assert share > 0.95 if pattern == "bgwiki*" else share < 0.05


def test_the_first_pages_of_an_english_dump_are_plausible(corpora):
    config = WikipediaDumpConfig(name="wikipedia", paths=(f"{corpora}/wikipedia/dumps/enwiki-latest*",))
    (file,) = config.list_files()
    results = (result for result in config.read(file) if isinstance(result, Document))
    documents = list(itertools.islice(results, 8))
    assert documents[0].title == "Anarchism"
    assert documents[0].text.startswith("Anarchism is a political philosophy")
    assert not any(MARKUP.search(document.text) for document in documents)


def test_extracted_english_articles_come_from_every_block(corpora):
    paths = [f"{corpora}/wikipedia/extracted-en/wiki_{number}" for number in ("00", "57")]
    documents = read(WikipediaExtractedConfig, *paths)
    blocks = sum(Path(path).read_bytes().count(b'<doc id="') for path in paths)
    assert blocks - 2 <= len(documents) <= blocks
    assert 80 < len(documents) < 200
    assert not any(document.text.startswith(document.title + "\n") for document in documents)


def test_real_novels_are_paragraphs_whatever_their_line_breaks(corpora):
    names = ("Dickens_Bleak_1853", "Kipling_Kim_1901", "Anon_Clara_1864", "Woolf_Lighthouse_1927")
    for document in read(BooksTextConfig, *(f"{corpora}/books/en/{name}.txt" for name in names)):
        paragraphs = document.text.replace("\n\n\n", "\n\n").split("\n\n")
        assert "\r" not in document.text
        verse = [paragraph for paragraph in paragraphs if "\n" in paragraph]
        assert sum(map(len, verse)) < 0.01 * len(document.text)
        assert all(len(line) < 60 for paragraph in verse for line in paragraph.split("\n"))
        assert 150 < len(document.text) / len(paragraphs) < 1200, document.title


def test_hardly_a_paragraph_of_eighty_novels_begins_in_mid_sentence(corpora):
    documents = read(BooksTextConfig, f"{corpora}/books/en/*.txt")
    starts = [line for document in documents for line in re.split("\n\n+", document.text)]
    assert len(documents) == 80
    assert mid_sentence(starts) < 0.003

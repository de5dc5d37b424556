"""Training text: drawn by source and language, by hash, whatever the shards are."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.artefacts.errors import ConfigError
from data_prep.document import Document
from data_prep.selection import Selection, write_selection
from data_prep.stages.make_tokenizer import (
    add_histograms,
    drawn_texts,
    plan_draws,
    write_histogram,
)
from data_prep.tokenizers import ByteLevelBPE
from tests.data_prep.tokenizers.materials import write_shard


def document(number: int, source: str, lang: str, size: int) -> Document:
    text = f"{source}-{lang}-{number}-".ljust(size, "x")
    return Document(f"{source}:{number}", source, "file", "title", lang, text)


def draw(tmp_path: Path, shards: list[list[Document]], kept=None, **changes) -> list[str]:
    """Texts that are drawn of shards that each hold one source, in order."""
    files = []
    for number, documents in enumerate(shards):
        path = tmp_path / f"{number}.parquet"
        selection = write_shard(path, documents, kept and kept[number])
        write_histogram(path, selection, tmp_path / f"{number}.sample")
        files.append((documents[0].source if documents else "none", path, selection))
    histograms = add_histograms([(source, path.with_suffix(".sample")) for source, path, _ in files])
    draws = plan_draws(histograms, ByteLevelBPE(**changes))
    found = []
    for source, path, selection in files:
        own = {lang: each for (name, lang), each in draws.items() if name == source}
        found += drawn_texts(path, selection, own)
    return found


def bytes_by(texts: list[str], part: int) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in texts:
        name = text.split("-")[part]
        sizes[name] = sizes.get(name, 0) + len(text)
    return sizes


def corpus(source: str, lang: str, count: int, first: int = 0) -> list[Document]:
    return [document(number, source, lang, 100) for number in range(first, first + count)]


@settings(
    max_examples=settings.default.max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    cuts=st.sets(st.integers(1, 79), max_size=5),
    sizes=st.lists(st.integers(20, 300), min_size=80, max_size=80),
    train_bytes=st.integers(1, 30_000),
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_the_draw_does_not_depend_on_the_shards(tmp_path, cuts, sizes, train_bytes, alpha):
    langs = ["en", "de", "en", "en", "ko"]
    documents = [document(n, "wiki", langs[n % 5], size) for n, size in enumerate(sizes)]
    bounds = [0, *sorted(cuts), len(documents)]
    shards = [documents[a:b] for a, b in pairwise(bounds)]
    wanted = {"train_bytes": train_bytes, "alpha": alpha}
    assert draw(tmp_path, shards, **wanted) == draw(tmp_path, [documents], **wanted)


def test_text_comes_evenly_from_the_corpus_up_to_the_bytes_asked_for(tmp_path):
    shards = [corpus("wiki", "en", 1000), corpus("books", "en", 3000)]
    texts = draw(tmp_path, shards, train_bytes=100_000)
    assert 100_000 <= sum(map(len, texts)) <= 101_000
    assert len(set(texts)) == len(texts)
    assert bytes_by(texts, 0)["books"] == pytest.approx(75_000, rel=0.01)


def test_a_corpus_smaller_than_asked_for_is_taken_whole_and_once_and_at_least_one_document(tmp_path):
    documents = corpus("wiki", "en", 20)
    assert draw(tmp_path, [documents, []]) == [each.text for each in documents]
    assert len(draw(tmp_path, [documents], train_bytes=1)) == 1


def test_sources_share_the_text_by_weight(tmp_path):
    shards = [corpus("wiki", "en", 2000), corpus("books", "en", 1000)]
    texts = draw(tmp_path, shards, train_bytes=60_000, weights={"wiki": 1, "books": 3})
    assert bytes_by(texts, 0) == pytest.approx({"wiki": 15_000, "books": 45_000}, rel=0.02)
    alone = draw(tmp_path, shards, train_bytes=60_000, weights={"wiki": 0, "books": 3})
    assert set(bytes_by(alone, 0)) == {"books"}


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_languages_share_the_text_by_their_size_to_the_power_of_alpha(tmp_path, alpha):
    counts = {"en": 1600, "de": 300, "ko": 100}
    langs = [lang for lang, count in counts.items() for _ in range(count)]
    documents = [document(number, "wiki", lang, 100) for number, lang in enumerate(langs)]
    sizes = bytes_by(draw(tmp_path, [documents], train_bytes=60_000, alpha=alpha), 1)
    powers = {lang: (count / 2000) ** alpha for lang, count in counts.items()}
    scale = sum(powers.values())
    assert sizes == pytest.approx({lang: 60_000 * p / scale for lang, p in powers.items()}, rel=0.03)


def test_a_small_language_repeats_its_documents_to_have_its_share(tmp_path):
    documents = [*corpus("wiki", "en", 90), *corpus("wiki", "ko", 10, 90)]
    texts = draw(tmp_path, [documents], alpha=0.0)
    assert bytes_by(texts, 1) == {"en": 5000, "ko": 5000}
    assert {texts.count(each.text) for each in documents[90:]} == {5}


def test_what_was_dropped_or_cut_out_is_not_drawn(tmp_path):
    documents = corpus("wiki", "en", 10)
    assert draw(tmp_path, [documents], [[2, 5]]) == [documents[2].text, documents[5].text]
    path = tmp_path / "cut.parquet"
    selection = write_shard(path, documents)
    write_selection(selection, Selection(np.array([3]), np.array([1]), np.array([[0, 90]])))
    write_histogram(path, selection, tmp_path / "cut.sample")
    histograms = add_histograms([("wiki", tmp_path / "cut.sample")])
    assert {name: int(counts.sum()) for name, counts in histograms.items()} == {("wiki", "en"): 10}


def test_weights_must_name_a_source_with_text(tmp_path):
    with pytest.raises(ConfigError):
        draw(tmp_path, [corpus("wiki", "en", 5)], weights={"wiki": 0, "books": 1})
    with pytest.raises(ValidationError):
        ByteLevelBPE(weights={"wiki": 0})

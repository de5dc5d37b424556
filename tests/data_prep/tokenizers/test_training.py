"""Training of tokenizers: what text is drawn, what a trainer gets of it, the same bytes every time, sound advice."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.document import Document
from data_prep.ragged import Ragged
from data_prep.selection import Selection, write_selection
from data_prep.stages.make_tokenizer import (
    Draw,
    add_histograms,
    drawn_texts,
    plan_draws,
    train_tokenizer,
    write_histogram,
)
from data_prep.token_writer import write_tokenizer
from data_prep.tokenizers import ByteLevelBPE, SentencePiece, WordLexicon, WordPiece
from data_prep.tokenizers.pretrained import Published, convert_tokenizer, find_tokenizer
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from data_prep.tokenizers.training import PARTS, cut_long_words
from tests.data_prep.tokenizers.materials import corpus, write_shard

ROBERTA = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
KINDS = {
    "byte-level BPE": (ByteLevelBPE(vocab_size=700), ROBERTA),
    "wordpiece": (WordPiece(vocab_size=700), {"bos": 2, "pad": 0, "eos": 3, "unk": 1, "mask": 4}),
    "word lexicon": (WordLexicon(vocab_size=1024), ROBERTA),
    "unigram": (SentencePiece(vocab_size=600), ROBERTA | {"mask": 599}),
    "SentencePiece BPE": (SentencePiece(vocab_size=600, model="bpe"), ROBERTA | {"mask": 599}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_texts_give_the_same_bytes_a_full_vocabulary_and_its_special_tokens(kind):
    config, specials = KINDS[kind]
    trained = config.train(iter(corpus()))[0]
    assert config.train(corpus())[0] == trained
    tokenizer = Tokenizer.from_str(trained)
    assert vocabulary_size(tokenizer) == config.vocab_size
    assert find_special_tokens(tokenizer) == specials
    ids = tokenizer.encode("some text").ids
    # As in T5, nothing stands before the text of SentencePiece.
    assert (ids[0] == specials["bos"], ids[-1]) == (not isinstance(config, SentencePiece), specials["eos"])


@pytest.fixture(scope="module", params=["byte-level BPE", "unigram", "SentencePiece BPE"])
def of_any_text(request):
    tokenizer = Tokenizer.from_str(KINDS[request.param][0].train(corpus())[0])
    tokenizer.encode_special_tokens = True
    return tokenizer


@given(text=st.text(max_size=50))
def test_characters_that_training_did_not_see_are_not_lost(of_any_text, text):
    ids = of_any_text.encode(text, add_special_tokens=False).ids
    assert ROBERTA["unk"] not in ids
    if of_any_text.normalizer is None:
        assert of_any_text.decode(ids, skip_special_tokens=False) == text


def test_a_pretrained_tokenizer_is_copied_byte_for_byte_and_an_unusable_one_refused(tmp_path):
    trained = ByteLevelBPE(vocab_size=700).train(corpus())[0]
    with pytest.raises(MissingInputError):
        find_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    published = Published("tokenizer.json", (path,))
    path.write_text(trained)
    assert find_tokenizer(tmp_path) == find_tokenizer(path)
    convert_tokenizer(published, "auto", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == trained
    for contents, reason in (
        ("{}", "loaded"),
        (trained.replace('"dropout": null', '"dropout": 0.1'), "dropout"),
        (trained.replace("<s>", "<one>").replace("</s>", "<two>"), "bos.*eos"),
    ):
        path.write_text(contents)
        with pytest.raises(ConfigError, match=reason):
            convert_tokenizer(published, "auto", tmp_path / "copy")


@pytest.mark.parametrize(("langs", "lowercase"), [(("en", "en"), True), (("en", "ko"), False)])
def test_text_is_lower_cased_by_itself_where_all_of_it_is_english(tmp_path, langs, lowercase):
    path = tmp_path / "documents.parquet"
    text = " ".join(corpus())
    documents = [Document(f"{number}", "s", "u", "t", lang, text) for number, lang in enumerate(langs)]
    shard = path, write_shard(path, documents), {lang: Draw(1, 0) for lang in langs}
    train_tokenizer([shard], WordPiece(vocab_size=600), 1, tmp_path / "tokenizer.json")
    write_tokenizer(tmp_path, (tmp_path / "tokenizer.json").read_bytes())
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert (opened.mask_token, opened.pad_token, opened.cls_token) == ("[MASK]", "[PAD]", "[CLS]")
    assert any(entry[:1].isupper() for entry in opened.get_vocab()) != lowercase
    assert (opened("Tor")["input_ids"] == opened("tor")["input_ids"]) == lowercase
    first, second = opened(["Ab", "Ab Cd Ef"], padding=True)["input_ids"]
    assert len(first) == len(second)


@pytest.mark.parametrize("extra", [{}, {"sentinels": 100, "languages": ("en_XX",)}])
def test_the_size_that_is_advised_for_little_text_can_be_trained(extra):
    texts = [" ".join(corpus())]
    with pytest.raises(ConfigError) as caught:
        SentencePiece(vocab_size=60_000, **extra).train(texts)[0]
    size = next(int(word) for word in caught.value.next_step.split() if word.isdigit())
    SentencePiece(vocab_size=size, **extra).train(texts)[0]
    with pytest.raises(ConfigError) as caught:
        SentencePiece(vocab_size=600, **extra).train(["a few words"])[0]
    assert "more text" in caught.value.next_step


def page(number: int, source: str, lang: str, size: int) -> Document:
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


def pages(source: str, lang: str, count: int, first: int = 0) -> list[Document]:
    return [page(number, source, lang, 100) for number in range(first, first + count)]


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
    documents = [page(n, "wiki", langs[n % 5], size) for n, size in enumerate(sizes)]
    bounds = [0, *sorted(cuts), len(documents)]
    shards = [documents[a:b] for a, b in pairwise(bounds)]
    wanted = {"train_bytes": train_bytes, "alpha": alpha}
    assert draw(tmp_path, shards, **wanted) == draw(tmp_path, [documents], **wanted)


def test_text_comes_evenly_from_the_corpus_up_to_the_bytes_asked_for(tmp_path):
    shards = [pages("wiki", "en", 1000), pages("books", "en", 3000)]
    texts = draw(tmp_path, shards, train_bytes=100_000)
    assert 100_000 <= sum(map(len, texts)) <= 101_000
    assert len(set(texts)) == len(texts)
    assert bytes_by(texts, 0)["books"] == pytest.approx(75_000, rel=0.01)
    few = pages("wiki", "en", 20)
    assert draw(tmp_path, [few, []]) == [each.text for each in few]
    assert len(draw(tmp_path, [few, pages("books", "en", 20)], train_bytes=1)) == 2


def test_sources_share_the_text_by_weight_and_must_have_text(tmp_path):
    shards = [pages("wiki", "en", 2000), pages("books", "en", 1000)]
    texts = draw(tmp_path, shards, train_bytes=60_000, weights={"wiki": 1, "books": 3})
    assert bytes_by(texts, 0) == pytest.approx({"wiki": 15_000, "books": 45_000}, rel=0.02)
    alone = draw(tmp_path, shards, train_bytes=60_000, weights={"wiki": 0, "books": 3})
    assert set(bytes_by(alone, 0)) == {"books"}
    with pytest.raises(ConfigError):
        draw(tmp_path, shards[:1], weights={"wiki": 0, "books": 1})
    with pytest.raises(ValidationError):
        ByteLevelBPE(weights={"wiki": 0})


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_languages_share_the_text_by_their_size_to_the_power_of_alpha(tmp_path, alpha):
    counts = {"en": 1600, "de": 300, "ko": 100}
    documents = [*pages("wiki", "en", 1600), *pages("wiki", "de", 300, 1600), *pages("wiki", "ko", 100, 1900)]
    sizes = bytes_by(draw(tmp_path, [documents], train_bytes=60_000, alpha=alpha), 1)
    powers = {lang: (count / 2000) ** alpha for lang, count in counts.items()}
    scale = sum(powers.values())
    assert sizes == pytest.approx({lang: 60_000 * p / scale for lang, p in powers.items()}, rel=0.03)


def test_a_small_language_repeats_its_documents_to_have_its_share(tmp_path):
    documents = [*pages("wiki", "en", 90), *pages("wiki", "ko", 10, 90)]
    texts = draw(tmp_path, [documents], alpha=0.0)
    assert bytes_by(texts, 1) == {"en": 5000, "ko": 5000}
    assert {texts.count(each.text) for each in documents[90:]} == {5}


def test_what_was_dropped_or_cut_out_is_not_drawn(tmp_path):
    documents = pages("wiki", "en", 10)
    assert draw(tmp_path, [documents], [[2, 5]]) == [documents[2].text, documents[5].text]
    path = tmp_path / "cut.parquet"
    selection = write_shard(path, documents)
    write_selection(selection, Selection(np.array([3]), Ragged(np.array([[0, 90]]), np.array([0, 1]))))
    write_histogram(path, selection, tmp_path / "cut.sample")
    histograms = add_histograms([("wiki", tmp_path / "cut.sample")])
    assert {name: int(counts.sum()) for name, counts in histograms.items()} == {("wiki", "en"): 10}


CHARACTERS = 400_000
RECORDS = [
    *(sign * CHARACTERS for sign in "a7= "),
    "ab" * (CHARACTERS // 2),
    random.Random(1).randbytes(CHARACTERS // 2).hex(),
    "哈。" * (CHARACTERS // 2),
    "กขค่" * (CHARACTERS // 4),
]
"""Before words were cut, training on one of them took minutes."""
CUT = [ByteLevelBPE(vocab_size=600), WordPiece(vocab_size=600), SentencePiece(vocab_size=600)]


@pytest.mark.parametrize("config", [*CUT, WordLexicon(vocab_size=1024)], ids=lambda config: config.kind)
def test_training_on_long_words_ends_and_encoding_takes_them_whole(tmp_path, config):
    plain = " ".join(
        random.Random(1).choices(["the", "river", "city", "and", "an", "old", "bridge"], k=20_000)
    )
    path, texts = (
        tmp_path / "documents.parquet",
        [plain, *RECORDS, f"mixed {'G' * CHARACTERS} and plain text"],
    )
    documents = [Document(f"{number}", "s", "u", "t", "en", text) for number, text in enumerate(texts)]
    shard = path, write_shard(path, documents), {"en": Draw(1, 0)}
    train_tokenizer([shard], config, 1, tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert max(map(len, tokenizer.get_vocab())) <= config.max_word_characters
    text = f"a river {'ACGT' * 2000} and a city"
    encoded = tokenizer.encode(text, add_special_tokens=False)
    if config.kind == "byte_level_bpe":
        assert tokenizer.decode(encoded.ids) == text
    if config.kind == "wordpiece":
        assert "[UNK]" in encoded.tokens


@given(
    st.lists(st.text(st.sampled_from("aÀ世1٣ .\n-=\u0301"), max_size=80)),
    st.integers(1, 9),
    st.sampled_from(CUT),
)
def test_only_longer_runs_are_cut_and_their_first_parts_kept(texts, most, config):
    run = "|".join(f"(?:{kind})+" for kind in config.words)
    parts = list(cut_long_words(texts, config.words, most))
    kept = (regex.sub(run, lambda found: found[0][: PARTS * most], text) for text in texts)
    assert "".join(parts) == "".join(kept)
    assert all(len(word) <= most for part in parts for word in regex.findall(run, part))
    unchanged = [text for text in texts if all(len(word) <= most for word in regex.findall(run, text))]
    assert list(cut_long_words(unchanged, config.words, most)) == unchanged


@pytest.mark.corpora
def test_no_word_of_real_text_is_cut(corpora: Path):
    books, articles = (corpora.glob(folder) for folder in ("books/en/*", "wikipedia/extracted-ko/*"))
    files = [*sorted(books)[:8], *sorted(articles)[:2]]
    texts = [file.read_text("utf-8-sig", "ignore") for file in files]
    for config in CUT:
        assert list(cut_long_words(texts, config.words, config.max_word_characters)) == texts

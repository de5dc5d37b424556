"""The biLM objective: every word is predicted once from each side, and read by its own characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError
from data_prep.tokenizers import WordLexicon
from models.config import TransformerConfig
from models.elmo.config import ElmoConfig, spell_sentence
from pipeline.objectives import bilm
from pipeline.objectives.bilm import BidirectionalLM
from pipeline.objectives.vocabulary import make_vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import packed_of

ROLES = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
KNOWN = [f"word{number}" for number in range(80)]
TEXTS = [" ".join(KNOWN[: 80 - step]) for step in (0, *range(40))]
NOISE = Noise.of("train", 1)
LENGTH = 64
LEXICON = WordLexicon(vocab_size=1024).train(TEXTS)[0]
VOCABULARY = make_vocabulary(LEXICON, ROLES)
TOKENIZER = Tokenizer.from_str(LEXICON)


def pack(rows: Sequence[Sequence[Sequence[str]]], *, epoch: int = 0) -> Packed:
    """Rows of sentences, each a list of words, as the format `sentences` gives them."""
    input_ids = np.full((len(rows), LENGTH), ROLES["pad"])
    boundaries = [0]
    for number, row in enumerate(rows):
        column = 0
        for sentence in row:
            ids = TOKENIZER.encode(" ".join(sentence)).ids
            input_ids[number, column : column + len(ids)] = ids
            column += len(ids)
            boundaries.append(number * LENGTH + column)
        if column < LENGTH:
            boundaries.append((number + 1) * LENGTH)
    return packed_of(input_ids, boundaries, epochs=np.full(len(rows), epoch, dtype=np.uint64))


WORDS = st.one_of(st.sampled_from(KNOWN), st.sampled_from(["a", "ß", "日本", "rare", "."]))
ROWS = st.lists(
    st.lists(st.lists(WORDS, min_size=1, max_size=5), min_size=1, max_size=2), min_size=1, max_size=4
)


@given(ROWS)
def test_every_word_is_predicted_once_from_each_side(rows):
    batch = BidirectionalLM().corrupt(pack(rows), NOISE, VOCABULARY)
    ids, positions, boundaries = (
        batch.inputs[name] for name in ("word_ids", "predicted_positions", "cu_seqlens")
    )
    sentences = [sentence for row in rows for sentence in row]
    assert len(boundaries) == len(sentences) + 1
    for sentence, start, stop in zip(sentences, boundaries[:-1], boundaries[1:], strict=True):
        own = positions[(positions >= start) & (positions < stop)]
        told = [word if word in KNOWN or word in "a." else "<unk>" for word in sentence]
        forward = [TOKENIZER.id_to_token(int(ids[place + 1])) for place in own]
        backward = [TOKENIZER.id_to_token(int(ids[place])) for place in own]
        assert forward == [*told, "</s>"]
        assert backward == ["<s>", *told]
    assert batch.counts == {"forward": len(positions), "backward": len(positions)}


@given(ROWS, st.integers(3, 20))
def test_characters_give_the_text_back_and_long_words_are_cut(rows, longest: int):
    batch = BidirectionalLM(max_characters=longest).corrupt(pack(rows), NOISE, VOCABULARY)
    spelled = batch.inputs["characters"][batch.inputs["words"]].tolist()
    assert spelled == [word for row in rows for sentence in row for word in spell_sentence(sentence, longest)]
    assert len(np.unique(batch.inputs["characters"], axis=0)) == len(batch.inputs["characters"])
    if longest >= 12:
        text = [bytes(code - 1 for code in word if 0 < code <= 256).decode() for word in spelled]
        assert [word for word in text if word] == [word for row in rows for own in row for word in own]


def test_rest_of_a_word_that_was_cut_is_left_out():
    whole = pack([[["rare", "word1", "."]]])
    ids = whole.input_ids[0]
    # `<s>` and the second byte of "rare" on; "rare" has four.
    cut = packed_of(np.delete(ids, 1)[None], whole.cu_seqlens - np.array([0, 1, 1]))
    found = BidirectionalLM().corrupt(cut, NOISE, VOCABULARY).inputs
    names = [TOKENIZER.id_to_token(number) for number in found["word_ids"]]
    assert names == ["<s>", "word1", ".", "</s>"]
    assert found["characters"][found["words"]].tolist() == spell_sentence(["word1", "."], 50)


def test_negatives_are_distinct_and_change_with_sample_and_epoch():
    settings = BidirectionalLM(num_negatives=60)
    packed = pack([[KNOWN[:5]]])
    first = settings.corrupt(packed, NOISE, VOCABULARY).inputs
    assert (first["negatives"] == settings.corrupt(packed, NOISE, VOCABULARY).inputs["negatives"]).all()
    assert len(np.unique(first["negatives"])) == 60
    later = settings.corrupt(pack([[KNOWN[:5]]], epoch=1), NOISE, VOCABULARY).inputs
    assert not np.array_equal(first["negatives"], later["negatives"])
    seen = dict(zip(first["negatives"], first["negative_log_counts"], strict=True))
    for word, count in zip(first["word_ids"], first["log_counts"], strict=True):
        assert seen.get(word, count) == pytest.approx(count)


def test_words_of_the_lexicon_are_drawn_by_frequency_and_bytes_that_are_no_words_last():
    ids = np.arange(VOCABULARY.size)
    often = np.zeros(VOCABULARY.size)
    packed = packed_of([[2, 2]])
    for turn in range(400):
        settings = BidirectionalLM(num_negatives=60)
        often[settings.corrupt(packed, NOISE.at(turn), VOCABULARY).inputs["negatives"]] += 1
    is_mark, is_byte, is_word = np.isin(ids, (0, 2, 3)), (ids >= 5) & (ids < 133), ids >= 517
    averages = [
        often[chosen].mean() for chosen in (is_mark, is_byte, is_word, ~is_mark & ~is_byte & ~is_word)
    ]
    assert averages == sorted(averages, reverse=True)
    assert averages[-1] > 0


def test_expected_counts_are_how_often_words_are_drawn():
    rounds, number, words = 2000, 30, 200
    drawn = [bilm.draw_distinct(NOISE.at("many", turn), number, words) for turn in range(rounds)]
    observed = np.bincount(np.concatenate([ranks for ranks, _ in drawn]), minlength=words) / rounds
    probability = bilm.log_uniform(np.arange(words), words)
    expected = np.mean([-np.expm1(tries * np.log1p(-probability)) for _, tries in drawn], axis=0)
    assert all(len(np.unique(ranks)) == number for ranks, _ in drawn)
    assert probability.sum() == pytest.approx(1.0)
    assert np.abs(observed - expected).max() < 4 * (0.25 / rounds) ** 0.5
    assert expected.sum() == pytest.approx(number, rel=0.02)


def test_more_negatives_than_half_of_the_words_and_other_networks_or_characters_are_refused():
    with pytest.raises(ConfigError, match="elmo"):
        BidirectionalLM().build_model(TransformerConfig(vocab_size=9), {})
    with pytest.raises(ConfigError, match="num_negatives 299"):
        BidirectionalLM(num_negatives=299).corrupt(pack([[["a"]]]), NOISE, VOCABULARY)
    with pytest.raises(ConfigError, match=r"objective\.max_characters"):
        BidirectionalLM().build_model(ElmoConfig(vocab_size=9, max_characters=20), {})

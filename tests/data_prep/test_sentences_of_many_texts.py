"""Many texts in one call of BlingFire: every text is cut as it is alone, whatever stands ahead of it and behind it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.ragged import Ragged
from data_prep.sentences import blingfire
from data_prep.sentences.pieces import all_pieces_of, pieces_of
from tests.data_prep.test_sentences import ENDS, RULES, WIDE, WORDS, cut_in, starts_in_the_whole

CONTROLS = [*"\x00\x01\x02\x03\x04\x1b\x7f\x80\ue000\ufffe\uffff", "\U000f0000"]
PUNCTUATION = [*"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”‘’†•․‥…。？！｡．؟\u2028\u2029"]
FRAGMENTS = st.sampled_from([*RULES, *WORDS, *ENDS, *WIDE, *CONTROLS, *PUNCTUATION]) | st.text(max_size=3)
TEXTS = st.lists(st.tuples(FRAGMENTS, st.sampled_from(["", "", " ", "\n"])).map("".join), max_size=12).map(
    "".join
)


def starts_of(texts):
    """Sentence starts of texts that lie end to end, as a list for each text."""
    data = Ragged.of([np.frombuffer(text.encode(), dtype=np.uint8) for text in texts])
    found = blingfire.sentence_starts(data.values, data.offsets[:-1], data.offsets[1:])
    rows = np.searchsorted(data.offsets, found, side="right") - 1
    return [(found[rows == row] - data.offsets[row]).tolist() for row in range(len(texts))]


@settings(max_examples=400, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=12))
@example(texts=["", "He left. )", "", "\x00", "One. Two", "", "Three"])
@example(
    texts=["He left. 5.", "Then. she", "etc.", "Mr.", "Smith left. Yes", 'He said: "No. "', '" Yes. No.']
)
@example(
    texts=["A sentence that ends in two marks.。)", ") Another. One", "。", "No. ", "\ufeffMr. Smith. No"]
)
def test_texts_read_together_are_cut_as_each_is_alone(texts):
    assert starts_of(texts) == [starts_of([text])[0] for text in texts]


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(
        st.lists(
            st.tuples(st.sampled_from(RULES + WORDS + ENDS), st.sampled_from(["", " ", "\n\n"])).map("".join),
            max_size=20,
        ).map("".join),
        min_size=1,
        max_size=8,
    )
)
def test_texts_read_together_are_cut_as_the_library_cuts_each_in_full(texts):
    assert starts_of(texts) == [starts_in_the_whole(text.encode()) if text else [] for text in texts]


@pytest.mark.parametrize("template", ["Ab.{} )", "Ab.{})", "Ab. Cd.{}", "Ab. {}", "{} Ab. Cd", "Ab. C{}"])
def test_any_character_at_the_start_or_the_end_of_a_text_is_read_as_alone(template):
    codes = [*range(0x3100), *range(0x3100, 0xD800, 41), *range(0xE000, 0x110000, 997)]
    texts = [template.format(chr(code)) for code in codes if not 0xD800 <= code < 0xE000]
    assert starts_of(texts) == [starts_of([text])[0] for text in texts]


def test_letters_are_no_punctuation_and_no_white_space_to_blingfire():
    _, codes = blingfire._characters()
    letters = np.flatnonzero(codes == 3).tolist()
    assert len(letters) > 40_000
    # BlingFire reads from a full stop to the end over punctuation and white space, and finds a sentence in the bracket.
    assert starts_in_the_whole(b"Ab. )") == [4]
    assert [chr(code) for code in letters[::7] if starts_in_the_whole(f"Ab.{chr(code)} )".encode())] == []


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=12), size=st.integers(1, 99))
def test_texts_are_cut_the_same_however_much_is_read_at_a_time(texts, size):
    whole = [cuts.tolist() for cuts in cut_in([*texts, "A text. Another sentence.\n" * 9])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blingfire, "_GROUP_BYTES", size)
        assert [cuts.tolist() for cuts in cut_in([*texts, "A text. Another sentence.\n" * 9])] == whole


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXTS, max_size=8), size=st.integers(4, 60))
def test_pieces_of_all_texts_are_those_of_each(texts, size):
    data = Ragged.of([np.frombuffer(text.encode(), dtype=np.uint8) for text in [*texts, "x"]])
    starts, stops = all_pieces_of(data.values, data.offsets[:-1], data.offsets[1:], size)
    expected = [
        piece
        for start, stop in pairwise(data.offsets.tolist())
        for piece in pieces_of(data.values, start, stop, size)
    ]
    assert sorted(zip(starts.tolist(), stops.tolist(), strict=True)) == sorted(expected)
    assert (np.diff(starts) >= 0).all()

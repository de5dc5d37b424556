"""Places in edited texts, and what cutting leaves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.decontaminate.edits import EditedText, cut_short_pieces, widen
from data_prep.selection import remove_spans

TEXT = st.text(st.sampled_from("ab é世\n\U0001f600."), min_size=1, max_size=60)


@st.composite
def edited_documents(draw):
    """A document and spans of it, on character boundaries, ascending and disjoint."""
    text = draw(TEXT)
    edges = sorted(set(draw(st.lists(st.integers(0, len(text)), max_size=6))))
    places = [len(text[:edge].encode()) for edge in edges[: len(edges) // 2 * 2]]
    return text, np.asarray(places, dtype=np.int64).reshape(-1, 2)


@st.composite
def cuts_of(draw, length):
    edges = sorted(set(draw(st.lists(st.integers(0, length), max_size=6))))
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(edited_documents(), st.data())
def test_cutting_keeps_everything_else_byte_for_byte(document, data):
    text, spans = document
    edited = EditedText.of(text, spans)
    assert edited.text == remove_spans(text, spans)
    cuts = data.draw(cuts_of(len(edited.text)))
    after = edited.spans_without(cuts)
    kept, position = [], 0
    for start, end in cuts:
        kept.append(edited.text[position:start])
        position = end
    kept.append(edited.text[position:])
    assert remove_spans(text, after) == "".join(kept).strip("\n")
    flat = after.reshape(-1).tolist()
    assert flat == sorted(set(flat))
    was_removed = {byte for start, end in spans.tolist() for byte in range(start, end)}
    is_removed = {byte for start, end in after.tolist() for byte in range(start, end)}
    assert was_removed <= is_removed


@given(edited_documents(), st.data())
def test_places_in_document_and_edited_text_lead_to_each_other(document, data):
    edited = EditedText.of(*document)
    ranges = [(start, end) for start, end in data.draw(cuts_of(len(edited.text))) if start < end]
    starts = np.asarray([start for start, _ in ranges], dtype=np.int64)
    ends = np.asarray([end for _, end in ranges], dtype=np.int64)
    first, last = edited.to_document(starts, ends)
    back = edited.from_document(first, last)
    assert (back[0].tolist(), back[1].tolist()) == (starts.tolist(), ends.tolist())
    data = document[0].encode()
    for place, start in zip(first.tolist(), starts.tolist(), strict=True):
        character = edited.text[start].encode()
        assert data[place : place + len(character)] == character


def test_a_range_across_a_removed_span_holds_it_and_one_beside_it_does_not():
    edited = EditedText.of("abcXXdef", np.asarray([[3, 5]]))
    assert edited.text == "abcdef"
    across, before, after = (
        edited.to_document(np.asarray([s]), np.asarray([e])) for s, e in [(2, 4), (0, 3), (3, 6)]
    )
    assert [(int(s[0]), int(e[0])) for s, e in (across, before, after)] == [(2, 6), (0, 3), (5, 8)]


@pytest.mark.parametrize(
    ("text", "starts", "ends", "window", "cuts"),
    [
        ("aaaa bbbb cccc dddd eeee ffff", [10], [14], 7, [(0, 25)]),
        ("aaaa bbbb cccc dddd eeee ffff", [10], [14], 0, [(10, 15)]),
        ("one two three\nfour five", [8], [13], 0, [(8, 13)]),
        ("a b c d e f g h", [0, 6], [1, 7], 3, [(0, 10)]),
        ("a b c d e f g h", [0, 12], [1, 13], 1, [(0, 2), (11, 14)]),
    ],
    ids=["window", "no window", "line break stays", "touching", "apart"],
)
def test_windows_end_between_words_and_are_one_cut_where_they_touch(text, starts, ends, window, cuts):
    assert [tuple(cut) for cut in widen(text, np.asarray(starts), np.asarray(ends), window)] == cuts


def test_short_pieces_are_cut_too_and_all_pieces_counted():
    assert cut_short_pieces(100, [(10, 20), (25, 30), (90, 100)], 10) == ([(10, 30), (90, 100)], 3)
    assert cut_short_pieces(10, [(0, 10)], 0) == ([(0, 10)], 0)
    assert cut_short_pieces(10, [(4, 6)], 5) == ([(0, 10)], 2)

"""Cutting a stream into elements: exact offsets, independent of chunks, flaws that cost only themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.sources.elements import Between, Element, Malformed, cut_elements
from data_prep.sources.streams import Gap

TOKENS = [b"<page>", b"</page>", b"<pa", b"ge>", b"<", b"/", b"\n", b"text", b"x" * 30]
DATA = st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join)


def cut(chunks, max_bytes=100, **options):
    return list(cut_elements(chunks, b"<page>", b"</page>", max_bytes, **options))


def elements(pieces):
    return [piece.data for piece in pieces if isinstance(piece, Element)]


def test_elements_know_their_bytes():
    data = b"head<page>a</page>\n<page>b</page>tail"
    assert cut([data]) == [
        Between(0, 4, b"head", b"head"),
        Element(4, 18, b"<page>a</page>"),
        Between(18, 19, b"\n", b"\n"),
        Element(19, 33, b"<page>b</page>"),
        Between(33, 37, b"tail", b"tail", at_end=True),
    ]


@given(
    DATA,
    st.sets(st.integers(1, 200), max_size=8).map(sorted),
    st.integers(10, 80),
    st.integers(1, 50),
    st.booleans(),
)
def test_ranges_and_chunks_of_any_size_give_every_piece_once(
    data, cuts, max_bytes, chunk_size, at_line_start
):
    options = {"max_bytes": max_bytes, "at_line_start": at_line_start}
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, None], strict=True):
        rest = data[max(0, start - 1) :]
        chunks = [rest[first : first + chunk_size] for first in range(0, len(rest), chunk_size)]
        pieces += cut(chunks, start=start, end=end, **options)
    assert pieces == cut([data], **options)
    for piece in pieces:
        if isinstance(piece, Element):
            assert data[piece.start : piece.end] == piece.data
            assert len(piece.data) <= max_bytes
            assert at_line_start or piece.data.count(b"<page>") == 1


def test_no_more_of_a_stream_is_read_than_a_range_needs():
    def chunks():
        yield b"x" * 100
        yield b"<page>x"
        yield b"</page>\n<page>"
        raise AssertionError("one chunk too many")

    assert [type(piece) for piece in cut(chunks(), start=0, end=101)] == [Between, Element, Between]
    assert cut([b"x" * 100, b"y", None], start=1, end=90) == []


@pytest.mark.parametrize(
    ("chunks", "start", "reason", "kept"),
    [
        ([b"<page>lost<page>kept</page>"], 0, "<page> again before </page>", [b"<page>kept</page>"]),
        ([b"<page>" + b"x" * 200, b"</page><page>b</page>"], 0, "limit of 100 bytes", [b"<page>b</page>"]),
        (
            [b"<page>a</page><page>b", Gap(7, "torn"), b"c</page><page>d</page>"],
            14,
            "torn",
            [b"<page>a</page>", b"<page>d</page>"],
        ),
    ],
    ids=["no end", "over the limit", "gap"],
)
def test_a_flaw_costs_the_element_that_it_names(chunks, start, reason, kept):
    pieces = cut(chunks)
    (flaw,) = [piece for piece in pieces if isinstance(piece, Malformed)]
    assert flaw.start == start
    assert reason in flaw.reason
    assert elements(pieces) == kept


def test_memory_stays_bounded_while_skipping_and_between_elements():
    chunk = b"x" * (1 << 20)
    for first in (b"", b"<page>"):
        pieces = cut([first, *[chunk] * 32, b"<page>b</page>"], max_bytes=1 << 10)
        assert pieces[-2].data == b"<page>b</page>"
        assert pieces[-2].start == len(first) + 32 * len(chunk)
        assert max(len(piece.head) for piece in pieces if isinstance(piece, Between)) <= 1 << 20


def test_tokens_within_a_line_do_not_count_when_lines_are_asked_for():
    data = b"<page>a </page> <page>\n</page>"
    assert elements(cut([data], at_line_start=True)) == [data]

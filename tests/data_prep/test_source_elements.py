"""Cutting a stream into elements: exact offsets, independent of chunks, flaws that cost only themselves."""

from hypothesis import given
from hypothesis import strategies as st

from data_prep.sources.elements import Between, Element, Flaw, cut_elements
from data_prep.sources.streams import Gap

TOKENS = [b"<page>", b"</page>", b"<pa", b"ge>", b"<", b"/", b"\n", b"text", b"x" * 30]


def cut(chunks, max_bytes=100, **options):
    return list(cut_elements(chunks, b"<page>", b"</page>", max_bytes, **options))


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
    st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join),
    st.integers(1, 50),
    st.integers(10, 80),
    st.booleans(),
)
def test_chunk_size_never_changes_what_is_cut(data, chunk_size, max_bytes, at_line_start):
    chunks = [data[start : start + chunk_size] for start in range(0, len(data), chunk_size)]
    options = {"max_bytes": max_bytes, "at_line_start": at_line_start}
    assert cut(chunks, **options) == cut([data], **options)


@given(
    st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join),
    st.sets(st.integers(1, 200), max_size=8).map(sorted),
    st.integers(10, 80),
    st.integers(1, 50),
    st.booleans(),
)
def test_ranges_that_cover_a_stream_give_every_piece_once(data, cuts, max_bytes, chunk_size, at_line_start):
    options = {"max_bytes": max_bytes, "at_line_start": at_line_start}
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, None], strict=True):
        rest = data[max(0, start - 1) :]
        chunks = [rest[first : first + chunk_size] for first in range(0, len(rest), chunk_size)]
        pieces += cut(chunks, start=start, end=end, **options)
    assert pieces == cut([data], **options)


def test_no_more_of_a_stream_is_read_than_a_range_needs():
    def chunks():
        yield b"x" * 100
        yield b"<page>x"
        yield b"</page>\n<page>"
        raise AssertionError("one chunk too many")

    assert [type(piece) for piece in cut(chunks(), start=0, end=101)] == [Between, Element, Between]
    assert cut([b"x" * 100, b"y", None], start=1, end=90) == []


@given(st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join), st.integers(10, 80))
def test_every_element_is_the_bytes_at_its_offsets_and_within_the_limit(data, max_bytes):
    for piece in cut([data], max_bytes):
        if isinstance(piece, Element):
            assert data[piece.start : piece.end] == piece.data
            assert len(piece.data) <= max_bytes
            assert piece.data.count(b"<page>") == 1


def test_an_element_without_end_costs_only_itself():
    pieces = cut([b"<page>lost<page>kept</page>"])
    assert pieces[1] == Flaw(0, "<page> again before </page>")
    assert pieces[2] == Element(10, 27, b"<page>kept</page>")


def test_an_element_over_the_limit_is_skipped_and_the_next_is_kept():
    pieces = cut([b"<page>" + b"x" * 200, b"</page><page>b</page>"])
    assert [type(piece) for piece in pieces] == [Between, Flaw, Between, Element, Between]
    assert pieces[1].start == 0
    assert "limit of 100 bytes" in pieces[1].reason


def test_memory_stays_bounded_while_skipping_and_between_elements():
    chunk = b"x" * (1 << 20)
    for first in (b"", b"<page>"):
        pieces = cut([first, *[chunk] * 32, b"<page>b</page>"], max_bytes=1 << 10)
        assert pieces[-2].data == b"<page>b</page>"
        assert pieces[-2].start == len(first) + 32 * len(chunk)
        held = [len(piece.head) for piece in pieces if isinstance(piece, Between)]
        assert max(held) <= 1 << 20


def test_a_gap_gives_up_the_open_element_and_tells_where_it_started():
    pieces = cut([b"<page>a</page><page>b", Gap(7, "torn"), b"c</page><page>d</page>"])
    assert [piece for piece in pieces if isinstance(piece, Flaw)] == [Flaw(14, "torn")]
    assert [piece.data for piece in pieces if isinstance(piece, Element)] == [
        b"<page>a</page>",
        b"<page>d</page>",
    ]


def test_tokens_within_a_line_do_not_count_when_lines_are_asked_for():
    pieces = cut([b"<page>a </page> <page>\n</page>"], at_line_start=True)
    assert [piece.data for piece in pieces if isinstance(piece, Element)] == [
        b"<page>a </page> <page>\n</page>"
    ]

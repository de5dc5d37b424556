"""Reading files: damage as gaps, UTF-16 on the fly, and elements with their bytes, whatever the chunks."""

import bz2
import gzip
import lzma
import random
from itertools import accumulate
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import MissingInputError, StorageError
from data_prep.sources.elements import Between, Element, cut_elements
from data_prep.sources.streams import Gap, read_chunks, read_streams, to_utf8
from tests.data_prep.reading import traced

COMPRESSORS = [bz2.compress, gzip.compress, lzma.compress, zstandard.compress]
WORDS = [f"word{number}" for number in range(5000)]
ANY_PACKING = pytest.mark.parametrize("compress", COMPRESSORS)


def make_text(size_bytes: int, seed: int = 0) -> bytes:
    return " ".join(random.Random(seed).choices(WORDS, k=size_bytes // 8)).encode()


def collect(path: Path, data: bytes) -> tuple[list[bytes], list[Gap]]:
    """Chunks and gaps of a file with these bytes."""
    path.write_bytes(data)
    pieces = list(read_chunks(str(path)))
    return [p for p in pieces if isinstance(p, bytes)], [p for p in pieces if isinstance(p, Gap)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "dump-shortened"


@ANY_PACKING
def test_concatenated_streams_and_zero_padding_read_as_one(path, compress):
    stored = compress(b"first ") + compress(b"") + compress(b"second") + b"\0" * 512
    assert collect(path, stored) == ([b"first ", b"second"], [])


def test_a_file_that_is_gone_or_may_not_be_read_is_named(path, monkeypatch):
    with pytest.raises(MissingInputError, match=path.name):
        list(read_chunks(str(path)))

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may read everything
    with pytest.raises(StorageError):
        list(read_chunks(str(path)))


@ANY_PACKING
def test_truncation_keeps_a_prefix_and_tells_the_byte_offset(path, compress):
    data = make_text(1_500_000)
    compressed = compress(data)
    cut = len(compressed) * 2 // 3
    chunks, (gap,) = collect(path, compressed[:cut])
    kept = b"".join(chunks)
    assert data.startswith(kept)
    assert len(kept) >= 500_000
    assert gap.byte_offset == cut


@pytest.mark.parametrize("position", [0.03, 0.2, 0.4, 0.6, 0.8, 0.97])
def test_no_byte_of_a_damaged_bzip2_block_is_passed_on(path, position):
    data = make_text(400_000)
    compressed = bytearray(bz2.compress(data, 1))
    compressed[int(len(compressed) * position)] ^= 0x10
    chunks, gaps = collect(path, compressed)
    kept = b"".join(chunks)
    assert data.startswith(kept)
    assert len(kept) >= position * len(data) - 110_000
    assert len(gaps) == 1


@ANY_PACKING
def test_reading_goes_on_at_the_stream_after_a_damaged_one(path, compress):
    texts = [make_text(50_000, seed) for seed in range(4)]
    streams = [bytearray(compress(text)) for text in texts]
    middle = len(streams[1]) // 2
    streams[1][middle : middle + 400] = bytes(400)
    path.write_bytes(b"".join(streams))
    pieces = list(read_chunks(str(path)))
    gap = next(number for number, piece in enumerate(pieces) if isinstance(piece, Gap))
    before, after = b"".join(pieces[:gap]), b"".join(pieces[gap + 1 :])
    assert before.startswith(texts[0])
    assert texts[1].startswith(before[len(texts[0]) :][:1000])
    assert after == texts[2] + texts[3]
    assert len(streams[0]) <= pieces[gap].byte_offset < len(streams[0]) + len(streams[1])


def repeated_blocks(data: bytes) -> bytes:
    """As many zeros in a zstd frame of blocks that each repeat one byte 131,072 times."""
    block, last = (((1 << 17) << 3 | 1 << 1 | end).to_bytes(3, "little") + b"\0" for end in (0, 1))
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * ((len(data) >> 17) - 1) + last


@pytest.mark.parametrize("compress", [*COMPRESSORS, repeated_blocks])
def test_highly_compressible_data_comes_in_bounded_chunks(path, compress):
    path.write_bytes(compress(bytes(64 << 20)))
    sizes, peak = traced(lambda: [len(chunk) for chunk in read_chunks(str(path)) if isinstance(chunk, bytes)])
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= 1 << 20
    assert peak < 36 << 20


def test_zstd_with_a_skippable_frame_first_and_a_large_window_is_read(path):
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0size"
    window_of_2_gib = b"\x28\xb5\x2f\xfd\x00\xa8" + ((4 << 3) | 1).to_bytes(3, "little") + b"text"
    stored = skippable + window_of_2_gib + skippable + zstandard.compress(b" more")
    assert collect(path, stored) == ([b"text", b" more"], [])


@ANY_PACKING
@given(data=st.data())
def test_ranges_that_cover_a_file_give_every_stream_once(tmp_path_factory, compress, data):
    texts = data.draw(st.lists(st.binary(max_size=30), min_size=1, max_size=6))
    streams_of = [compress(text) + bytes(data.draw(st.integers(0, 3))) for text in texts]
    first, stored = compress(b"first"), b"".join(streams_of)
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(stored) - 1))
        stored = stored[:place] + b"\xff" + stored[place + 1 :]
    path = tmp_path_factory.getbasetemp() / "file"
    path.write_bytes(first + stored)
    starts = [*accumulate(map(len, streams_of), initial=len(first))]
    places = st.integers(1, starts[-1]) | st.sampled_from(starts)
    cuts = sorted(data.draw(st.sets(places, max_size=5)))

    def streams(start, end):
        return [(stream.start, list(stream.chunks)) for stream in read_streams(str(path), start, end)]

    bounds = zip([0, *cuts], [*cuts, None], strict=True)
    assert [each for start, end in bounds for each in streams(start, end)] == streams(0, None)


@given(text=st.text(), split=st.integers(1, 7), encoding=st.sampled_from(["utf-16-le", "utf-16-be", "utf-8"]))
def test_utf16_is_transcoded_and_utf8_passes_whatever_the_chunks(text, split, encoding):
    data = f"<{text}".encode(encoding)
    chunks = [data[start : start + split] for start in range(0, len(data), split)]
    assert b"".join(to_utf8(chunks)) == f"<{text}".encode()


def test_an_unpaired_surrogate_stays_in_its_place():
    data = "<a>".encode("utf-16-le") + b"\x00\xd8" + "b".encode("utf-16-le")
    assert b"".join(to_utf8([data])) == b"<a>\xed\xa0\x80b"


TAR = bytes(257) + b"ustar" + bytes(250)


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (b"7z\xbc\xaf\x27\x1c" + bytes(100), "7z x FILE"),
        (b"PK\x03\x04" + bytes(100), "unzip FILE"),
        (gzip.compress(TAR), "tar -xf FILE"),
        (gzip.compress(gzip.compress(b"text")), "decompress it once"),
    ],
    ids=["7z", "zip", "tar", "gzip twice"],
)
def test_an_archive_is_one_gap_that_tells_how_to_unpack_it(path, data, advice):
    chunks, (gap,) = collect(path, data)
    assert chunks == []
    assert advice in gap.reason


# -- elements of a stream ---------------------------------------------------------------------------------------

TOKENS = [b"<page>", b"</page>", b"<pa", b"ge>", b"<", b"/", b"\n", b"text", b"x" * 30]
DATA = st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join)


def cut(chunks, max_bytes=100, **options):
    return list(cut_elements(chunks, b"<page>", b"</page>", max_bytes, **options))


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


def test_a_gap_costs_the_element_that_it_tears():
    pieces = cut([b"<page>a</page><page>b", Gap(7, "torn"), b"c</page><page>d</page>"])
    first, last = Element(0, 14, b"<page>a</page>"), Element(29, 43, b"<page>d</page>")
    assert [each for each in pieces if not isinstance(each, Between)] == [first, Gap(14, "torn"), last]

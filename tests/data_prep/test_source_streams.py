"""Reading files: compression by content, damage as gaps, UTF-16 on the fly."""

import bz2
import gzip
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import MissingInputError
from data_prep.sources.streams import Gap, read_chunks, to_utf8

WORDS = [f"word{number}" for number in range(5000)]


def make_text(size_bytes: int, seed: int = 0) -> bytes:
    return " ".join(random.Random(seed).choices(WORDS, k=size_bytes // 8)).encode()


def collect(path: Path) -> tuple[bytes, list[Gap]]:
    pieces = list(read_chunks(str(path)))
    return b"".join(p for p in pieces if isinstance(p, bytes)), [p for p in pieces if isinstance(p, Gap)]


@pytest.mark.parametrize("compress", [bytes, bz2.compress, gzip.compress])
def test_compression_is_told_by_content_whatever_the_name(tmp_path, compress):
    data = make_text(300_000)
    path = tmp_path / "dump-shortened"
    path.write_bytes(compress(data))
    assert collect(path) == (data, [])


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress])
def test_concatenated_streams_and_zero_padding_read_as_one(tmp_path, compress):
    path = tmp_path / "file"
    path.write_bytes(compress(b"first ") + compress(b"") + compress(b"second") + b"\0" * 512)
    assert collect(path) == (b"first second", [])


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress])
def test_highly_compressible_data_comes_in_bounded_chunks(tmp_path, compress):
    path = tmp_path / "file"
    path.write_bytes(compress(bytes(20 << 20)))
    sizes = [len(chunk) for chunk in read_chunks(str(path)) if isinstance(chunk, bytes)]
    assert sum(sizes) == 20 << 20
    assert max(sizes) <= 1 << 20


def test_uris_are_read_through_fsspec():
    import fsspec

    with fsspec.open("memory://streams/a.bz2", "wb") as file:
        file.write(bz2.compress(b"over the network"))
    assert b"".join(read_chunks("memory://streams/a.bz2")) == b"over the network"


def test_a_file_that_vanished_is_a_missing_input(tmp_path):
    with pytest.raises(MissingInputError, match="gone"):
        list(read_chunks(str(tmp_path / "gone.bz2")))


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress])
def test_truncation_keeps_a_prefix_and_tells_the_compressed_offset(tmp_path, compress):
    data = make_text(2_000_000)
    compressed = compress(data)
    cut = len(compressed) * 2 // 3
    path = tmp_path / "file"
    path.write_bytes(compressed[:cut])
    kept, gaps = collect(path)
    assert data.startswith(kept)
    assert len(kept) >= 500_000
    assert [gap.compressed_offset for gap in gaps] == [cut]
    assert f"truncated at compressed byte {cut}" in gaps[0].reason


@pytest.mark.parametrize("position", [0.03, 0.2, 0.4, 0.6, 0.8, 0.97])
def test_no_byte_of_a_damaged_bzip2_block_is_passed_on(tmp_path, position):
    data = make_text(400_000)
    compressed = bytearray(bz2.compress(data, 1))
    compressed[int(len(compressed) * position)] ^= 0x10
    path = tmp_path / "file"
    path.write_bytes(compressed)
    kept, gaps = collect(path)
    assert data.startswith(kept)
    assert len(kept) >= position * len(data) - 110_000
    assert len(gaps) == 1


def test_reading_goes_on_at_the_bzip2_stream_after_a_damaged_one(tmp_path):
    texts = [make_text(50_000, seed) for seed in range(4)]
    streams = [bytearray(bz2.compress(text)) for text in texts]
    streams[1][len(streams[1]) // 2] ^= 0xFF
    path = tmp_path / "multistream.bz2"
    path.write_bytes(b"".join(streams))
    pieces = list(read_chunks(str(path)))
    kept = [piece if isinstance(piece, Gap) else bytes(piece) for piece in pieces]
    gap = next(number for number, piece in enumerate(kept) if isinstance(piece, Gap))
    assert b"".join(kept[:gap]) == texts[0]
    assert b"".join(kept[gap + 1 :]) == texts[2] + texts[3]
    assert len(streams[0]) <= pieces[gap].compressed_offset < len(streams[0]) + len(streams[1])


@settings(deadline=None, max_examples=50)
@given(text=st.text(), split=st.integers(1, 7), encoding=st.sampled_from(["utf-16-le", "utf-16-be"]))
def test_utf16_is_transcoded_whatever_the_chunks(text, split, encoding):
    text = "<" + text
    data = text.encode(encoding)
    chunks = [data[start : start + split] for start in range(0, len(data), split)]
    assert b"".join(to_utf8(chunks)) == text.encode()


@pytest.mark.parametrize("data", [b"", b"<", b"<m", "<медия".encode()])
def test_utf8_passes_through(data):
    assert b"".join(to_utf8([data[:1], data[1:]])) == data


def test_an_unpaired_surrogate_stays_in_its_place():
    data = "<a>".encode("utf-16-le") + b"\x00\xd8" + "b".encode("utf-16-le")
    assert b"".join(to_utf8([data])) == b"<a>\xed\xa0\x80b"

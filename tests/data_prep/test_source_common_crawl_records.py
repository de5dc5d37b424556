"""Records of web archives: the same however a file is shared out, and found again behind damage."""

import gzip
import random
import zlib
from itertools import accumulate
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data_prep.reading import traced
from tests.data_prep.warc_files import COMPRESS, config_of, http, page, read, record, warcinfo, write

SMALL = {"max_record_bytes": 1 << 16}
"""Keeps the distance small that a reader goes back before its part."""
FIXTURE = [HealthCheck.function_scoped_fixture]


def stored(data: bytes) -> bytes:
    """A gzip member that holds its bytes as they are."""
    member = zlib.compressobj(0, zlib.DEFLATED, 31)
    return member.compress(data) + member.flush()


def tricky_records() -> list[bytes]:
    """Pages, and archives inside of an archive: whole, cut off, compressed and not."""
    generator = random.Random(5)
    inner = [record(http(page(n)), n) for n in range(100, 130)]
    archived = gzip.compress(inner[0]) + gzip.compress(inner[1]) + gzip.compress(inner[2])
    quoted = page(50).replace(b"</h1>", b"</h1><pre>\n" + inner[3] + b"\n</pre>")
    odd = [
        http(archived, content_type="application/gzip"),
        http(archived[:-30], content_type="application/gzip"),
        http(b"\n".join(inner), content_type="application/warc"),
        http(b"\r\n" + b"".join(inner)[:-200], content_type="application/warc"),
        http(quoted),
        http(generator.randbytes(20_000), content_type="image/png"),
        http(b"\n" + inner[4].replace(b"Content-Length: ", b"Content-Length: 9"), content_type="text/plain"),
    ]
    made = [warcinfo()]
    for number in range(40):
        made.append(record(http(page(number, number % 7 + 1)), number))
        made.append(record(odd[number % len(odd)], 1000 + number))
    return made


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same records plain, compressed, stored in gzip, and with a damaged byte in each of many places."""
    directory = tmp_path_factory.mktemp("archives")
    records = tricky_records()
    paths = [write(directory / f"a.{ending}", records) for ending in COMPRESS]
    paths.append(directory / "stored.warc.gz")
    paths[-1].write_bytes(b"".join(map(stored, records)))
    for path in list(paths):
        data = bytearray(path.read_bytes())
        for place in range(5000, len(data), 20_011):
            data[place] ^= 0xFF
        paths.append(directory / f"damaged-{path.name}")
        paths[-1].write_bytes(data)
    return paths


@pytest.mark.parametrize("number", range(8))
@given(share=st.floats(0.001, 1.2))
@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=FIXTURE)
def test_the_parts_of_a_file_read_as_the_whole_does(archives, number, share):
    path = archives[number]
    part_bytes = max(5000, int(path.stat().st_size * share))
    assert read(path, part_bytes, **SMALL) == read(path, **SMALL)


@pytest.mark.parametrize("number", range(4))
def test_archives_inside_of_an_archive_are_no_records_and_damage_costs_the_records_that_it_hits(
    archives, number
):
    whole = read(archives[number], **SMALL)
    numbers = [*range(40), *(1000 + n for n in range(4, 40, 7))]
    assert sorted(whole.ids) == [f"cc:urn:uuid:{n:08d}" for n in numbers]
    assert whole.rejects == []
    damaged = read(archives[number + 4], **SMALL)
    hits = len(range(5000, archives[number + 4].stat().st_size, 20_011))
    assert len(set(damaged.ids) & set(whole.ids)) >= len(whole.ids) - hits
    assert damaged.rejects or number == 0  # plain records have no checksums


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_file_compressed_as_a_whole_is_one_part(tmp_path, compress):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(compress(b"".join(tricky_records())))
    plain = write(tmp_path / "a.warc", tricky_records())
    (file,) = config_of(path).list_files()
    assert config_of(path).split_file(file, path.stat().st_size, 1000) == [file]
    assert [d.meta for d in read(path).documents] == [d.meta for d in read(plain).documents]


def test_a_file_compressed_in_blocks_that_cut_records_is_read(tmp_path):
    data = b"".join(tricky_records())
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(gzip.compress(data[n : n + 700]) for n in range(0, len(data), 700)))
    assert len(read(path, 5000).documents) == 46


@pytest.mark.parametrize("ending", COMPRESS)
@given(data=st.data())
@settings(suppress_health_check=FIXTURE)
def test_a_file_cut_anywhere_keeps_all_records_before_the_cut(tmp_path, ending, data):
    pieces = [COMPRESS[ending](r) for r in (warcinfo(), *(record(http(page(n)), n) for n in range(4)))]
    ends = list(accumulate(map(len, pieces)))
    cut = data.draw(st.integers(0, ends[-1]))
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"".join(pieces)[:cut])
    found = read(path)
    slack = 4 if ending == "warc" else 0  # the line ends behind a record may be missing
    complete = sum(end <= cut + slack for end in ends)
    assert len(found.documents) == max(0, complete - 1)
    at_border = complete > 0 and cut <= ends[complete - 1]
    assert bool(found.rejects) == (not at_border)
    assert all(0 <= offset <= cut for offset in found.offsets)


@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"WARC/1.0\r\n", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9"]),
)
@settings(suppress_health_check=FIXTURE)
def test_files_that_are_no_archives_are_rejects(tmp_path, rubbish, beginning):
    path = tmp_path / "a.warc"
    path.write_bytes(beginning + rubbish)
    assert read(path).rejects


def test_arc_files_are_one_reject_with_the_way_out(tmp_path):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(gzip.compress(b"filedesc://a.arc 0.0.0.0 20080101000000 text/plain 76\n1 0 Org\n" * 9))
    assert "warcio recompress" in read(path).rejected().reason


PAGES = [record(http(page(n)), n) for n in range(4)]
HEADER, CONTENT = PAGES[2].split(b"\r\n\r\n", 1)
LINE_FEEDS = HEADER.replace(b"\r\n", b"\n") + b"\n\n" + CONTENT.removesuffix(b"\r\n\r\n") + b"\n\n"
WRONG_LENGTHS = [record(http(page(2)), 2, Content_Length=wrong) for wrong in ("10", "99999999", "-1", "many")]


@pytest.mark.parametrize("ending", COMPRESS)
def test_odd_records_cost_at_most_themselves_between_others(tmp_path, ending):
    for second in (LINE_FEEDS, *WRONG_LENGTHS):
        found = read(write(tmp_path / f"a.{ending}", [warcinfo(), PAGES[1], second, PAGES[3]]))
        is_good = second is LINE_FEEDS
        assert found.titles == ["Page 1", *["Page 2"] * is_good, "Page 3"]
        assert len(found.rejects) == (not is_good)


@pytest.mark.parametrize("ending", ["warc", "warc.gz"])
def test_a_record_without_a_beginning_does_not_cost_the_one_before_it(tmp_path, ending):
    broken = b"W?RC" + PAGES[2][4:]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(COMPRESS[ending](b"".join([warcinfo(), PAGES[1], broken, PAGES[3]])))
    found = read(path)
    assert (found.titles, len(found.rejects)) == (["Page 1", "Page 3"], 1)


def test_rubbish_between_records_is_one_reject(tmp_path):
    members = [*map(gzip.compress, (warcinfo(), PAGES[1])), b"rubbish" * 50, gzip.compress(PAGES[2])]
    (tmp_path / "a.warc.gz").write_bytes(b"".join(members))
    found = read(tmp_path / "a.warc.gz")
    assert (found.titles, found.offsets) == (["Page 1", "Page 2"], [len(members[0] + members[1])])


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_record_beyond_the_limit_is_a_reject_if_it_is_a_page(tmp_path, ending):
    film = record(http(bytes(300_000), content_type="video/mp4"), 1)
    long = record(http(b"<p>" + b"word " * 60_000), 2)
    found = read(
        write(tmp_path / f"a.{ending}", [warcinfo(), film, long, PAGES[3]]), max_record_bytes=200_000
    )
    assert (found.reasons, found.titles) == (["warcinfo", "not_html"], ["Page 3"])
    assert ["limit of 200000 bytes" in reject.reason for reject in found.rejects] == [True]


@pytest.mark.parametrize("ending", ["warc.gz", "warc.zst"])
def test_a_member_of_a_gibibyte_is_neither_held_nor_decompressed(tmp_path, ending):
    header = record(b"", 1).replace(b"Content-Length: 0", b"Content-Length: 1073741824")[:-4]
    stream, count = (
        (zlib.compressobj(1, zlib.DEFLATED, 31), 256)
        if ending == "warc.gz"
        else (zstandard.ZstdCompressor().compressobj(), 1024)
    )
    zeros = (stream.compress(bytes(1 << 20)) for _ in range(count))
    bomb = b"".join([stream.compress(header), *zeros, stream.flush()])
    path = tmp_path / f"a.{ending}"
    path.write_bytes(COMPRESS[ending](warcinfo()) + bomb + COMPRESS[ending](PAGES[1]))
    found, peak = traced(lambda: read(path))
    assert peak < 200 << 20
    assert len(found.documents) == 1


LONG = record(http(b""), 1, Content_Length=str(len(http(b"")) + (200 << 20)))


@pytest.mark.parametrize(
    ("before", "titles", "num_rejects"),
    [
        (LONG.removesuffix(b"\r\n\r\n"), ["Page 2"], 1),
        (PAGES[1], ["Page 1", "Page 2"], 0),
        (PAGES[1].removesuffix(b"\r\n\r\n"), ["Page 1", "Page 2"], 0),
    ],
    ids=["content", "padding", "padding of a record without end"],
)
def test_200_megabytes_without_a_line_end_are_passed_over_in_bounded_memory(
    tmp_path, before, titles, num_rejects
):
    path = write(tmp_path / "a.warc", [warcinfo(), before])
    with path.open("ab") as file:
        file.seek(200 << 20, 1)
        file.write(b"\r\n\r\n" + PAGES[2])
    found, peak = traced(lambda: read(path))
    assert peak < (100 if num_rejects else 20) << 20
    assert (found.titles, len(found.rejects)) == (titles, num_rejects)

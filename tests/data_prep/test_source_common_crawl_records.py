"""Records of web archives: the same however a file is shared out, and found again behind damage."""

import gzip
import random
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.sources import FilePart
from tests.data_prep.reading import documents, reasons, rejects
from tests.data_prep.warc_files import (
    COMPRESS,
    config_of,
    http,
    page,
    read,
    record,
    warcinfo,
    write,
)

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
@settings(max_examples=6, suppress_health_check=FIXTURE)
def test_the_parts_of_a_file_read_as_the_whole_does(archives, number, share):
    path = archives[number]
    part_bytes = max(5000, int(path.stat().st_size * share))
    assert read(path, part_bytes, **SMALL) == read(path, **SMALL)


@pytest.mark.parametrize("number", range(4))
def test_archives_inside_of_an_archive_are_not_taken_for_its_records(archives, number):
    found = documents(read(archives[number], **SMALL))
    ids = {f"cc:urn:uuid:{n:08d}" for n in range(40)} | {
        f"cc:urn:uuid:{1000 + n:08d}" for n in range(4, 40, 7)
    }
    assert {document.doc_id for document in found} == ids
    assert len(found) == len(ids)
    assert rejects(read(archives[number], **SMALL)) == []


@pytest.mark.parametrize("number", range(4, 8))
def test_damage_costs_the_records_that_it_hits(archives, number):
    whole = {d.doc_id: d.text for d in documents(read(archives[number - 4], **SMALL))}
    results = read(archives[number], **SMALL)
    hits = len(range(5000, archives[number].stat().st_size, 20_011))
    kept = [document for document in documents(results) if document.doc_id in whole]
    assert len(kept) >= len(whole) - hits
    assert rejects(results) or number == 4  # plain records have no checksums


def test_a_part_reads_what_begins_in_it_and_nothing_else(tmp_path):
    members = [gzip.compress(r, mtime=0) for r in (warcinfo(), *(record(http(page(n)), n) for n in range(5)))]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(members))
    config = config_of(path, **SMALL)
    (file,) = config.list_files()
    second = len(members[0]) + len(members[1])

    def titles(start: int, end: int | None) -> list[str]:
        return [d.title for d in documents(config.read(FilePart(file, start, end)))]

    assert titles(second, second + 1) == ["Page 1"]
    assert titles(second + 1, second + len(members[2])) == []
    assert titles(second + 1, None) == ["Page 2", "Page 3", "Page 4"]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_file_compressed_as_a_whole_is_one_part(tmp_path, compress):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(compress(b"".join(tricky_records())))
    plain = write(tmp_path / "a.warc", tricky_records())
    config = config_of(path)
    (file,) = config.list_files()
    assert config.split_file(file, path.stat().st_size, 1000) == [FilePart(file)]
    assert [d.meta for d in documents(read(path))] == [d.meta for d in documents(read(plain))]


def test_a_file_compressed_in_blocks_that_cut_records_is_read(tmp_path):
    data = b"".join(tricky_records())
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(gzip.compress(data[n : n + 700]) for n in range(0, len(data), 700)))
    assert len(documents(read(path, 5000))) == 46


@pytest.mark.parametrize("ending", COMPRESS)
@given(data=st.data())
@settings(suppress_health_check=FIXTURE)
def test_a_file_cut_anywhere_keeps_all_records_before_the_cut(tmp_path, ending, data):
    pieces = [COMPRESS[ending](r) for r in (warcinfo(), *(record(http(page(n)), n) for n in range(4)))]
    whole = b"".join(pieces)
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path / f"a.{ending}"
    path.write_bytes(whole[:cut])
    results = read(path)
    slack = 4 if ending == "warc" else 0  # the line ends behind a record may be missing
    complete = sum(sum(map(len, pieces[: n + 1])) <= cut + slack for n in range(len(pieces)))
    assert len(documents(results)) == max(0, complete - 1)
    at_border = complete == 0 or sum(map(len, pieces[:complete])) - slack <= cut <= sum(
        map(len, pieces[:complete])
    )
    assert bool(rejects(results)) == (cut == 0 or not at_border or complete == 0)
    assert all(0 <= reject.byte_offset <= cut for reject in rejects(results))


@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"WARC/1.0\r\n", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9"]),
)
@settings(suppress_health_check=FIXTURE)
def test_files_that_are_no_archives_are_rejects(tmp_path, rubbish, beginning):
    path = tmp_path / "a.warc"
    path.write_bytes(beginning + rubbish)
    assert len(rejects(read(path))) >= 1


def test_arc_files_are_one_reject_with_the_way_out(tmp_path):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(gzip.compress(b"filedesc://a.arc 0.0.0.0 20080101000000 text/plain 76\n1 0 Org\n" * 9))
    (reject,) = rejects(read(path))
    assert "warcio recompress" in reject.reason


def test_a_wrong_content_length_costs_one_record(tmp_path):
    for ending in COMPRESS:
        for wrong in ("10", "99999999", "-1", "many"):
            bad = record(http(page(2)), 2, Content_Length=wrong)
            path = write(
                tmp_path / f"a.{ending}", [warcinfo(), record(http(page(1))), bad, record(http(page(3)), 3)]
            )
            results = read(path)
            assert [document.title for document in documents(results)] == ["Page 1", "Page 3"]
            assert len(rejects(results)) == 1


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_record_whose_lines_end_with_line_feeds_is_read_between_others(tmp_path, ending):
    pages = [record(http(page(n)), n) for n in (1, 2, 3)]
    header, content = pages[1].split(b"\r\n\r\n", 1)
    header, content = header.replace(b"\r\n", b"\n"), content.removesuffix(b"\r\n\r\n")
    pages[1] = header + b"\n\n" + content + b"\n\n"
    results = read(write(tmp_path / f"a.{ending}", [warcinfo(), *pages]))
    assert [document.title for document in documents(results)] == ["Page 1", "Page 2", "Page 3"]
    assert not rejects(results)


@pytest.mark.parametrize("ending", ["warc", "warc.gz"])
def test_a_record_without_a_beginning_does_not_cost_the_one_before_it(tmp_path, ending):
    pages = [record(http(page(n)), n) for n in (1, 2, 3)]
    pages[1] = b"W?RC" + pages[1][4:]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(COMPRESS[ending](b"".join([warcinfo(), *pages])))
    results = read(path)
    assert [document.title for document in documents(results)] == ["Page 1", "Page 3"]
    assert len(rejects(results)) == 1


def test_rubbish_between_records_is_one_reject(tmp_path):
    path = write(tmp_path / "a.warc.gz", [warcinfo(), record(http(page(1)))])
    offset = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"rubbish" * 50 + gzip.compress(record(http(page(2)), 2)))
    results = read(path)
    assert len(documents(results)) == 2
    assert [reject.byte_offset for reject in rejects(results)] == [offset]


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_record_beyond_the_limit_is_a_reject_if_it_is_a_page(tmp_path, ending):
    film = record(http(bytes(300_000), content_type="video/mp4"), 1)
    long = record(http(b"<p>" + b"word " * 60_000), 2)
    path = write(tmp_path / f"a.{ending}", [warcinfo(), film, long, record(http(page(3)), 3)])
    results = read(path, max_record_bytes=200_000)
    assert reasons(results) == ["warcinfo", "not_html"]
    assert [reject.reason for reject in rejects(results)] == [
        "a record longer than the limit of 200000 bytes"
    ]
    assert [document.title for document in documents(results)] == ["Page 3"]


def traced(path):
    """The results of reading an archive, and the most bytes that Python's objects took at a time."""
    tracemalloc.start()
    try:
        return read(path), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ending", ["warc.gz", "warc.zst"])
def test_a_member_that_unfolds_beyond_all_limits_is_left_where_it_is(tmp_path, ending):
    """Neither memory nor time: 1 GiB is not held, and not decompressed either."""
    header = record(b"", 1).replace(b"Content-Length: 0", b"Content-Length: 1073741824")[:-4]
    path = tmp_path / f"a.{ending}"
    if ending == "warc.gz":
        member = zlib.compressobj(1, zlib.DEFLATED, 31)
        bomb = (
            member.compress(header)
            + b"".join(member.compress(bytes(1 << 20)) for _ in range(256))
            + member.flush()
        )
    else:
        frame = zstandard.ZstdCompressor().compressobj()
        bomb = (
            frame.compress(header)
            + b"".join(frame.compress(bytes(1 << 20)) for _ in range(1024))
            + frame.flush()
        )
    path.write_bytes(COMPRESS[ending](warcinfo()) + bomb + COMPRESS[ending](record(http(page(1)))))
    results, peak = traced(path)
    assert peak < 200 << 20
    assert len(documents(results)) == 1


def test_a_line_of_200_megabytes_is_passed_over_in_bounded_memory(tmp_path):
    path = write(tmp_path / "a.warc", [warcinfo()])
    length = len(http(b"")) + (200 << 20)
    with path.open("ab") as file:
        file.write(record(http(b""), 1, Content_Length=str(length))[:-4])
        file.seek(200 << 20, 1)
        file.write(b"\r\n\r\n" + record(http(page(2)), 2))
    results, peak = traced(path)
    assert peak < 100 << 20
    assert len(documents(results)) == len(rejects(results)) == 1

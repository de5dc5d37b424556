"""Web archives to text, against datatrove's reader with trafilatura, and FastWARC with Resiliparse, on the same pages.

The pages are those of the WARC files below CLOZE_DATA, repeated under new record ids. One process each.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from data_prep.document import Document
from data_prep.filters import AnyFilter, FilterChain
from data_prep.filters.gopher import GopherQualityConfig, GopherRepetitionConfig
from data_prep.sources.common_crawl import CommonCrawlConfig, parse_headers, parse_response
from data_prep.sources.warc_records import RawRecord, read_records
from data_prep.text import UnreadableError
from data_prep.text.encodings import decode_html
from tests.benchmarks.harness import Comparison, compare, peer_name, processor_seconds

NUM_PAGES = int(os.environ.get("CLOZE_BENCHMARK_PAGES", 400))
FILTERS: tuple[AnyFilter, ...] = (GopherQualityConfig(), GopherRepetitionConfig())
MAX_BYTES = 16 << 20
_ID = re.compile(rb"(?<=<urn:uuid:)[^>]*")


def run() -> Iterator[Comparison]:
    """Pages per second from gzipped WARC to main content; ours with two filters behind it, the peers without any."""
    root = os.environ.get("CLOZE_DATA")
    records = list(dict(_pages(Path(root))).values()) if root else []
    if not records:
        print("web_archive is left out: CLOZE_DATA names no folder with WARC files", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "pages.warc.gz"
        _write_archive(archive, records, NUM_PAGES)
        what = f"pages from WARC to filtered text ({NUM_PAGES}, of which {len(records)} differ)"
        yield compare(
            f"{what} (processor time)",
            f"{peer_name('fastwarc')} + {peer_name('resiliparse', 'main content, without filters')}",
            "pages",
            NUM_PAGES,
            lambda: processor_seconds(lambda: _filtered(archive)),
            lambda: processor_seconds(lambda: _resiliparse(archive)),
        )
        yield compare(
            what,
            f"{peer_name('datatrove', 'WarcReader')} + {peer_name('trafilatura')}",
            "pages",
            NUM_PAGES,
            lambda: _filtered(archive),
            lambda: _datatrove(archive),
            rounds=2,
            warm_up=False,
        )


def _pages(root: Path) -> Iterator[tuple[bytes, RawRecord]]:
    """Successful HTML responses of intact archives, whose pages can be decoded, by record id."""
    for path in sorted(root.glob("commoncrawl/*/*.warc.gz")):
        for record in read_records(str(path), 0, None, MAX_BYTES):
            if not isinstance(record, RawRecord) or record.problem:
                continue
            if not (found := _ID.search(record.header)):
                continue
            if b"\r\nWARC-Type: response\r\n" not in record.header:
                continue
            response = parse_response(parse_headers(record.header), record.content)
            if response.status == 200 and response.media_type == "text/html":
                try:
                    decode_html(response.body(MAX_BYTES), response.charset)
                except UnreadableError:
                    continue
                yield found.group(), record


def _write_archive(path: Path, records: list[RawRecord], count: int) -> None:
    with path.open("wb") as file:
        info = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n"
        file.write(gzip.compress(info))
        for number in range(count):
            record = records[number % len(records)]
            header = _ID.sub(b"%08d" % number, record.header, count=1)
            file.write(gzip.compress(header + record.content + b"\r\n\r\n"))


def _filtered(archive: Path) -> list[Document | None]:
    config, chain = CommonCrawlConfig(name="cc", paths=(str(archive),)), FilterChain(FILTERS)
    (file,) = config.list_files()
    return [chain.apply(item) for item in config.read(file) if isinstance(item, Document)]


def _resiliparse(archive: Path) -> list[str]:
    """Main content by the libraries' own loop, with its guess of encodings."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    texts = []
    with archive.open("rb") as stream:
        for record in ArchiveIterator(
            stream, record_types=WarcRecordType.response, parse_http=True, auto_decode="all"
        ):
            data = record.reader.read()
            html = bytes_to_str(data, record.http_charset or detect_encoding(data) or "utf-8")
            texts.append(
                extract_plain_text(
                    html, main_content=True, alt_texts=False, form_fields=False, comments=False
                )
            )
    return texts


def _datatrove(archive: Path) -> list[object]:
    """With datatrove's settings of trafilatura, but without `deduplicate`, which would drop repeated pages."""
    from datatrove.pipeline.extractors import Trafilatura  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.readers import WarcReader  # pyright: ignore[reportMissingImports]

    reader = WarcReader(str(archive.parent), glob_pattern=archive.name, compression=None)
    return list(Trafilatura(deduplicate=False, timeout=10).run(reader.run()))

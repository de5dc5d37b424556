"""Web archives to text, against datatrove's reader with trafilatura, trafilatura alone, and FastWARC with Resiliparse,
on the same pages.

The pages are those of the WARC files below CLOZE_DATA, repeated under new record ids. One process each.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from data_prep.document import Document
from data_prep.filters import AnyFilter, FilterChain
from data_prep.filters.gopher import GopherQualityConfig, GopherRepetitionConfig
from data_prep.sources import FilePart
from data_prep.sources.common_crawl import CommonCrawlConfig, parse_headers, parse_response
from data_prep.sources.warc_records import RawRecord, read_records
from data_prep.text import UnreadableError
from data_prep.text.encodings import decode_html
from tests.benchmarks.compare import Comparison, compare, peer_name

NUM_PAGES = int(os.environ.get("CLOZE_BENCHMARK_PAGES", 400))
FILTERS: tuple[AnyFilter, ...] = (GopherQualityConfig(), GopherRepetitionConfig())
MAX_BYTES = 16 << 20
_ID = re.compile(rb"(?<=<urn:uuid:)[^>]*")


def run() -> Iterator[Comparison]:
    """Pages per second from gzipped WARC to main content; ours with two filters behind it, the peers without any."""
    root = os.environ.get("CLOZE_DATA")
    pages = dict(_pages(Path(root))) if root else {}
    if not pages:
        print("web_archive is left out: CLOZE_DATA names no folder with WARC files", file=sys.stderr)
        return
    html = [text for _, text in pages.values()]
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "pages.warc.gz"
        records = [record for record, _ in pages.values()]
        _write_archive(archive, records, len(records))
        _print_quality(html, _read(archive))
        _write_archive(archive, records, NUM_PAGES)
        what = f"pages from WARC to filtered text ({NUM_PAGES}, of which {len(pages)} differ)"
        repeated = [html[number % len(html)] for number in range(NUM_PAGES)]
        peers: dict[str, Callable[[], object]] = {
            peer_name("trafilatura", "extract alone, pages in memory"): lambda: [
                _trafilatura(h) for h in repeated
            ]
        }
        if datatrove := _datatrove(archive):
            name = f"{peer_name('datatrove', 'WarcReader')} + {peer_name('trafilatura')}"
            peers = {name: datatrove} | peers
        yield compare(
            f"{what} (processor time)",
            f"{peer_name('fastwarc')} + {peer_name('resiliparse', 'main content, without filters')}",
            "pages",
            NUM_PAGES,
            lambda: _processor_seconds(lambda: _filtered(archive)),
            lambda: _processor_seconds(lambda: _resiliparse(archive)),
        )
        for peer, theirs in peers.items():
            yield compare(
                what, peer, "pages", NUM_PAGES, lambda: _filtered(archive), theirs, 2, warm_up=False
            )


def _pages(root: Path) -> Iterator[tuple[bytes, tuple[RawRecord, str]]]:
    """Successful HTML responses of intact archives by record id, and their decoded pages."""
    for path in sorted(root.glob("commoncrawl/*/*.warc.gz")):
        for record in read_records(str(path), 0, None, MAX_BYTES):
            if not isinstance(record, RawRecord) or not (found := _ID.search(record.header)):
                continue
            if b"\r\nWARC-Type: response\r\n" not in record.header:
                continue
            response = parse_response(parse_headers(record.header), record.content)
            if response.status == 200 and response.media_type == "text/html":
                try:
                    yield found.group(), (record, decode_html(response.body(MAX_BYTES), response.charset))
                except UnreadableError:
                    continue


def _write_archive(path: Path, records: list[RawRecord], count: int) -> None:
    with path.open("wb") as file:
        info = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n"
        file.write(gzip.compress(info))
        for number in range(count):
            record = records[number % len(records)]
            header = _ID.sub(b"%08d" % number, record.header, count=1)
            file.write(gzip.compress(header + record.content + b"\r\n\r\n"))


def _read(archive: Path) -> Iterator[Document]:
    config = CommonCrawlConfig(name="cc", paths=(str(archive),))
    (file,) = config.list_files()
    return (item for item in config.read(FilePart(file)) if isinstance(item, Document))


def _filtered(archive: Path) -> list[Document | None]:
    chain = FilterChain(FILTERS)
    return [chain.apply(document) for document in _read(archive)]


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


def _processor_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _trafilatura(html: str) -> str:
    """The settings that datatrove takes, but for `deduplicate`, which would drop what is repeated here."""
    from trafilatura import extract

    return extract(html, favor_precision=True, include_comments=False) or ""


def _datatrove(archive: Path) -> Callable[[], object] | None:
    try:
        from datatrove.pipeline.extractors import Trafilatura  # type: ignore[reportMissingImports]
        from datatrove.pipeline.readers import WarcReader  # type: ignore[reportMissingImports]
    except ImportError:
        print("datatrove is left out: pip install -r requirements-bench.txt", file=sys.stderr)
        return None

    def read() -> object:
        reader = WarcReader(str(archive.parent), glob_pattern=archive.name, compression=None)
        return list(Trafilatura(deduplicate=False, timeout=10).run(reader.run()))

    return read


def _print_quality(pages: list[str], ours: Iterator[Document]) -> None:
    """How much our text of each different page has in common with trafilatura's: F1 over words with their counts."""
    texts = {int(document.doc_id.rpartition(":")[2]): document.text for document in ours}
    scores, only_one = [], 0
    for number, page in enumerate(pages):
        mine, theirs = Counter(texts.get(number, "").split()), Counter(_trafilatura(page).split())
        if mine and theirs:
            scores.append(2 * (mine & theirs).total() / (mine.total() + theirs.total()))
        only_one += bool(mine) != bool(theirs)
    scores.sort()
    print(
        f"main content of {len(pages)} pages beside {peer_name('trafilatura')}: word F1 mean"
        f" {sum(scores) / len(scores):.3f}, median {scores[len(scores) // 2]:.3f};"
        f" one of the two is empty for {only_one / len(pages):.1%}",
        flush=True,
    )

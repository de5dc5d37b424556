"""Small web archives, written byte by byte, so that tests know where everything is."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import zstandard

from data_prep.sources.common_crawl import CommonCrawlConfig
from tests.data_prep import reading

COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "warc": bytes,
    "warc.gz": lambda data: gzip.compress(data, mtime=0),
    "warc.zst": zstandard.ZstdCompressor().compress,
}
"""By file ending, what happens to every record."""


def page(number: int, paragraphs: int = 3) -> bytes:
    """An HTML page with navigation around its text."""
    text = "".join(
        f"<p>Paragraph {n} of page {number} tells of rivers, kings, music and the long history of light.</p>"
        for n in range(paragraphs)
    )
    html = (
        f"<!DOCTYPE html><html><head><title>Page {number}</title></head><body><nav><ul><li><a href='/'>Home</a></li>"
        f"<li><a href='/about'>About us</a></li></ul></nav><main><article><h1>Page {number}</h1>{text}</article>"
        "</main><footer>Copyright notice</footer></body></html>"
    )
    return html.encode()


def http(
    body: bytes, *headers: str, content_type: str = "text/html; charset=utf-8", status: str = "200 OK"
) -> bytes:
    """An HTTP response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def record(content: bytes, number: int = 1, *, kind: str = "response", **headers: str) -> bytes:
    """A WARC record; keyword arguments are header fields with underscores for hyphens, "" leaves one out."""
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{number:08d}>",
        "WARC-Date": "2024-02-29T12:00:00Z",
        "WARC-Target-URI": f"https://example.org/{number}",
        "Content-Type": "application/http; msgtype=response",
        "Content-Length": str(len(content)),
    }
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = ["WARC/1.0", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + content + b"\r\n\r\n"


def warcinfo() -> bytes:
    return record(b"software: test\r\n", 0, kind="warcinfo", Content_Type="application/warc-fields")


def write(path: Path, records: Iterable[bytes]) -> Path:
    """An archive of the format that the file's ending names, compressed record by record."""
    compress = COMPRESS[path.name.partition(".")[2]]
    path.write_bytes(b"".join(map(compress, records)))
    return path


def config_of(path: Path, **settings: object) -> CommonCrawlConfig:
    return CommonCrawlConfig.model_validate({"name": "cc", "paths": [str(path)], **settings})


def read(path: Path, part_bytes: int | None = None, **settings: object) -> reading.Results:
    """Everything that a file gives, read as a whole or in parts."""
    return reading.read(config_of(path, **settings), part_bytes=part_bytes)

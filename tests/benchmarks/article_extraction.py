"""Articles out of pages, beside resiliparse and trafilatura: how much of the true text each finds, and how fast.

CLOZE_ARTICLES names a folder in the layout of github.com/scrapinghub/article-extraction-benchmark: `ground-truth.json`
with the `articleBody` of each page by its id, and `html/ID.html.gz`. The measure is that benchmark's, too: runs of four
words, precision and recall of each page, and F1 of their means.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from resiliparse.extract.html2text import extract_plain_text

from data_prep.text.encodings import decode_html
from data_prep.text.html import PageError, read_page
from tests.benchmarks.compare import Comparison, compare_all, peer_name

_WORD = re.compile(r"\w+")
_RUN = 4
"""Words in a row that are compared."""


def run() -> Iterator[Comparison]:
    """Precision, recall and F1 of each way are printed; pages per second are compared."""
    root = os.environ.get("CLOZE_ARTICLES")
    if not root:
        print("article_extraction is left out: CLOZE_ARTICLES names no folder with pages", file=sys.stderr)
        return
    truth, pages = read_folder(Path(root))
    what = f"main content of {len(pages)} pages"
    ours = {what: _ours}
    theirs = {peer_name("Resiliparse", "main content"): _resiliparse, **_trafilatura()}
    for name, extract in {**ours, **theirs}.items():
        precision, recall, f1 = score(truth, [extract(page) for page in pages])
        print(f"{name}: precision {precision:.3f}, recall {recall:.3f}, F1 {f1:.3f}", flush=True)
    yield from compare_all(_timed(ours, pages), _timed(theirs, pages), "pages", len(pages), 3)


def read_folder(root: Path) -> tuple[list[str], list[str]]:
    """True texts and pages, both sorted by the pages' ids."""
    truth = json.loads((root / "ground-truth.json").read_text("utf-8"))
    pages = [gzip.decompress((root / "html" / f"{key}.html.gz").read_bytes()) for key in sorted(truth)]
    return [truth[key].get("articleBody", "") for key in sorted(truth)], [decode_html(p, None) for p in pages]


def score(truth: list[str], found: list[str]) -> tuple[float, float, float]:
    """Mean precision and mean recall over pages, and F1 of the two means."""
    precisions, recalls = [], []
    for true, text in zip(map(_runs, truth), map(_runs, found), strict=True):
        common = (true & text).total()
        if text:
            precisions.append(common / text.total())
        if true:
            recalls.append(common / true.total())
    precision, recall = statistics.mean(precisions or [0.0]), statistics.mean(recalls or [0.0])
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both else 0.0


def _runs(text: str) -> Counter[tuple[str, ...]]:
    words = _WORD.findall(text)
    runs = (tuple(words[start : start + _RUN]) for start in range(max(1, len(words) - _RUN + 1)))
    return Counter(filter(None, runs))


def _timed(ways: dict[str, Callable[[str], str]], pages: list[str]) -> dict[str, Callable[[], object]]:
    return {name: lambda way=way: [way(page) for page in pages] for name, way in ways.items()}


def _ours(page: str) -> str:
    try:
        return read_page(page, main_content=True, max_depth=512).text
    except PageError:
        return ""


def _resiliparse(page: str) -> str:
    return extract_plain_text(page, main_content=True, alt_texts=False, form_fields=False, comments=False)


def _trafilatura() -> dict[str, Callable[[str], str]]:
    try:
        from trafilatura import extract
    except ImportError:
        print("trafilatura is left out: pip install -r requirements-bench.txt", file=sys.stderr)
        return {}
    return {peer_name("trafilatura"): lambda page: extract(page, include_comments=False) or ""}

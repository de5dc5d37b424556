"""Personal data: precision and recall on labelled text, and the speed on English Wikipedia."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from data_prep.document import Document
from data_prep.filters.base import Apply, Passed
from data_prep.filters.pii import PiiConfig
from tests.data_prep.filters.personal_examples import POSITIVES, examples

EXAMPLES = int(os.environ.get("CLOZE_BENCHMARK_EXAMPLES", 2000))
"""Of each group."""
WIKIPEDIA_FILES = 10


def run() -> Iterator[str]:
    """Shares of texts that come out exactly as they should, then MB/s of one core."""
    yield from _quality()
    root = os.environ.get("CLOZE_DATA")
    if root:
        yield _speed(Path(root))
    else:
        print("the speed of pii is left out: CLOZE_DATA is not set", file=sys.stderr)


def _quality() -> Iterator[str]:
    masked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    groups: dict[str, list[int]] = {}
    for example in examples(EXAMPLES):
        text = _text(example.text, example.regions)
        groups.setdefault(example.group, [0, 0])[text == example.expected] += 1
        kind = POSITIVES[example.group][1] if example.group in POSITIVES else None
        for name in {kind for _, kind, _ in POSITIVES.values()}:
            found = text.count(f"<{name}>")
            masked[name] += name == kind
            right[name] += name == kind and found == 1
            wrong[name] += found - (name == kind and found > 0)
    for group, (missed, exact) in groups.items():
        what = "masked exactly" if group in POSITIVES else "left alone"
        yield f"pii, {group}: {exact / (exact + missed):.2%} of {exact + missed:,} {what}"
    for name in sorted(masked):
        precision = right[name] / (right[name] + wrong[name])
        yield f"pii, <{name}>: precision {precision:.2%}, recall {right[name] / masked[name]:.2%}"


@cache
def _filter(regions: tuple[str, ...]) -> Apply:
    return PiiConfig(phone_regions=regions, cards=True, keys=True).build()


def _text(text: str, regions: tuple[str, ...]) -> str:
    outcome = _filter(regions)(Document("x", "x", "x", "x", "en", text))
    assert isinstance(outcome, Passed)
    return outcome.document.text


def _speed(root: Path) -> str:
    paths = sorted((root / "wikipedia" / "extracted-en").iterdir())[:WIKIPEDIA_FILES]
    documents = [
        Document("x", "x", "x", "x", "en", text)
        for path in paths
        for text in path.read_text("utf-8").split("</doc>")
    ]
    apply = PiiConfig().build()
    began = time.process_time()
    for document in documents:
        apply(document)
    seconds = time.process_time() - began
    size = sum(len(document.text.encode()) for document in documents) / 1e6
    return f"pii, English Wikipedia: {size / seconds:.0f} MB/s on one core"

"""Docstrings, comments, messages and pages are plain English: phrases that hide their subject are not used."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HIDES_ITS_SUBJECT = re.compile(
    r"\b(whoever|nobody|somebody|worth the while|no finite numbers?|the same of|what stands in the way)\b"
    r'|"""(That|Those) of\b',
    re.IGNORECASE,
)
"""Phrases after which a reader has to guess who or what is meant."""
WORDS_OF_TEXTS = {"data_prep/sentences/joins.py"}
"""Files that list such words because they occur in texts."""


def test_no_page_or_docstring_hides_its_subject():
    files = [*ROOT.glob("*.md"), *ROOT.glob("runbooks/*.md"), *ROOT.glob("configs/**/*.yaml")]
    for package in ("cluster", "data_prep", "models", "pipeline"):
        files += ROOT.glob(f"{package}/**/*.py")
    found = [
        f"{name}:{number}: {line.strip()}"
        for path in sorted(files)
        if (name := path.relative_to(ROOT).as_posix())
        not in {*WORDS_OF_TEXTS, "CHANGELOG.md", "CONTRIBUTING.md"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if HIDES_ITS_SUBJECT.search(line)
    ]
    assert found == []

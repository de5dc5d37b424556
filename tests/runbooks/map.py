"""The map of the runbooks, made from the pages: `python -m tests.runbooks.map` writes it into their README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from typing import Any

import yaml

from cluster.artefacts.errors import exit_codes

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "runbooks"
README = RUNBOOKS / "README.md"
ALERTS = ROOT / "cluster" / "templates" / "monitoring" / "alerts.yaml"
PAGES = sorted(path for path in RUNBOOKS.glob("*.md") if path != README)
BEGIN, END = "<!-- begin: python -m tests.runbooks.map -->\n", "<!-- end -->\n"


def situation_of(page: Path) -> str:
    """The name of the fixture in which a page is followed."""
    return page.stem.replace("-", "_")


def sections(page: Path) -> dict[str, str]:
    """The text of each section of a page by its heading, in their order; the title and what follows it come first."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    title, *others = re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in (title, *others)}


def symptoms(page: Path) -> list[str]:
    """What an operator sees or wants who needs the page."""
    return [
        " ".join(one.split()) for one in re.split(r"^- ", sections(page)["Symptom"], flags=re.MULTILINE)[1:]
    ]


def codes(page: Path) -> set[int]:
    """The exit codes that a page names as its own."""
    return {int(code) for code in re.findall(r"\b\d+\b", sections(page)["Exit code"])}


def alerts() -> list[dict[str, Any]]:
    """All alert rules."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def page_of(rule: dict[str, Any]) -> str:
    """The file name of an alert's page."""
    return str(rule["annotations"]["runbook_url"]).rpartition("/")[2]


def _by_symptom() -> Iterator[str]:
    yield from ("## By symptom", "", "| What you see, or want | Page |", "|---|---|")
    for page in PAGES:
        for symptom in symptoms(page):
            yield f"| {symptom.rstrip('.')} | [{page.stem.replace('-', ' ')}]({page.name}) |"


def _by_alert() -> Iterator[str]:
    yield from ("## By alert", "", "| Alert | Page |", "|---|---|")
    for rule in sorted(alerts(), key=lambda rule: rule["alert"]):
        yield f"| `{rule['alert']}` | [{page_of(rule)}]({page_of(rule)}) |"


def _by_exit_code() -> Iterator[str]:
    yield from ("## By exit code", "", "| Exit code | Error | What it means | Page |", "|---|---|---|---|")
    for code, error in exit_codes().items():
        meaning = " ".join((getdoc(error) or "").partition("\n\n")[0].split()).rstrip(".")
        others = sorted(page.name for page in PAGES if code in codes(page) and page.name != error.runbook)
        named = ", ".join(f"[{name}]({name})" for name in ([error.runbook] if error.runbook else []) + others)
        yield f"| {code} | `{error.__name__}` | {meaning} | {named} |"


def updated() -> str:
    """The README with the map of now."""
    before, rest = README.read_text().split(BEGIN)
    tables = "\n".join([*_by_symptom(), "", *_by_alert(), "", *_by_exit_code(), ""])
    return before + BEGIN + tables + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    README.write_text(updated())

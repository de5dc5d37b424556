"""The map of the runbooks is complete, and every page has the same sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.artefacts.errors import exit_codes
from tests.runbooks import test_pages_of_clusters, test_pages_of_runs
from tests.runbooks.map import PAGES, README, alerts, codes, page_of, sections, symptoms, updated
from tests.runbooks.materials import BLOCK

HEADINGS = ["Symptom", "Exit code", "What is safe", "Commands", "How to know that it worked"]
HEADINGS += ["How long it takes", "If not"]
"""Of every page, in this order; a page may have others between them."""


def test_the_map_is_the_one_that_the_pages_give():
    assert README.read_text() == updated(), "python -m tests.runbooks.map"


def test_every_page_is_followed_in_a_situation():
    assert sorted([*test_pages_of_clusters.PAGES, *test_pages_of_runs.PAGES]) == PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_the_sections_in_their_order_and_commands_after_its_settings(page: Path):
    found = sections(page)
    assert [heading for heading in found if heading in HEADINGS] == HEADINGS
    assert all(found[heading] for heading in ("Symptom", "Exit code", "What is safe", "How long it takes"))
    assert symptoms(page)
    infos = [match["info"].strip() for match in BLOCK.finditer(page.read_text())]
    assert infos[0] == "bash settings"
    assert set(infos[1:]) == {"bash"}


def test_the_page_that_an_error_names_is_about_its_exit_code():
    pages = {page.name: page for page in PAGES}
    named = {code: error.runbook for code, error in exit_codes().items() if error.runbook}
    assert {code for code, name in named.items() if code not in codes(pages[name])} == set()


def test_the_page_of_an_alert_names_it_as_a_symptom():
    pages = {page.name: page for page in PAGES}
    told = {rule["alert"]: " ".join(symptoms(pages[page_of(rule)])) for rule in alerts()}
    assert [alert for alert, text in told.items() if f"`{alert}`" not in text] == []

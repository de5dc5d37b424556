"""Runbooks about runs and models: every command block, as printed, in the situation of its page."""

from __future__ import annotations

import pytest

from tests.runbooks import map, test_pages_of_clusters
from tests.runbooks.follow import lead_out

PAGES = sorted({page.stem for page in map.PAGES} - set(test_pages_of_clusters.PAGES))


@pytest.mark.parametrize("page", PAGES)
def test_following_the_page_leads_out_of_its_situation(page: str, request: pytest.FixtureRequest):
    lead_out(page, request)

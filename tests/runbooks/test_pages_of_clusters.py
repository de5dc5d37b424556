"""Runbooks about clusters, data and watching: every command block, as printed, in the situation of its page."""

from __future__ import annotations

import pytest

from tests.runbooks.follow import lead_out

PAGES = (
    "collect-a-support-bundle",
    "corrupt-shard",
    "decontaminate-a-corpus",
    "download-a-corpus",
    "install-on-cloud-machines",
    "install-on-kubernetes",
    "install-on-slurm",
    "install-on-ssh-hosts",
    "plan-a-run",
    "prepare-a-corpus",
    "run-the-whole-road",
    "start-and-watch-a-run",
    "untrusted-artefact",
    "watch-a-run",
)
"""`test_pages_of_runs` follows all others."""


@pytest.mark.parametrize("page", PAGES)
def test_following_the_page_leads_out_of_its_situation(page: str, request: pytest.FixtureRequest):
    lead_out(page, request)

"""Runbooks about runs and models: every command block, as printed, in the situation of its page."""

from __future__ import annotations

import pytest

from tests.runbooks.follow import lead_out

PAGES = (
    "change-a-setting",
    "corrupt-checkpoint",
    "delete-a-document",
    "disk-full",
    "export-a-model",
    "head-node-gone",
    "keep-data-in-a-store",
    "loss-spike",
    "mlflow-lost",
    "move-a-run",
    "not-a-number",
    "out-of-memory",
    "publish-a-model",
    "resume-after-a-failure",
    "resume-on-other-nodes",
    "roll-back-by-hand",
    "stalled-worker",
    "stop-and-preempt",
    "straggler",
    "trace-a-batch",
    "upgrade-during-a-run",
)


@pytest.mark.parametrize("page", PAGES)
def test_following_the_page_leads_out_of_its_situation(page: str, request: pytest.FixtureRequest):
    lead_out(page, request)

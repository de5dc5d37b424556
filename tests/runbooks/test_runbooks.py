"""Runbooks are executed: every command block of every page, as printed, in the situation that the page is about.

A page is for the test what it is for an operator: its settings are replaced, the rest is pasted into a shell.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from cluster.artefacts.errors import exit_codes
from tests.pipeline.process_group import PATIENCE_S
from tests.runbooks.materials import ROOT, Situation

RUNBOOKS = ROOT / "runbooks"
PAGES = sorted(path for path in RUNBOOKS.glob("*.md") if path.name != "README.md")
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_following_the_page_leads_out_of_its_situation(page: Path, request: pytest.FixtureRequest):
    situation: Situation = request.getfixturevalue(page.stem.replace("-", "_"))
    printed = follow(page, situation)
    for text in situation.expected:
        assert text in printed, printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_begins_with_settings_and_has_commands_and_a_way_on(page: Path):
    text = page.read_text()
    infos = [match["info"].strip() for match in BLOCK.finditer(text)]
    assert infos[0] == "bash settings"
    assert set(infos[1:]) == {"bash"}
    assert "## If not" in text


def test_table_lists_every_exit_code_with_its_error_and_its_page():
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \|.*\| (?:\[[^]]+\]\(([^)]+)\))? ?\|$",
        (RUNBOOKS / "README.md").read_text(),
        re.MULTILINE,
    )
    listed = {int(code): (name, page or None) for code, name, page in rows}
    assert listed == {code: (error.__name__, error.runbook) for code, error in exit_codes().items()}


def test_every_page_that_an_error_names_exists():
    named = {error.runbook for error in exit_codes().values() if error.runbook}
    assert named <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path):
    missing = [m["target"] for m in LINK.finditer(page.read_text()) if not (RUNBOOKS / m["target"]).exists()]
    assert missing == []


def follow(page: Path, situation: Situation) -> str:
    """Paste a page's blocks into a shell, with the situation's settings in place of the page's own."""
    blocks = [(match["info"].strip(), match["code"]) for match in BLOCK.finditer(page.read_text())]
    (_, own), *commands = blocks
    assert set(re.findall(r"^(\w+)=", own, re.MULTILINE)) == set(situation.settings)
    settings = [f"{name}={shlex.quote(str(value))}" for name, value in situation.settings.items()]
    script = "\n".join([*settings, *(code for _, code in commands)])
    shell = subprocess.Popen(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=situation.directory,
        env=dict(situation.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    alarm = threading.Timer(PATIENCE_S, os.killpg, [shell.pid, signal.SIGKILL])
    alarm.start()
    try:
        printed, _ = shell.communicate()
    finally:
        alarm.cancel()
    assert shell.returncode == 0, printed[-6000:]
    return printed

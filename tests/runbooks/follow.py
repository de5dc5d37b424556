"""Following a page as an operator does: its settings are replaced, the rest is pasted into a shell."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.pipeline.process_group import PATIENCE_S
from tests.runbooks.map import RUNBOOKS
from tests.runbooks.materials import Situation

BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def lead_out(name: str, request: pytest.FixtureRequest) -> None:
    """Follow a page in the situation of its name, and check what was printed."""
    situation: Situation = request.getfixturevalue(name.replace("-", "_"))
    printed = follow(RUNBOOKS / f"{name}.md", situation)
    for text in situation.expected:
        assert text in printed, printed


def follow(page: Path, situation: Situation) -> str:
    """Paste a page's blocks into a shell, with the situation's settings in place of the page's own."""
    blocks = [(match["info"].strip(), match["code"]) for match in BLOCK.finditer(page.read_text())]
    (_, own), *commands = blocks
    assert set(re.findall(r"^(\w+)=", own, re.MULTILINE)) == set(situation.settings)
    settings = [f"{name}={shlex.quote(str(value))}" for name, value in situation.settings.items()]
    script = "\n".join([*settings, *(code for _, code in commands)])
    # To a file, not a pipe: what a page leaves running would keep a pipe open after the shell's end.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        shell = subprocess.Popen(
            ["bash", "-euxo", "pipefail", "-c", script],
            cwd=situation.directory,
            env=dict(situation.environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        output.seek(0)
        printed = output.read()
    assert shell.returncode == 0, printed[-6000:]
    return printed

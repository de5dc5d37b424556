"""Messages are text, or JSON objects by the line whatever writes them; every line says run, step, rank and node."""

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import logs
from cluster.artefacts.errors import ConfigError

CLOZE = Path(sys.executable).with_name("cloze")
PROGRAM = """
import logging, sys, warnings
from cluster import logs
from cluster.progress import progress
logs.start("json")
logs.bind(run="r", rank=3)
logs.say("two\\nlines", "warning", step=7)
print("printed", "in parts", file=sys.stderr)
sys.stderr.write("half a line, ")
sys.stderr.write("and its end\\n\\nbar 10%\\rbar 90%\\n")
warnings.warn("of Python")
logging.getLogger("a.library").error("of a library")
with progress("work", 2) as advance:
    advance(2, "shown")
assert not sys.stderr.isatty()
logging.getLogger("a.library").warning("%d", "a word")
sys.stderr.write("no line break")
print("the answer")
"""


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLOZE_LOG")}
    return subprocess.run(
        [str(CLOZE), *arguments], env=environment | variables, capture_output=True, text=True
    )


def test_everything_that_is_written_to_stderr_is_json_with_its_context():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the answer\n"
    found = lines(done.stderr)
    assert all((one["run"], one["rank"], one["node"]) == ("r", 3, platform.node()) for one in found)
    parts = [
        *(("warning", "two\nlines"), ("info", "printed in parts"), ("info", "half a line, and its end")),
        *(("info", "bar 90%"), ("warning", "of Python"), ("error", "of a library"), ("info", "work: 2/2")),
        *(("warning", "a word"), ("info", "no line break")),
    ]
    for one, (level, part) in zip(found, parts, strict=True):
        assert one["level"] == level
        assert part in one["message"]
    first, *_, library, task, _, _ = found
    assert (first["step"], first["time"][-1], library["logger"]) == (7, "Z", "a.library")
    assert (task["task"], task["done"], task["total"]) == ("work", 2, 2)


def test_errors_have_their_class_exit_code_and_runbook(tmp_path: Path):
    for done in (
        run("pretrain", "nosuch.yaml", "--log-format", "json"),
        run("pretrain", "nosuch.yaml", CLOZE_LOG="json"),
    ):
        (told,) = lines(done.stderr)
        assert done.returncode == told["exit_code"] == 11
        assert (told["level"], told["error"], told["runbook"]) == ("error", "MissingInputError", None)
        assert "nosuch.yaml" in told["message"]
    assert run("pretrain", "nosuch.yaml").stderr.startswith("\n")
    assert lines(run("pretrain", "--nosuch", CLOZE_LOG="json").stderr)


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "xml")
    with pytest.raises(ConfigError):
        logs.start()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_last_message_of_a_program_that_a_signal_ends_is_json_too(tmp_path: Path, number: int, code: int):
    command = [str(CLOZE), "metrics", "--port", "0", "--runs-dir", str(tmp_path), "--log-format", "json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait() == code
    assert "metrics: http://127.0.0.1:" in json.loads(first)["message"]
    assert "cloze metrics" in lines(rest)[-1]["message"]

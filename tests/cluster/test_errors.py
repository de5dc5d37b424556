"""Typed errors cross processes whole, jobs run again after those that may pass, and messages say where they arose."""

import copy
import json
import os
import pickle
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cluster import job_process, logs
from cluster.artefacts.errors import ClozeError, ConfigError, ConfigProblem, exit_codes
from cluster.failures import Failure, failure_of, failure_of_exit_code
from cluster.job_process import run_with_retries


def all_errors() -> list[type[ClozeError]]:
    found, pending = [], [ClozeError]
    while pending:
        found.append(pending.pop())
        pending.extend(found[-1].__subclasses__())
    return [cls for cls in found if cls.__module__ == "cluster.artefacts.errors"]


@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_with_all_it_says(cls):
    problems = {"problems": (ConfigProblem("a.b", "3", "must be 4"),)} if cls is ConfigError else {}
    error = cls("it broke", kept="the rest", next_step="type this", **problems)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), vars(again), str(again)) == (cls, vars(error), str(error))
    if problems:
        assert str(error).splitlines()[:2] == ["it broke", "  a.b = 3: must be 4"]


def test_exit_codes_are_distinct_and_no_error_that_needs_an_operator_may_pass():
    # A class without a code of its own has its parent's, and another page.
    assert sorted(exit_codes()) == sorted(cls.exit_code for cls in all_errors() if "exit_code" in vars(cls))
    passing = {code for code in exit_codes() if failure_of_exit_code(code)[0] is Failure.LOST}
    assert passing == {14, 30, 31, 32, 34}
    names = [failure_of_exit_code(code)[1] for code in (-9, -35, 99)]
    assert names == ["SIGKILL", "signal 35", "not documented"]


@pytest.mark.parametrize(
    ("errors", "failure"),
    [
        ([RuntimeError("connection reset by peer")], Failure.LOST),
        ([ValueError("once more")], Failure.RAISED),
        ([ModuleNotFoundError("No module named 'flash'")], Failure.FINAL),
        ([RuntimeError("connection reset by peer"), NotImplementedError("no such mix")], Failure.FINAL),
    ],
)
def test_what_cannot_pass_is_not_tried_again(errors: list[Exception], failure: Failure) -> None:
    assert failure_of(errors) is failure


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a character for every attempt; retries come at once."""
    monkeypatch.setattr(job_process, "FIRST_PAUSE_S", 0.01)
    path = tmp_path / "attempts"
    path.touch()
    return path


def command(attempts: Path, then: str) -> list[str]:
    """A program that counts its attempts (`n` were before it) and then does something."""
    counting = "import os, pathlib, sys; p = pathlib.Path(sys.argv[1]); n = p.stat().st_size; "
    return [sys.executable, "-c", f"{counting}p.write_text('x' * (n + 1)); {then}", str(attempts)]


@pytest.mark.parametrize(
    ("then", "retries", "code", "count"),
    [
        pytest.param("sys.exit(31 if n < 2 else 0)", 5, 0, 3, id="passes"),
        pytest.param("sys.exit(30)", 2, 30, 3, id="retries end"),
        pytest.param("n or os.kill(os.getpid(), 9)", 1, 0, 2, id="killed once"),
        pytest.param("os.kill(os.getpid(), 9)", 0, 137, 1, id="killed"),
        # Mistakes, stops and damage are not retried.
        *((f"sys.exit({code})", 3, code, 1) for code in (0, 1, 2, 10, 11, 20, 21, 24, 26, 36, 75, 130)),
    ],
)
def test_a_failure_is_retried_while_it_may_pass(attempts, then, retries, code, count):
    assert run_with_retries(command(attempts, then), retries, threading.Event()) == code
    assert attempts.stat().st_size == count


def test_stop_lets_the_command_save_and_gives_its_exit_code():
    saving = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), print('saved', flush=True), sys.exit(75)))\n"
        "print('awake', flush=True)\n"
        "time.sleep(600)\n"
    )
    job = [sys.executable, "-m", "cluster.job_process", "--retries", "3", "--", sys.executable, "-c", saving]
    process = subprocess.Popen(job, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "awake\n"
    # As Ray does: the process and its children.
    os.killpg(process.pid, signal.SIGTERM)
    assert (process.wait(60), process.stdout.read()) == (75, "saved\n")


def test_stop_during_the_pause_ends_the_job(attempts: Path, monkeypatch: pytest.MonkeyPatch):
    # Who does not wake up for the stop does not come back.
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(job_process, pause, 1e6)
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    assert run_with_retries(command(attempts, "sys.exit(30)"), 3, stop) == 30
    assert attempts.stat().st_size == 1


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

"""SIGTERM and SIGHUP end every verb with 75 and Ctrl-C with 130, wherever it is, and nothing that it started stays."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from cluster import signals
from tests.pipeline.process_group import PATIENCE_S

MARK = "CLOZE_TEST_MARK"
"""Variable that all descendants of a process inherit, wherever they are reparented to."""
VERB = """
import os, signal, subprocess, sys, threading, time
import typer
from pipeline import cli
from pipeline.commands import verbs
verbs.app = typer.Typer()
@verbs.app.command()
def verb(words: list[str]):
    {body}
sys.argv = ["cloze", "data", "prepare", "a b.yaml"]
cli.main()
"""
READY = "print('ready', flush=True); "
SWALLOWS = """
    from cluster import signals
    signals.UNWINDING_S = 0.5
    class Deaf:
        def __del__(self):
            print("ready", flush=True)
            time.sleep(600)
    Deaf()
    print("never heard", flush=True)
    time.sleep(600)
"""


def start(*command: str) -> tuple[subprocess.Popen[str], str]:
    """A process group of its own, and the mark of all that it starts."""
    mark, pipe = uuid.uuid4().hex, subprocess.PIPE
    environment = {**os.environ, MARK: mark}
    process = subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    return process, mark


def start_verb(body: str) -> tuple[subprocess.Popen[str], str]:
    return start(sys.executable, "-c", VERB.format(body=body))


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    """Return when the process has printed a line with a word; fails when it ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(process.communicate(timeout=PATIENCE_S)[1][-3000:])


def living(mark: str) -> list[psutil.Process]:
    """The processes that inherited a mark and have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_of(process: subprocess.Popen[str], mark: str) -> tuple[int, str]:
    """Exit code and messages of a process that ends, and leaves nothing behind."""
    told = process.communicate(timeout=PATIENCE_S)[1]
    assert "Traceback" not in told
    assert living(mark) == []
    return process.returncode, told


@pytest.mark.parametrize(("number", "code"), signals.EXIT_CODES.items())
def test_a_signal_ends_a_verb_with_its_code_and_the_command_that_goes_on(number: int, code: int):
    process, mark = start_verb(f"{READY}time.sleep(600)")
    wait_for(process, "ready")
    process.send_signal(number)
    found, told = end_of(process, mark)
    assert found == code
    assert "cloze data prepare 'a b.yaml'" in told
    assert "all finished work" in told


@pytest.mark.parametrize(
    "body",
    [
        # Children, also those whose parent is gone and those that ignore what is polite.
        "subprocess.Popen(['sh', '-c', '(trap \"\" TERM INT; echo ready; sleep 600; sleep 600) & sleep 600']);"
        " import psutil; time.sleep(600)",
        # Whatever a library makes of the interruption, and however long it takes leave.
        f"try: {READY}time.sleep(600)\n    except BaseException: raise ValueError('half imported') from None",
        f"try: {READY}time.sleep(600)\n    finally: sys.exit(3)",
        # Threads that interpreters wait for.
        f"threading.Thread(target=time.sleep, args=(600,)).start(); {READY}time.sleep(600)",
        SWALLOWS,
    ],
    ids=["children", "another error", "another exit", "threads", "swallowed"],
)
def test_nothing_keeps_a_verb_from_its_end_and_nothing_stays(body: str):
    process, mark = start_verb(body)
    wait_for(process, "ready")
    process.terminate()
    if body == SWALLOWS:
        wait_for(process, "never heard")
    code, told = end_of(process, mark)
    assert (code, told.count("Ended by SIGTERM")) == (75, 1)


def test_the_second_signal_ends_a_verb_at_once():
    process, _ = start_verb(
        f"try: {READY}time.sleep(600)\n    finally: print('leaving', flush=True); time.sleep(600)"
    )
    wait_for(process, "ready")
    process.terminate()
    wait_for(process, "leaving")
    process.terminate()
    # The same request came twice.
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(signals.SAME_S)
    process.terminate()
    assert process.wait() == 75


def test_as_the_first_process_of_a_container_sigterm_is_answered_too():
    inside = VERB.format(body=f"print('process', os.getpid(), flush=True); {READY}time.sleep(600)")
    try:
        process, mark = start("unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", inside)
        wait_for(process, "process 1")
    except (OSError, AssertionError):
        pytest.skip("this system lets nobody make process namespaces")
    wait_for(process, "ready")
    (first,) = psutil.Process(process.pid).children()
    first.terminate()
    code, told = end_of(process, mark)
    assert (code, told.count("Ended by SIGTERM")) == (75, 1)


@pytest.mark.parametrize("module", ["pipeline.cli", "pipeline.pretrain"])
def test_handlers_stand_before_anything_big_is_imported(module: str):
    # What is imported by then, and how the process ends when the signal comes in the very next import.
    code = (
        "import builtins, runpy, signal, sys\n"
        "real = builtins.__import__\n"
        "def spy(name, *rest, **named):\n"
        "    if name.split('.')[0] in {'typer', 'torch', 'ray', 'pydantic', 'orjson', 'psutil'}:\n"
        "        print('heard' if signal.getsignal(signal.SIGTERM) else 'deaf', name, flush=True)\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    return real(name, *rest, **named)\n"
        "builtins.__import__ = spy\n"
        f"sys.argv = ['{module}', 'runs/none']\n"
        f"runpy.run_module('{module}', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 75, done.stderr[-3000:]
    assert done.stdout.startswith("heard")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", [0, 3, 130])
def test_a_verb_that_ends_by_itself_keeps_its_exit_code_and_its_words(code: int):
    assert end_of(*start_verb(f"raise typer.Exit({code})")) == (code, "")


@pytest.mark.parametrize("number", [1, 2])
def test_words_for_a_closed_stream_go_nowhere(number: int, tmp_path: Path):
    code = (
        "import os, sys\n"
        "from cluster.signals import run\n"
        "def program():\n"
        "    with open('file', 'w') as file:\n"
        "        file.write('its own')\n"
        "        file.flush()\n"
        f"        [sys.stdout, sys.stderr][{number} - 1].write('words')\n"
        f"        os.system('echo words >&{number}')\n"
        "        return 3\n"
        "run('cloze', program)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(signals.__file__).parents[1])}
    command = ["bash", "-c", f'exec "$@" {number}>&-', "bash", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=tmp_path, env=environment).returncode == 3
    assert (tmp_path / "file").read_text() == "its own"


def test_a_forked_child_neither_ends_nor_wakes_its_parent():
    body = (
        "pid = os.fork()\n"
        "    if not pid:\n        print('ready', flush=True); time.sleep(600)\n"
        "    print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)"
    )
    process, mark = start_verb(body)
    wait_for(process, "ready")
    (child,) = psutil.Process(process.pid).children()
    child.terminate()
    wait_for(process, f"child {-signal.SIGTERM}")
    assert end_of(process, mark)[0] == 0


def test_a_crash_in_c_says_where_the_program_was():
    process, mark = start_verb("import ctypes; ctypes.string_at(0)")
    told = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == -signal.SIGSEGV
    assert "string_at" in told
    assert "in verb" in told
    assert living(mark) == []


def prepares(directory: Path) -> None:
    from cluster.runtime import ray_runtime
    from data_prep.job import prepare
    from tests.data_prep.conftest import small_config, write_corpus

    with ray_runtime("local", num_cpus=1):
        prepare(small_config(write_corpus(directory / "corpus"), directory / "out"))


def finetunes(directory: Path) -> None:
    from pipeline.tune.run import finetune
    from tests.pipeline.tune.conftest import write_sst2, write_tokenizer
    from tests.pipeline.tune.test_processes import make_config

    write_sst2(directory / "SST-2", 64, 45)
    write_tokenizer(directory / "tokenizer.json")
    training = {"epochs": 5000, "batch_size": 8, "max_length": 16}
    finetune(make_config(directory, "x", side_by_side=2, training=training, search={"lr": [1e-3]}), None)


@pytest.mark.parametrize(
    ("verb", "begun", "least_bytes", "number"),
    [
        (prepares, "out/documents/shard-records/*.json", 1, signal.SIGHUP),
        # A state without weights is smaller.
        (finetunes, "**/in-progress/*.safetensors", 10_000, signal.SIGTERM),
    ],
)
def test_a_signal_to_the_group_ends_a_verb_with_75(verb, begun, least_bytes, number, tmp_path: Path):
    process, mark = start_verb(
        f"import pathlib; from {__name__} import {verb.__name__} as verb; verb(pathlib.Path('{tmp_path}'))"
    )
    while not any(path.stat().st_size >= least_bytes for path in tmp_path.glob(begun)):
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.05)
    # Twice, as `timeout` does.
    process.send_signal(number)
    os.killpg(process.pid, number)
    code, told = end_of(process, mark)
    assert code == 75, told[-3000:]
    # Raw lines of Ray's C++ part.
    assert not [text for text in ("***", "max_restarts") if text in told]

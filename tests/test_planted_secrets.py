"""Secrets in URIs are found nowhere afterwards: no file, no argument of a process, nothing in MLflow, no output."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.artefacts import credentials
from cluster.artefacts.credentials import has_credentials, without_credentials
from cluster.artefacts.errors import ConfigError
from pipeline.commands.verbs import app
from pipeline.run.directory import RunDirectory
from pipeline.run.lifecycle import replay
from pipeline.run.log.log import RunLog
from pipeline.run.submission import environment_of, prepare
from tests.pipeline.mlflow_server import Server
from tests.pipeline.process_group import PATIENCE_S
from tests.surroundings import plain_environment, serving
from tests.test_command_line import CONFIG, write_config

USER, PASSWORD, TOKEN = "planteduser", "pl@ntedpassword", "plantedsignature"
IN_URI = f"{USER}:{PASSWORD.replace('@', '%40')}@"
SECRETS = (PASSWORD, PASSWORD.replace("@", "%40"), TOKEN, USER)
AUTHORIZED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def authorized(handler: BaseHTTPRequestHandler) -> bool:
    if handler.headers.get("Authorization") == AUTHORIZED:
        return True
    handler.send_response(401)
    handler.send_header("Content-Length", "0")
    handler.end_headers()
    return False


class Guarded(SimpleHTTPRequestHandler):
    """Gives files to those who know the password."""

    def do_GET(self) -> None:
        if authorized(self):
            super().do_GET()

    def do_HEAD(self) -> None:
        if authorized(self):
            super().do_HEAD()

    def log_message(self, format: str, *args: Any) -> None: ...


class Gate(BaseHTTPRequestHandler):
    """Passes on to another server what comes with the password."""

    protocol_version = "HTTP/1.1"
    behind = ""

    def answer(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/health" and not authorized(self):
            return
        headers = {name: value for name, value in self.headers.items() if name in ("Content-Type", "Accept")}
        request = urllib.request.Request(
            self.behind + self.path, data=data or None, headers=headers, method=self.command
        )
        try:
            with urllib.request.urlopen(request) as response:
                status, body = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = answer

    def log_message(self, format: str, *args: Any) -> None: ...


class Watched:
    """A command, and the arguments of all processes while it ran."""

    def __init__(self, directory: Path, *arguments: str, **variables: str) -> None:
        home = directory / "home"
        home.mkdir(exist_ok=True)
        kept = plain_environment() | variables
        environment = kept | {"RAY_TMPDIR": str(directory / "ray"), "CLOZE_CACHE": str(home)}
        self.arguments: set[str] = set()
        done = threading.Event()
        # To a file, not a pipe: a process that the command left behind would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            command = [Path(sys.executable).with_name("cloze"), *arguments]
            process = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            watch = threading.Thread(target=self._watch, args=(done, process.pid))
            watch.start()
            try:
                self.returncode = process.wait(PATIENCE_S)
            finally:
                process.kill()
                done.set()
                watch.join()
            output.seek(0)
            self.output = output.read()

    def _watch(self, done: threading.Event, pid: int) -> None:
        seen, young = {pid, *psutil.pids()}, set[int]()
        while not done.wait(0.2):
            for new in set(psutil.pids()) - seen:
                # Looked at twice: a process is forked first, and becomes what it is for afterwards.
                (seen if new in young else young).add(new)
                with suppress(psutil.Error):
                    self.arguments.add("\0".join(psutil.Process(new).cmdline()))


def leaks(*places: Path | str) -> list[str]:
    """Where a secret stands."""
    found = []
    for place in places:
        if isinstance(place, str):
            found += [f"text: ...{secret}" for secret in SECRETS if secret in place]
            continue
        for path in place.rglob("*"):
            if path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                found += [f"{path}: {secret}" for secret in SECRETS if secret.encode() in data]
    return found


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory whose path leaves room for the sockets of Ray."""
    directory = Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_sources_behind_a_password_are_prepared_and_no_file_names_it(short: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("A first sentence. And a second one, of a few words.\n\n" * 400)
    with serving(partial(Guarded, directory=str(tmp_path))) as host:
        uri = f"http://{IN_URI}{host}/book.txt?X-Amz-Signature={TOKEN}&part=1"
        (short / "data.yaml").write_text(
            "name: secret\nout: out\nsources:\n"
            '- {kind: books_text, name: books, paths: ["${oc.env:PLANTED}"]}\n'
            "tokenizer: {vocab_size: 600, train_bytes: 20000}\n"
        )
        done = Watched(short, "data", "prepare", "data.yaml", PLANTED=uri)
        assert done.returncode == 0, done.output[-3000:]
        lineage = Watched(short, "lineage", "out/tokens", "--json")
        assert f"http://{host}/book.txt" in lineage.output
        wrong = Watched(
            short, "data", "prepare", "data.yaml", "out=other", PLANTED=uri.replace("book.txt", "none.txt")
        )
        assert wrong.returncode == 11, wrong.output
        everything = (done, lineage, wrong)
        assert leaks(short, *(one.output for one in everything)) == []
        assert leaks(*(argument for one in everything for argument in one.arguments)) == []


def test_a_run_reaches_a_server_by_a_password_that_stands_nowhere(
    short: Path,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    server = Server(tmp_path)
    request.addfinalizer(server.kill)
    with serving(type("GateOfServer", (Gate,), {"behind": server.uri})) as place:
        write_config(short, store)
        small = ["steps=4", "checkpoint.every_steps=2"]
        done = Watched(short, "pretrain", "tiny.yaml", *small, MLFLOW_TRACKING_URI=f"http://{IN_URI}{place}")
        assert done.returncode == 0, done.output[-3000:]
        (run,) = (short / "runs").glob("tiny-*")
        info = json.loads((run / "run.json").read_bytes())
        assert info["tracking_uri"] == f"http://{place}"
        assert len(server.metric_rows(info["run_id"])["loss"]) == 4
        # Whoever sends what comes has to know the password, too, and is told so.
        log = RunLog(RunDirectory(run), since=4)
        log.write("train", 5, {"loss": 2.0})
        log.close()
        for name in credentials.TRACKING_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        assert not replay(RunDirectory(run))
        assert "MLFLOW_TRACKING_PASSWORD" in RunDirectory(run).events()[-1]["message"]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{IN_URI}{place}")
        assert replay(RunDirectory(run))
        assert len(server.metric_rows(info["run_id"])["loss"]) == 5
        assert leaks(short, tmp_path, done.output, *done.arguments) == []


def test_settings_and_jobs_that_would_show_a_secret_are_refused_without_naming_it(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, store)
    place = f"s3://{IN_URI}bucket/checkpoints?token={TOKEN}"
    for arguments in (["pretrain", "tiny.yaml", f"checkpoint.directory={place}"], ["lineage", place]):
        with pytest.raises(ConfigError) as caught:
            prepare(app, arguments)
        assert leaks(str(caught.value)) == []
    (tmp_path / "tiny.yaml").write_text(
        CONFIG.format(store=store) + f"checkpoint: {{directory: '{place}'}}\n"
    )
    with pytest.raises(ConfigError, match="credentials") as caught:
        prepare(app, ["pretrain", "tiny.yaml"])
    assert leaks(str(caught.value)) == []
    write_config(tmp_path, store)
    for uri in (f"http://{IN_URI}host:5000", f"postgresql://{IN_URI}host/mlflow"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
        submission = prepare(app, ["pretrain", "tiny.yaml"])
        told = json.dumps([environment_of("id"), submission.base_id, submission.arguments])
        assert leaks(told) == []
        # The processes that are started from here find them all the same.
        assert credentials.tracking_environment()["MLFLOW_TRACKING_URI"] in (uri, "http://host:5000")
    assert os.environ["MLFLOW_TRACKING_URI"] == uri
    assert credentials.connection_uri("postgresql://host/mlflow") == uri


WORDS = st.text("abcXYZ019-._~!$*+%", min_size=1, max_size=12)


@given(
    WORDS.filter(lambda word: "planted" not in word),
    st.sampled_from(
        ["token", "sig", "X-Amz-Signature", "X-Goog-Credential", "access_token", "AWSAccessKeyId", "api_key"]
    ),
    st.sampled_from(["{}", '"{}"', "see {} which", "<{}>", '{{"uri":"{}"}}', "a::{}"]),
)
@example("x", "X%2DAmz%2DSignature", "{}")
def test_no_text_keeps_what_lets_in_and_all_keep_the_rest(path: str, name: str, text: str) -> None:
    uri = f"https://{IN_URI}host:80/{path}/file?part=1&{name}={TOKEN}"
    shown = without_credentials(text.format(uri))
    assert leaks(shown) == []
    assert shown == text.format(f"https://host:80/{path}/file?part=1")
    assert not has_credentials(shown)


def test_what_a_library_repeats_of_a_uri_is_not_in_an_error() -> None:
    uri = f"s3://{IN_URI}bucket/file"
    error = ConfigError(f"{uri} cannot be listed: Invalid bucket name '{IN_URI}bucket', password {PASSWORD}")
    assert leaks(str(error)) == []
    assert "cannot be listed: Invalid bucket name" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a@b/c",
        "https://host/search?q=key&page=2",
        "mail me@example.org about x://",
        "Did you mean that? See https://host/a?monkey=1",
        "sqlite:////tmp/runs/mlflow.db",
        "models:/name@best",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_credentials(text) == text

"""What several test files share: the real corpora, and small token stores made on the spot."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from cluster.artefacts.private import private_cache
from data_prep.layout import TOKEN_FILES

if TYPE_CHECKING:
    from data_prep.token_writer import EncodedBatch
    from tests.object_store import Proxy

# Under nohup, SIGHUP would be ignored in every process that a test starts.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# A shell that starts a command in the background has it ignore SIGINT, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Two test processes with spinning threads on two cores run ten times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A misspelt run would be looked for on the Hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# The same seed every time, however slow the machine is. Now and then an example has a constant of a module that is
# imported by then. `make test` takes the first 25 examples of every property, `make test-rest` all 100.
settings.register_profile("full", settings.get_profile("ci"))
settings.register_profile("fast", settings.get_profile("ci"), max_examples=25)
settings.register_profile("random", settings.get_profile("ci"), derandomize=False)
settings.load_profile("fast")

SYSTEM = (
    "runbooks/test_pages_of_runs.py::*",
    "pipeline/test_exactness.py::*",
    "runbooks/test_pages_of_clusters.py::test_following*",
    "cluster/test_group.py::*",
    "pipeline/test_engine.py::*",
    "pipeline/tune/test_processes.py::*",
    "test_fingerprints.py::*",
    "pipeline/test_commands.py::*outlives*",
    "pipeline/test_commands.py::*starts_after*",
    "pipeline/test_hostile_files.py::test_resuming*",
    "pipeline/tune/test_finetuned.py::*tracked_checkpoint*",
    "pipeline/road/ladder/test_ladder.py::*",
    "cluster/test_nodes.py::*",
    "pipeline/test_tracking_outages.py::*",
    "pipeline/tune/test_acts_as_scored.py::*",
    "runbooks/test_pages_of_docs.py::test_commands*",
    "data_prep/test_preparation_restart.py::*",
    "cluster/test_jobs.py::*",
    "test_planted_secrets.py::test_[as]*",
    "test_signals.py::*finetunes*",
    "pipeline/test_tiny_runs.py::*",
    "data_prep/test_preparation_in_full.py::*",
    "cluster/test_ray.py::*[[]head]",
    "pipeline/tune/test_resumed_training.py::*",
    "data_prep/dedup/test_dedup.py::*killed*",
    "models/test_gpu_benchmark.py::test_a_run*",
    "golden/test_golden.py::*",
    "pipeline/test_hostile_files.py::*deepspeed_saves*",
    "pipeline/tune/test_scores.py::*superglue_takes",
    "pipeline/tune/test_scores.py::*multirc*",
    "pipeline/tune/test_scores.py::*archive*",
    "pipeline/tune/test_finetuned.py::*start*",
    "pipeline/tune/test_finetuned.py::*goes_on*",
    "pipeline/tune/test_finetuned.py::*published*",
    "pipeline/test_plan.py::*allocate*",
    "data_prep/test_forecast.py::*",
)
"""Tests of the whole system, which take minutes with real processes, the slowest files first. They are marked `system`
and left to `make test-rest`."""
CANARIES = (
    "runbooks/test_pages_of_clusters.py::*download-a-corpus*",
    "pipeline/test_exactness.py::*24_steps*",
    "pipeline/test_exactness.py::*dry_run*",
    "cluster/test_group.py::*class_allows[[]dies]",
    "cluster/test_group.py::*others_wait*",
    "pipeline/test_engine.py::*[[]0-fp32]",
    "pipeline/test_engine.py::*[[]1-offload-bf16]",
    "pipeline/test_engine.py::*[[]2-fp16]",
    "pipeline/test_engine.py::*[[]3-bf16]",
    "pipeline/test_engine.py::*single_numbers*",
    "pipeline/tune/test_processes.py::*failing*",
    "pipeline/tune/test_processes.py::*one_after_another*",
    "pipeline/tune/test_finetuned.py::*tracked_checkpoint*[[]decoder]",
    "pipeline/tune/test_resumed_training.py::*every_optimizer_goes_on*",
    "pipeline/tune/test_resumed_training.py::*comes_back_as_it_was*",
    "pipeline/tune/test_resumed_training.py::*costs_only_its_updates*",
    "pipeline/tune/test_resumed_training.py::*stopped_by_sigterm*",
    "pipeline/test_plan.py::*allocate[[]MLM, stage 2*",
    "data_prep/test_preparation_restart.py::*killed_preparation*",
    "data_prep/test_preparation_restart.py::*lost_node*",
    "cluster/test_jobs.py::*environment_and_metadata*",
    "cluster/test_jobs.py::*running_job*",
    "pipeline/road/ladder/test_ladder.py::*sizes_before*",
    "pipeline/road/ladder/test_ladder.py::*refused*",
    "golden/test_golden.py::*[[]samples]",
    "golden/test_golden.py::*words",
    "pipeline/test_tracking_outages.py::*killed*",
    "pipeline/test_tracking_outages.py::*broke_off*",
    "pipeline/tune/test_acts_as_scored.py::*[[]BERT-labels*",
    "pipeline/tune/test_acts_as_scored.py::*[[]BART-summaries*",
    "pipeline/tune/test_acts_as_scored.py::*[[]BERT-labels-peft*",
    "pipeline/tune/test_acts_as_scored.py::*[[]RoBERTa-labels-Auto*",
    "pipeline/tune/test_finetuned.py::*must_be_named*",
    "pipeline/tune/test_processes.py::*no_launcher*",
    "pipeline/test_tiny_runs.py::*heart[[]bert-tiny]",
    "pipeline/test_tiny_runs.py::*heart[[]t5-tiny]",
    "pipeline/test_tiny_runs.py::*heart[[]gpt-tiny]",
    "data_prep/test_forecast.py::*without_a*",
    "data_prep/test_preparation_in_full.py::*had_something_to_do",
    "data_prep/test_preparation_in_full.py::*overlap*",
)
"""Those among them that `make test` runs all the same."""

STATUS = pytest.StashKey[int]()
"""The exit status of the whole session."""
SCRATCH = pytest.StashKey[str]()
"""The session's directory for temporary files, which its workers share."""
REMOVER = pytest.StashKey[subprocess.Popen[bytes]]()
"""What removes that directory even when the session is killed."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled code between sessions, and give the session a directory for what libraries leave behind."""
    cache = private_cache()
    os.environ.setdefault("NUMBA_CACHE_DIR", f"{cache}/kernels/tests-{key_of_loops()}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{cache}/torchinductor")
    # Pytest's own directories outlive the session: one looks into those of a test that failed.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    if not hasattr(config, "workerinput"):
        # A short name, because paths of sockets must be short.
        config.stash[SCRATCH] = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="t-")
        config.stash[REMOVER] = _remove_at_our_end(tempfile.tempdir)


def _remove_at_our_end(directory: str) -> subprocess.Popen[bytes]:
    """Start a process that removes a directory when this one has ended, be it by a signal that nothing can handle.

    It waits for the end of its input, so for as long as what is returned is kept, and tries again while other processes
    of the session still write there.
    """
    script = 'cat; for attempt in 1 2 3 4 5 6 7 8 9; do rm -rf "$0" && exit; sleep 1; done'
    return subprocess.Popen(
        ["sh", "-c", script, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def key_of_loops() -> str:
    """Hash of all files with loops for numba, which notices a change of a loop's own file, not of one that it calls."""
    root = Path(__file__).parents[1]
    files = (
        file
        for name in ("cluster", "data_prep", "models", "pipeline")
        for file in (root / name).rglob("*.py")
    )
    contents = [
        text for file in sorted(files) if re.search(rb"@compiled_loop|\bnjit\b", text := file.read_bytes())
    ]
    return hashlib.blake2b(b"".join(contents), digest_size=8).hexdigest()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: what is packed by gzip differs from second to second, and so from process to
    process that collects the tests."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests of the whole system, and begin with the files that take longest."""
    here = Path(__file__).parent
    names = {item: f"{item.path.relative_to(here).as_posix()}::{item.name}" for item in items}
    for item, name in names.items():
        if any(fnmatch(name, one) for one in SYSTEM) and not any(fnmatch(name, one) for one in CANARIES):
            item.add_marker("system")
    if not any("::" in argument for argument in config.args):
        # A test that was renamed would silently move to the other half of the suite.
        files = {item.path for item in items}
        paths = {one: here / one.partition("::")[0] for one in (*SYSTEM, *CANARIES)}
        whole = [one for one, path in paths.items() if path in files or not path.exists()]
        if stale := [one for one in whole if not any(fnmatch(name, one) for name in names.values())]:
            message = f"these patterns of tests/conftest.py match no test: {stale}"
            # A session with several processes shows nothing of the exception.
            os.write(2, f"{message}\n".encode())
            pytest.exit(message, returncode=4)
    places = {here / name.partition("::")[0]: -place for place, name in enumerate(reversed(SYSTEM))}
    items.sort(key=lambda item: places.get(item.path, 1))


def pytest_collection_finish() -> None:
    _leave_out_of_searches()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _leave_out_of_searches()


def _leave_out_of_searches() -> None:
    """Leave what is there by now (modules, and what they and pytest keep) out of every later search for garbage: half a
    second each, and every training makes some."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave without the interpreter's clean-up: threads of Ray and torch crash in it now and then, after the report."""
    if SCRATCH in config.stash:
        shutil.rmtree(config.stash[SCRATCH], ignore_errors=True)
    if STATUS in config.stash:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[STATUS])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin every test at the same place of the global generators, whatever ran before it: libraries draw from them."""
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _copied_tracking_stores() -> Iterator[None]:
    """Where any test file needs MLflow, no test waits for the tables of a new store."""
    if "mlflow" not in sys.modules:
        yield
        return
    from tests.tracking_stores import copied_stores

    with copied_stores():
        yield


@pytest.fixture(scope="module")
def forked_python() -> Iterator[None]:
    """Programs and workers of Ray that the tests of a module start are forked from a server that has imported all."""
    from tests.pipeline.process_group import forked_environment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(forked_environment() / "bin" / "python"))
        yield


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of real corpora named by CLOZE_DATA."""
    root = os.environ.get("CLOZE_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("CLOZE_DATA does not name a folder of real corpora")
    return Path(root).resolve()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Address of an S3 server with an empty bucket called `bucket`."""
    from tests.object_store import running_store

    with running_store() as address:
        yield address


@pytest.fixture
def uri(server: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of a test's own on the server, with an empty cache on this machine."""
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    return f"s3://bucket/{request.node.name}"


@pytest.fixture
def proxy(server: str, uri: str) -> Iterator[Proxy]:
    """What stands between clients and the server."""
    from tests.object_store import behind_proxy

    with behind_proxy(server) as found:
        yield found


def commit_tokens(
    path: Path,
    shards: Sequence[tuple[str, EncodedBatch]],
    tokenizer_json: str,
    vocab_size: int,
    special_tokens: Mapping[str, int],
    langs: Sequence[str] = ("en",),
) -> Path:
    """Commit a token store with a file for each of `shards`: its source and its documents."""
    from cluster.artefacts.storage import commit, staging_directory
    from data_prep.token_writer import token_dtype, write_sidecars, write_token_shard

    staging = staging_directory(path, "test-store")
    staging.mkdir(parents=True)
    files, dtype = TOKEN_FILES.files(len(shards)), token_dtype(vocab_size)
    for file, (source, batch) in zip(files, shards, strict=True):
        write_token_shard(staging / file, source, langs, [batch], dtype)
    write_sidecars(staging, files, dtype, tokenizer_json.encode())
    config = {"vocab_size": vocab_size, "special_tokens": dict(special_tokens)}
    commit(staging, path, "tokens", config=config)
    return path


def write_store(
    path: Path,
    *,
    num_documents: int = 300,
    vocab_size: int = 200,
    seed: int = 0,
    langs: tuple[str, ...] = ("en",),
) -> Path:
    """Commit a token store of a small Markov language, with which a network can learn something in seconds."""
    from tokenizers import Tokenizer, models

    from data_prep.ragged import Ragged
    from data_prep.token_writer import EncodedBatch

    generator = np.random.Generator(np.random.Philox(seed))
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = [*specials, *(f"w{number}" for number in range(len(specials), vocab_size))]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.add_special_tokens(specials)
    successors = generator.integers(len(specials), vocab_size, size=(vocab_size, 2))
    shards = []
    for shard in range(2):
        numbers = range(num_documents // 2)
        batch = EncodedBatch(
            doc_ids=pa.array([f"test:{shard}-{number}" for number in numbers]),
            langs=pa.array([langs[number % len(langs)] for number in numbers]),
            input_ids=Ragged.of([_walk(generator, successors, vocab_size) for _ in numbers]),
            sentence_starts=Ragged.of([np.zeros(1, np.int32) for _ in numbers]),
        )
        shards.append(("test", batch))
    special_tokens = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
    return commit_tokens(path, shards, tokenizer.to_str(), vocab_size, special_tokens, langs)


def _walk(generator: np.random.Generator, successors: np.ndarray, vocab_size: int) -> np.ndarray:
    ids = [int(generator.integers(5, vocab_size))]
    for choice in generator.integers(0, 2, size=int(generator.integers(5, 60))):
        ids.append(int(successors[ids[-1], choice]))
    return np.asarray(ids, dtype=np.uint16)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small committed token store; tests must not change it."""
    return write_store(tmp_path_factory.mktemp("store") / "tokens")

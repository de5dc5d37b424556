"""Seconds until a tiny network on one worker of this machine logs a step: a new run, and runs that are resumed.

The new run starts by `cloze pretrain CONFIG`, and all of it counts: the command line, the checks of the data, the run
in MLflow, Ray, the worker, DeepSpeed, and the first evaluation.

The resumed ones are processes of a rank, on stores of ten thousand and of eight million short documents, of the latter
in two formats. In turn with them, a process only imports torch and DeepSpeed and joins a group of one: what the store,
the checkpoint and the run add to it is reported.

A first round of each warms up the machine: compiled loops and operators, and the tables of the tracking store.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil

CASES = ((10_000, "contiguous"), (8_000_000, "contiguous"), (8_000_000, "full_sentences"))
"""Documents, and the format of samples, of resumed runs."""
ROUNDS = 3
PATIENCE_S = 240
NUM_FILES, VOCAB_SIZE = 8, 200
_LINE = b'"kind":"train"'
_POLL_S = 0.005
_SETTINGS = ("steps=1000000", "checkpoint.every_steps=100000", "evaluation.every_steps=100000", "seed=3")
_ONE_RANK = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
_BARE = """
import torch, deepspeed
import torch.distributed as dist
dist.init_process_group("gloo")
print("joined", flush=True)
"""


def run() -> Iterator[str]:
    """One line for the new run, and one for each case of resumed runs; medians of the rounds."""
    with tempfile.TemporaryDirectory() as scratch:
        rounds = _new_runs(Path(scratch))
        seconds, processor_seconds, num_processes = map(statistics.median, zip(*rounds, strict=True))
        yield (
            f"start: first step after {seconds:.2f} s, {processor_seconds:.1f} s of processor time in"
            f" {num_processes:.0f} processes"
        )
        for (num_documents, format), times in _resumed_runs(Path(scratch)).items():
            yield (
                f"resume, {num_documents:,} documents, {format}: first step after"
                f" {statistics.median(ours for ours, _ in times):.2f} s, torch, DeepSpeed and group"
                f" {statistics.median(bare for _, bare in times):.2f} s, beyond them"
                f" {statistics.median(ours - bare for ours, bare in times):.2f} s"
            )


def _new_runs(scratch: Path) -> list[tuple[float, float, int]]:
    from tests.pipeline.ranks import make_config

    write_short_documents(scratch / "tokens", CASES[0][0])
    runs_dir = make_config(scratch, scratch / "tokens").runs_dir
    command = ["-m", "pipeline.cli", "pretrain", str(scratch / "tiny.yaml"), "steps=1000000"]

    def start() -> tuple[float, float, int]:
        before = set(runs_dir.glob("*/log.jsonl"))
        return _until_first_step(
            command,
            {},
            lambda: b"".join(log.read_bytes() for log in {*runs_dir.glob("*/log.jsonl")} - before),
        )

    return [start() for _ in range(1 + ROUNDS)][1:]


def _resumed_runs(scratch: Path) -> dict[tuple[int, str], list[tuple[float, float]]]:
    """By case, seconds to the first step, and beside them those of the bare process."""
    runs = {case: _stopped_run(scratch, *case) for case in CASES}
    found: dict[tuple[int, str], list[tuple[float, float]]] = {case: [] for case in CASES}
    _bare()
    for _ in range(ROUNDS):
        for case, path in runs.items():
            found[case].append((_resumed(path), _bare()))
    return found


def _stopped_run(scratch: Path, num_documents: int, format: str) -> Path:
    """A run that was stopped, and so has a checkpoint of its last step; resumed once, to warm up."""
    from tests.pipeline.ranks import make_run

    directory = scratch / str(num_documents)
    if not directory.exists():
        directory.mkdir()
        write_short_documents(directory / "tokens", num_documents)
    path = make_run(directory, directory / "tokens", format, *_SETTINGS, f"batch.format={format}").path
    for _ in range(2):
        _resumed(path)
    return path


def _resumed(path: Path) -> float:
    """Seconds to the first step of a run that starts or resumes; stopping it saves a checkpoint."""
    log = path / "log.jsonl"
    before = log.stat().st_size if log.exists() else 0
    command = ["-m", "pipeline.pretrain", str(path)]
    seconds, *_ = _until_first_step(
        command, _ONE_RANK, lambda: log.read_bytes()[before:] if log.exists() else b""
    )
    return seconds


def _until_first_step(
    command: list[str], settings: dict[str, str], logged: Callable[[], bytes]
) -> tuple[float, float, int]:
    """Start a process, wait for a step in what it logs, and stop it.

    Returns seconds, and processor seconds and number of the process and all below it that live then.
    """
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *command], env=os.environ | settings, stdout=subprocess.DEVNULL, stderr=errors
        )
        while _LINE not in logged():
            if process.poll() is not None or time.perf_counter() - started > PATIENCE_S:
                process.kill()
                errors.seek(0)
                raise RuntimeError(errors.read().decode())
            time.sleep(_POLL_S)
        seconds = time.perf_counter() - started
        top = psutil.Process(process.pid)
        living = [top, *top.children(recursive=True)]
        times = [one.cpu_times() for one in living]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    return seconds, sum(time.user + time.system for time in times), len(living)


def _bare() -> float:
    """Seconds from the start of a process to its place in a group."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", _BARE],
        env=os.environ | _ONE_RANK | _ALONE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert any(b"joined" in line for line in process.stdout)
    seconds = time.perf_counter() - started
    process.wait(PATIENCE_S)
    return seconds


def write_short_documents(path: Path, num_documents: int) -> None:
    """Commit a token store of documents of 5 to 24 random tokens."""
    import pyarrow as pa
    from tokenizers import Tokenizer, models

    from data_prep.ragged import Ragged
    from data_prep.token_writer import EncodedBatch
    from tests.conftest import commit_tokens

    special = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
    words = [f"<{name}>" for name in special] + [f"w{number}" for number in range(len(special), VOCAB_SIZE)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<unk>"))
    generator, count, shards = np.random.Generator(np.random.Philox(1)), num_documents // NUM_FILES, []
    for shard in range(NUM_FILES):
        offsets = np.concatenate([[0], np.cumsum(generator.integers(5, 25, size=count))])
        ids = generator.integers(len(special), VOCAB_SIZE, size=offsets[-1]).astype(np.uint16)
        batch = EncodedBatch(
            doc_ids=pa.array([f"benchmark:{shard}-{number}" for number in range(count)]),
            langs=pa.array(["en"]).take(pa.array(np.zeros(count, dtype=np.int32))),
            input_ids=Ragged(ids, offsets),
            sentence_starts=Ragged(np.zeros(count, dtype=np.int32), np.arange(count + 1)),
        )
        shards.append(("benchmark", batch))
    commit_tokens(path, shards, tokenizer.to_str(), VOCAB_SIZE, special)

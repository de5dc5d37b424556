"""Seconds from the start of a process to the first step that it logs, of a run that has a checkpoint, by size of the
store.

The same tiny network on stores of ten thousand and of eight million short documents, of the latter in two formats. In
turn with them, a process that only imports torch and DeepSpeed and joins a group of one: what the store, the checkpoint
and the run add to it is what is reported. All compiled loops are in the cache, as they are on a machine that has
trained before.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CASES = ((10_000, "contiguous"), (8_000_000, "contiguous"), (8_000_000, "full_sentences"))
"""Documents, and the format of samples."""
ROUNDS = 3
PATIENCE_S = 240
NUM_FILES, VOCAB_SIZE = 8, 200
_LINE = b'"kind":"train"'
_SETTINGS = ("steps=1000000", "checkpoint.every_steps=100000", "evaluation.every_steps=100000", "seed=3")
_BARE = """
import torch, deepspeed
import torch.distributed as dist
dist.init_process_group("gloo")
print("joined", flush=True)
"""


@dataclass(frozen=True, slots=True)
class FirstStep:
    """Medians of the rounds."""

    num_documents: int
    format: str
    seconds: float
    """From the start of the process to the first logged step."""
    bare_seconds: float
    """From the start of a process that does nothing else to its place in a group."""
    added_seconds: float
    """Of neighbouring measurements, what the first is longer."""

    def __str__(self) -> str:
        return (
            f"resume, {self.num_documents:,} documents, {self.format}: first step after {self.seconds:.2f} s,"
            f" torch, DeepSpeed and group {self.bare_seconds:.2f} s, beyond them {self.added_seconds:.2f} s"
        )


def run() -> Iterator[FirstStep]:
    """One line for each case."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = {case: _stopped_run(Path(scratch), *case) for case in CASES}
        found: dict[tuple[int, str], list[tuple[float, float]]] = {case: [] for case in CASES}
        _bare()
        for _ in range(ROUNDS):
            for case, path in runs.items():
                found[case].append((_until_first_step(path), _bare()))
    for case, times in found.items():
        yield FirstStep(
            *case,
            statistics.median(ours for ours, _ in times),
            statistics.median(bare for _, bare in times),
            statistics.median(ours - bare for ours, bare in times),
        )


def _stopped_run(scratch: Path, num_documents: int, format: str) -> Path:
    """A run that was stopped, and so has a checkpoint of its last step; resumed once, to warm up."""
    from tests.pipeline.ranks import make_run

    directory = scratch / str(num_documents)
    if not directory.exists():
        directory.mkdir()
        write_short_documents(directory / "tokens", num_documents)
    path = make_run(directory, directory / "tokens", format, *_SETTINGS, f"batch.format={format}").path
    for _ in range(2):
        _until_first_step(path)
    return path


def _until_first_step(path: Path) -> float:
    """Start or resume the run, wait for a step in its log, and stop it, which saves."""
    log = path / "log.jsonl"
    before = log.stat().st_size if log.exists() else 0
    errors = (path / "stderr").open("wb")
    started = time.perf_counter()
    process = _start(["-m", "pipeline.pretrain", str(path)], errors.fileno())
    while not _has_step(log, before):
        if process.poll() is not None or time.perf_counter() - started > PATIENCE_S:
            process.kill()
            raise RuntimeError((path / "stderr").read_text())
        time.sleep(0.005)
    seconds = time.perf_counter() - started
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    errors.close()
    return seconds


def _has_step(log: Path, before: int) -> bool:
    if not log.exists() or log.stat().st_size <= before:
        return False
    with log.open("rb") as lines:
        lines.seek(before)
        return _LINE in lines.read()


def _bare() -> float:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    started = time.perf_counter()
    process = _start(["-c", _BARE], subprocess.DEVNULL, **alone)
    assert process.stdout is not None
    assert any(b"joined" in line for line in process.stdout)
    seconds = time.perf_counter() - started
    process.wait(PATIENCE_S)
    return seconds


def _start(arguments: list[str], errors: int, **more: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"} | more
    command = [sys.executable, *arguments]
    output = subprocess.PIPE if more else subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdout=output, stderr=errors)


def write_short_documents(path: Path, num_documents: int) -> None:
    """Commit a token store of documents of 5 to 24 random tokens."""
    import pyarrow as pa
    from tokenizers import Tokenizer, models

    from cluster.artefacts.storage import commit, staging_directory
    from data_prep.ragged import Ragged
    from data_prep.token_writer import (
        EncodedBatch,
        token_dtype,
        token_files,
        write_sidecars,
        write_token_shard,
    )

    special = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
    words = [f"<{name}>" for name in special] + [f"w{number}" for number in range(len(special), VOCAB_SIZE)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<unk>"))
    staging = staging_directory(path, "benchmark")
    staging.mkdir(parents=True)
    files, dtype = token_files(NUM_FILES), token_dtype(VOCAB_SIZE)
    generator = np.random.Generator(np.random.Philox(1))
    for shard, file in enumerate(files):
        count = num_documents // NUM_FILES
        offsets = np.concatenate([[0], np.cumsum(generator.integers(5, 25, size=count))])
        ids = generator.integers(len(special), VOCAB_SIZE, size=offsets[-1]).astype(dtype)
        batch = EncodedBatch(
            doc_ids=pa.array([f"benchmark:{shard}-{number}" for number in range(count)]),
            langs=pa.array(["en"]).take(pa.array(np.zeros(count, dtype=np.int32))),
            input_ids=Ragged(ids, offsets),
            sentence_starts=Ragged(np.zeros(count, dtype=np.int32), np.arange(count + 1)),
        )
        write_token_shard(staging / file, "benchmark", ["en"], [batch], dtype)
    write_sidecars(staging, files, dtype, tokenizer.to_str().encode())
    commit(staging, path, "tokens", config={"vocab_size": VOCAB_SIZE, "special_tokens": special})

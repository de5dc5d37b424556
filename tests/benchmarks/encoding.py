"""Text to committed Arrow shards through Ray, against what a user would take instead, on the same JSON lines.

The peers: `datasets.map` with the same tokenizer.json, datatrove's tokenizer step, and the fastest exact encoder
called alone on texts that are in memory already. Two processes (or threads) each; ids are compared first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from tests.benchmarks.compare import Comparison, compare, compare_all, peer_name
from tests.benchmarks.corpus import write_json_lines

NUM_PROCESSES = 2
NUM_BYTES = int(os.environ.get("CLOZE_BENCHMARK_BYTES", 256_000_000))
SHARD_BYTES = 16 << 20


def run() -> Iterator[Comparison]:
    """MB of text per second: reading, filtering by length, writing documents, encoding, committing."""
    from cluster.runtime import ray_runtime

    with tempfile.TemporaryDirectory() as scratch, ray_runtime("local", num_cpus=NUM_PROCESSES):
        bench = _Bench(Path(scratch))
        bench.prepare("none")
        megabytes = bench.num_bytes / 1e6
        what = f"{megabytes:.0f} MB of JSON lines to committed shards"
        ours = {
            f"{what}, sentences: {sentences}": partial(bench.prepare, sentences)
            for sentences in ("none", "blingfire")
        }
        found = compare_all(ours, bench.peers(), "MB", megabytes, rounds=2)
        bench.require_equal_ids()
        yield from found
        yield compare(
            f"token stage alone ({megabytes:.0f} MB of documents to committed shards), sentences: none",
            bench.encoder_alone_name,
            "MB",
            megabytes,
            lambda: bench.tokenize("none"),
            bench.encode_alone,
            rounds=3,
        )


class _Bench:
    """The text, the tokenizer, and every way to bring them together."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.num_bytes = write_json_lines(scratch / "text", NUM_BYTES)
        self.files = sorted(str(path) for path in (scratch / "text").iterdir())
        self.tokenizer = self._tokenizer()
        self.encoder_alone_name = peer_name("fastokens", f"alone, {NUM_PROCESSES} threads, text in memory")

    def _tokenizer(self) -> Path:
        """GPT-2's, where CLOZE_DATA has it; else one trained on the text itself."""
        from data_prep.config import PreparationConfig
        from data_prep.job import prepare_tokenizer

        root = os.environ.get("CLOZE_DATA")
        wanted = {"path": f"{root}/tokenizers/gpt2"} if root else {"vocab_size": 50_000}
        config = PreparationConfig.model_validate(self._plain("tokenizer", "none") | {"tokenizer": wanted})
        prepare_tokenizer(config)
        return config.out / "tokenizer" / "tokenizer.json"

    def _plain(self, name: str, sentences: str) -> dict:
        return {
            "name": "benchmark",
            "out": str(self.scratch / name),
            "sources": [{"kind": "json_lines", "name": "text", "paths": self.files, "id_field": "id"}],
            "tokenizer": {"path": str(getattr(self, "tokenizer", ""))},
            "sentences": sentences,
            "shard_bytes": SHARD_BYTES,
            "dedup": "none",
        }

    def prepare(self, sentences: str) -> Path:
        """The whole preparation, from nothing."""
        from data_prep.config import PreparationConfig
        from data_prep.job import prepare

        config = PreparationConfig.model_validate(self._plain(f"ours-{sentences}", sentences))
        shutil.rmtree(config.out, ignore_errors=True)
        return prepare(config).token_store

    def tokenize(self, sentences: str) -> None:
        """The last stage alone: everything before it is there and is confirmed."""
        from data_prep.config import PreparationConfig
        from data_prep.job import prepare

        config = PreparationConfig.model_validate(self._plain(f"ours-{sentences}", sentences))
        shutil.rmtree(config.out / "tokens", ignore_errors=True)
        prepare(config)

    def peers(self) -> dict:
        found = {
            peer_name("datasets", f"map, {NUM_PROCESSES} processes, without sentences"): self.with_datasets
        }
        try:
            name = peer_name("datatrove", f"DocumentTokenizer, {NUM_PROCESSES} tasks, without sentences")
            return found | {name: self.with_datatrove}
        except ModuleNotFoundError:
            print("datatrove is left out: pip install -r requirements-bench.txt", file=sys.stderr)
            return found

    def with_datasets(self) -> Path:
        """`datasets.map` to a directory of Arrow files."""
        return self._run_peer("datasets", _DATASETS)

    def with_datatrove(self) -> None:
        """datatrove's tokenizer step to its own binary format."""
        self._run_peer("datatrove", _DATATROVE)

    def _run_peer(self, name: str, program: str) -> Path:
        """In a process of its own, because libraries that fork do not like to be forked twice."""
        out = self.scratch / name
        shutil.rmtree(out, ignore_errors=True)
        filled = program.format(
            files=self.files,
            text=str(self.scratch / "text"),
            out=str(out),
            tokenizer=str(self.tokenizer),
            processes=NUM_PROCESSES,
        )
        script = self.scratch / f"{name}_peer.py"
        script.write_text(filled)
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
        return out / "tokens"

    def encode_alone(self) -> float:
        """Seconds of encoding, in a process of its own: the number of its threads is fixed when it starts."""
        program = _ENCODER.format(files=self.files, tokenizer=str(self.tokenizer))
        environment = os.environ | {"RAYON_NUM_THREADS": str(NUM_PROCESSES)}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
        return float(done.stdout)

    def require_equal_ids(self) -> None:
        """Every document's ids are those of `datasets.map`, in what both wrote last."""
        import datasets

        ours = datasets.load_from_disk(str(self.scratch / "ours-none" / "tokens")).with_format("numpy")
        theirs = datasets.load_from_disk(str(self.scratch / "datasets" / "tokens")).with_format("numpy")
        by_id = {row["id"]: number for number, row in enumerate(theirs.select_columns(["id"]))}
        for row in ours:
            expected = theirs[by_id[row["doc_id"].removeprefix("text:")]]["input_ids"]
            assert np.array_equal(row["input_ids"], expected), row["doc_id"]


_DATASETS = """
from datasets import disable_caching, disable_progress_bars, load_dataset
from transformers import PreTrainedTokenizerFast
if __name__ == "__main__":
    disable_caching()
    disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file={tokenizer!r})
    documents = load_dataset(
        "json", data_files={files!r}, split="train", cache_dir={out!r} + "/cache", num_proc={processes}
    )
    documents.map(
        lambda batch: {{"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]}},
        batched=True,
        num_proc={processes},
        remove_columns=["text"],
    ).save_to_disk({out!r} + "/tokens")
"""
_DATATROVE = """
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
if __name__ == "__main__":
    steps = [
        JsonlReader({text!r}),
        DocumentTokenizer({out!r} + "/tokens", {tokenizer!r}, shuffle_documents=False),
    ]
    LocalPipelineExecutor(
        steps, tasks={processes}, workers={processes}, logging_dir={out!r} + "/logs", start_method="fork"
    ).run()
"""
_ENCODER = """
import time
import fastokens, orjson
texts = [orjson.loads(line)["text"] for path in {files!r} for line in open(path, "rb")]
parts = orjson.loads(open({tokenizer!r}, "rb").read()) | {{"post_processor": None}}
encoder = fastokens.Tokenizer.from_json_str(orjson.dumps(parts).decode())
started = time.perf_counter()
for first in range(0, len(texts), 1000):
    encoder.encode_batch_flat(texts[first : first + 1000], False, True)
print(time.perf_counter() - started)
"""

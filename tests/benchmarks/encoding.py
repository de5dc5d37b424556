"""A preparation from text to committed Arrow shards, against `datasets.map` with the same tokenizer.json."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.benchmarks.compare import Comparison, compare, peer_name

NUM_PROCESSES = 2


def run() -> list[Comparison]:
    """MB of text per second of the token stage with Ray on two CPUs, sentence boundaries included.

    The text is a fixed list of docstrings; our stage reads its documents and commits verified shards, the
    peer reads the same documents from Parquet and writes its own Arrow files.
    """
    import shutil

    from cluster.runtime import ray_runtime
    from data_prep.config import DataConfig
    from data_prep.job import prepare
    from pipeline.config import validate

    with tempfile.TemporaryDirectory() as scratch, ray_runtime("local", num_cpus=NUM_PROCESSES):
        out = Path(scratch) / "ours"
        config = validate(DataConfig, _plain(out), "benchmark")
        prepared = prepare(config)
        megabytes = prepared.documents.stats["text_bytes"] / 1e6

        def ours() -> None:
            shutil.rmtree(out / "tokens")
            prepare(config)

        return [
            compare(
                f"text to committed token shards, {megabytes:.0f} MB of docstrings, with sentences",
                peer_name("datasets", f"map, {NUM_PROCESSES} processes, without sentences"),
                "MB",
                megabytes,
                ours,
                lambda: _encode_with_datasets(out, Path(scratch) / "theirs"),
                rounds=3,
            )
        ]


def _plain(out: Path) -> dict:
    source = {
        "kind": "python_docs",
        "name": "docstrings",
        "packages": ["torch", "scipy", "sklearn", "pandas"],
    }
    tokenizer = {"vocab_size": 16384, "train_bytes": 8_000_000}
    return {
        "name": "benchmark",
        "out": str(out),
        "sources": [source],
        "tokenizer": tokenizer,
        "shard_bytes": 8_000_000,
        "dedup": "none",
    }


def _encode_with_datasets(prepared: Path, out: Path) -> None:
    from datasets import Dataset, disable_caching, disable_progress_bars
    from transformers import PreTrainedTokenizerFast

    disable_caching()
    disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(prepared / "tokenizer" / "tokenizer.json"))
    documents = Dataset.from_parquet(
        [str(path) for path in sorted((prepared / "documents").glob("*.parquet"))]
    )
    assert isinstance(documents, Dataset)
    encoded = documents.map(
        lambda batch: {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]},
        batched=True,
        num_proc=NUM_PROCESSES,
        remove_columns=documents.column_names,
    )
    encoded.save_to_disk(str(out))

"""A signal to the whole process group, as `timeout` and closed terminals send it, ends verbs on Ray with 75."""

import os
import signal
import time
from pathlib import Path

import pytest

from cluster.runtime import ray_runtime
from data_prep.job import prepare
from pipeline.tune.run import finetune
from pipeline.tune.scores import IN_PROGRESS
from tests.data_prep.conftest import small_config, write_corpus
from tests.pipeline.tune.conftest import write_sst2, write_tokenizer
from tests.pipeline.tune.test_processes import make_config
from tests.test_signals import end_of, start_verb


def prepares(directory: Path) -> None:
    with ray_runtime("local", num_cpus=1):
        prepare(small_config(write_corpus(directory / "corpus"), directory / "out"))


def finetunes(directory: Path) -> None:
    write_sst2(directory / "SST-2", 64, 45)
    write_tokenizer(directory / "tokenizer.json")
    training = {"epochs": 5000, "batch_size": 8, "max_length": 16}
    finetune(make_config(directory, "x", side_by_side=2, training=training, search={"lr": [1e-3]}), None)


@pytest.mark.parametrize(
    ("verb", "begun", "least_bytes", "number"),
    [
        (prepares, "out/documents/shard-records/*.json", 1, signal.SIGHUP),
        # A state without weights is smaller.
        (finetunes, f"**/{IN_PROGRESS}/*.safetensors", 10_000, signal.SIGTERM),
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

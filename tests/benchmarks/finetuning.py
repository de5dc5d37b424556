"""Fine-tuning a classifier on SST-2, against Hugging Face's Trainer with its default padding and by groups of length.

The same network (BERT's shape, random weights), examples, batch, learning rate and precision (fp32), one process
with one thread; processor seconds of the updates behind the first ones, without start and evaluation. Every contender
is a process of its own, in turn. Tokens are those of the texts with their special tokens, never padding.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.benchmarks.harness import Comparison, compare_all, in_process, peer_name, steps_of_hugging_face

BATCH, UPDATES, WARM_UP, ROUNDS = 32, 16, 4, 3
MAX_LENGTH = 128
EXAMPLES = BATCH * UPDATES


def run() -> Iterator[Comparison]:
    """Tokens per second, where `CLOZE_DATA` has SST-2 and BERT's vocabulary."""
    corpora = Path(os.environ["CLOZE_DATA"])
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        tokens = _write_inputs(directory, corpora)
        process = partial(in_process, __name__, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
        ours = {f"fine-tuning on SST-2, 6 layers x 512, batches of {BATCH}": process("ours", scratch)}
        peers = {"Trainer": "random", "Trainer, by length": "group_by_length"}
        theirs = {
            peer_name("transformers", name): process("hugging_face", scratch, sampling)
            for name, sampling in peers.items()
        }
        yield from compare_all(ours, theirs, "tokens", tokens, ROUNDS)


def _write_inputs(directory: Path, corpora: Path) -> float:
    """The model and the examples as every contender reads them; mean tokens of an update."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = BertWordPieceTokenizer(str(corpora / "tokenizers/bert-base-uncased/vocab.txt"))
    lines = (corpora / "glue/SST-2/train.tsv").read_text(encoding="utf-8-sig").splitlines()[: EXAMPLES + 1]
    folder = directory / "SST-2"
    folder.mkdir()
    (folder / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "dev.tsv").write_text("\n".join(lines[:33]) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=6,
        hidden_size=512,
        num_attention_heads=8,
        intermediate_size=2048,
        max_position_embeddings=MAX_LENGTH,
    )
    BertForSequenceClassification(config).save_pretrained(directory / "model")
    tokenizer.save(str(directory / "model/tokenizer.json"))
    texts = [line.split("\t")[0] for line in lines[1:]]
    return sum(len(found.ids) for found in tokenizer.encode_batch(texts)) / UPDATES


def _seconds_of_an_update(ends: list[float]) -> float:
    """Mean processor seconds of the updates behind the first ones: lengths differ, so a median would choose."""
    return (ends[-1] - ends[WARM_UP]) / (len(ends) - 1 - WARM_UP)


def ours(scratch: str) -> float:
    """Seconds of an update of our trainer in one epoch."""
    from accelerate import Accelerator

    from pipeline.checkpoint.references import resolve_model
    from pipeline.config.loading import Config
    from pipeline.tasks.tokenizer import TextTokenizer
    from pipeline.tune.config import FinetuneConfig
    from pipeline.tune.forms import FORMS
    from pipeline.tune.forms.base import TaskContext
    from pipeline.tune.networks import initial_network
    from pipeline.tune.trainer import train
    from pipeline.tune.training_state import TrainingState

    directory = Path(scratch)
    config = FinetuneConfig.model_validate(
        {
            "tasks": {"sst2": {"kind": "sst2", "path": directory / "SST-2"}},
            "training": {"epochs": 1, "batch_size": BATCH, "max_length": MAX_LENGTH},
        }
    )
    assert isinstance(config, Config)
    pretrained = resolve_model(str(directory / "model"), directory)
    task_config, settings = config.tasks["sst2"], config.training
    context = TaskContext(
        task_config, task_config.load(), settings, pretrained.model, TextTokenizer(pretrained.tokenizer_path)
    )
    task = FORMS[task_config.form](context)
    model = initial_network(task, 1, pretrained.state_dict())
    ends: list[float] = []
    accelerator = Accelerator(cpu=True)
    # Nothing is saved within the hour.
    state = TrainingState(directory / "state.json", "", accelerator, 3600)

    def on_update(*_: object) -> None:
        ends.append(time.process_time())

    train(accelerator, model, task, settings, 1, state, on_update=on_update)
    return _seconds_of_an_update(ends)


def hugging_face(scratch: str, sampling: str) -> float:
    """Seconds of an update of Hugging Face's Trainer in one epoch."""
    import torch
    from datasets import Dataset
    from transformers import BertForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerFast

    directory = Path(scratch)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "model/tokenizer.json"),
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    rows = [line.split("\t") for line in (directory / "SST-2/train.tsv").read_text().splitlines()[1:]]
    encoded = tokenizer([text for text, _ in rows], truncation=True, max_length=MAX_LENGTH)
    data = Dataset.from_dict({**encoded, "labels": [int(label) for _, label in rows]})
    torch.manual_seed(0)
    ends = steps_of_hugging_face(
        BertForSequenceClassification.from_pretrained(directory / "model"),
        data,
        DataCollatorWithPadding(tokenizer),
        str(directory / "out"),
        time.process_time,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        learning_rate=2e-5,
        weight_decay=0.1,
        train_sampling_strategy=sampling,
    )
    return _seconds_of_an_update(ends)

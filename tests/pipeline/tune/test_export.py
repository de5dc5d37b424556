"""What was fine-tuned and exported gives the same scores in `transformers`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch

from models.hf.directory import save_hf_directory
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.checkpoint.references import PretrainedModel
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.export import export
from pipeline.tune.forms import FORMS
from pipeline.tune.forms.base import PreparedTask, TaskContext
from pipeline.tune.run import finetune
from pipeline.tune.starting import initial_network
from pipeline.tune.workload import make_workload, scores_directory
from tests.pipeline.tune.conftest import MODEL, make_checkpoint
from tests.pipeline.tune.launched_run import make_inputs
from tests.published_networks import PRESETS

BERT = dataclasses.replace(MODEL, num_segments=2, norm_eps=1e-12)
GPT2 = dataclasses.replace(MODEL, network="decoder", norm="pre", embedding_norm=False, activation="gelu_tanh")
BART = dataclasses.replace(MODEL, network="encoder_decoder")
T5 = dataclasses.replace(PRESETS["t5-small"], vocab_size=32, num_layers=1, hidden_size=32, num_heads=2)
NETWORKS = {
    "bert": lambda: MaskedLanguageModel(BERT, pair="nsp"),
    "roberta": lambda: MaskedLanguageModel(MODEL),
    "gpt2": lambda: CausalLanguageModel(GPT2),
    "bart": lambda: SequenceToSequence(BART),
    "t5": lambda: SequenceToSequence(T5),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_inputs(folder)
    return folder


def tasks(folder: Path) -> dict[str, dict]:
    squad, xsum = folder / "squad.json", folder / "xsum.jsonl"
    windows = {"train": squad, "evaluation": squad, "max_query_length": 4, "doc_stride": 4}
    summaries = {
        "evaluation": xsum,
        "train": xsum,
        "max_target_length": 8,
        "min_target_length": 1,
        "num_beams": 2,
    }
    return {
        "sst2": {"kind": "sst2", "path": folder / "SST-2"},
        "squad": {"kind": "squad", **windows},
        "xsum": {"kind": "xsum", **summaries},
    }


def prepare(config: FinetuneConfig, checkpoint: PretrainedModel, task: str) -> PreparedTask:
    """A task as it is prepared for a training."""
    workload = make_workload(config, checkpoint)
    settings, kind = config.training_of(task), config.tasks[task]
    return FORMS[kind.form](
        TaskContext(kind, workload.tasks[task], settings, workload.model, workload.tokenizer)
    )


def test_losses_are_those_that_transformers_computes(files, make_config, tmp_path):
    import transformers

    training = {"epochs": 1, "batch_size": 16, "max_length": 16}
    wanted = tasks(files)
    wanted["xsum"]["label_smoothing"] = 0.0
    for network, task, auto_class in (
        ("bart", "xsum", transformers.AutoModelForSeq2SeqLM),
        ("t5", "xsum", transformers.AutoModelForSeq2SeqLM),
        ("bert", "squad", transformers.AutoModelForQuestionAnswering),
    ):
        checkpoint = make_checkpoint(
            tmp_path / network, files / "tokenizer.json", network=NETWORKS[network]()
        )
        prepared = prepare(make_config(tasks={task: wanted[task]}, training=training), checkpoint, task)
        model = initial_network(prepared, 1, checkpoint.state_dict()).eval()
        state = {name.removeprefix("network."): tensor for name, tensor in model.state_dict().items()}
        save_hf_directory(tmp_path / f"{network}-hf", state, checkpoint.model)
        theirs = auto_class.from_pretrained(tmp_path / f"{network}-hf").eval()
        # Rows of one length, because in transformers the ends of answers compete with padding.
        rows = np.flatnonzero(prepared.train.lengths == prepared.train.lengths[0])[:4]
        batch = prepared.batch(prepared.train, rows)
        inputs = {
            "input_ids": batch.inputs["input_ids"],
            "attention_mask": batch.inputs["attention_mask"].long(),
        }
        if task == "xsum":
            labels = torch.full(batch.inputs["decoder_input_ids"].shape, -100).flatten()
            labels[batch.inputs["predicted_positions"]] = batch.targets["targets"]
            targets = {"labels": labels.view(len(rows), -1)}
        else:
            first, last = batch.targets["answer"].unbind(-1)
            targets = {"start_positions": first, "end_positions": last}
            inputs["token_type_ids"] = batch.inputs["segment_ids"]
        with torch.no_grad():
            ours = float(prepared.loss(model, batch)) / int(prepared.train.predictions[rows].sum())
            assert ours == pytest.approx(float(theirs(**inputs, **targets).loss), rel=1e-4)


@pytest.mark.parametrize(
    ("network", "task", "auto_class"),
    [
        ("roberta", "sst2", "AutoModelForSequenceClassification"),
        ("bert", "sst2", "AutoModelForSequenceClassification"),
        ("gpt2", "sst2", "AutoModelForSequenceClassification"),
        ("bert", "squad", "AutoModelForQuestionAnswering"),
        ("bart", "xsum", "AutoModelForSeq2SeqLM"),
        ("t5", "xsum", "AutoModelForSeq2SeqLM"),
    ],
)
def test_exported_network_gives_the_same_scores_in_transformers(
    network, task, auto_class, files, make_config, tmp_path, recorder
):
    import transformers

    checkpoint = make_checkpoint(tmp_path / network, files / "tokenizer.json", network=NETWORKS[network]())
    training = {"epochs": 1, "batch_size": 16, "lr": 5e-3, "max_length": 16}
    config = make_config(tasks={task: tasks(files)[task]}, training=training, seeds=[1], save_models=True)
    finetune(config, checkpoint, track=recorder)
    scores = scores_directory(config, checkpoint)
    found = export(str(scores), tmp_path / "export", runs_dir=tmp_path / "runs")
    assert found.auto_class == auto_class
    assert found.difference is not None
    assert found.difference < 1e-4
    if task == "sst2":
        known = json.loads((found.directory / "config.json").read_text())["id2label"]
        assert known == {"0": "negative", "1": "positive"}
        theirs = getattr(transformers, auto_class).from_pretrained(found.directory).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(found.directory)
        lines = (scores / "predictions-sst2-pretrained-1.jsonl").read_bytes().splitlines()[:3]
        texts = [example.text_a for example in config.tasks["sst2"].load().evaluation[:3]]
        with torch.no_grad():
            logits = theirs(**tokenizer(texts, padding=True, return_tensors="pt")).logits
        saved = torch.tensor([orjson.loads(line)["logits"] for line in lines])
        torch.testing.assert_close(logits, saved, atol=1e-4, rtol=1e-4)
    if task == "xsum":
        tokenizer = transformers.AutoTokenizer.from_pretrained(found.directory)
        sources = prepare(config, checkpoint, task).train.sources
        for number, example in enumerate(config.tasks["xsum"].load().train[:5]):
            read = tokenizer(example.source, truncation=True, max_length=16)["input_ids"]
            assert read == sources[number].tolist()

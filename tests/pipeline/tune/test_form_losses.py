"""Losses of tasks against those that `transformers` computes from the same weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transformers

from models.hf.directory import save_hf_directory
from models.language_models import MaskedLanguageModel, SequenceToSequence
from pipeline.tune.forms import FORMS
from pipeline.tune.forms.base import TaskContext
from pipeline.tune.networks import initial_network
from pipeline.tune.trials import plan_trials
from tests.pipeline.tune.conftest import MODEL, make_checkpoint
from tests.pipeline.tune.launched_run import make_inputs
from tests.published_networks import PRESETS

BERT = dataclasses.replace(MODEL, num_segments=2, norm_eps=1e-12)
BART = dataclasses.replace(MODEL, network="encoder_decoder")
T5 = dataclasses.replace(PRESETS["t5-small"], vocab_size=32, num_layers=1, hidden_size=32, num_heads=2)


@pytest.mark.parametrize(
    ("network", "task", "auto_class"),
    [
        (lambda: MaskedLanguageModel(BERT, pair="nsp"), "squad", "AutoModelForQuestionAnswering"),
        (lambda: SequenceToSequence(BART), "xsum", "AutoModelForSeq2SeqLM"),
        (lambda: SequenceToSequence(T5), "xsum", "AutoModelForSeq2SeqLM"),
    ],
    ids=["bert", "bart", "t5"],
)
def test_losses_are_those_that_transformers_computes(network, task, auto_class, make_config, tmp_path):
    folder = tmp_path / "files"
    make_inputs(folder)
    squad, xsum = folder / "squad.json", folder / "xsum.jsonl"
    tasks = {
        "squad": {"train": squad, "evaluation": squad, "max_query_length": 4, "doc_stride": 4},
        "xsum": {"train": xsum, "evaluation": xsum, "max_target_length": 8, "min_target_length": 1}
        | {"label_smoothing": 0.0},
    }
    checkpoint = make_checkpoint(tmp_path / "start", folder / "tokenizer.json", network=network())
    training = {"epochs": 1, "batch_size": 16, "max_length": 16}
    config = make_config(tasks={task: {"kind": task} | tasks[task]}, training=training)
    trials, kind = plan_trials(config, checkpoint), config.tasks[task]
    prepared = FORMS[kind.form](
        TaskContext(kind, trials.tasks[task], config.training_of(task), trials.model, trials.tokenizer)
    )
    model = initial_network(prepared, 1, checkpoint.state_dict()).eval()
    state = {name.removeprefix("network."): tensor for name, tensor in model.state_dict().items()}
    save_hf_directory(tmp_path / "hf", state, checkpoint.model)
    theirs = getattr(transformers, auto_class).from_pretrained(tmp_path / "hf").eval()
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

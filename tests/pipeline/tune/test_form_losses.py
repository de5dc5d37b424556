"""Losses of tasks against those that `transformers` computes from the same weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transformers

from models.hf.directory import save_hf_directory
from tests.pipeline.tune.conftest import MODEL, enlarged
from tests.pipeline.tune.samples import prepared_rows
from tests.published_networks import PRESETS

BERT = dataclasses.replace(MODEL, num_segments=2, norm_eps=1e-12)
BART = dataclasses.replace(MODEL, network="encoder_decoder")
T5 = dataclasses.replace(PRESETS["t5-small"], vocab_size=32, num_layers=1, hidden_size=32, num_heads=2)


@pytest.mark.parametrize(
    ("network", "form", "auto_class"),
    [
        (BERT, "spans", "AutoModelForQuestionAnswering"),
        (BART, "generation", "AutoModelForSeq2SeqLM"),
        (T5, "generation", "AutoModelForSeq2SeqLM"),
    ],
    ids=["bert", "bart", "t5"],
)
# One row at a time, because in transformers the ends of answers compete with padding.
@pytest.mark.parametrize("row", [0, 1])
def test_losses_are_those_that_transformers_computes(network, form, auto_class, row, tokenizer, tmp_path):
    task = prepared_rows(form, tokenizer, network)
    model = enlarged(task.build(), 3)
    state = {name.removeprefix("network."): tensor for name, tensor in model.state_dict().items()}
    save_hf_directory(tmp_path / "hf", state, network)
    theirs = getattr(transformers, auto_class).from_pretrained(tmp_path / "hf").eval()
    batch = task.batch(task.train, np.array([row]))
    inputs = {"input_ids": batch.inputs["input_ids"], "attention_mask": batch.inputs["attention_mask"].long()}
    if form == "generation":
        labels = torch.full(batch.inputs["decoder_input_ids"].shape, -100).flatten()
        labels[batch.inputs["predicted_positions"]] = batch.targets["targets"]
        targets = {"labels": labels.view(1, -1)}
    else:
        first, last = batch.targets["answer"].unbind(-1)
        targets = {"start_positions": first, "end_positions": last}
        inputs["token_type_ids"] = batch.inputs["segment_ids"]
    with torch.no_grad():
        ours = float(task.loss(model, batch)) / int(task.train.predictions[row])
        assert ours == pytest.approx(float(theirs(**inputs, **targets).loss), rel=1e-4)

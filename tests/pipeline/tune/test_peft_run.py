"""Parameter-efficient fine-tuning from the configuration to an export."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from cluster.artefacts.errors import ConfigError, ExportError, MismatchError
from models.hf.directory import save_hf_directory
from models.hf.family import TokenIds
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from pipeline.checkpoint.references import resolve_model
from pipeline.tune.export import export, load_finetuned
from pipeline.tune.reference import resolve_start
from pipeline.tune.run import finetune
from pipeline.tune.workload import make_workload, scores_directory
from tests.pipeline.tune.conftest import MODEL

METHODS = {
    "lora": {"kind": "lora", "rank": 4},
    "houlsby": {"kind": "adapters", "size": 8},
    "pfeiffer": {"kind": "adapters", "size": 8, "placement": "pfeiffer"},
    "parallel": {"kind": "adapters", "size": 8, "placement": "parallel"},
    "prefix": {"kind": "prefix", "length": 4},
    "bitfit": {"kind": "bitfit"},
    "mam": {"kind": "mam", "prefix_length": 4, "size": 8},
}
TRAINING = {"epochs": 6, "batch_size": 8, "lr": 2e-2, "max_length": 16}


@pytest.fixture
def start(tmp_path, tokenizer_path):
    """A Hugging Face directory of a small RoBERTa with random weights."""
    model = MaskedLanguageModel(MODEL)
    init_weights(model, seed=7)
    with torch.no_grad():
        # Random weights as small as usual hide from the first token what the others are.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(12)
    directory = tmp_path / "roberta"
    save_hf_directory(directory, model.state_dict(), MODEL, TokenIds(pad=1, bos=0, eos=2), head="masked_lm")
    (directory / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    return resolve_model(str(directory), tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_keeps_a_small_file_over_one_base(method, make_config, start, recorder):
    config = make_config(seeds=[1], save_models=True, training=TRAINING | {"peft": METHODS[method]})
    (score,) = finetune(config, start, track=recorder)
    assert score.value > 0.65
    assert score.trained_share is not None
    assert 0 < score.trained_share < 0.6
    directory = scores_directory(config, start)
    kept = load_file(directory / "model-reviews-pretrained-1.safetensors")
    whole = sum(tensor.numel() for tensor in start.state_dict().values())
    assert sum(tensor.numel() for tensor in kept.values()) < whole / 2
    assert not any(name.startswith("encoder.embeddings.tokens") for name in kept)
    with safe_open(directory / "model-reviews-pretrained-1.safetensors", "pt") as file:
        assert len(file.metadata()) == 1, "safetensors writes several keys in another order each time"


def logits_of(directory, seed):
    lines = (directory / f"predictions-reviews-pretrained-{seed}.jsonl").read_bytes().splitlines()
    return torch.tensor([orjson.loads(line)["logits"] for line in lines])


def inputs_of(config, start):
    """The evaluation texts as `transformers` reads them, padded."""
    from pipeline.tune.forms import FORMS
    from pipeline.tune.forms.base import TaskContext

    workload = make_workload(config, start)
    settings = config.training_of("reviews")
    task = FORMS["classification"](
        TaskContext(
            config.tasks["reviews"], workload.tasks["reviews"], settings, workload.model, workload.tokenizer
        )
    )
    batch = task.batch(task.evaluation, torch.arange(len(task.evaluation)).numpy())
    return {"input_ids": batch.inputs["input_ids"], "attention_mask": batch.inputs["attention_mask"].long()}


def test_lora_is_merged_on_export_and_transformers_gives_the_saved_logits(
    make_config, start, recorder, tmp_path
):
    from transformers import AutoModelForSequenceClassification

    config = make_config(seeds=[1], save_models=True, training=TRAINING | {"peft": METHODS["lora"]})
    finetune(config, start, track=recorder)
    directory = scores_directory(config, start)
    export(str(directory), tmp_path / "merged", runs_dir=tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        found = model(**inputs_of(config, start)).logits
    torch.testing.assert_close(found, logits_of(directory, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["lora", "prefix"])
def test_library_peft_loads_what_was_trained_with_equal_logits(
    method, make_config, start, recorder, tmp_path
):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    config = make_config(seeds=[1], save_models=True, training=TRAINING | {"peft": METHODS["lora"]})
    finetune(config, start, track=recorder)
    directory = scores_directory(config, start)
    made = export(str(directory), tmp_path / "adapter", runs_dir=tmp_path, peft=True)
    assert made.auto_class == "peft.AutoPeftModelForSequenceClassification"
    base = AutoModelForSequenceClassification.from_pretrained(start.directory)
    model = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        found = model(**inputs_of(config, start)).logits
    torch.testing.assert_close(found, logits_of(directory, 1), rtol=1e-4, atol=1e-4)


def test_adapters_say_that_no_plain_network_holds_them(make_config, start, recorder, tmp_path):
    config = make_config(
        seeds=[1], save_models=True, training=TRAINING | {"epochs": 1, "peft": METHODS["houlsby"]}
    )
    finetune(config, start, track=recorder)
    directory = str(scores_directory(config, start))
    with pytest.raises(ExportError, match="adapters"):
        export(directory, tmp_path / "a", runs_dir=tmp_path)
    with pytest.raises(ExportError, match="only lora and prefix"):
        export(directory, tmp_path / "b", runs_dir=tmp_path, peft=True)
    with pytest.raises(MismatchError, match="cloze export"):
        resolve_start(directory, tmp_path)


def test_changed_checkpoint_is_not_taken_for_the_base(make_config, start, recorder, tmp_path):
    config = make_config(
        seeds=[1], save_models=True, training=TRAINING | {"epochs": 1, "peft": METHODS["lora"]}
    )
    finetune(config, start, track=recorder)
    model = MaskedLanguageModel(MODEL)
    init_weights(model, seed=8)
    save_hf_directory(
        start.directory, model.state_dict(), MODEL, TokenIds(pad=1, bos=0, eos=2), head="masked_lm"
    )
    with pytest.raises(MismatchError, match="not the checkpoint"):
        load_finetuned(scores_directory(config, start), runs_dir=tmp_path)


def test_random_weights_keep_nothing_of_a_method(make_config, start):
    config = make_config(save_models=True, compare_random=True, training=TRAINING | {"peft": METHODS["lora"]})
    with pytest.raises(ConfigError, match="compare_random=false"):
        make_workload(config, start)


def test_network_that_cannot_have_the_method_is_refused(make_config, start, recorder):
    without_biases = dataclasses.replace(MODEL, biases=False)
    config = make_config(
        seeds=[1],
        scratch={"model": dataclasses.asdict(without_biases), "tokenizer": start.tokenizer_path},
        training=TRAINING | {"peft": METHODS["bitfit"]},
    )
    with pytest.raises(MismatchError, match=r"training.peft: .*biases"):
        finetune(config, None, track=recorder)

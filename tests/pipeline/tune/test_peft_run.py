"""Parameter-efficient fine-tuning from the configuration to an export."""

from __future__ import annotations

import dataclasses

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from cluster.artefacts.errors import ConfigError, ExportError, MismatchError
from models.hf.directory import save_hf_directory
from models.hf.family import TokenIds
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from pipeline.checkpoint.references import resolve_model
from pipeline.tune.export import export, load_finetuned
from pipeline.tune.finetuned import resolve_start
from pipeline.tune.trials import plan_trials
from tests.pipeline.tune.conftest import MODEL, enlarged

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
    model = enlarged(MaskedLanguageModel(MODEL), 12)
    directory = tmp_path / "roberta"
    save_hf_directory(directory, model.state_dict(), MODEL, TokenIds(pad=1, bos=0, eos=2), head="masked_lm")
    (directory / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    return resolve_model(str(directory), tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_keeps_a_small_file_over_one_base(method, tune, start):
    tuned = tune(start, save_models=True, training=TRAINING | {"peft": METHODS[method]})
    (score,) = tuned.scores
    assert score.value > 0.65
    assert score.trained_share is not None
    assert 0 < score.trained_share < 0.6
    weights = tuned.directory / "model-reviews-pretrained-1.safetensors"
    kept = load_file(weights)
    whole = sum(tensor.numel() for tensor in start.state_dict().values())
    assert sum(tensor.numel() for tensor in kept.values()) < whole / 2
    assert not any(name.startswith("encoder.embeddings.tokens") for name in kept)
    with safe_open(weights, "pt") as file:
        assert len(file.metadata()) == 1, "safetensors writes several keys in another order each time"


def test_what_no_plain_network_holds_or_lies_over_another_checkpoint_is_not_exported(tune, start, tmp_path):
    training = TRAINING | {"epochs": 1}
    adapters = str(tune(start, save_models=True, training=training | {"peft": METHODS["houlsby"]}).directory)
    with pytest.raises(ExportError, match="adapters"):
        export(adapters, tmp_path / "a", runs_dir=tmp_path)
    with pytest.raises(ExportError, match=r"lora.*prefix"):
        export(adapters, tmp_path / "b", runs_dir=tmp_path, peft=True)
    with pytest.raises(MismatchError, match="cloze export"):
        resolve_start(adapters, tmp_path)
    lora = tune(start, name="lora", save_models=True, training=training | {"peft": METHODS["lora"]}).directory
    model = MaskedLanguageModel(MODEL)
    init_weights(model, seed=8)
    ids = TokenIds(pad=1, bos=0, eos=2)
    save_hf_directory(start.directory, model.state_dict(), MODEL, ids, head="masked_lm")
    with pytest.raises(MismatchError, match="not the checkpoint"):
        load_finetuned(lora, runs_dir=tmp_path)


def test_random_weights_keep_nothing_of_a_method(make_config, start):
    config = make_config(save_models=True, compare_random=True, training=TRAINING | {"peft": METHODS["lora"]})
    with pytest.raises(ConfigError, match="compare_random=false"):
        plan_trials(config, start)


def test_network_that_cannot_have_the_method_is_refused(tune, start):
    model = dataclasses.asdict(dataclasses.replace(MODEL, biases=False))
    scratch = {"model": model, "tokenizer": start.tokenizer_path}
    with pytest.raises(MismatchError, match=r"training\.peft"):
        tune(None, scratch=scratch, training=TRAINING | {"peft": METHODS["bitfit"]})

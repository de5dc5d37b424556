from __future__ import annotations

import json

import pytest
import torch
import transformers

from models.hf.directory import load_hf_directory, save_hf_directory
from models.initialization import init_weights
from models.masked_language_model import MaskedLanguageModel
from models.sequence_classifier import SequenceClassifier

INPUT_IDS = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 9, 10, 2]])


@pytest.fixture
def saved(tmp_path, small_config):
    config = small_config()
    model = MaskedLanguageModel(config).eval()
    init_weights(model, seed=1)
    save_hf_directory(tmp_path / "export", model.state_dict(), config)
    return tmp_path / "export"


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_saved_masked_language_model_opens_in_transformers(norm, tmp_path, small_config, randomise):
    config = small_config(norm=norm)
    ours = MaskedLanguageModel(config).eval()
    randomise(ours, 1)
    save_hf_directory(tmp_path, ours.state_dict(), config)
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(theirs.eval()(INPUT_IDS).logits, ours.logits(INPUT_IDS), atol=1e-4, rtol=0)


@pytest.mark.parametrize("num_labels", [1, 3])
@torch.no_grad()
def test_saved_classifier_opens_in_transformers(num_labels, tmp_path, small_config, randomise):
    config = small_config()
    ours = SequenceClassifier(config, num_labels).eval()
    randomise(ours, 1)
    save_hf_directory(tmp_path, ours.state_dict(), config)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert theirs.config.num_labels == num_labels
    torch.testing.assert_close(theirs(INPUT_IDS).logits, ours(INPUT_IDS), atol=1e-4, rtol=0)


@torch.no_grad()
def test_directory_written_by_transformers_is_read(tmp_path):
    config = transformers.RobertaConfig(
        vocab_size=61, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
    )
    theirs = transformers.RobertaForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    state, ours_config = load_hf_directory(tmp_path)
    ours = MaskedLanguageModel(ours_config).eval()
    ours.load_state_dict(state)
    torch.testing.assert_close(ours.logits(INPUT_IDS), theirs(INPUT_IDS).logits, atol=1e-4, rtol=0)


def test_saved_network_comes_back_unchanged(saved, small_config):
    model = MaskedLanguageModel(small_config())
    init_weights(model, seed=1)
    state, config = load_hf_directory(saved)
    assert config == small_config()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(ValueError, match=f"has no {name}"):
        load_hf_directory(saved)


def test_damaged_files_are_named(saved):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_hf_directory(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        load_hf_directory(saved)
    (saved / "config.json").write_text(json.dumps([]))
    with pytest.raises(ValueError, match="must hold a JSON object"):
        load_hf_directory(saved)


def test_refused_export_leaves_no_model_behind(tmp_path, small_config):
    with pytest.raises(ValueError, match="neither head"):
        save_hf_directory(tmp_path / "export", {}, small_config())
    assert not (tmp_path / "export").exists()

from __future__ import annotations

import json

import pytest
import torch
import transformers

from models.hf.directory import read_hf_directory, save_hf_directory, weight_files
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from tests.models.materials import small_config

INPUT_IDS = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 9, 10, 2]])


@pytest.fixture
def saved(tmp_path):
    model = MaskedLanguageModel(small_config()).eval()
    init_weights(model, seed=1)
    save_hf_directory(tmp_path / "export", model.state_dict(), small_config())
    return tmp_path / "export"


def test_shards_are_read_like_one_file(saved, tmp_path):
    model = transformers.AutoModelForMaskedLM.from_pretrained(saved)
    model.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(weight_files(tmp_path / "shards")) > 2
    whole, parts = read_hf_directory(saved).state_dict, read_hf_directory(tmp_path / "shards").state_dict
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    lost = weight_files(tmp_path / "shards")[1]
    lost.unlink()
    with pytest.raises(ValueError, match=f"has no {lost.name}, which model.safetensors.index.json names"):
        read_hf_directory(tmp_path / "shards")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_float32(dtype, saved, tmp_path):
    model = transformers.AutoModelForMaskedLM.from_pretrained(saved, dtype=dtype)
    model.save_pretrained(tmp_path / "half")
    assert {tensor.dtype for tensor in read_hf_directory(tmp_path / "half").state_dict.values()} == {
        torch.float32
    }


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(ValueError, match=f"has no {name}"):
        read_hf_directory(saved)


def test_pickled_weights_are_refused_with_the_command_that_rewrites_them(saved):
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"only in pytorch_model\.bin") as refused:
        read_hf_directory(saved)
    assert "transformers.RobertaForMaskedLM.from_pretrained(m).save_pretrained(m)" in str(refused.value)


def test_damaged_files_are_named(saved):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        read_hf_directory(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        read_hf_directory(saved)
    (saved / "config.json").write_text(json.dumps([]))
    with pytest.raises(ValueError, match="must hold a JSON object"):
        read_hf_directory(saved)


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"model": {"vocab": {"a": 0, "b": 61}}},
        {"model": {"vocab": [["a", 0.0]] * 62}},
        {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 70, "content": "<x>"}]},
    ],
    ids=["pairs", "list", "added"],
)
def test_tokenizer_with_more_ids_than_the_network_is_refused(saved, tokenizer):
    (saved / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 60}}}))
    assert read_hf_directory(saved).config.vocab_size == 61
    (saved / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match=r"tokenizer\.json has ids up to (61|70), but vocab_size .* 61"):
        read_hf_directory(saved)


def test_refusal_names_the_directory(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"architectures": ["XLNetLMHeadModel"]}))
    with pytest.raises(ValueError, match=r"export: cannot read .*XLNetLMHeadModel.*supported: BertModel"):
        read_hf_directory(saved)


def test_refused_export_leaves_no_model_behind(tmp_path):
    with pytest.raises(ValueError, match="its head is not known"):
        save_hf_directory(tmp_path / "export", {}, small_config())
    assert not (tmp_path / "export").exists()


def test_export_replaces_the_shards_of_another(saved):
    (saved / "model.safetensors.index.json").write_text("{}")
    save_hf_directory(saved, MaskedLanguageModel(small_config()).state_dict(), small_config())
    assert not (saved / "model.safetensors.index.json").exists()

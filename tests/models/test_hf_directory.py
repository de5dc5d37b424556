import json
from pathlib import Path

import pytest
import torch
import transformers

from models.hf.directory import read_hf_directory, save_hf_directory, weight_files
from models.language_models import MaskedLanguageModel
from tests.models.hf_oracle import assert_same_tensors
from tests.models.materials import randomised, small_config


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    state = randomised(MaskedLanguageModel(small_config())).state_dict()
    save_hf_directory(tmp_path / "export", state, small_config())
    return tmp_path / "export"


def test_shards_are_read_like_one_file_and_a_lost_one_is_named(saved, tmp_path):
    model = transformers.AutoModelForMaskedLM.from_pretrained(saved)
    model.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(weight_files(tmp_path / "shards")) > 2
    parts = read_hf_directory(tmp_path / "shards").state_dict
    assert_same_tensors(parts, read_hf_directory(saved).state_dict)
    lost = weight_files(tmp_path / "shards")[1]
    lost.unlink()
    with pytest.raises(ValueError, match=lost.name):
        read_hf_directory(tmp_path / "shards")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_float32(dtype, saved, tmp_path):
    model = transformers.AutoModelForMaskedLM.from_pretrained(saved, dtype=dtype)
    model.save_pretrained(tmp_path / "half")
    state = read_hf_directory(tmp_path / "half").state_dict
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("config.json", Path.unlink, r"config\.json"),
        ("model.safetensors", Path.unlink, r"model\.safetensors"),
        ("model.safetensors", cut, r"model\.safetensors"),
        ("config.json", cut, r"config\.json"),
        ("config.json", lambda path: path.write_text("[]"), "JSON object"),
    ],
)
def test_missing_and_damaged_files_are_named(saved, name, damage, message):
    damage(saved / name)
    with pytest.raises(ValueError, match=message):
        read_hf_directory(saved)


def test_pickled_weights_are_refused_with_the_command_that_rewrites_them(saved):
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin") as refused:
        read_hf_directory(saved)
    assert "transformers.RobertaForMaskedLM.from_pretrained(m).save_pretrained(m)" in str(refused.value)


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
    with pytest.raises(ValueError, match=r"tokenizer\.json .*(61|70)"):
        read_hf_directory(saved)


def test_refusal_names_the_directory(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"architectures": ["XLNetLMHeadModel"]}))
    with pytest.raises(ValueError, match=r"XLNetLMHeadModel.*BertModel"):
        read_hf_directory(saved)


def test_export_replaces_the_shards_of_another_and_a_refused_one_leaves_nothing(saved, tmp_path):
    (saved / "model.safetensors.index.json").write_text("{}")
    save_hf_directory(saved, MaskedLanguageModel(small_config()).state_dict(), small_config())
    assert not (saved / "model.safetensors.index.json").exists()
    with pytest.raises(ValueError, match="head"):
        save_hf_directory(tmp_path / "another", {}, small_config())
    assert not (tmp_path / "another").exists()

"""Hugging Face directories: how they are read and written, and what is refused in both directions, by its name."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
import transformers

from models.classifiers import SequenceClassifier
from models.config import TransformerConfig
from models.hf.config_json import EFFECTIVE
from models.hf.directory import read_hf_directory, save_hf_directory, weight_files
from models.hf.families import FAMILIES, Exported, export_model, import_model
from models.hf.family import TokenIds
from models.hf.heads import Head, carrier_of
from models.language_models import MaskedLanguageModel
from tests.models.families import ABSENT, CASES, SMALL, changed, small
from tests.models.hf_oracle import (
    LANGUAGE_MODEL_HEADS,
    TOKENS,
    assert_same_tensors,
    imported_from,
    random_network,
)
from tests.models.materials import randomised, small_config


@cache
def exported_as(family: str, head: Head | None = None) -> Exported:
    """A small random network of a family, as it is written."""
    config = small(family)
    head = head or LANGUAGE_MODEL_HEADS[config.network]
    state = random_network(config, head, 1).state_dict()
    return export_model(state, config, TOKENS, head=head, family=family)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    state = randomised(MaskedLanguageModel(small_config())).state_dict()
    save_hf_directory(tmp_path / "export", state, small_config())
    return tmp_path / "export"


def test_who_may_read_the_configuration_may_read_the_weights(saved):
    assert len({file.stat().st_mode for file in saved.iterdir()}) == 1


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


def write(contents: Any) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(contents))


def make_old(path: Path) -> None:
    path.rename(path.with_name("pytorch_model.bin"))


ADDED = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 70, "content": "<x>"}]}


@pytest.mark.parametrize(
    ("name", "damage", "named"),
    [
        ("config.json", Path.unlink, r"config\.json"),
        ("config.json", cut, r"config\.json"),
        ("config.json", write([]), r"config\.json"),
        ("config.json", write({"architectures": ["XLNetLMHeadModel"]}), "export: .*XLNetLMHeadModel"),
        ("model.safetensors", Path.unlink, r"model\.safetensors"),
        ("model.safetensors", cut, r"model\.safetensors"),
        ("model.safetensors", make_old, r"RobertaForMaskedLM\.from_pretrained\(m\)\.save_pretrained\(m\)"),
        # Ids that the network has no embedding for.
        ("tokenizer.json", write({"model": {"vocab": {"a": 0, "b": 61}}}), r"tokenizer\.json .*61"),
        ("tokenizer.json", write({"model": {"vocab": [["a", 0.0]] * 62}}), r"tokenizer\.json .*61"),
        ("tokenizer.json", write(ADDED), r"tokenizer\.json .*70"),
    ],
)
def test_missing_damaged_and_unfit_files_are_named(saved, name, damage, named):
    (saved / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 60}}}))
    assert read_hf_directory(saved).config.vocab_size == 61
    damage(saved / name)
    with pytest.raises(ValueError, match=named):
        read_hf_directory(saved)


def test_export_replaces_the_shards_of_another_and_a_refused_one_leaves_nothing(saved, tmp_path):
    (saved / "model.safetensors.index.json").write_text("{}")
    save_hf_directory(saved, MaskedLanguageModel(small_config()).state_dict(), small_config())
    assert not (saved / "model.safetensors.index.json").exists()
    with pytest.raises(ValueError, match="head"):
        save_hf_directory(tmp_path / "another", {}, small_config())
    assert not (tmp_path / "another").exists()


def test_labels_keep_their_names_and_are_as_many_as_there_are_scores():
    state = SequenceClassifier(small_config(), 2).state_dict()
    assert export_model(state, small_config()).config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    config = export_model(state, small_config(), labels=["negative", "positive"]).config
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert config["label2id"] == {"negative": 0, "positive": 1}
    with pytest.raises(ValueError, match="labels"):
        export_model(state, small_config(), labels=["a", "b", "c"])


def test_heads_that_are_not_read_are_named():
    exported = exported_as("BERT", "masked_lm")
    shapes = {
        **dict.fromkeys(("cls.seq_relationship.weight", "bert.pooler.dense.weight"), (2, 16)),
        **dict.fromkeys(("cls.seq_relationship.bias", "bert.pooler.dense.bias"), (2,)),
        "classifier.weight": (7, 16),
    }
    foreign = {name: torch.zeros(shape) for name, shape in shapes.items()}
    buffer = {"bert.embeddings.position_ids": torch.arange(24)[None]}
    imported = import_model(exported.tensors | foreign | buffer, exported.config)
    assert imported.left_out == tuple(sorted(foreign))
    sizes = {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    bare = transformers.BertModel(transformers.BertConfig(**sizes, num_attention_heads=2))
    assert imported_from(bare).left_out == ("pooler.dense.bias", "pooler.dense.weight")


WITHOUT_EFFECT = {
    *("dropout", "attention_dropout", "activation_dropout", "output_dropout", "attention_output_dropout"),
    *("initializer", "initializer_std", "initializer_cut", "position_std", "prediction_activation"),
    *("classification_head", "scale_logits", "global_every", "local_rotary_base", "rotary_base"),
    *("relative_buckets", "relative_max_distance"),
}
"""Fields that change no output in evaluation, of every network or of those without what they describe."""
HINTS = get_type_hints(TransformerConfig)


def other_values(name: str) -> Sequence[Any]:
    """Values of a field, some of which no network has."""
    hints = (HINTS[name], *get_args(HINTS[name]))
    named = [value for hint in hints if get_origin(hint) is Literal for value in get_args(hint)]
    return named or ((True, False) if bool in hints else (0, 0.5, 2))


@pytest.mark.parametrize("family", SMALL)
def test_every_field_is_written_or_refused_by_its_name(family):
    """Also a field that is added later: what a family has no place for may not differ."""
    base, lost, refused = small(family), [], set()
    for field in fields(TransformerConfig):
        name = EFFECTIVE.get(field.name, field.name)
        for value in other_values(field.name):
            try:
                config = replace(base, **{field.name: value})
                head = LANGUAGE_MODEL_HEADS[config.network]
                state = carrier_of(config, head).build(config, 1).state_dict()
            except ValueError:  # no network at all
                continue
            try:
                exported = export_model(state, config, TokenIds(0, 0, 1), head=head, family=family)
            except ValueError as error:
                refused.add(field.name)
                if not re.search(rf"\b{field.name}\b.*{value!r}|has no head", str(error)):
                    lost.append((field.name, value, str(error)))
                continue
            found = getattr(import_model(exported.tensors, exported.config).config, name)
            if field.name not in WITHOUT_EFFECT and found != getattr(config, name):
                lost.append((field.name, value, found))
    assert lost == []
    assert {"network", "norm_kind", "positions"} <= refused


def test_network_that_no_family_computes_is_refused_with_every_family_and_reason():
    config = small_config(positions="sinusoidal", gated=True)
    with pytest.raises(ValueError, match=r"RoBERTa: positions .*; gated ") as refused:
        export_model(MaskedLanguageModel(config).state_dict(), config)
    assert all(family.name in str(refused.value) for family in FAMILIES)


ARCHITECTURES = [None, [], ["XLNetLMHeadModel"], ["BertForMaskedLM", "BertModel"], 7, [["BertModel"]]]
LOCAL_ROPE = {"rope_parameters": {"full_attention": {"rope_type": "linear"}}}


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        *(
            (name, {key: value}, value[0] if key == "architectures" else key)
            for name, case in CASES.items()
            for key, value in case.not_computed.items()
        ),
        ("RoBERTa", {"num_attention_heads": 5}, "num_heads"),
        ("GPT-2", {"n_head": 5}, "num_heads"),
        ("LLaMA", {"num_key_value_heads": 3}, r"num_key_value_heads \(3\)"),
        ("LLaMA", {"num_key_value_heads": 1}, r"k_proj.weight is \[8, 16\], expected \[4, 16\]"),
        ("LLaMA", {"rope_parameters": {"rope_type": "llama3", "factor": 32.0}}, "rope_type = 'llama3'"),
        ("LLaMA", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "type = 'linear'"),
        ("LLaMA", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ("T5", {"relative_attention_num_buckets": 6}, "relative_buckets"),
        ("ModernBERT", LOCAL_ROPE, "rope_type = 'linear'"),
        ("ModernBERT", {"classifier_pooling": "mean"}, "classifier_pooling"),
        ("ModernBERT", {"classifier_activation": "relu"}, "classifier_activation"),
        ("RoBERTa", {"hidden_size": "wide"}, "no meaning"),
        ("RoBERTa", {"hidden_act": ["gelu"]}, "no meaning"),
        *(("RoBERTa", {"architectures": each}, "BertModel, BertForMaskedLM") for each in ARCHITECTURES),
    ],
)
def test_config_json_that_our_networks_do_not_compute_is_refused_by_the_key(family, change, named):
    exported = exported_as(family, "sequence_classification" if "classifier" in named else None)
    with pytest.raises(ValueError, match=named):
        import_model(exported.tensors, changed(exported.config, change))


zeros, nan, infinite = (partial(torch.full, fill_value=value) for value in (0.0, float("nan"), float("inf")))
ANOTHER = "input embedding"
MOVED = "missing {}; unexpected .*7"


@pytest.mark.parametrize(
    ("family", "name", "tensor", "message"),
    [
        ("RoBERTa", "lm_head.dense.weight", nan((16, 16)), "{}"),
        ("RoBERTa", "lm_head.dense.weight", infinite((16, 16)), "{}"),
        ("RoBERTa", "lm_head.dense.weight", torch.zeros(16, 16, dtype=torch.int8), "{}.*int8"),
        ("RoBERTa", "lm_head.bias", torch.zeros(5), r"{} is \[5\], expected \[61\]"),
        ("RoBERTa", "lm_head.decoder.bias", zeros((61,)), "{}.*lm_head.bias"),
        ("RoBERTa", "roberta.encoder.layer.1.output.dense.bias", ABSENT, MOVED),
        ("GPT-2", "transformer.h.0.mlp.c_fc.weight", zeros((40, 16)), r"{} is .*, expected \[16, 40\]"),
        ("GPT-2", "lm_head.weight", zeros((61, 16)), "{}.*transformer.wte.weight"),
        ("GPT-2", "transformer.h.1.ln_1.weight", ABSENT, MOVED),
        ("BART", "final_logits_bias", torch.ones(1, 61), "{}"),
        ("BART", "lm_head.weight", zeros((61, 16)), "{}.*model.shared.weight"),
        ("BART", "model.encoder.embed_tokens.weight", zeros((61, 16)), ANOTHER),
        ("BART", "model.encoder.embed_positions.weight", zeros((24, 16)), r"{} is .*, expected \[26, 16\]"),
        ("T5", "decoder.embed_tokens.weight", zeros((61, 16)), ANOTHER),
        ("T5", "decoder.block.1.layer.0.SelfAttention.q.weight", ABSENT, MOVED),
    ],
)
def test_tensors_that_our_networks_cannot_have_are_refused_by_name(family, name, tensor, message):
    exported = exported_as(family)
    moved = {} if tensor is not ABSENT else {name.replace("1", "7"): exported.tensors[name]}
    with pytest.raises(ValueError, match=message.format(name)):
        import_model(changed(exported.tensors, {name: tensor, **moved}), exported.config)


def test_half_a_network_weights_that_are_not_finite_and_tokens_outside_the_vocabulary_are_not_exported():
    name = "decoder.embeddings.positions.weight"
    state = random_network(small("GPT-2"), "causal_lm", 1).state_dict()
    for tensor in (infinite((24, 16)), ABSENT):
        with pytest.raises(ValueError, match=name):
            export_model(changed(state, {name: tensor}), small("GPT-2"), TOKENS)
    with pytest.raises(ValueError, match="id 61"):
        export_model(state, small("GPT-2"), TokenIds(pad=61))

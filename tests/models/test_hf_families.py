import dataclasses

import pytest
import torch
import transformers

from models.classifiers import SequenceClassifier, TokenClassifier
from models.config import TransformerConfig
from models.hf.config_json import differences
from models.hf.families import FAMILIES, export_model, import_model
from models.hf.family import TokenIds
from models.hf.heads import CARRIERS, Head, build_on_meta, exported_part
from models.language_models import MaskedLanguageModel
from models.span_boundary import SpanBoundaryLanguageModel
from tests.models.hf_oracle import TOKENS, imported_from, random_network
from tests.models.materials import small_config
from tests.published_networks import PRESETS

WRITTEN_AS = {
    "bert-base": "BERT",
    "spanbert-large": "BERT",
    "distilbert-base": "DistilBERT",
    "roberta-large": "RoBERTa",
    "electra-small": "ELECTRA",
    "modernbert-base": "ModernBERT",
}
HEADS: tuple[Head, ...] = (
    *("masked_lm", "question_answering", "sequence_classification"),
    *("token_classification", "multiple_choice"),
)


@pytest.mark.parametrize(("preset", "family"), WRITTEN_AS.items())
@pytest.mark.parametrize("head", HEADS)
def test_published_sizes_are_written_as_the_family_that_published_them(preset, family, head):
    state = build_on_meta(PRESETS[preset], head, 2).state_dict()
    assert export_model(state, PRESETS[preset], head=head).family == family


def test_every_class_that_is_read_belongs_to_one_family_and_every_head_has_a_network():
    architectures = [name for family in FAMILIES for name in family.architectures]
    assert len(architectures) == len(set(architectures))
    heads = {head for family in FAMILIES for head in family.architectures.values()}
    assert heads <= {head for _, head in CARRIERS}


def test_family_may_be_chosen_and_must_be_able():
    config = small_config(num_segments=2)
    state = MaskedLanguageModel(config).state_dict()
    assert export_model(state, config).family == "BERT"
    assert export_model(state, config, family="RoBERTa").family == "RoBERTa"
    with pytest.raises(ValueError, match=r"ModernBERT: .*positions"):
        export_model(state, config, family="ModernBERT")
    with pytest.raises(ValueError, match=r"'XLNet'.*BERT, RoBERTa"):
        export_model(state, config, family="XLNet")


SILENT = {
    *("vocab_size", "num_layers", "num_decoder_layers", "hidden_size", "num_heads", "intermediate_size"),
    *("dropout", "attention_dropout", "activation_dropout", "output_dropout", "attention_output_dropout"),
    *("initializer", "initializer_std", "initializer_cut", "position_std"),
    *("relative_buckets", "relative_max_distance", "rotary_base", "local_rotary_base", "global_every"),
    *("first_norm", "scale_logits", "classification_head"),
}
"""Fields that every family carries, or that have no effect on a post-norm encoder that predicts tokens."""
CHANGED = {
    "num_key_value_heads": 2,
    "attention_head_size": 4,
    "embedding_size": 6,
    "positions": "rotary",
    "norm": "pre",
    "norm_kind": "rms",
    "activation": "relu",
    "prediction_activation": "relu",
    "network": "decoder",
    "local_window": 2,
    "norm_eps": 0.1,
    "num_segments": 1,
    "max_positions": 9,
}
"""Other values than the defaults; switches are turned."""
FIELDS = {field.name: field for field in dataclasses.fields(TransformerConfig)}


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - SILENT))
def test_field_that_changes_outputs_is_noticed(name):
    """Also a field that is added later: what a family has no place for may not differ."""
    base = TransformerConfig(hidden_size=24, num_heads=4, vocab_size=9)
    config = dataclasses.replace(base, **{name: CHANGED.get(name, not FIELDS[name].default)})
    assert any(line.startswith(f"{name} is ") for line in differences(config, "masked_lm", base, ()))


def test_span_boundary_head_is_left_out_and_said_so():
    config = small_config(num_segments=2)
    state = SpanBoundaryLanguageModel(config, 10).state_dict()
    written = export_model(state, config, TokenIds(0, 1, 2))
    assert written.family == "BERT"
    assert "span boundaries" in written.notes[0]
    assert exported_part(state, config).state_dict.keys() == MaskedLanguageModel(config).state_dict().keys()


def test_half_a_network_is_not_exported():
    state = MaskedLanguageModel(small_config()).state_dict()
    del state["encoder.embeddings.norm.bias"]
    with pytest.raises(ValueError, match=r"encoder\.embeddings\.norm\.bias"):
        export_model(state, small_config())


@pytest.mark.parametrize(
    ("network", "labels", "head", "written"),
    [
        (SequenceClassifier, None, "sequence_classification", ["LABEL_0"]),
        (SequenceClassifier, ["negative", "positive"], "sequence_classification", ["negative", "positive"]),
        (TokenClassifier, ["O", "B"], "token_classification", ["O", "B"]),
    ],
)
def test_labels_keep_their_names(network, labels, head, written):
    state = network(small_config(), len(written)).state_dict()
    exported = export_model(state, small_config(), labels=labels)
    assert exported.head == head
    assert exported.config["id2label"] == {str(number): name for number, name in enumerate(written)}
    assert exported.config["label2id"] == {name: number for number, name in enumerate(written)}
    with pytest.raises(ValueError, match="3 names"):
        export_model(state, small_config(), labels=["a", "b", "c"])


FOREIGN = {
    "cls.seq_relationship.weight": (2, 16),
    "cls.seq_relationship.bias": (2,),
    "bert.pooler.dense.weight": (16, 16),
    "bert.pooler.dense.bias": (16,),
    "classifier.weight": (7, 16),
}


def test_heads_that_are_not_read_are_named():
    config = small_config(num_segments=2)
    ours = random_network(config, "masked_lm", 1)
    exported = export_model(ours.state_dict(), config, TOKENS, family="BERT")
    foreign = {name: torch.zeros(shape) for name, shape in FOREIGN.items()}
    buffer = {"bert.embeddings.position_ids": torch.arange(24)[None]}
    assert import_model(exported.tensors, exported.config).left_out == ()
    imported = import_model(exported.tensors | foreign | buffer, exported.config)
    assert imported.left_out == tuple(sorted(foreign))
    sizes = {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    bare = transformers.BertModel(transformers.BertConfig(**sizes, num_attention_heads=2))
    assert imported_from(bare).left_out == ("pooler.dense.bias", "pooler.dense.weight")

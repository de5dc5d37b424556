"""Networks of every family of `transformers` compute the same there and here, in both directions."""

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import Tensor, nn

from models.config import TransformerConfig
from models.hf.families import FAMILIES, export_model, import_model
from models.hf.family import TokenIds
from models.hf.heads import FINE_TUNED, Head, build_on_meta, carrier_of, ended_by
from tests.models.hf_configs import CASES, Case, small
from tests.models.hf_oracle import (
    LANGUAGE_MODEL_HEADS,
    TOKENS,
    PaddedBatch,
    assert_close_outputs,
    assert_same_outputs,
    assert_same_tensors,
    built,
    export_of,
    import_of,
    imported_from,
    opened_by_transformers,
    random_network,
)
from tests.models.materials import gradients, padding, shake, some_tokens
from tests.published_networks import PRESETS

FAMILY = {family.name: family for family in FAMILIES}
BARE = {"GPT2Model", "LlamaModel", "BartModel", "MBartModel", "T5Model", "T5WithLMHeadModel"}
"""Classes without a head that are read as the language models that they are, and the class of old files."""
ARCHITECTURES = [
    (name, architecture)
    for name, family in FAMILY.items()
    for architecture in sorted(family.architectures)
    if architecture not in BARE
]
LOOK_ALIKE = ("replaced_token_detection", "multiple_choice")
"""Heads whose tensors are those of a classifier with one label, so that they must be named."""
READ_FROM_THE_FIRST_TOKEN = ("pretraining", "sequence_classification", "multiple_choice")
"""Heads for which encoders need rows that are padded on the right."""


def writer(family: str, **fields: Any) -> Any:
    """A small random language model."""
    config = small(family, **fields)
    return random_network(config, LANGUAGE_MODEL_HEADS[config.network], 1)


@torch.no_grad()
def assert_agree(data: DataObject, case: Case, ours: nn.Module, theirs: Any, head: Head) -> None:
    """Both compute the same of three rows, one of them full, padded on the side that the network allows."""
    config, pad = imported_from(theirs).config, theirs.config.pad_token_id
    if head == "seq2seq_lm":
        # Learned positions are columns there; a relative bias is the same wherever the text begins.
        sides = ["left", "right"] if config.positions == "relative_bias" else ["right"]
        side, seed = data.draw(st.sampled_from(sides)), data.draw(st.integers(0, 2**31))
        assert_same_written_tokens(ours, theirs, side, seed)
        return
    if config.network == "encoder_decoder":
        assert_same_scores_of_texts(ours, theirs, config, head)
        return
    from_left = config.network == "encoder" and head in READ_FROM_THE_FIRST_TOKEN
    side = data.draw(st.sampled_from(["right"] if from_left else ["left", "right"]), "side")
    length = data.draw(st.integers(2, config.max_positions), "length")
    mask = padding([length, *(data.draw(st.integers(1, length)) for _ in range(2))], length, side)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    ids = torch.randint(config.require_vocab_size() - 1, (3, length), generator=generator)
    # No token is padding.
    ids = (ids + (ids >= pad)).where(mask, pad)
    segments = (
        torch.randint(config.num_segments, ids.shape, generator=generator) if config.num_segments else None
    )
    places = {"position_ids": (mask.long().cumsum(-1) - 1).clamp_min(0)} if case.counts_columns else {}
    assert_same_outputs(ours, theirs, config, head, PaddedBatch(ids, mask, segments), **places)


@torch.no_grad()
def assert_same_written_tokens(ours: Any, theirs: Any, side: str = "right", seed: int = 0) -> None:
    """An encoder-decoder scores every token as `transformers` does; both sides of the batch are padded."""
    source, target = some_tokens(3, 14, seed), some_tokens(3, 9, seed + 1)
    mask, decoder_mask = padding([14, 9, 1], 14, side), padding([4, 9, 1], 9)
    expected = theirs(
        input_ids=source,
        attention_mask=mask.long(),
        decoder_input_ids=target,
        decoder_attention_mask=decoder_mask.long(),
    ).logits
    assert_close_logits(ours.logits(source, target, mask, decoder_mask), expected, decoder_mask)
    # The decoder's padding is on the right, behind everything that is looked at.
    assert_close_logits(ours.logits(source, target, mask), expected, decoder_mask)


def assert_same_scores_of_texts(ours: Any, theirs: Any, config: TransformerConfig, head: Head) -> None:
    """Both make the decoder's input from the text themselves, each in its own way."""
    mask, pad = padding([14, 9, 2], 14), theirs.config.pad_token_id
    # No token is padding.
    tokens = some_tokens(3, 14, 1).masked_fill(some_tokens(3, 14, 1) == pad, 3)
    ids = ended_by(tokens, mask, theirs.config.eos_token_id).where(mask, pad)
    # T5's decoder starts with padding, the others' with the last token.
    starts_with_pad = config.positions == "relative_bias"
    start = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=pad) if starts_with_pad else None
    found = carrier_of(config, head).outputs(ours, ids, mask, start)
    assert_close_outputs(found, theirs(input_ids=ids, attention_mask=mask.long()), mask)


def assert_close_logits(found: Tensor, expected: Tensor, seen: Tensor) -> None:
    """Equal where tokens are."""
    torch.testing.assert_close(found[seen], expected[seen], atol=1e-4, rtol=0.0)
    assert expected[seen].std() > 0.02, "logits that are all alike would prove nothing"


@pytest.mark.parametrize(("family", "architecture"), ARCHITECTURES)
@settings(max_examples=settings.default.max_examples // 5)
@given(data=st.data())
def test_imported_network_computes_what_transformers_computes(family, architecture, data):
    case = CASES[family]
    theirs = getattr(transformers, architecture)(case.draw_theirs(data.draw, architecture)).eval()
    shake(theirs, 1, 0.1)
    imported = imported_from(theirs)
    assert (imported.family, imported.head) == (family, FAMILY[family].architectures[architecture])
    assert_agree(data, case, built(imported), theirs, imported.head)


@pytest.mark.parametrize(
    ("family", "head"), sorted({(name, FAMILY[name].architectures[each]) for name, each in ARCHITECTURES})
)
@settings(max_examples=settings.default.max_examples // 5)
@given(data=st.data())
def test_exported_network_computes_the_same_in_transformers_and_comes_back(family, head, data):
    case = CASES[family]
    config = case.draw_ours(data.draw)
    ours = random_network(config, head, 1, data.draw(st.integers(1, 4), "labels"))
    pad = data.draw(st.integers(0, config.require_vocab_size() - 1), "pad")
    named = head if head in LOOK_ALIKE else None
    token_ids = TokenIds(pad, 0, 2 if pad == 1 else 1)
    theirs, exported = opened_by_transformers(ours, config, named, token_ids, family)
    assert exported.family == family
    assert_agree(data, case, ours, theirs, head)
    back = import_model(exported.tensors, exported.config)
    assert (back.config, back.head) == (config, head)
    assert_same_tensors(back.state_dict, ours.state_dict())


V1_1 = {"gated": True, "tie_embeddings": False}


@pytest.mark.parametrize(
    ("family", "fields"), [("GPT-2", {}), ("LLaMA", {}), ("BART", {}), ("T5", {}), ("T5", V1_1)]
)
def test_training_step_is_that_of_transformers(family, fields):
    ours = writer(family, **fields)
    theirs, source, target = export_of(ours, ours.config), some_tokens(2, 9, 3), some_tokens(2, 6, 4)
    if ours.config.network == "decoder":
        places = torch.arange(18).view(2, 9)[:, :-1].flatten()
        batch = {"input_ids": source, "predicted_positions": places, "targets": source[:, 1:].flatten()}
        labels = source
    else:
        start = torch.full((2, 1), TOKENS.pad if family == "T5" else TOKENS.eos)
        batch = {
            "input_ids": source,
            "decoder_input_ids": torch.cat([start, target[:, :-1]], 1),
            "predicted_positions": torch.arange(12),
            "targets": target.flatten(),
        }
        labels = target
    # Theirs is the mean over as many targets.
    loss, count = theirs(input_ids=source, labels=labels).loss, len(batch["targets"])
    loss.backward()
    torch.testing.assert_close(sum(ours(**batch)[0].values()) / count, loss, atol=1e-5, rtol=1e-5)
    own = {name: gradient / count for name, gradient in gradients(ours, batch).items()}
    renamed = export_model(own, ours.config, TOKENS).tensors
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(renamed[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


@torch.no_grad()
@pytest.mark.parametrize("family", ["GPT-2", "LLaMA", "BART", "mBART", "T5"])
def test_bare_model_is_read_as_the_one_that_writes(family):
    ours = writer(family)
    bare = import_of(export_of(ours, ours.config).base_model)
    assert_same_tensors(bare.state_dict(), ours.state_dict())


PUBLISHED_AS = {
    "bert-base": "BERT",
    "spanbert-large": "BERT",
    "distilbert-base": "DistilBERT",
    "roberta-large": "RoBERTa",
    "electra-small": "ELECTRA",
    "modernbert-base": "ModernBERT",
}
"""The family that a size is written as, with whichever head."""


@pytest.mark.parametrize("name", sorted({*PRESETS} - {"gpt"}))
def test_published_size_has_the_tensors_that_transformers_expects(name):
    config = PRESETS[name]
    head = LANGUAGE_MODEL_HEADS[config.network]
    if name.startswith("electra"):
        head = "replaced_token_detection"
    exported = export_model(build_on_meta(config, head).state_dict(), config, head=head)
    architecture = getattr(transformers, exported.config["architectures"][0])
    with torch.device("meta"):
        theirs = architecture(architecture.config_class.from_dict(dict(exported.config)))
    shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    expected = {name: shapes[name] for name in shapes.keys() - theirs.all_tied_weights_keys.keys()}
    if name.startswith("t5-v1.1"):
        # There the projection is tied unless its values, which meta has not, say otherwise.
        expected["lm_head.weight"] = shapes["shared.weight"]
    else:
        assert import_model(exported.tensors, exported.config).config == config
    assert {name: tensor.shape for name, tensor in exported.tensors.items()} == expected
    if name in PUBLISHED_AS:
        heads: tuple[Head, ...] = ("masked_lm", *FINE_TUNED)
        states = [build_on_meta(config, each, 2).state_dict() for each in heads]
        families = {export_model(s, config, head=h).family for s, h in zip(states, heads, strict=True)}
        assert families == {PUBLISHED_AS[name]}


@pytest.mark.parametrize(
    ("family", "starts", "given"),
    [
        ("BART", [TOKENS.eos, TOKENS.bos], {}),
        ("mBART", [17], {"decoder_start_token_id": 17}),  # the tag of a language, which only the caller knows
        ("T5", [TOKENS.pad], {}),
    ],
)
def test_generation_starts_with_the_token_of_the_family(family, starts, given):
    network = writer(family)
    theirs, source = export_of(network, network.config), some_tokens(2, 7, 1)
    assert theirs.config.decoder_start_token_id == (None if given else starts[0])
    written = theirs.generate(source, max_length=8, do_sample=False, **given)
    assert written[:, : len(starts)].tolist() == [starts] * 2


def test_decoder_knows_its_special_tokens_there():
    network = writer("GPT-2")
    known = export_of(network, network.config).generation_config
    assert (known.bos_token_id, known.eos_token_id, known.pad_token_id) == (4, 5, 3)


def test_untied_bart_computes_the_same_where_its_inputs_are_one():
    theirs = export_of(tied := writer("BART"), tied.config)
    theirs = type(theirs)(
        transformers.BartConfig(**theirs.config.to_dict() | {"tie_word_embeddings": False})
    ).eval()
    shake(theirs, 1, 0.1)
    with pytest.raises(ValueError, match=r"model\.decoder\.embed_tokens\.weight"):
        import_of(theirs)
    theirs.model.decoder.embed_tokens.weight.data.copy_(theirs.model.encoder.embed_tokens.weight)
    ours = import_of(theirs)
    assert not ours.config.tie_embeddings
    assert_same_written_tokens(ours, theirs)


@torch.no_grad()
def test_texts_longer_than_the_largest_distance_of_t5_share_the_last_bucket():
    ours = random_network(
        small("T5", relative_buckets=8, relative_max_distance=20, max_positions=512), "seq2seq_lm", 1
    )
    source, target = some_tokens(1, 90, 1), some_tokens(1, 70, 2)
    expected = export_of(ours, ours.config)(input_ids=source, decoder_input_ids=target).logits
    assert_close_logits(ours.logits(source, target), expected, torch.ones(1, 70, dtype=torch.bool))


# What published files have that `save_pretrained` no longer writes.
Published = tuple[dict[str, Tensor], dict[str, Any]]


def old_bert(tensors: dict[str, Tensor], config: dict[str, Any]) -> Published:
    """Heads of pre-training read for their prediction of tokens, and norms that are called gamma and beta."""
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, old in names.items():
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    positions = {"bert.embeddings.position_ids": torch.arange(24)[None]}
    return tensors | positions, config | {"architectures": ["BertForMaskedLM"]}


def old_roberta(tensors: dict[str, Tensor], config: dict[str, Any]) -> Published:
    """Leftovers: a pooler, positions, and copies of the tied head."""
    leftovers = {
        "roberta.pooler.dense.weight": torch.zeros(16, 16),
        "roberta.pooler.dense.bias": torch.zeros(16),
        "roberta.embeddings.position_ids": torch.arange(28)[None],
        "lm_head.decoder.weight": tensors["roberta.embeddings.word_embeddings.weight"],
        "lm_head.decoder.bias": tensors["lm_head.bias"],
    }
    return tensors | leftovers, config


def old_gpt2(tensors: dict[str, Tensor], config: dict[str, Any]) -> Published:
    """No prefix, and causal masks."""
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for number in range(2):
        tensors[f"h.{number}.attn.bias"] = torch.ones(24, 24).tril()[None, None]
        tensors[f"h.{number}.attn.masked_bias"] = torch.tensor(-1e4)
    return tensors, config


def old_bart(tensors: dict[str, Tensor], config: dict[str, Any]) -> Published:
    """Copies of the embedding under all their names, versions, and no bias of the logits."""
    assert not tensors.pop("final_logits_bias").any()
    for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["model.shared.weight"].clone()
    tensors["model.encoder.version"] = tensors["model.decoder.version"] = torch.tensor([3.0])
    keys = {"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True}
    return tensors, config | keys | {"add_bias_logits": False}


def old_t5(tensors: dict[str, Tensor], config: dict[str, Any]) -> Published:
    """Copies of the embedding, a bias of cross-attention that nothing reads, a former name, and few keys."""
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(32, 4)
    later = {
        *("attention_dropout", "activation_dropout", "output_dropout", "scale_decoder_outputs"),
        *("relative_attention_max_distance", "tie_word_embeddings"),
    }
    keys = {name: value for name, value in config.items() if name not in later}
    return tensors, keys | {"architectures": ["T5WithLMHeadModel"]}


def old_modernbert(tensors: dict[str, Tensor], config: dict[str, Any]) -> Published:
    """Layers with global attention, and rotary bases, by keys of their own."""
    later = ("layer_types", "rope_parameters")
    keys = {"global_attn_every_n_layers": 2, "global_rope_theta": 5e4, "local_rope_theta": 3e3}
    return tensors, {name: value for name, value in config.items() if name not in later} | keys


def old_llama(tensors: dict[str, Tensor], config: dict[str, Any]) -> Published:
    """A rotary base without a group of its own, and frequencies (TinyLlama as it is on the hub)."""
    for number in range(2):
        tensors[f"model.layers.{number}.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    keys = {"rope_theta": 5e4, "rope_scaling": None, "pretraining_tp": 1, "use_cache": True}
    return tensors, {name: config[name] for name in config.keys() - {"rope_parameters", "head_dim"}} | keys


OLD_FILES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "BERT": (old_bert, {}, {}),
    "RoBERTa": (old_roberta, {}, {}),
    "ModernBERT": (
        old_modernbert,
        {"local_window": 8, "num_layers": 4, "initializer": "scaled_residual"},
        {"global_every": 2, "rotary_base": 5e4, "local_rotary_base": 3e3},
    ),
    "GPT-2": (old_gpt2, {}, {}),
    "LLaMA": (old_llama, {}, {"rotary_base": 5e4}),
    "BART": (old_bart, {}, {}),
    "T5": (old_t5, {}, {"activation_dropout": 0.1, "output_dropout": 0.1, "scale_logits": True}),
}
"""What ages the files of a family, fields of its network, and those that the aged configuration implies."""


@pytest.mark.parametrize("family", OLD_FILES)
def test_old_files_are_read(family):
    age, fields, implied = OLD_FILES[family]
    config = small(family, **fields)
    head: Head = "pretraining" if family == "BERT" else LANGUAGE_MODEL_HEADS[config.network]
    state = random_network(config, head, 1).state_dict()
    exported = export_model(state, config, TOKENS, family=family)
    back = import_model(*age(dict(exported.tensors), exported.config))
    assert back.config == small(family, **fields | implied)
    # The old file of BERT is read for its prediction of tokens alone.
    kept = state.keys() - {name for name in state if family == "BERT" and name.startswith(("pair", "pooler"))}
    assert_same_tensors(back.state_dict, {name: state[name] for name in kept})


def test_half_precision_positions_of_roberta_are_added_to_the_segment_in_full():
    ours = random_network(small("RoBERTa"), "masked_lm", 1)
    exported = export_model(ours.state_dict(), small("RoBERTa"))
    half = {name: tensor.half() for name, tensor in exported.tensors.items()}
    half["roberta.embeddings.token_type_embeddings.weight"].fill_(0.3)
    positions = import_model(half, exported.config).state_dict["encoder.embeddings.positions.weight"]
    stored = half["roberta.embeddings.position_embeddings.weight"][2:].float()
    assert torch.equal(positions, stored + torch.tensor(0.3).half().float())


def test_export_keeps_its_precision():
    state = random_network(small("RoBERTa"), "masked_lm", 1).bfloat16().state_dict()
    written = export_model(state, small("RoBERTa"))
    assert written.config["dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in written.tensors.values()} == {torch.bfloat16}

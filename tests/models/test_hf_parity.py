"""Networks of every family of `transformers` compute the same there and here, in both directions."""

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import nn

from models.hf.families import FAMILIES, export_model, import_model
from models.hf.family import TokenIds
from models.hf.heads import FINE_TUNED, Head, build_on_meta, carrier_of, ended_by, their_inputs
from tests.models.families import CASES, Case, small
from tests.models.hf_oracle import (
    LANGUAGE_MODEL_HEADS,
    TOKENS,
    assert_close_outputs,
    assert_same_tensors,
    built,
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
    writes, has_decoder = head == "seq2seq_lm", config.network == "encoder_decoder"
    # Learned positions of two stacks are columns there; a relative bias is the same wherever the text begins.
    from_left = has_decoder and not (writes and config.positions == "relative_bias")
    from_left |= config.network == "encoder" and head in READ_FROM_THE_FIRST_TOKEN
    side = data.draw(st.sampled_from(["right"] if from_left else ["left", "right"]), "side")
    # As far as there are positions; relative ones end before 24.
    length = data.draw(st.integers(2, min(config.max_positions, 40)), "length")
    mask = padding([length, *(data.draw(st.integers(1, length)) for _ in range(2))], length, side)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    # No token is padding, and only the last one of a row ends a text that `transformers` pools there.
    left_out = {pad, theirs.config.eos_token_id} if has_decoder and not writes else {pad}
    allowed = torch.tensor([each for each in range(config.require_vocab_size()) if each not in left_out])
    ids = allowed[torch.randint(len(allowed), (3, length), generator=generator)]
    given: dict[str, Any] = {}
    if writes:
        given["decoder_input_ids"] = ids.roll(1, 0)
    elif has_decoder:
        ids = ended_by(ids, mask, theirs.config.eos_token_id)
    elif case.counts_columns:
        given["position_ids"] = (mask.long().cumsum(-1) - 1).clamp_min(0)
    ids = ids.where(mask, pad)
    segments = torch.randint(max(config.num_segments, 1), ids.shape, generator=generator)
    beside = segments if config.num_segments else given.get("decoder_input_ids")
    if has_decoder and not writes and config.positions == "relative_bias":
        # T5's decoder starts with padding, the others' with the last token.
        beside = nn.functional.pad(ids[:, :-1], (1, 0), value=pad)
    found = carrier_of(config, head).outputs(ours, ids, mask, beside)
    expected = theirs(**their_inputs(config, ids, mask, segments, head), **given)
    present = torch.ones_like(mask) if writes else mask
    assert_close_outputs(found, expected, present)
    assert not writes or found["logits"].std() > 0.02, "logits that are all alike would prove nothing"


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


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("GPT-2", {}),
        ("LLaMA", {}),
        ("BART", {}),
        ("T5", {}),
        ("T5", {"gated": True, "tie_embeddings": False}),
    ],
)
def test_training_step_is_that_of_transformers(family, fields):
    ours = writer(family, **fields)
    theirs, source = opened_by_transformers(ours, ours.config)[0], some_tokens(2, 9, 3)
    labels, batch = source, {"input_ids": source, "predicted_positions": torch.arange(12)}
    if ours.config.network == "decoder":
        batch["predicted_positions"] = torch.arange(18).view(2, 9)[:, :-1].flatten()
        batch["targets"] = source[:, 1:].flatten()
    else:
        labels = some_tokens(2, 6, 4)
        start = torch.full((2, 1), TOKENS.pad if family == "T5" else TOKENS.eos)
        batch |= {"decoder_input_ids": torch.cat([start, labels[:, :-1]], 1), "targets": labels.flatten()}
    # Theirs is the mean over as many targets.
    loss, count = theirs(input_ids=source, labels=labels).loss, len(batch["targets"])
    loss.backward()
    torch.testing.assert_close(sum(ours(**batch)[0].values()) / count, loss, atol=1e-5, rtol=1e-5)
    own = {name: gradient / count for name, gradient in gradients(ours, batch).items()}
    renamed = export_model(own, ours.config, TOKENS).tensors
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(renamed[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("family", ["GPT-2", "LLaMA", "BART", "mBART", "T5"])
def test_bare_model_is_read_as_the_one_that_writes(family):
    ours = writer(family)
    bare = import_of(opened_by_transformers(ours, ours.config)[0].base_model)
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
    theirs, _ = opened_by_transformers(network, network.config)
    assert theirs.config.decoder_start_token_id == (None if given else starts[0])
    written = theirs.generate(some_tokens(2, 7, 1), max_length=8, do_sample=False, **given)
    assert written[:, : len(starts)].tolist() == [starts] * 2


@torch.no_grad()
def test_untied_bart_computes_the_same_where_its_inputs_are_one():
    theirs = opened_by_transformers(tied := writer("BART"), tied.config)[0]
    config = transformers.BartConfig(**theirs.config.to_dict() | {"tie_word_embeddings": False})
    theirs = type(theirs)(config).eval()
    shake(theirs, 1, 0.1)
    with pytest.raises(ValueError, match=r"model\.decoder\.embed_tokens\.weight"):
        import_of(theirs)
    theirs.model.decoder.embed_tokens.weight.data.copy_(theirs.model.encoder.embed_tokens.weight)
    ours, source, target = import_of(theirs), some_tokens(3, 14, 0), some_tokens(3, 9, 1)
    assert not ours.config.tie_embeddings
    expected = theirs(input_ids=source, decoder_input_ids=target)
    assert_close_outputs({"logits": ours.logits(source, target)}, expected, torch.ones(0))


@pytest.mark.parametrize("family", [name for name, case in CASES.items() if case.old])
def test_old_files_are_read(family):
    old = CASES[family].old
    assert old is not None
    config = small(family, **old.fields)
    head: Head = "pretraining" if family == "BERT" else LANGUAGE_MODEL_HEADS[config.network]
    state = random_network(config, head, 1).state_dict()
    back = import_model(*old.age(export_model(state, config, TOKENS, family=family)))
    assert back.config == small(family, **old.fields | old.implied)
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

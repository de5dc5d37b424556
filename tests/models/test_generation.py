"""Greedy and beam search against transformers on the same random weights, what holds of a text whoever else writes it,
and what is refused."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from models.attention import LayerCache
from models.generation.config import GenerationConfig
from models.generation.generate import generate
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from tests.models.hf_oracle import (
    COMMON,
    EOS,
    MAX_POSITIONS,
    PAD,
    PEERS,
    START,
    VOCAB_SIZE,
    move,
    pair,
    prompts,
)
from tests.models.materials import padding

DECODERS = ("gpt2", "llama")
BASE = GenerationConfig(max_new_tokens=10, decoder_start_token_id=START, eos_token_id=EOS, pad_token_id=PAD)
FEW = 12
"""A vocabulary so small that searches often end before the longest text."""
TOKENS = st.integers(START + 1, FEW - 1)


@st.composite
def batches(draw, left: bool):
    """Ids and mask of up to four rows of random lengths; decoders are padded on the left."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    mask = padding(lengths, max(lengths), "left" if left else "right")
    ids = prompts(len(lengths), max(lengths), draw(st.integers(0, 99)), FEW)
    return ids.where(mask, PAD), mask.long()


@st.composite
def searches(draw):
    """Settings that both understand."""
    num_beams = draw(st.integers(1, 5))
    found = {
        "num_beams": num_beams,
        "num_return_sequences": draw(st.integers(1, num_beams)),
        "max_new_tokens": draw(st.integers(1, 12)),
        "no_repeat_ngram_size": draw(st.integers(0, 3)),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.3, 0.8])),
        "pad_token_id": PAD,
        "eos_token_id": draw(st.none() | TOKENS),
        "forced_bos_token_id": draw(st.none() | TOKENS),
        "forced_eos_token_id": draw(st.none() | TOKENS),
        "suppress_tokens": draw(st.lists(TOKENS, max_size=3)),
    }
    minimum = draw(st.sampled_from(["min_length", "min_new_tokens"]))
    found[minimum] = draw(st.integers(0, found["max_new_tokens"]))
    if num_beams > 1:
        found["length_penalty"] = draw(st.sampled_from([-1.0, 0.0, 0.7, 1.0, 2.0]))
        found["early_stopping"] = draw(st.sampled_from([True, False, "never"]))
    forced = {found["forced_bos_token_id"], found["forced_eos_token_id"]}
    assume(not forced & set(found["suppress_tokens"]))
    assume(found["eos_token_id"] is None or found["eos_token_id"] != found["forced_bos_token_id"])
    # Else there are fewer sequences than are asked for.
    assume(found["max_new_tokens"] > 2 or not forced - {None} or found["num_return_sequences"] == 1)
    return found


def ours_and_theirs(peer, seed, batch, search, vocab_size=VOCAB_SIZE):
    """What both write: (ours, their sequences, their scores or None)."""
    ours, theirs = pair(peer, seed, vocab_size)
    input_ids, mask = batch
    start = {} if peer in DECODERS else {"decoder_start_token_id": START}
    config = search | start | {"suppress_tokens": tuple(search.get("suppress_tokens", ()))}
    generated = generate(ours, input_ids, mask, GenerationConfig(**config))
    expected = theirs.generate(
        input_ids,
        attention_mask=mask,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **search,
        **start,
    )
    return generated, expected.sequences, getattr(expected, "sequences_scores", None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peer", PEERS)
@given(data=st.data())
def test_search_writes_what_transformers_writes(peer, data):
    batch = data.draw(batches(left=peer in DECODERS))
    search = data.draw(searches())
    # Few tokens that may not come twice are soon used up.
    size = VOCAB_SIZE if search["no_repeat_ngram_size"] == 1 else FEW
    generated, sequences, scores = ours_and_theirs(peer, data.draw(st.integers(0, 3)), batch, search, size)
    assert generated.sequences.tolist() == sequences.tolist()
    if scores is not None:
        torch.testing.assert_close(generated.scores, scores, atol=1e-4, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peer", ["bart", "t5"])
def test_beam_search_pads_with_zero_where_transformers_repeats_the_end(peer):
    """And nothing else differs where the padding token is 0, as T5's is, whenever the search of a text ends."""
    batch, differ = (prompts(6, vocab_size=FEW), torch.ones(6, 5, dtype=torch.int64)), False
    for eos, early_stopping in product(range(4, FEW), [True, False, "never"]):
        search = {"num_beams": 3, "max_new_tokens": 12, "no_repeat_ngram_size": 2, "length_penalty": 2.0}
        search |= {"eos_token_id": eos, "pad_token_id": 0, "early_stopping": early_stopping}
        generated, sequences, scores = ours_and_theirs(peer, 0, batch, search, FEW)
        behind = torch.arange(sequences.shape[1]) >= generated.lengths[:, None]
        assert generated.sequences.tolist() == sequences.masked_fill(behind, 0).tolist()
        torch.testing.assert_close(generated.scores, scores, atol=1e-4, rtol=0)
        differ |= bool((sequences[behind] == eos).any())
    assert differ


@torch.no_grad()
@pytest.mark.parametrize("peer", PEERS)
def test_scores_of_greedy_search_are_what_the_network_gives_to_the_whole_sequence(peer):
    model, input_ids = pair(peer, 0)[0], prompts()
    config = replace(BASE, length_penalty=0.6, eos_token_id=None)
    generated = generate(model, input_ids, config=config)
    read = [generated.sequences] if peer in DECODERS else [input_ids, generated.sequences]
    table = model.logits(*read)[:, :-1].log_softmax(-1)
    gains = table.gather(2, generated.sequences[:, 1:, None])[..., 0][:, generated.prompt_length - 1 :]
    torch.testing.assert_close(generated.scores, gains.sum(1) / 10**0.6, atol=1e-4, rtol=0)


def with_local_attention() -> CausalLanguageModel:
    config = replace(
        COMMON, network="decoder", positions="rotary", num_layers=3, local_window=3, global_every=3
    )
    model = CausalLanguageModel(config)
    move(model, 1)
    return model.eval()


@pytest.mark.parametrize("make", [lambda: pair("gpt2", 2)[0], with_local_attention], ids=["global", "local"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_prefix_is_read_both_ways_and_seen_from_everywhere(make, num_beams):
    model = make()
    ids, mask = prompts(3, 6, 3), padding([6, 4, 1], 6, "left")
    config = replace(BASE, eos_token_id=None, num_beams=num_beams)
    generated = generate(model, ids, mask, config, read_both_ways=True)
    for row, first in enumerate((0, 2, 5)):
        sequence = generated.sequences[row : row + 1, first:]
        with torch.no_grad():
            logits = model.logits(sequence, prefix_lengths=torch.tensor([6 - first]))
        chosen = sequence[0, 6 - first :, None]
        gains = logits[0, 5 - first : -1].log_softmax(-1)
        torch.testing.assert_close(
            generated.scores[row], gains.gather(1, chosen).mean(), rtol=1e-4, atol=1e-4
        )
        assert num_beams > 1 or chosen[:, 0].equal(gains.argmax(-1))
    one_way = generate(model, ids, mask, config)
    assert one_way.sequences.tolist() != generated.sequences.tolist()


def test_dropout_is_off_only_while_writing():
    model = pair("gpt2", 0)[0]
    expected = generate(model, prompts(), config=BASE)
    model.train()
    try:
        assert generate(model, prompts(), config=BASE).sequences.tolist() == expected.sequences.tolist()
        assert all(module.training for module in model.modules())
    finally:
        model.eval()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 99))
def test_a_cache_holds_what_was_written_to_it(counts, seed):
    generator = torch.Generator().manual_seed(seed)
    cache, rows = LayerCache(), 3
    expected = torch.empty(rows, 2, 0, 4)
    for count in counts:
        key = torch.randn(rows, 2, count, 4, generator=generator)
        expected = torch.cat([expected, key], 2)
        keys, values = cache.extend(key, -key)
        assert torch.equal(keys, expected)
        assert torch.equal(values, -expected)
        chosen = torch.randint(0, rows, (rows + 1,), generator=generator)
        cache.select(chosen)
        expected, rows = expected[chosen], rows + 1
        assert torch.equal(cache.pair()[0], expected)
    assert cache.length == sum(counts)
    assert cache.rows == rows


@pytest.mark.parametrize(
    ("peer", "given", "message"),
    [
        ("gpt2", {"config": GenerationConfig(max_length=5)}, "max_length is 5"),
        ("gpt2", {"config": GenerationConfig(max_new_tokens=36)}, "max_new_tokens .* 35"),
        ("gpt2", {"config": GenerationConfig(max_length=41)}, f"max_length .* {MAX_POSITIONS}"),
        ("gpt2", {"config": GenerationConfig(max_length=8, min_length=9)}, "lower min_length"),
        ("gpt2", {"config": GenerationConfig(eos_token_id=37)}, "eos_token_id"),
        ("bart", {}, "decoder_start_token_id"),
        ("bart", {"config": BASE, "read_both_ways": True}, "read_both_ways"),
        ("gpt2", {"input_ids": torch.tensor([[4, 50]])}, "input_ids is 50"),
        ("gpt2", {"input_ids": torch.tensor([4, 5])}, r"shape \[batch, length\]"),
        ("gpt2", {"attention_mask": padding([4, 5, 5], 5)}, "left"),
        ("gpt2", {"attention_mask": padding([5, 0, 5], 5)}, "row 1"),
        ("gpt2", {"attention_mask": padding([5, 5], 5)}, "attention_mask .*shape"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_key_and_the_remedy(peer, given, message):
    with pytest.raises(ValueError, match=message):
        generate(pair(peer, 0)[0], **{"input_ids": prompts()} | given)


def test_network_that_does_not_write_is_refused():
    with pytest.raises(ValueError, match="MaskedLanguageModel"):
        generate(MaskedLanguageModel(COMMON), prompts())


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_damaged_weights_are_refused(how, kind):
    network = {"decoder": CausalLanguageModel, "encoder_decoder": SequenceToSequence}[kind]
    model = network(replace(COMMON, network=kind))
    with torch.no_grad():
        next(model.decoder.transformer.layers.parameters())[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        generate(model, prompts(), config=replace(BASE, **how))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_return_sequences": 3, "num_beams": 2}, "num_return_sequences .*num_beams"),
        ({"do_sample": True, "num_beams": 2}, "set num_beams to 1"),
        ({"max_length": 4, "max_new_tokens": 4}, "max_length .*max_new_tokens"),
        ({"temperature": 0.0, "do_sample": True}, "set do_sample: false"),
        ({"top_p": 1.2}, "top_p"),
        ({"top_k": 0, "num_beams": 0}, "num_beams .*; top_k "),
        ({"early_stopping": "always"}, "early_stopping"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"suppress_tokens": (3,), "forced_bos_token_id": 3}, "forced"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"seed": 1.5}, "seed"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GenerationConfig(**settings)

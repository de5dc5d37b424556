"""Greedy and beam search against transformers, on the same random weights."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from models.generation.config import GenerationConfig
from models.generation.generate import generate
from tests.models.generation_peers import PAD, PEERS, START, VOCAB_SIZE, pair

DECODERS = ("gpt2", "llama")
peers = pytest.mark.parametrize("peer", PEERS)
TOKENS = st.integers(START + 1, VOCAB_SIZE - 1)


@st.composite
def batches(draw, left: bool):
    """Ids and mask of up to four rows of random lengths; decoders are padded on the left."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    place = torch.arange(max(lengths))
    mask = place < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    ids = torch.randint(START + 1, VOCAB_SIZE, mask.shape, generator=generator)
    mask = mask.flip(1) if left else mask
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


def ours_and_theirs(peer, seed, batch, search):
    """What both write: (ours, their sequences, their scores or None)."""
    ours, theirs = pair(peer, seed)
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


def assert_same(generated, sequences, scores):
    assert generated.sequences.tolist() == sequences.tolist()
    if scores is not None:
        torch.testing.assert_close(generated.scores, scores, atol=1e-4, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
@peers
@given(data=st.data())
def test_search_writes_what_transformers_writes(peer, data):
    batch = data.draw(batches(left=peer in DECODERS))
    search = data.draw(searches())
    assert_same(*ours_and_theirs(peer, data.draw(st.integers(0, 3)), batch, search))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peer", ["bart", "t5"])
def test_beam_search_pads_with_zero_where_transformers_repeats_the_end(peer):
    """And nothing else differs where the padding token is 0, as T5's is."""
    input_ids = torch.randint(START + 1, VOCAB_SIZE, (6, 5), generator=torch.Generator().manual_seed(0))
    batch, differ = (input_ids, torch.ones_like(input_ids)), False
    for eos in range(4, 16):
        search = {"num_beams": 3, "max_new_tokens": 12, "no_repeat_ngram_size": 2}
        search |= {"eos_token_id": eos, "pad_token_id": 0}
        generated, sequences, scores = ours_and_theirs(peer, 0, batch, search)
        behind = torch.arange(sequences.shape[1]) >= generated.lengths[:, None]
        assert generated.sequences.tolist() == sequences.masked_fill(behind, 0).tolist()
        torch.testing.assert_close(generated.scores, scores, atol=1e-4, rtol=0)
        differ |= bool((sequences[behind] == eos).any())
    assert differ

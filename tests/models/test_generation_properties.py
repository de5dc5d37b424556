"""What must hold of generated text whoever else generates it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.attention import LayerCache
from models.config import TransformerConfig
from models.generation.config import GenerationConfig
from models.generation.generate import generate
from models.generation.sampling import ban_repeated_ngrams
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from tests.models.generation_peers import (
    COMMON,
    EOS,
    MAX_POSITIONS,
    PAD,
    START,
    VOCAB_SIZE,
    move,
    pair,
    prompts,
)

peers = pytest.mark.parametrize("peer", ["gpt2", "bart", "t5"])
BASE = GenerationConfig(max_new_tokens=10, decoder_start_token_id=START, eos_token_id=EOS, pad_token_id=PAD)


def log_probabilities(model, input_ids, sequences):
    """[rows, length - 1, vocab_size] of what follows each token, without a cache."""
    with torch.no_grad():
        if isinstance(model, CausalLanguageModel):
            logits = model.logits(sequences)
        else:
            logits = model.logits(input_ids, sequences)
    return logits[:, :-1].log_softmax(-1)


@peers
@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_are_what_the_network_gives_to_the_whole_sequence(peer, num_beams):
    model, input_ids = pair(peer, 0)[0], prompts()
    config = replace(BASE, num_beams=num_beams, length_penalty=0.6, eos_token_id=None)
    generated = generate(model, input_ids, config=config)
    table = log_probabilities(model, input_ids, generated.sequences)
    gains = table.gather(2, generated.sequences[:, 1:, None])[..., 0][:, generated.prompt_length - 1 :]
    torch.testing.assert_close(generated.scores, gains.sum(1) / 10**0.6, atol=1e-4, rtol=0)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_that_holds_everything_finds_the_best_sequence(penalty):
    """Of all sequences of up to three of five tokens, the end among them."""
    model = CausalLanguageModel(replace(COMMON, network="decoder", norm="pre", vocab_size=5)).eval()
    move(model, 4)
    prompt = torch.tensor([[3, 4]])
    config = GenerationConfig(
        max_new_tokens=3, num_beams=25, length_penalty=penalty, early_stopping="never", eos_token_id=0
    )
    whole = torch.tensor([[3, 4, *rest] for rest in product(range(5), repeat=3)])
    gains = log_probabilities(model, None, whole).gather(2, whole[:, 1:, None])[..., 0][:, 1:]
    scores = {}
    for sequence, gain in zip(whole.tolist(), gains, strict=True):
        written = sequence[2:]
        count = written.index(0) + 1 if 0 in written else 3
        scores[tuple(written[:count])] = float(gain[:count].sum()) / count**penalty
    best = max(scores, key=scores.__getitem__)
    generated = generate(model, prompt, config=config)
    assert generated.continuations()[0] == list(best)
    assert float(generated.scores[0]) == pytest.approx(scores[best], abs=1e-5)


@peers
@pytest.mark.parametrize("num_beams", [1, 4])
def test_rows_that_end_early_change_nothing_for_the_others(peer, num_beams):
    model, input_ids = pair(peer, 0)[0], prompts(6)
    # An end that comes early in some rows and late in others.
    config = replace(BASE, num_beams=num_beams, max_new_tokens=14, no_repeat_ngram_size=2, eos_token_id=None)
    open_ended = generate(model, input_ids, config=config)
    ends = [open_ended.sequences[row, open_ended.prompt_length + 2 * row].item() for row in range(6)]
    different = 0
    for eos in set(ends):
        ended = replace(config, eos_token_id=eos)
        together = generate(model, input_ids, config=ended)
        different += len(set(together.lengths.tolist())) > 1
        for row in range(6):
            alone = generate(model, input_ids[row : row + 1], config=ended)
            assert alone.continuations() == together.continuations()[row : row + 1]
            torch.testing.assert_close(alone.scores, together.scores[row : row + 1])
        behind = torch.arange(together.sequences.shape[1]) >= together.lengths[:, None]
        assert (together.sequences[behind] == PAD).all()
    assert different


def test_prefix_is_read_both_ways():
    model, generator = pair("gpt2", 2)[0], torch.Generator().manual_seed(3)
    ids = torch.randint(START + 1, VOCAB_SIZE, (3, 6), generator=generator)
    mask = torch.arange(6) >= torch.tensor([[0], [2], [5]])
    generated = generate(model, ids, mask, replace(BASE, eos_token_id=None), read_both_ways=True)
    for row, first in enumerate((0, 2, 5)):
        sequence = generated.sequences[row : row + 1, first:]
        with torch.no_grad():
            logits = model.logits(sequence, prefix_lengths=torch.tensor([6 - first]))
        assert sequence[0, 6 - first :].tolist() == logits[0, 5 - first : -1].argmax(-1).tolist()
    one_way = generate(model, ids, mask, replace(BASE, eos_token_id=None))
    assert one_way.sequences.tolist() != generated.sequences.tolist()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_prefix_is_seen_from_everywhere_although_attention_is_local(num_beams: int):
    model = CausalLanguageModel(
        TransformerConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            num_layers=3,
            num_heads=4,
            intermediate_size=64,
            max_positions=64,
            network="decoder",
            positions="rotary",
            local_window=3,
            global_every=3,
        )
    )
    init_weights(model, 1)
    for parameter in model.parameters():
        # Small weights score all tokens alike.
        parameter.data.mul_(4)
    ids = torch.randint(START + 1, VOCAB_SIZE, (3, 6), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(6) >= torch.tensor([[0], [2], [5]])
    config = replace(BASE, eos_token_id=None, num_beams=num_beams)
    generated = generate(model.eval(), ids, mask, config, read_both_ways=True)
    for row, first in enumerate((0, 2, 5)):
        sequence = generated.sequences[row : row + 1, first:]
        with torch.no_grad():
            logits = model.logits(sequence, prefix_lengths=torch.tensor([6 - first]))
        chosen = sequence[0, 6 - first :, None]
        expected = logits[0, 5 - first : -1].log_softmax(-1).gather(1, chosen).mean()
        torch.testing.assert_close(generated.scores[row], expected, rtol=1e-4, atol=1e-4)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 4))
def test_banned_are_exactly_the_tokens_that_would_repeat_an_ngram(sequence, size):
    scores = ban_repeated_ngrams(torch.zeros(1, 5), torch.tensor([sequence]), size)[0]
    ngrams = [tuple(sequence[place : place + size]) for place in range(len(sequence) - size + 1)]
    for token in range(5):
        last = tuple([*sequence, token][-size:])
        repeats = len(last) == size and last in ngrams
        assert (scores[token] == -torch.inf) == repeats


@pytest.mark.parametrize("peer", ["bart", "t5"])
def test_decoder_may_begin_with_more_than_one_token(peer):
    model, input_ids, start = pair(peer, 0)[0], prompts(), prompts(3, 4, 9)
    config = replace(BASE, eos_token_id=None, num_beams=2, decoder_start_token_id=None)
    generated = generate(model, input_ids, None, config, decoder_input_ids=start)
    assert generated.prompt_length == 4
    assert generated.sequences[:, :4].tolist() == start.tolist()


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


def refused(message, input_ids=None, attention_mask=None, *, model=None, **others):
    with pytest.raises(ValueError, match=message):
        generate(
            model or pair("gpt2", 0)[0],
            prompts() if input_ids is None else input_ids,
            attention_mask,
            **others,
        )


def test_what_cannot_be_written_is_refused_with_the_key_and_the_remedy():
    refused("max_length is 5, but prompts have 5 tokens already", config=GenerationConfig(max_length=5))
    refused(
        f"max_positions: {MAX_POSITIONS}; set max_new_tokens to at most 35",
        config=GenerationConfig(max_new_tokens=36),
    )
    refused(
        f"set max_length to at most {MAX_POSITIONS}", config=GenerationConfig(max_length=MAX_POSITIONS + 1)
    )
    refused(
        "min_length asks for sequences of 9 .* lower min_length",
        config=GenerationConfig(max_length=8, min_length=9),
    )
    refused("MaskedLanguageModel does not write", model=MaskedLanguageModel(COMMON))
    refused("set decoder_start_token_id", model=pair("bart", 0)[0])
    refused("decoder_input_ids belong to an encoder_decoder", decoder_input_ids=prompts())
    refused("read_both_ways belongs to a decoder", model=pair("bart", 0)[0], config=BASE, read_both_ways=True)
    refused("row_ids has 2 numbers for 3 rows", row_ids=[1, 2])
    refused(
        "eos_token_id is 37, but the network's vocab_size is 37", config=GenerationConfig(eos_token_id=37)
    )
    refused("the highest of input_ids is 50", torch.tensor([[4, 50]]))
    refused(r"shape \[batch, length\]", torch.tensor([4, 5]))
    refused("a row for each row of input_ids", model=pair("bart", 0)[0], decoder_input_ids=prompts(2))


def test_prompts_padded_on_the_right_are_refused():
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    refused("pad them on the left", prompts(), mask)
    refused("row 1 of attention_mask hides all tokens", prompts(), torch.tensor([[1], [0], [1]]).expand(3, 5))
    refused("attention_mask must have the shape", prompts(), mask[:2])


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_damaged_weights_are_refused(how, kind):
    network = {"decoder": CausalLanguageModel, "encoder_decoder": SequenceToSequence}[kind]
    model = network(replace(COMMON, network=kind))
    with torch.no_grad():
        next(model.decoder.transformer.layers.parameters())[0, 0] = torch.nan
    refused("scores are NaN", model=model, config=replace(BASE, **how))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        (
            {"num_return_sequences": 3, "num_beams": 2},
            r"num_return_sequences \(3\) must not exceed num_beams",
        ),
        ({"do_sample": True, "num_beams": 2}, "do_sample draws every sequence by itself; set num_beams to 1"),
        ({"max_length": 4, "max_new_tokens": 4}, "leave one of them out"),
        ({"temperature": 0.0, "do_sample": True}, "temperature .* above 0.* set do_sample: false"),
        ({"top_p": 1.2}, r"top_p must be a probability in \(0, 1\]"),
        ({"top_k": 0, "num_beams": 0}, "num_beams .* at least 1, not 0; top_k .* at least 1, not 0"),
        ({"early_stopping": "always"}, "early_stopping must be true, false or never"),
        ({"eos_token_id": -1}, "eos_token_id must be a token id of at least 0"),
        ({"suppress_tokens": (3,), "forced_bos_token_id": 3}, "which a forced token needs"),
        ({"length_penalty": float("nan")}, "length_penalty must be a finite number"),
        ({"seed": 1.5}, "seed must be a whole number"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_settings_that_mean_nothing_are_refused(settings_, message):
    with pytest.raises(ValueError, match=message):
        GenerationConfig(**settings_)

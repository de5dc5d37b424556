"""What must hold of generated text whoever else generates it, and what is refused."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.attention import LayerCache
from models.generation.config import GenerationConfig
from models.generation.generate import generate
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
from tests.models.materials import padding

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
def test_scores_of_greedy_search_are_what_the_network_gives_to_the_whole_sequence(peer):
    model, input_ids = pair(peer, 0)[0], prompts()
    config = replace(BASE, length_penalty=0.6, eos_token_id=None)
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
    ids = torch.randint(START + 1, VOCAB_SIZE, (3, 6), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(6) >= torch.tensor([[0], [2], [5]])
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


@pytest.mark.parametrize(
    ("peer", "given", "message"),
    [
        ("gpt2", {"config": GenerationConfig(max_length=5)}, "max_length is 5"),
        ("gpt2", {"config": GenerationConfig(max_new_tokens=36)}, "max_new_tokens .* 35"),
        ("gpt2", {"config": GenerationConfig(max_length=41)}, f"max_length .* {MAX_POSITIONS}"),
        ("gpt2", {"config": GenerationConfig(max_length=8, min_length=9)}, "lower min_length"),
        ("gpt2", {"config": GenerationConfig(eos_token_id=37)}, "eos_token_id"),
        ("bart", {}, "decoder_start_token_id"),
        ("gpt2", {"decoder_input_ids": prompts()}, "decoder_input_ids"),
        ("bart", {"decoder_input_ids": prompts(2)}, "row of input_ids"),
        ("bart", {"config": BASE, "read_both_ways": True}, "read_both_ways"),
        ("gpt2", {"row_ids": [1, 2]}, "3 rows"),
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

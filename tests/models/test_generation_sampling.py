"""Sampling: the distribution that is asked for, and nothing but the row's own numbers in it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from models.generation.config import GenerationConfig
from models.generation.generate import generate
from models.generation.sampling import draw, keep_top_k, keep_top_p, uniform
from tests.models.hf_oracle import EOS, PAD, START, pair, prompts

SAMPLED = GenerationConfig(do_sample=True, max_new_tokens=8, decoder_start_token_id=START, pad_token_id=PAD)
LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=30, unique=True)


def first_tokens(config, count):
    """First tokens of `count` draws after one prompt, and the network's logits there."""
    model = pair("gpt2", 0)[0]
    config = replace(config, max_new_tokens=1)
    tokens = generate(model, prompts(1).expand(count, -1), config=config).sequences[:, -1]
    with torch.no_grad():
        return tokens, model.logits(prompts(1))[0, -1]


def assert_drawn_from(tokens, probabilities):
    """Chi-square, tokens that are expected fewer than five times taken together."""
    expected = (probabilities.double() / probabilities.double().sum()) * len(tokens)
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    rare = expected < 5
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    if expected[-1] == 0:
        assert counts[-1] == 0
        expected, counts = expected[:-1], counts[:-1]
    assert len(expected) > 3
    assert chisquare(counts, expected).pvalue > 1e-3


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 9},
        {"top_p": 0.8},
        {"top_k": 20, "top_p": 0.7},
        {"temperature": 3.0, "top_p": 0.5},
    ],
    ids=str,
)
def test_tokens_have_the_probabilities_of_the_network(change):
    tokens, logits = first_tokens(replace(SAMPLED, **change), 4000)
    logits = logits[None] / change.get("temperature", 1.0)
    logits = keep_top_k(logits, change["top_k"]) if "top_k" in change else logits
    logits = keep_top_p(logits, change["top_p"]) if "top_p" in change else logits
    assert_drawn_from(tokens, logits[0].softmax(-1))


@given(logits=LOGITS, count=st.integers(1, 40))
def test_top_k_keeps_the_highest(logits, count):
    kept = keep_top_k(torch.tensor([logits]), count)[0]
    highest = sorted(logits, reverse=True)[:count]
    assert sorted(kept[kept > -torch.inf].tolist(), reverse=True) == highest


@given(logits=LOGITS, share=st.floats(0.01, 1.0))
def test_top_p_keeps_the_fewest_that_hold_the_share(logits, share):
    kept = keep_top_p(torch.tensor([logits]), share)[0] > -torch.inf
    probabilities = torch.tensor(logits).softmax(-1)
    assert probabilities[kept].min() >= probabilities[~kept].max() if not kept.all() else True
    assert probabilities[kept].sum() >= share - 1e-5
    assert kept.sum() == 1 or probabilities[kept].sum() - probabilities[kept].min() < share + 1e-5


@given(logits=LOGITS, banned=st.data(), number=st.floats(0, 1, exclude_max=True))
def test_what_is_impossible_is_never_drawn(logits, banned, number):
    scores = torch.tensor([logits])
    places = banned.draw(st.sets(st.integers(0, len(logits) - 1), max_size=len(logits) - 1))
    scores[0, list(places)] = -torch.inf
    assert int(draw(scores, torch.tensor([number], dtype=torch.float64))) not in places


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-48])
def test_ends_of_the_unit_interval_are_tokens(number):
    scores = torch.full((1, 50_000), -torch.inf)
    scores[0, 100:40_000] = torch.randn(39_900, generator=torch.Generator().manual_seed(0))
    token = int(draw(scores, torch.tensor([number], dtype=torch.float64)))
    assert token == (100 if number == 0 else 39_999)


@pytest.mark.parametrize("peer", ["gpt2", "bart"])
def test_cold_sampling_is_greedy_search(peer):
    model = pair(peer, 0)[0]
    cold = generate(model, prompts(), config=replace(SAMPLED, temperature=1e-5, eos_token_id=EOS))
    greedy = generate(model, prompts(), config=replace(SAMPLED, do_sample=False, eos_token_id=EOS))
    assert cold.sequences.tolist() == greedy.sequences.tolist()
    torch.testing.assert_close(cold.scores, greedy.scores)


@pytest.mark.parametrize("peer", ["gpt2", "bart"])
@pytest.mark.parametrize("copies", [1, 3])
def test_text_of_a_row_does_not_depend_on_its_batch(peer, copies):
    """Neither on the other rows, nor on the number of those after it, nor on padding."""
    model = pair(peer, 0)[0]
    rows = [prompts(1, length, length)[0] for length in (2, 7, 4)]
    config = replace(SAMPLED, num_return_sequences=copies, eos_token_id=9)

    def written(texts: list[torch.Tensor], longest: int) -> list[list[int]]:
        pads = [text.new_full((longest - len(text),), PAD) for text in texts]
        left = peer == "gpt2"
        batch = torch.stack(
            [torch.cat((pad, text) if left else (text, pad)) for pad, text in zip(pads, texts, strict=True)]
        )
        return generate(model, batch, batch != PAD, config).continuations()

    together = written(rows, 7)
    for place, others in ((2, [rows[1], rows[0], rows[2]]), (2, [rows[0], rows[0], rows[2]]), (0, rows[:1])):
        apart = written(others, max(map(len, others)))
        own = slice(place * copies, (place + 1) * copies)
        assert apart[own] == together[own]
    assert len({tuple(text) for text in together}) > 2 * copies


def test_seed_row_sample_and_token_all_matter():
    assert len({uniform(seed, row, sample, 0) for seed in (0, 1) for row in (0, 1) for sample in (0, 1)}) == 8
    assert uniform(1, 2, 3, 4) == uniform(1, 2, 3, 4)
    texts = [
        tuple(generate(pair("gpt2", 0)[0], prompts(1), config=replace(SAMPLED, seed=seed)).continuations()[0])
        for seed in range(4)
    ]
    assert len(set(texts)) == 4


def test_draws_fill_the_unit_interval_evenly():
    numbers = torch.tensor([uniform(5, row, 0, token) for row in range(50) for token in range(80)])
    counts = torch.histc(numbers, bins=20, min=0.0, max=1.0)
    assert chisquare(counts.double()).pvalue > 1e-3
    neighbours = torch.stack([numbers[:-1], numbers[1:]])
    assert torch.corrcoef(neighbours)[0, 1].abs() < 0.05

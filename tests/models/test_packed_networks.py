"""A packed, padded or cached text is computed as if it were alone, by every network and kind of position; and what a
token sees is what no condition hides from it."""

import copy
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.language_models import CausalLanguageModel, SequenceToSequence
from models.layout import Layout, make_layout
from models.stacks import Encoder
from models.visibility import Varlen, Visible, see
from tests.models.materials import KINDS, padding, randomised, small_config, some_tokens

LENGTH = 20
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


class Networks(NamedTuple):
    """Networks with one kind of position."""

    encoder: Encoder
    decoder: CausalLanguageModel
    pair: SequenceToSequence


@pytest.fixture(scope="module", params=KINDS)
def networks(request: pytest.FixtureRequest) -> Networks:
    kind = KINDS[request.param]
    both = small_config(network="encoder_decoder", num_decoder_layers=3, **kind)
    return Networks(
        randomised(Encoder(small_config(**kind))),
        randomised(CausalLanguageModel(small_config(network="decoder", **kind))),
        randomised(SequenceToSequence(both)),
    )


def boundaries_of(sizes: list[list[int]]) -> torch.Tensor:
    """Boundaries of rows of pieces."""
    return torch.tensor([0] + [size for row in sizes for size in row]).cumsum(0).int()


@st.composite
def rows_of_pieces(draw, counts: list[int], length: int = LENGTH) -> list[list[int]]:
    """Sizes of so many pieces in each row."""
    rows = []
    for count in counts:
        cuts = draw(st.sets(st.integers(1, length - 1), min_size=count - 1, max_size=count - 1))
        rows.append([end - start for start, end in pairwise([0, *sorted(cuts), length])])
    return rows


PACKED = st.lists(st.integers(1, 5), min_size=1, max_size=3).flatmap(rows_of_pieces)
PACKED_PAIRS = st.lists(st.integers(1, 4), min_size=1, max_size=3).flatmap(
    lambda counts: st.tuples(rows_of_pieces(counts), rows_of_pieces(counts, 13))
)
SEEDS = st.integers(0, 2**31)


@settings(max_examples=settings.default.max_examples // 3)
@given(sizes=PACKED, seed=SEEDS, with_prefix=st.booleans())
@torch.no_grad()
def test_packed_pieces_equal_each_piece_alone(networks, sizes, seed, with_prefix):
    input_ids, boundaries = some_tokens(len(sizes), LENGTH, seed), boundaries_of(sizes)
    prefixes = some_tokens(1, len(boundaries) - 1, seed)[0] % 7 if with_prefix else None
    read = networks.encoder(input_ids, cu_seqlens=boundaries).flatten(0, 1)
    written = networks.decoder.logits(input_ids, cu_seqlens=boundaries, prefix_lengths=prefixes).flatten(0, 1)
    for number, (start, end) in enumerate(pairwise(boundaries.tolist())):
        alone = input_ids.flatten()[None, start:end]
        torch.testing.assert_close(read[start:end], networks.encoder(alone)[0], **CLOSE)
        own_prefix = None if prefixes is None else prefixes[number : number + 1]
        expected = networks.decoder.logits(alone, prefix_lengths=own_prefix)[0]
        torch.testing.assert_close(written[start:end], expected, **CLOSE)


@settings(max_examples=settings.default.max_examples // 3)
@given(sizes=PACKED_PAIRS, seed=SEEDS)
@torch.no_grad()
def test_packed_pairs_of_an_encoder_decoder_equal_each_pair_alone(networks, sizes, seed):
    rows = len(sizes[0])
    source, target = some_tokens(rows, LENGTH, seed), some_tokens(rows, 13, seed + 1)
    ours, theirs = boundaries_of(sizes[0]), boundaries_of(sizes[1])
    packed = networks.pair.logits(source, target, cu_seqlens=ours, decoder_cu_seqlens=theirs).flatten(0, 1)
    pairs = zip(pairwise(ours.tolist()), pairwise(theirs.tolist()), strict=True)
    for (start, end), (first, last) in pairs:
        alone = networks.pair.logits(source.flatten()[None, start:end], target.flatten()[None, first:last])
        torch.testing.assert_close(packed[first:last], alone[0], **CLOSE)


def test_padding_that_only_one_side_of_a_pair_has_is_an_empty_piece_of_the_other(networks):
    """The encoder's row ends in 4 padding tokens that no decoder piece reads, and the decoder's in 3 that read
    nothing."""
    source, target = some_tokens(1, LENGTH, 1), some_tokens(1, 13, 2)
    ours = torch.tensor([0, 9, LENGTH - 4, LENGTH, LENGTH])
    theirs = torch.tensor([0, 6, 10, 10, 13])
    packed = networks.pair.logits(source, target, cu_seqlens=ours, decoder_cu_seqlens=theirs)
    alone = networks.pair.logits(source[:, 9 : LENGTH - 4], target[:, 6:10])
    torch.testing.assert_close(packed[:, 6:10], alone, **CLOSE)
    packed[:, :10].square().sum().backward()
    for name, parameter in networks.pair.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    networks.pair.zero_grad()


@settings(max_examples=settings.default.max_examples // 6)
@given(steps=st.lists(st.integers(1, 6), min_size=2, max_size=6), lengths=st.tuples(*[st.integers(1, 6)] * 3))
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass_and_each_text_alone(networks, steps, lengths):
    """Prompts of several lengths, padded on the left, then any number of tokens at a time."""
    steps = [6, *steps]
    total = min(sum(steps), 24)
    tokens = some_tokens(3, total, 11)
    present = padding([total - 6 + length for length in lengths], total, "left")
    full = networks.decoder.logits(tokens, attention_mask=present)
    for row in range(3):
        alone = networks.decoder.logits(tokens[row, present[row]][None])
        torch.testing.assert_close(full[row, present[row]], alone[0], **CLOSE)
    cache, done = networks.decoder.decoder.new_cache(), 0
    for step in steps:
        upto = min(done + step, total)
        if upto == done:
            break
        part = networks.decoder.logits(tokens[:, done:upto], attention_mask=present[:, :upto], cache=cache)
        seen = present[:, done:upto]
        torch.testing.assert_close(part[seen], full[:, done:upto][seen], **CLOSE)
        done = upto
        assert cache.length == done
    # Heads that queries share are held once.
    assert cache.self_attention[0].pair()[0].shape == (3, networks.decoder.config.key_value_heads, total, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_stays_near_and_finite_under_padding(networks, dtype):
    tokens, mask = some_tokens(2, LENGTH, 3), torch.ones(2, LENGTH, dtype=torch.bool)
    mask[0, :5] = mask[1, -6:] = False
    full = networks.pair.logits(tokens, tokens, mask, mask)
    half = copy.deepcopy(networks.pair).to(dtype).logits(tokens, tokens, mask, mask)
    assert half.dtype == dtype
    assert half.isfinite().all()
    assert (half - full)[mask].norm() < 0.1 * full[mask].norm()


@torch.no_grad()
def test_packed_rows_may_be_longer_than_the_table_of_positions():
    encoder = randomised(Encoder(small_config()))
    packed = encoder(some_tokens(1, 48, 1), cu_seqlens=torch.tensor([0, 24, 48]))
    assert packed.shape == (1, 48, 16)


ROWS = some_tokens(2, 24, 1)


@pytest.mark.parametrize(
    ("input_ids", "given", "message"),
    [
        *(
            (ROWS, {"cu_seqlens": boundaries}, "= 48")
            for boundaries in ([0, 10], [4, 24, 48], [0, 30, 24, 48], [0])
        ),
        (ROWS, {"cu_seqlens": [0, 20, 40, 48]}, "crosses"),
        (ROWS, {"cu_seqlens": [0.0, 24.0, 48.0]}, "int32 or int64"),
        (some_tokens(1, 25, 1), {}, "25 .* 24"),
        (some_tokens(1, 25, 1), {"cu_seqlens": [0, 25]}, "25 tokens"),
        (ROWS, {"cu_seqlens": [0, 48], "attention_mask": [[1] * 24] * 2}, "not both"),
        (ROWS, {"attention_mask": [[1] * 5] * 2}, "attention_mask .*shape"),
        (ROWS[0], {}, r"\[batch, length\]"),
    ],
)
def test_wrong_boundaries_masks_and_lengths_are_refused(input_ids, given, message):
    with pytest.raises(ValueError, match=message):
        Encoder(small_config())(input_ids, **{name: torch.tensor(value) for name, value in given.items()})


WIDTH = 7
BOUNDARIES = torch.tensor([0, 3, WIDTH, WIDTH + 2, 2 * WIDTH], dtype=torch.int32)
PRESENT = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])


def layout_of(kind: str, past: int) -> Layout:
    """Two rows, of which the last WIDTH - past tokens are computed now."""
    return make_layout(
        torch.zeros(2, WIDTH - past, dtype=torch.int64),
        BOUNDARIES if kind == "packed" else None,
        PRESENT if kind == "padded" else None,
        max_positions=None,
        past=past or None,
    )


def hidden_by(kind: str, causal: bool, window: int | None, prefixes: list[int] | None) -> torch.Tensor:
    """[2, WIDTH, WIDTH] bool, token by token: whether anything hides the key from the query."""
    starts = [[0, 0, 0, 3, 3, 3, 3], [0, 0, 2, 2, 2, 2, 2]] if kind == "packed" else [[0] * WIDTH] * 2
    if kind == "padded":
        starts = [[2] * WIDTH, [0] * WIDTH]
    hidden = torch.zeros(2, WIDTH, WIDTH, dtype=torch.bool)
    for row in range(2):
        for query in range(WIDTH):
            for key in range(WIDTH):
                start = starts[row][key]
                piece = 2 * row + (start > 0) if kind == "packed" else row
                in_prefix = prefixes is not None and key - start < prefixes[piece]
                far = window is not None and (
                    query - key >= window if causal else abs(query - key) > window // 2
                )
                by_place = (causal and key > query) or far
                elsewhere = kind == "packed" and start != starts[row][query]
                padding = kind == "padded" and not PRESENT[row, key]
                hidden[row, query, key] = (by_place and not in_prefix) or elsewhere or padding
    return hidden


@given(
    kind=st.sampled_from(["whole", "packed", "padded"]),
    causal=st.booleans(),
    window=st.none() | st.integers(1, WIDTH),
    prefixes=st.none() | st.lists(st.integers(0, WIDTH), min_size=4, max_size=4),
    with_bias=st.booleans(),
    past=st.sampled_from([0, 0, 4, WIDTH - 1]),
)
def test_every_combination_hides_what_any_of_its_conditions_hides(
    kind, causal, window, prefixes, with_bias, past
):
    past = 0 if kind == "packed" else past
    prefixes = prefixes if causal else None
    pieces = None if prefixes is None else torch.tensor(prefixes if kind == "packed" else prefixes[:2])
    bias = torch.randn(1, 3, WIDTH - past, WIDTH) if with_bias else None
    seen = see(layout_of(kind, past), causal=causal, window=window, prefix_lengths=pieces, bias=bias)
    hidden = hidden_by(kind, causal, window, prefixes)[:, None, past:]
    # What padding sees has no meaning, but it must see something, or its hidden states would be NaN.
    is_token = PRESENT.bool()[:, past:] if kind == "padded" else torch.ones(2, WIDTH - past, dtype=torch.bool)
    lowest = torch.finfo(torch.float32).min
    if seen.mask is None:
        by_causality = torch.ones(WIDTH, WIDTH, dtype=torch.bool).triu(1)
        assert torch.equal(hidden, (by_causality & seen.causal)[past:].expand_as(hidden))
    elif bias is not None:
        mask = seen.mask.expand(2, 3, WIDTH - past, WIDTH).transpose(1, 2)
        assert torch.equal(mask[is_token], bias.masked_fill(hidden, lowest).transpose(1, 2)[is_token])
        assert (mask > lowest).any(-1).all()
    else:
        mask = seen.mask.expand(2, 1, WIDTH - past, WIDTH)[:, 0]
        assert torch.equal(mask[is_token], ~hidden[:, 0][is_token])
        assert mask.any(-1).all()


def test_variable_length_kernel_is_left_what_it_can_compute():
    packed, whole = layout_of("packed", 0), layout_of("whole", 0)
    assert see(packed, causal=True, window=3, varlen=True).varlen is not None
    assert see(whole, causal=True, varlen=True).varlen is None
    assert see(packed, causal=True, prefix_lengths=torch.ones(4), varlen=True).varlen is None
    assert see(packed, bias=torch.zeros(1, 1, WIDTH, WIDTH), varlen=True).varlen is None


def test_combinations_that_are_not_supported_are_refused():
    with pytest.raises(ValueError, match="prefix_lengths"):
        see(layout_of("whole", 0), prefix_lengths=torch.tensor([1, 1]))
    pieces = Varlen(BOUNDARIES, BOUNDARIES, WIDTH, WIDTH, (-1, -1))
    for forms in ({"mask": torch.ones(1), "causal": True}, {"causal": True, "varlen": pieces}):
        with pytest.raises(ValueError, match="causal"):
            Visible(**forms)
    decoder = CausalLanguageModel(small_config(network="decoder"))
    with pytest.raises(ValueError, match="packed rows"):
        decoder.logits(ROWS, cu_seqlens=torch.tensor([0, 48]), cache=decoder.decoder.new_cache())
    model = SequenceToSequence(small_config(network="encoder_decoder"))
    with pytest.raises(ValueError, match="both sides"):
        model.logits(ROWS, ROWS, cu_seqlens=torch.tensor([0, 5, 24, 48]))

"""A packed, padded or cached text is computed as if it were alone, by every network and kind of position."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.functional import dropout
from models.language_models import CausalLanguageModel, SequenceToSequence
from models.losses import EACH
from models.stacks import Encoder
from models.transformer import choose_backend
from tests.models.materials import LANGUAGE_MODELS, gradients, randomised, small_config, some_tokens

LENGTH = 20
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
T5 = {
    "positions": "relative_bias",
    "relative_buckets": 8,
    "relative_max_distance": 12,
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "embedding_norm": False,
    "scale_attention": False,
    "scale_logits": True,
    "activation": "relu",
}
ROTARY = {"positions": "rotary", "norm": "pre"}
LOCAL = {"num_layers": 3, "local_window": 5, "global_every": 2}
KINDS: dict[str, dict[str, Any]] = {
    "learned, post-norm": {},
    "learned, pre-norm": {"norm": "pre", "scale_embeddings": True},
    "sinusoidal": {"positions": "sinusoidal"},
    "relative bias": T5,
    "rotary": ROTARY,
    "rotary, grouped queries": {**ROTARY, "gated": True, "activation": "silu", "num_key_value_heads": 2},
    "rotary, local windows": {**ROTARY, "local_rotary_base": 7.0, **LOCAL},
    "learned, local windows": LOCAL,
    "relative bias, local windows": T5 | LOCAL,
}


@pytest.fixture(scope="module", params=KINDS)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return randomised(Encoder(small_config(**KINDS[request.param])))


@pytest.fixture(scope="module", params=KINDS)
def decoder(request: pytest.FixtureRequest) -> CausalLanguageModel:
    return randomised(CausalLanguageModel(small_config(network="decoder", **KINDS[request.param])))


@pytest.fixture(scope="module", params=KINDS)
def encoder_decoder(request: pytest.FixtureRequest) -> SequenceToSequence:
    config = small_config(network="encoder_decoder", num_decoder_layers=3, **KINDS[request.param])
    return randomised(SequenceToSequence(config))


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
@given(sizes=PACKED, seed=SEEDS)
@torch.no_grad()
def test_packed_pieces_of_an_encoder_equal_each_piece_alone(encoder, sizes, seed):
    input_ids, boundaries = some_tokens(len(sizes), LENGTH, seed), boundaries_of(sizes)
    packed = encoder(input_ids, cu_seqlens=boundaries).flatten(0, 1)
    for start, end in pairwise(boundaries.tolist()):
        alone = encoder(input_ids.flatten()[None, start:end])
        torch.testing.assert_close(packed[start:end], alone[0], **CLOSE)


@settings(max_examples=settings.default.max_examples // 3)
@given(sizes=PACKED, seed=SEEDS, with_prefix=st.booleans())
@torch.no_grad()
def test_packed_pieces_of_a_decoder_equal_each_piece_alone(decoder, sizes, seed, with_prefix):
    input_ids, boundaries = some_tokens(len(sizes), LENGTH, seed), boundaries_of(sizes)
    prefixes = some_tokens(1, len(boundaries) - 1, seed)[0] % 7 if with_prefix else None
    packed = decoder.logits(input_ids, cu_seqlens=boundaries, prefix_lengths=prefixes).flatten(0, 1)
    for number, (start, end) in enumerate(pairwise(boundaries.tolist())):
        own_prefix = None if prefixes is None else prefixes[number : number + 1]
        alone = decoder.logits(input_ids.flatten()[None, start:end], prefix_lengths=own_prefix)
        torch.testing.assert_close(packed[start:end], alone[0], **CLOSE)


@settings(max_examples=settings.default.max_examples // 3)
@given(sizes=PACKED_PAIRS, seed=SEEDS)
@torch.no_grad()
def test_packed_pairs_of_an_encoder_decoder_equal_each_pair_alone(encoder_decoder, sizes, seed):
    rows = len(sizes[0])
    source, target = some_tokens(rows, LENGTH, seed), some_tokens(rows, 13, seed + 1)
    ours, theirs = boundaries_of(sizes[0]), boundaries_of(sizes[1])
    packed = encoder_decoder.logits(source, target, cu_seqlens=ours, decoder_cu_seqlens=theirs).flatten(0, 1)
    pairs = zip(pairwise(ours.tolist()), pairwise(theirs.tolist()), strict=True)
    for (start, end), (first, last) in pairs:
        alone = encoder_decoder.logits(source.flatten()[None, start:end], target.flatten()[None, first:last])
        torch.testing.assert_close(packed[first:last], alone[0], **CLOSE)


def test_padding_that_only_one_side_of_a_pair_has_is_an_empty_piece_of_the_other(encoder_decoder):
    """The encoder's row ends in 4 padding tokens that no decoder piece reads, and the decoder's in 3 that read
    nothing."""
    source, target = some_tokens(1, LENGTH, 1), some_tokens(1, 13, 2)
    ours = torch.tensor([0, 9, LENGTH - 4, LENGTH, LENGTH])
    theirs = torch.tensor([0, 6, 10, 10, 13])
    packed = encoder_decoder.logits(source, target, cu_seqlens=ours, decoder_cu_seqlens=theirs)
    alone = encoder_decoder.logits(source[:, 9 : LENGTH - 4], target[:, 6:10])
    torch.testing.assert_close(packed[:, 6:10], alone, **CLOSE)
    packed[:, :10].square().sum().backward()
    for name, parameter in encoder_decoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    encoder_decoder.zero_grad()


@torch.no_grad()
def test_prefix_is_read_both_ways_and_the_rest_from_the_left(decoder):
    tokens, prefix = some_tokens(1, LENGTH, 3), torch.tensor([6])
    before = decoder.logits(tokens, prefix_lengths=prefix)[0, :6]
    for changed in (5, 6):
        other = tokens.clone()
        other[0, changed] = (other[0, changed] + 1) % 61
        after = decoder.logits(other, prefix_lengths=prefix)[0, :6]
        if changed == 5:
            assert (before - after).abs().amax(-1).gt(1e-4).all(), "all of the prefix sees its end"
        else:
            torch.testing.assert_close(before, after, **CLOSE)


@pytest.mark.parametrize("kind", ["learned, pre-norm", "sinusoidal", "rotary"])
@torch.no_grad()
def test_decoder_that_has_its_whole_text_as_prefix_is_an_encoder(kind):
    decoder = CausalLanguageModel(small_config(network="decoder", **KINDS[kind])).eval().decoder
    encoder = randomised(Encoder(small_config(**KINDS[kind])))
    decoder.load_state_dict(encoder.state_dict())
    tokens, boundaries = some_tokens(2, LENGTH, 4), torch.tensor([0, 8, LENGTH, 2 * LENGTH])
    read = decoder(tokens, cu_seqlens=boundaries, prefix_lengths=boundaries.diff())
    torch.testing.assert_close(read, encoder(tokens, cu_seqlens=boundaries), **CLOSE)


@settings(max_examples=settings.default.max_examples // 6)
@given(steps=st.lists(st.integers(1, 6), min_size=2, max_size=6), lengths=st.tuples(*[st.integers(1, 6)] * 3))
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass_and_each_text_alone(decoder, steps, lengths):
    """Prompts of several lengths, padded on the left, then any number of tokens at a time."""
    steps = [6, *steps]
    total = min(sum(steps), 24)
    tokens = some_tokens(3, total, 11)
    present = torch.arange(total) >= 6 - torch.tensor(lengths)[:, None]
    full = decoder.logits(tokens, attention_mask=present)
    for row in range(3):
        alone = decoder.logits(tokens[row, present[row]][None])
        torch.testing.assert_close(full[row, present[row]], alone[0], **CLOSE)
    cache, done = decoder.decoder.new_cache(), 0
    for step in steps:
        upto = min(done + step, total)
        if upto == done:
            break
        part = decoder.logits(tokens[:, done:upto], attention_mask=present[:, :upto], cache=cache)
        seen = present[:, done:upto]
        torch.testing.assert_close(part[seen], full[:, done:upto][seen], **CLOSE)
        done = upto
        assert cache.length == done
    # Heads that queries share are held once.
    assert cache.self_attention[0].pair()[0].shape == (3, decoder.config.key_value_heads, total, 4)


@torch.no_grad()
def test_cache_goes_on_after_a_prefix(decoder):
    """The prefix is read whole, in the first call; later ones see all of it, through local windows too."""
    tokens, prefix = some_tokens(2, 12, 19), torch.tensor([5, 4])
    present = torch.arange(12) >= torch.tensor([[2], [0]])
    full = decoder.logits(tokens, attention_mask=present, prefix_lengths=prefix)
    cache = decoder.decoder.new_cache()
    for start, end in pairwise([0, 8, 9, 12]):
        part = decoder.logits(
            tokens[:, start:end], attention_mask=present[:, :end], prefix_lengths=prefix, cache=cache
        )
        seen = present[:, start:end]
        torch.testing.assert_close(part[seen], full[:, start:end][seen], **CLOSE)


@torch.no_grad()
def test_cached_encoder_decoder_equals_the_full_pass_and_each_pair_alone(encoder_decoder):
    """Sources are padded, one on the left and one on the right; so are the decoder's prompts, on the left."""
    source, target = some_tokens(3, LENGTH, 17), some_tokens(3, 9, 18)
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    mask[1, :6] = mask[2, -7:] = False
    decoder_mask = torch.ones(3, 9, dtype=torch.bool)
    decoder_mask[1, :2] = False
    full = encoder_decoder.logits(source, target, mask, decoder_mask)
    memory, cache = encoder_decoder.encode(source, mask), encoder_decoder.decoder.new_cache()
    for start, end in pairwise([0, 3, 4, 5, 8, 9]):
        hidden = encoder_decoder.decode(target[:, start:end], memory, decoder_mask[:, :end], cache=cache)
        seen = decoder_mask[:, start:end]
        torch.testing.assert_close(encoder_decoder.project(hidden)[seen], full[:, start:end][seen], **CLOSE)
    for row in range(3):
        alone = encoder_decoder.logits(source[row, mask[row]][None], target[row, decoder_mask[row]][None])
        torch.testing.assert_close(full[row, decoder_mask[row]], alone[0], **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_stays_near_and_finite_under_padding(encoder_decoder, dtype):
    tokens, mask = some_tokens(2, LENGTH, 3), torch.ones(2, LENGTH, dtype=torch.bool)
    mask[0, :5] = mask[1, -6:] = False
    full = encoder_decoder.logits(tokens, tokens, mask, mask)
    half = copy.deepcopy(encoder_decoder).to(dtype).logits(tokens, tokens, mask, mask)
    assert half.dtype == dtype
    assert half.isfinite().all()
    assert (half - full)[mask].norm() < 0.1 * full[mask].norm()


@torch.no_grad()
def test_given_positions_replace_the_usual_ones_and_rows_may_be_longer_than_their_table():
    encoder, tokens = randomised(Encoder(small_config())), torch.tensor([[5, 6, 7]])
    usual = encoder(tokens)
    assert torch.equal(encoder(tokens, position_ids=torch.arange(3)), usual)
    assert not torch.allclose(encoder(tokens, position_ids=torch.tensor([[4, 5, 6]])), usual, atol=1e-3)
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


def test_packing_one_side_only_is_refused():
    model = SequenceToSequence(small_config(network="encoder_decoder"))
    with pytest.raises(ValueError, match="both sides"):
        model.logits(ROWS, ROWS, cu_seqlens=torch.tensor([0, 5, 24, 48]))


@pytest.mark.parametrize(
    ("capability", "head_size", "backend"),
    [
        ((8, 0), 64, "varlen"),
        ((9, 0), 192, "varlen"),
        ((7, 5), 64, "sdpa"),
        ((8, 6), 256, "sdpa"),
        ((8, 0), 20, "sdpa"),
    ],
)
def test_flash_attention_is_taken_only_on_gpus_and_heads_that_it_has_kernels_for(
    capability, head_size, backend
):
    config = TransformerConfig(
        vocab_size=9, num_layers=1, hidden_size=2 * head_size, num_heads=2, attention_dropout=0.0
    )
    given = {"device": torch.device("cuda"), "dtype": torch.float16, "capability": capability}
    assert choose_backend(config, "auto", **given).backend == backend
    if backend == "sdpa":
        with pytest.raises(ValueError, match="attention_backend: auto"):
            choose_backend(config, "varlen", **given)


def training_batch(network: str) -> dict[str, torch.Tensor]:
    positions = torch.tensor([0, 4, 9, 21, 25])
    batch = {
        "input_ids": some_tokens(2, LENGTH, 23),
        "cu_seqlens": torch.tensor([0, 7, LENGTH, 2 * LENGTH], dtype=torch.int32),
        "predicted_positions": positions,
        "targets": some_tokens(1, len(positions), 24)[0],
    }
    if network == "encoder_decoder":
        batch["decoder_input_ids"] = some_tokens(2, 14, 25)
        batch["decoder_cu_seqlens"] = torch.tensor([0, 3, 14, 28], dtype=torch.int32)
    return batch


@pytest.mark.parametrize("network", LANGUAGE_MODELS)
@pytest.mark.parametrize("kind", ["learned, post-norm", "learned, pre-norm", "relative bias"])
def test_gradient_checkpointing_changes_no_gradient_although_there_is_dropout(network, kind):
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    model = randomised(
        LANGUAGE_MODELS[network](small_config(network=network, **KINDS[kind], **rates))
    ).train()
    found = {}
    for seed, enabled in ((5, False), (5, True), (6, True)):
        for stack in ("encoder", "decoder"):
            if hasattr(model, stack):
                getattr(model, stack).transformer.gradient_checkpointing = enabled
        torch.manual_seed(seed)
        found[seed, enabled] = gradients(model, training_batch(network))
    for name, gradient in found[5, False].items():
        assert torch.equal(gradient, found[5, True][name]), name
        assert gradient.isfinite().all(), name
    assert not torch.equal(found[6, True][name], gradient), "dropout was on"


def test_gradient_checkpointing_keeps_fewer_activations():
    model = Encoder(small_config(num_layers=4)).train()

    def saved_elements(checkpointing: bool) -> int:
        model.transformer.gradient_checkpointing = checkpointing
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            model(some_tokens(2, 12, 1))
        return sum(sizes)

    assert saved_elements(True) < saved_elements(False) / 3


@pytest.mark.parametrize("network", LANGUAGE_MODELS)
def test_compiled_network_computes_the_same_and_an_encoder_without_graph_breaks(network):
    config = small_config(network=network, num_layers=1, dropout=0.0, attention_dropout=0.0)
    model = randomised(LANGUAGE_MODELS[network](config)).train()
    batch = training_batch(network)
    expected_losses, expected_correct = model(**batch)
    expected = gradients(model, batch)
    compiled = torch.compile(model, backend="aot_eager")
    losses, correct = compiled(**batch)
    torch.testing.assert_close(losses, expected_losses)
    torch.testing.assert_close(correct[EACH], expected_correct[EACH])
    assert all(correct[term] == expected_correct[term] for term in losses)
    found = {name.removeprefix("_orig_mod."): each for name, each in gradients(compiled, batch).items()}
    torch.testing.assert_close(found, expected)
    if network == "encoder":
        packed = {name: batch[name] for name in ("input_ids", "cu_seqlens")}
        whole = torch.compile(model.encoder, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(whole(**packed), model.encoder(**packed))


@pytest.mark.parametrize("probability", [0.05, 0.1, 0.5, 0.9])
def test_share_and_mean_of_dropout_are_those_of_the_probability_and_neighbours_independent(probability):
    torch.manual_seed(1)
    values = torch.ones(1_000_004)
    kept = dropout(values, probability, True)
    error = 5 * (probability * (1 - probability) / len(values)) ** 0.5 + 1 / 65_536
    assert (kept == 0).float().mean().item() == pytest.approx(probability, abs=error)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / (1 - probability)], rel=1e-3)
    dropped = (kept == 0).float().view(-1, 4).T
    assert torch.corrcoef(dropped).fill_diagonal_(0).abs().max() < 0.01


def test_dropout_follows_the_seed_and_its_gradient_the_mask_and_it_may_be_off():
    values = torch.randn(3, 5, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(values, 0.4, True)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(values, 0.4, True))
    first.sum().backward()
    assert torch.equal(values.grad == 0, first == 0)
    assert dropout(values, 0.4, False) is dropout(values, 0.0, True) is values
    assert torch.equal(dropout(values, 0.999_999, True), torch.zeros(3, 5))

"""Decoders and encoder-decoders: a packed, padded or cached text is computed as if it were alone."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from models.losses import EACH
from models.stacks import Encoder

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
LOCAL = {"num_layers": 3, "local_window": 5, "global_every": 2}
KINDS = {
    "learned, post-norm": {},
    "learned, pre-norm": {"norm": "pre", "scale_embeddings": True},
    "sinusoidal": {"positions": "sinusoidal"},
    "relative bias": T5,
    "rotary": {"positions": "rotary", "norm": "pre"},
    "rotary, grouped queries": {
        "positions": "rotary",
        "norm": "pre",
        "gated": True,
        "activation": "silu",
        "num_key_value_heads": 2,
    },
    "rotary, local windows": {"positions": "rotary", "norm": "pre", "local_rotary_base": 7.0, **LOCAL},
    "learned, local windows": LOCAL,
    "relative bias, local windows": T5 | LOCAL,
}


@pytest.fixture(scope="module", params=KINDS)
def decoder(request, small_config, randomise) -> CausalLanguageModel:
    model = CausalLanguageModel(small_config(network="decoder", **KINDS[request.param])).eval()
    init_weights(model, seed=1)
    randomise(model, 2)
    return model


@pytest.fixture(scope="module", params=KINDS)
def encoder_decoder(request, small_config, randomise) -> SequenceToSequence:
    config = small_config(network="encoder_decoder", num_decoder_layers=3, **KINDS[request.param])
    model = SequenceToSequence(config).eval()
    init_weights(model, seed=1)
    randomise(model, 2)
    return model


def boundaries_of(sizes: list[list[int]]) -> torch.Tensor:
    """Boundaries of rows of pieces."""
    return torch.tensor([0] + [size for row in sizes for size in row]).cumsum(0).int()


def some_tokens(batch: int, length: int, seed: int) -> torch.Tensor:
    return torch.randint(61, (batch, length), generator=torch.Generator().manual_seed(seed))


@st.composite
def row_of_pieces(draw, pieces: int, length: int = LENGTH) -> list[int]:
    cuts = draw(st.sets(st.integers(1, length - 1), min_size=pieces - 1, max_size=pieces - 1))
    return [end - start for start, end in pairwise([0, *sorted(cuts), length])]


@st.composite
def packed_rows(draw) -> list[list[int]]:
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    return [draw(row_of_pieces(count)) for count in counts]


@st.composite
def packed_pairs(draw) -> tuple[list[list[int]], list[list[int]]]:
    """Rows of as many pieces for the encoder as for the decoder."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return [draw(row_of_pieces(count)) for count in counts], [
        draw(row_of_pieces(count, 13)) for count in counts
    ]


@settings(max_examples=10)
@given(sizes=packed_rows(), seed=st.integers(0, 2**31), with_prefix=st.booleans())
@torch.no_grad()
def test_packed_pieces_of_a_decoder_equal_each_piece_alone(decoder, sizes, seed, with_prefix):
    input_ids = some_tokens(len(sizes), LENGTH, seed)
    boundaries = boundaries_of(sizes)
    prefixes = some_tokens(1, len(boundaries) - 1, seed)[0] % 7 if with_prefix else None
    packed = decoder.logits(input_ids, cu_seqlens=boundaries, prefix_lengths=prefixes).flatten(0, 1)
    for number, (start, end) in enumerate(pairwise(boundaries.tolist())):
        own_prefix = None if prefixes is None else prefixes[number : number + 1]
        alone = decoder.logits(input_ids.flatten()[None, start:end], prefix_lengths=own_prefix)
        torch.testing.assert_close(packed[start:end], alone[0], **CLOSE)


@settings(max_examples=10)
@given(sizes=packed_pairs(), seed=st.integers(0, 2**31))
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


@torch.no_grad()
def test_prefix_is_read_both_ways_and_the_rest_from_the_left(decoder):
    tokens = some_tokens(1, LENGTH, 3)
    other = tokens.clone()
    other[0, 5] = (other[0, 5] + 1) % 61
    prefix = torch.tensor([6])
    before, after = (decoder.logits(ids, prefix_lengths=prefix) for ids in (tokens, other))
    assert (before[0, :6] - after[0, :6]).abs().amax(-1).gt(1e-4).all(), "all of the prefix sees its end"
    other = tokens.clone()
    other[0, 6] = (other[0, 6] + 1) % 61
    after = decoder.logits(other, prefix_lengths=prefix)
    torch.testing.assert_close(before[0, :6], after[0, :6], **CLOSE)


@pytest.mark.parametrize("kind", ["learned, pre-norm", "sinusoidal", "rotary"])
@torch.no_grad()
def test_decoder_that_has_its_whole_text_as_prefix_is_an_encoder(kind, small_config, randomise):
    decoder = CausalLanguageModel(small_config(network="decoder", **KINDS[kind])).eval().decoder
    encoder = Encoder(small_config(**KINDS[kind])).eval()
    randomise(encoder, 1)
    decoder.load_state_dict(encoder.state_dict())
    tokens, boundaries = some_tokens(2, LENGTH, 4), torch.tensor([0, 8, LENGTH, 2 * LENGTH])
    read = decoder(tokens, cu_seqlens=boundaries, prefix_lengths=boundaries.diff())
    torch.testing.assert_close(read, encoder(tokens, cu_seqlens=boundaries), **CLOSE)


@torch.no_grad()
def test_every_layer_of_a_decoder_turns_by_its_own_base(small_config, randomise):
    """Layers with local attention read `local_rotary_base`, the others `rotary_base`."""
    kind = KINDS["rotary, local windows"]
    logits = []
    for bases in ((100.0, 7.0), (100.0, 8.0), (101.0, 7.0)):
        bases = dict(zip(("rotary_base", "local_rotary_base"), bases, strict=True))
        model = CausalLanguageModel(small_config(network="decoder", **kind | bases)).eval()
        init_weights(model, seed=1)
        randomise(model, 2)
        logits.append(model.logits(some_tokens(1, LENGTH, 4)))
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    assert (logits[0] - logits[2]).abs().max() > 1e-3


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


def test_packing_one_side_only_is_refused(encoder_decoder):
    source, target = some_tokens(1, LENGTH, 1), some_tokens(1, 13, 2)
    with pytest.raises(ValueError, match="pack both sides"):
        encoder_decoder.logits(source, target, cu_seqlens=torch.tensor([0, 5, LENGTH]))


@torch.no_grad()
def test_loss_of_packed_texts_is_the_sum_of_their_losses(decoder):
    tokens = some_tokens(2, LENGTH, 5)
    boundaries = torch.tensor([0, 7, LENGTH, 2 * LENGTH])
    positions = torch.tensor([0, 3, 5, 8, 18, 25, 38])
    losses, correct = decoder(tokens, positions, tokens.flatten()[positions + 1], cu_seqlens=boundaries)
    assert losses["clm"].dtype == torch.float32
    assert correct["clm"].dtype == torch.int64
    total, right = 0.0, 0
    for start, end in pairwise(boundaries.tolist()):
        logits = decoder.logits(tokens.flatten()[None, start:end])[0].double()
        for position in positions[(positions >= start) & (positions < end)].tolist():
            scores, target = logits[position - start], tokens.flatten()[position + 1]
            total += float(scores.logsumexp(-1) - scores[target])
            right += int(scores.argmax() == target)
    assert float(losses["clm"]) == pytest.approx(total, rel=1e-5)
    assert int(correct["clm"]) == right


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padded_texts_equal_each_text_alone(decoder, side):
    tokens = some_tokens(3, LENGTH, 7)
    place = torch.arange(LENGTH)
    lengths = torch.tensor([[LENGTH], [9], [1]])
    present = place >= LENGTH - lengths if side == "left" else place < lengths
    padded = decoder.logits(tokens, attention_mask=present.long())
    for row in range(3):
        alone = decoder.logits(tokens[row, present[row]][None])
        torch.testing.assert_close(padded[row, present[row]], alone[0], **CLOSE)


@settings(max_examples=4)
@given(steps=st.lists(st.integers(1, 6), min_size=2, max_size=6), lengths=st.tuples(*[st.integers(1, 6)] * 3))
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(decoder, steps, lengths):
    """Prompts of several lengths, padded on the left, then any number of tokens at a time."""
    steps = [6, *steps]
    total = min(sum(steps), 24)
    tokens = some_tokens(3, total, 11)
    present = torch.arange(total) >= 6 - torch.tensor(lengths)[:, None]
    full = decoder.logits(tokens, attention_mask=present)
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
def test_cached_rows_can_be_taken_apart_and_repeated(decoder):
    tokens = some_tokens(2, 10, 13)
    cache = decoder.decoder.new_cache()
    decoder.logits(tokens[:, :9], cache=cache)
    # The heads that queries share are held once.
    assert cache.self_attention[0].pair()[0].shape == (2, decoder.config.key_value_heads, 9, 4)
    rows = torch.tensor([1, 1, 0])
    cache.select(rows)
    after = decoder.logits(tokens[rows, 9:], cache=cache)
    torch.testing.assert_close(after[:, 0], decoder.logits(tokens)[rows, -1], **CLOSE)


@torch.no_grad()
def test_cached_encoder_decoder_equals_the_full_pass(encoder_decoder):
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


@pytest.mark.parametrize(("network", "exact"), [("encoder", 8), ("decoder", 16), ("encoder_decoder", 16)])
def test_distances_that_leave_no_far_buckets_are_refused(network, exact):
    shape = {"network": network, "positions": "relative_bias", "relative_buckets": 32}
    assert TransformerConfig(**shape, relative_max_distance=exact + 1)
    with pytest.raises(ValueError, match=rf"relative_max_distance \({exact}\) must be above {exact}"):
        TransformerConfig(**shape, relative_max_distance=exact)


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


NETWORKS = {
    "encoder": MaskedLanguageModel,
    "decoder": CausalLanguageModel,
    "encoder_decoder": SequenceToSequence,
}


def gradients(model, batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    losses, _ = model(**batch)
    sum(losses.values()).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", ["learned, post-norm", "learned, pre-norm", "relative bias"])
def test_gradient_checkpointing_changes_no_gradient_although_there_is_dropout(network, kind, small_config):
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    model = NETWORKS[network](small_config(network=network, **KINDS[kind], **rates)).train()
    init_weights(model, seed=1)
    batch = training_batch(network)
    found = {}
    for enabled in (False, True):
        for stack in ("encoder", "decoder"):
            if hasattr(model, stack):
                getattr(model, stack).transformer.gradient_checkpointing = enabled
        torch.manual_seed(5)
        found[enabled] = gradients(model, batch)
    for name, gradient in found[False].items():
        assert torch.equal(gradient, found[True][name]), name
        assert gradient.isfinite().all(), name
    torch.manual_seed(6)
    assert not torch.equal(gradients(model, batch)[name], gradient), "dropout was on"


@pytest.mark.parametrize("network", NETWORKS)
def test_compiled_network_computes_the_same(network, small_config):
    model = NETWORKS[network](small_config(network=network, num_layers=1, dropout=0.0, attention_dropout=0.0))
    init_weights(model, seed=1)
    batch = training_batch(network)
    expected_losses, expected_correct = model(**batch)
    expected = gradients(model, batch)
    compiled = torch.compile(model, backend="aot_eager")
    losses, correct = compiled(**batch)
    for term, loss in losses.items():
        torch.testing.assert_close(loss, expected_losses[term])
        assert correct[term] == expected_correct[term]
    torch.testing.assert_close(correct[EACH], expected_correct[EACH])
    for name, gradient in gradients(compiled, batch).items():
        name = name.removeprefix("_orig_mod.")
        torch.testing.assert_close(gradient, expected[name], msg=lambda text, name=name: f"{name}: {text}")

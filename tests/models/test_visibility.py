import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.language_models import CausalLanguageModel
from models.layout import Layout, make_layout
from models.stacks import Encoder
from models.visibility import Varlen, Visible, see
from tests.models.materials import small_config

LENGTH = 7
PACKED = torch.tensor([0, 3, LENGTH, LENGTH + 2, 2 * LENGTH], dtype=torch.int32)
PADDED = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])


def layout_of(kind: str, past: int) -> Layout:
    """Two rows, of which the last LENGTH - past tokens are computed now."""
    return make_layout(
        torch.zeros(2, LENGTH - past, dtype=torch.int64),
        PACKED if kind == "packed" else None,
        PADDED if kind == "padded" else None,
        max_positions=None,
        past=past or None,
    )


def hidden_by(kind: str, causal: bool, window: int | None, prefixes: list[int] | None) -> torch.Tensor:
    """[2, LENGTH, LENGTH] bool, token by token: whether anything hides the key from the query."""
    starts = [[0, 0, 0, 3, 3, 3, 3], [0, 0, 2, 2, 2, 2, 2]] if kind == "packed" else [[0] * LENGTH] * 2
    if kind == "padded":
        starts = [[2] * LENGTH, [0] * LENGTH]
    hidden = torch.zeros(2, LENGTH, LENGTH, dtype=torch.bool)
    for row in range(2):
        for query in range(LENGTH):
            for key in range(LENGTH):
                start = starts[row][key]
                piece = 2 * row + (start > 0) if kind == "packed" else row
                in_prefix = prefixes is not None and key - start < prefixes[piece]
                far = window is not None and (
                    query - key >= window if causal else abs(query - key) > window // 2
                )
                by_place = (causal and key > query) or far
                elsewhere = kind == "packed" and start != starts[row][query]
                padding = kind == "padded" and not PADDED[row, key]
                hidden[row, query, key] = (by_place and not in_prefix) or elsewhere or padding
    return hidden


@given(
    kind=st.sampled_from(["whole", "packed", "padded"]),
    causal=st.booleans(),
    window=st.none() | st.integers(1, LENGTH),
    prefixes=st.none() | st.lists(st.integers(0, LENGTH), min_size=4, max_size=4),
    with_bias=st.booleans(),
    past=st.sampled_from([0, 0, 4, LENGTH - 1]),
)
def test_every_combination_hides_what_any_of_its_conditions_hides(
    kind, causal, window, prefixes, with_bias, past
):
    past = 0 if kind == "packed" else past
    prefixes = prefixes if causal else None
    pieces = None if prefixes is None else torch.tensor(prefixes if kind == "packed" else prefixes[:2])
    bias = torch.randn(1, 3, LENGTH - past, LENGTH) if with_bias else None
    seen = see(layout_of(kind, past), causal=causal, window=window, prefix_lengths=pieces, bias=bias)
    hidden = hidden_by(kind, causal, window, prefixes)[:, None, past:]
    # What padding sees has no meaning, but it must see something, or its hidden states would be NaN.
    is_token = PADDED.bool()[:, past:] if kind == "padded" else torch.ones(2, LENGTH - past, dtype=torch.bool)
    lowest = torch.finfo(torch.float32).min
    if seen.mask is None:
        by_causality = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        assert torch.equal(hidden, (by_causality & seen.causal)[past:].expand_as(hidden))
    elif bias is not None:
        mask = seen.mask.expand(2, 3, LENGTH - past, LENGTH).transpose(1, 2)
        assert torch.equal(mask[is_token], bias.masked_fill(hidden, lowest).transpose(1, 2)[is_token])
        assert (mask > lowest).any(-1).all()
    else:
        mask = seen.mask.expand(2, 1, LENGTH - past, LENGTH)[:, 0]
        assert torch.equal(mask[is_token], ~hidden[:, 0][is_token])
        assert mask.any(-1).all()


def test_variable_length_kernel_is_left_what_it_can_compute():
    packed, whole = layout_of("packed", 0), layout_of("whole", 0)
    assert see(packed, causal=True, window=3, varlen=True).varlen is not None
    assert see(whole, causal=True, varlen=True).varlen is None
    assert see(packed, causal=True, prefix_lengths=torch.ones(4), varlen=True).varlen is None
    assert see(packed, bias=torch.zeros(1, 1, LENGTH, LENGTH), varlen=True).varlen is None


def test_combinations_that_are_not_supported_are_refused():
    with pytest.raises(ValueError, match="prefix_lengths"):
        see(layout_of("whole", 0), prefix_lengths=torch.tensor([1, 1]))
    pieces = Varlen(PACKED, PACKED, LENGTH, LENGTH, (-1, -1))
    for forms in ({"mask": torch.ones(1), "causal": True}, {"causal": True, "varlen": pieces}):
        with pytest.raises(ValueError, match="causal"):
            Visible(**forms)
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    decoder = CausalLanguageModel(small_config(network="decoder"))
    with pytest.raises(ValueError, match="packed rows"):
        decoder.logits(tokens, cu_seqlens=PACKED, cache=decoder.decoder.new_cache())
    with pytest.raises(ValueError, match="position_ids"):
        Encoder(small_config(positions="relative_bias"))(tokens, position_ids=torch.arange(LENGTH))

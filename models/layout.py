"""Places of the tokens of a batch: packed pieces that must not see each other, padding that is left out, cached tokens.

Linear layers, norms and dropout treat every position alike; only attention sees rows. So they run on the tokens alone,
which are put back into their rows before attention (Zeng et al. 2022, section 3.1), and after the last attention they
run only on the positions that a head reads. The cost of attention grows with rows times length squared, and one long
text makes long rows for all: `side_by_side` puts short texts into fewer rows, as pieces that do not see each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


def segments_from_cu_seqlens(
    cu_seqlens: Tensor, batch: int, length: int, max_positions: int | None = None
) -> tuple[Tensor, Tensor]:
    """Number the pieces of a packed batch, and the tokens inside each piece.

    Args:
        cu_seqlens: [num_pieces + 1] int32 or int64 boundaries of the pieces in the flattened (row-major)
            batch: first 0, last batch * length. No piece crosses a row. Repeated boundaries are empty
            pieces, so a batch may pad its boundaries to a fixed count by repeating the last.
        batch: rows.
        length: tokens in a row.
        max_positions: tokens in the longest allowed piece.

    Returns:
        piece_ids and position_ids, both [batch, length] int64. Positions restart at 0 in every piece.

    Raises:
        ValueError: the boundaries are not as described. Values are checked only in host memory, because
            reading them from an accelerator would stall it once per batch.
    """
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            "cu_seqlens must be an int32 or int64 tensor of shape [num_pieces + 1], "
            f"not {cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}"
        )
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        sizes, whole = cu_seqlens.diff(), batch * length
        if cu_seqlens.numel() < 2 or cu_seqlens[0] != 0 or cu_seqlens[-1] != whole or (sizes < 0).any():
            raise ValueError(
                f"cu_seqlens must rise from 0 to batch * length = {whole}, not {cu_seqlens.tolist()}"
            )
        starts, ends = cu_seqlens[:-1][sizes > 0], cu_seqlens[1:][sizes > 0]
        if (starts // length != (ends - 1) // length).any():
            raise ValueError(
                f"a piece crosses a row of {length} tokens in cu_seqlens {cu_seqlens.tolist()}; "
                "every multiple of the row length must be a boundary"
            )
        if max_positions is not None and (sizes > max_positions).any():
            raise ValueError(
                f"a packed piece has {int(sizes.max())} tokens, but the network knows {max_positions} positions; "
                "pack shorter pieces or raise max_positions"
            )
    token = torch.arange(batch * length, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    piece_ids = torch.searchsorted(cu_seqlens, token, right=True) - 1
    position_ids = token - cu_seqlens[piece_ids]
    return piece_ids.view(batch, length), position_ids.long().view(batch, length)


@dataclass(frozen=True)
class Unpadded:
    """The places of the tokens of padded rows."""

    index: Tensor
    """[tokens] int64: places of the tokens in the flattened rows."""
    batch: int
    length: int

    @classmethod
    def of(cls, present: Tensor) -> Unpadded:
        """From a [batch, length] bool mask that is true at tokens. Waits for the device, once per batch."""
        return cls(present.flatten().nonzero().squeeze(1), *present.shape)

    def tokens(self, rows: Tensor) -> Tensor:
        """[batch, length, ...] to [1, tokens, ...]."""
        return rows.flatten(0, 1).index_select(0, self.index).unsqueeze(0)

    def rows(self, tokens: Tensor) -> Tensor:
        """[1, tokens, ...] to [batch, length, ...], zero at padding."""
        flat = tokens.new_zeros(self.batch * self.length, *tokens.shape[2:])
        return flat.index_copy(0, self.index, tokens.squeeze(0)).unflatten(0, (self.batch, self.length))


@dataclass(frozen=True)
class ReadPositions:
    """The positions that a head reads, where the last layer computes no others after its attention."""

    in_rows: Tensor
    """[read] int64: their places in the flattened rows, as attention gives them."""
    in_tokens: Tensor
    """[read] int64: their places among the positions that all other blocks compute."""

    @classmethod
    def of(cls, positions: Tensor, places: Unpadded | None, in_rows: Unpadded | None) -> ReadPositions:
        """From [read] int64 positions in the flattened rows and, where padding is left out, the places of the tokens
        there and in the rows of attention."""
        if places is None or in_rows is None:
            return cls(positions, positions)
        # A row of padding alone has nothing to read: what it gives has no meaning.
        last = len(places.index) - 1
        in_tokens = torch.searchsorted(places.index, positions).clamp_max(last)
        return cls(in_rows.index[in_tokens], in_tokens)

    def of_rows(self, rows: Tensor) -> Tensor:
        """[batch, length, ...] to [1, read, ...]."""
        return rows.flatten(0, 1).index_select(0, self.in_rows).unsqueeze(0)

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """Select the read positions, [1, read, ...], of other blocks' [batch, length, ...] or [1, tokens, ...]."""
        return tokens.flatten(0, 1).index_select(0, self.in_tokens).unsqueeze(0)


WORTH_IT = 0.95
"""Positions are left out if at most this share is needed: moving the others costs about a twentieth of a layer."""


def unpadded(present: Tensor | None) -> Unpadded | None:
    """The places of the tokens, where rows are padded enough for it to pay; None elsewhere.

    A compiled network keeps its padding: the number of tokens would change the shapes of every batch.
    """
    if present is None or torch.compiler.is_compiling() or present.device.type == "meta":
        return None
    places = Unpadded.of(present)
    return places if len(places.index) < WORTH_IT * present.numel() else None


@dataclass(frozen=True)
class Layout:
    """Tokens of a batch by place."""

    batch: int
    length: int
    """Tokens per row that are computed now."""
    past: int
    """Tokens per row before them, whose keys and values are cached."""
    position_ids: Tensor
    """[batch or 1, length] int64: places of the tokens in their piece."""
    cu_seqlens: Tensor | None
    """[pieces + 1] int32 where rows are packed."""
    piece_ids: Tensor | None
    """[batch, length] int64 indices of the pieces, where rows are packed."""
    present: Tensor | None
    """[batch, past + length] bool where rows are padded: true at tokens."""


@dataclass(frozen=True)
class Memory:
    """What a decoder reads of an encoder-decoder's encoder."""

    hidden: Tensor
    """[batch, length, hidden]."""
    layout: Layout
    token_weight: Tensor
    """[vocab_size, hidden] token embedding, which the decoder shares."""

    def select(self, rows: Tensor) -> Memory:
        """The given rows, in their order; only where rows are not packed."""
        layout = self.layout
        assert layout.cu_seqlens is None, "pieces of packed rows cannot be taken apart"
        positions = layout.position_ids if len(layout.position_ids) == 1 else layout.position_ids[rows]
        present = None if layout.present is None else layout.present[rows]
        kept = replace(layout, batch=len(rows), position_ids=positions, present=present)
        return replace(self, hidden=self.hidden[rows], layout=kept)


def make_layout(
    input_ids: Tensor,
    cu_seqlens: Tensor | None,
    attention_mask: Tensor | None,
    *,
    max_positions: int | None,
    past: int | None = None,
) -> Layout:
    """Read the layout of a batch.

    Args:
        input_ids: [batch, length] int64.
        cu_seqlens: [pieces + 1] int32 boundaries in the flattened batch; positions restart in every piece.
        attention_mask: [batch, past + length] bool or int, true (or 1) at tokens and false (or 0) at padding, which
            does not count as a position.
        max_positions: tokens of the longest allowed sequence; None for no limit.
        past: tokens per row that a cache holds; None without a cache.

    Raises:
        ValueError: a shape does not fit, both masks are given, rows are packed and there is a cache, or a sequence
            exceeds `max_positions`.
    """
    if cu_seqlens is not None and past is not None:
        raise ValueError("packed rows cannot fill or continue a cache; pad the rows instead")
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must have shape [batch, length], not {list(input_ids.shape)}")
    if cu_seqlens is not None and attention_mask is not None:
        raise ValueError("give cu_seqlens (packed rows) or attention_mask (padded rows), not both")
    (batch, length), past = input_ids.shape, past or 0
    expected = [batch, past + length]
    if attention_mask is not None and list(attention_mask.shape) != expected:
        raise ValueError(
            f"attention_mask must have the shape of input_ids, {expected}, not {list(attention_mask.shape)}"
        )
    piece_ids = present = None
    if cu_seqlens is not None:
        piece_ids, positions = segments_from_cu_seqlens(cu_seqlens, batch, length, max_positions)
    else:
        if max_positions is not None and past + length > max_positions:
            raise ValueError(
                f"a row has {past + length} tokens, but the network knows {max_positions} positions; truncate the "
                "rows or raise max_positions"
            )
        if attention_mask is not None:
            present = attention_mask.bool()
            # Counted from the mask, so that padding on the left shifts positions too.
            positions = (present.cumsum(-1) - 1).clamp_min(0)[:, past:]
        else:
            positions = torch.arange(past, past + length, device=input_ids.device).unsqueeze(0)
    return Layout(batch, length, past, positions, cu_seqlens, piece_ids, present)


def first_positions(input_ids: Tensor) -> Tensor:
    """[batch] int64: the first position of every row of [batch, length] in the flattened batch."""
    batch, length = input_ids.shape
    return torch.arange(batch, device=input_ids.device) * length


def last_positions(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """[batch] int64: the last token of every row of [batch, length], padded on either side, in the flattened batch."""
    if attention_mask is None:
        return first_positions(input_ids) + input_ids.shape[1] - 1
    return first_positions(input_ids) + attention_mask.long().cumsum(-1).argmax(-1)


FEWER_ROWS = 0.75
"""Largest share of the rows that may remain: a mask of pieces costs more than one of padding."""


def side_by_side(places: Unpadded, layout: Layout) -> tuple[Unpadded, Layout]:
    """Places of the tokens in the rows of attention, and their layout; unchanged where few rows would be saved.

    Waits for the device, once per batch.

    Args:
        places: of the tokens in the padded rows.
        layout: of the padded rows, without a cache.
    """
    present = layout.present
    assert present is not None
    tokens, begins = present.sum(1), present.int().argmax(1)
    ends = layout.length - present.flip(1).int().argmax(1)
    # Padding in the middle of a text would change distances.
    has_gaps = (tokens > 0) & (ends - begins != tokens)
    counts = torch.where(has_gaps, -1, tokens).tolist()
    if min(counts) < 0 or max(counts) == 0:
        return places, layout
    longest = max(counts)
    firsts, num_rows = _first_fit(counts, longest)
    if num_rows > FEWER_ROWS * layout.batch:
        return places, layout
    texts = places.index // layout.length
    inside = (present.cumsum(1) - 1).flatten()[places.index]
    index = torch.tensor(firsts, device=texts.device)[texts] + inside
    positions = layout.position_ids.expand(layout.batch, -1).flatten()[places.index]
    rows = Unpadded(index, num_rows, longest)
    return rows, replace(
        layout,
        batch=num_rows,
        length=longest,
        position_ids=_in_rows(rows, positions, 0),
        piece_ids=_in_rows(rows, texts, -1),
        present=None,
    )


def _first_fit(counts: list[int], length: int) -> tuple[list[int], int]:
    """The place of each text's first token in flattened rows, and the number of rows: the longest texts first, each
    into the first row that has room (first-fit decreasing, Johnson 1973)."""
    firsts = [0] * len(counts)
    filled: list[int] = []
    for text in sorted(range(len(counts)), key=lambda text: -counts[text]):
        row = next((row for row, used in enumerate(filled) if used + counts[text] <= length), len(filled))
        if row == len(filled):
            filled.append(0)
        firsts[text] = row * length + filled[row]
        filled[row] += counts[text]
    return firsts, len(filled)


def _in_rows(rows: Unpadded, values: Tensor, elsewhere: int) -> Tensor:
    """[tokens] int64 to [rows, length], `elsewhere` where there is no token."""
    flat = values.new_full((rows.batch * rows.length,), elsewhere)
    return flat.index_copy(0, rows.index, values).unflatten(0, (rows.batch, rows.length))

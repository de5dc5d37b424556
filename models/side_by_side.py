"""Short texts of a padded batch side by side in the rows of attention, whose cost grows with rows times length squared.

All other blocks run on tokens alone (see `models.layout`). Attention takes rows, and a batch with one long text has
long rows for all: as pieces of fewer rows, which do not see each other, the texts compute the same.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from models.layout import Layout, Unpadded

WORTH_IT = 0.75
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
    # Of a text with padding in its middle, distances would change.
    has_gaps = (tokens > 0) & (ends - begins != tokens)
    counts = torch.where(has_gaps, -1, tokens).tolist()
    if min(counts) < 0 or max(counts) == 0:
        return places, layout
    longest = max(counts)
    firsts, num_rows = _first_fit(counts, longest)
    if num_rows > WORTH_IT * layout.batch:
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

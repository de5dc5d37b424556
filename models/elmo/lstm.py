"""LSTM layers with a projection and clipping, over texts of different lengths packed by time.

PyTorch's own LSTM has no clipping, and on a CPU computes the gradients of its weights step by step; here they are one
product over all steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class TimePacking:
    """Places of the words of packed pieces, sorted by time: all first words, all second words, ...

    Pieces are sorted from the longest to the shortest, so that unfinished ones are always first (as in PyTorch's
    `PackedSequence`).
    """

    batch_sizes: tuple[int, ...]
    """Numbers of pieces that have a first word, a second word, ..."""
    forward: Tensor
    """[words] int64: places, among the packed words, of the words by time."""
    backward: Tensor
    """[words] int64: the same when every piece is read from its end."""


def pack_by_time(cu_seqlens: Tensor, num_words: int) -> TimePacking:
    """Sort the words of packed pieces by time.

    Args:
        cu_seqlens: [pieces + 1] boundaries of the pieces among the words.
        num_words: all words.

    Raises:
        ValueError: the boundaries do not lead from 0 to `num_words`, or a piece is empty.
    """
    boundaries = cu_seqlens.long()
    host = boundaries.tolist()
    host_lengths = [stop - start for start, stop in pairwise(host)]
    if not host_lengths or host[0] != 0 or host[-1] != num_words or min(host_lengths) < 1:
        raise ValueError(
            f"cu_seqlens must ascend from 0 to the number of words, {num_words}, with no piece empty, not {host[:8]}"
            + ("" if len(host) <= 8 else f" ... {host[-1]}")
        )
    ending = [0] * (max(host_lengths) + 1)
    for length in host_lengths:
        ending[length] += 1
    batch_sizes = [len(host_lengths) - ended for ended in accumulate(ending[:-1])]
    pieces = boundaries.diff().argsort(descending=True, stable=True)
    sizes = torch.tensor(batch_sizes, device=cu_seqlens.device)
    time = torch.repeat_interleave(sizes, output_size=num_words)
    piece = pieces[torch.arange(num_words, device=cu_seqlens.device) - (sizes.cumsum(0) - sizes)[time]]
    return TimePacking(tuple(batch_sizes), boundaries[piece] + time, boundaries[piece + 1] - 1 - time)


class ProjectedLSTM(nn.Module):
    """One LSTM layer in one direction whose output is projected (Sak et al. 2014; Peters et al. 2018, section 3.4).

        i, f, o = sigmoid(W x + U h + b), g = tanh(W x + U h + b)
        c = clip(f * c + i * g), h = clip(P (o * tanh(c)))

    Gates are in the order i, f, o, g. Cells and outputs begin at zero in every piece.
    """

    def __init__(
        self,
        input_size: int,
        cell_size: int,
        projection_size: int,
        *,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
    ) -> None:
        super().__init__()
        self.cell_clip = cell_clip or math.inf
        self.projection_clip = projection_clip or math.inf
        self.input_weight = nn.Parameter(torch.zeros(4 * cell_size, input_size))
        self.hidden_weight = nn.Parameter(torch.zeros(4 * cell_size, projection_size))
        self.gate_bias = nn.Parameter(torch.zeros(4 * cell_size))
        self.projection_weight = nn.Parameter(torch.zeros(projection_size, cell_size))

    def forward(self, inputs: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        """[words, input_size] by time to [words, projection_size] by time; see `TimePacking`."""
        tensors = inputs, self.input_weight, self.hidden_weight, self.gate_bias, self.projection_weight
        device = inputs.device.type
        if not torch.is_autocast_enabled(device):
            return _Unrolled.apply(*tensors, batch_sizes, self.cell_clip, self.projection_clip)  # pyright: ignore
        # Autocast would change the type of some steps and not of those that work in place.
        tensors = (tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)
        with torch.autocast(device, enabled=False):
            return _Unrolled.apply(*tensors, batch_sizes, self.cell_clip, self.projection_clip)  # pyright: ignore

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Initial weights, as in the released code: uniform after Glorot and Bengio 2010, where W and U are one
        matrix; biases 0, but 1 for the forget gate (Jozefowicz et al. 2015)."""
        if name == "gate_bias":
            bias = torch.zeros(shape)
            bias[shape[0] // 4 : shape[0] // 2] = 1.0
            return bias
        fans = (
            sum(self.projection_weight.shape)
            if name == "projection_weight"
            else shape[0] + self.input_weight.shape[1] + self.hidden_weight.shape[1]
        )
        return torch.empty(shape).uniform_(-1.0, 1.0, generator=generator) * math.sqrt(6.0 / fans)


class _Unrolled(torch.autograd.Function):
    """The steps of a `ProjectedLSTM`, and backpropagation through all of them."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        input_weight: Tensor,
        hidden_weight: Tensor,
        gate_bias: Tensor,
        projection_weight: Tensor,
        batch_sizes: Sequence[int],
        cell_clip: float,
        projection_clip: float,
    ) -> Tensor:
        size = projection_weight.shape[1]
        gates = F.linear(inputs, input_weight, gate_bias)
        cells = gates.new_empty(len(inputs), size)
        squashed = torch.empty_like(cells)
        outputs = gates.new_empty(len(inputs), projection_weight.shape[0])
        start = before = 0
        for number in batch_sizes:
            now, last = slice(start, start + number), slice(before, before + number)
            gate, cell, output = gates[now], cells[now], outputs[now]
            if start:
                gate.addmm_(outputs[last], hidden_weight.t())
            gate[:, : 3 * size].sigmoid_()
            gate[:, 3 * size :].tanh_()
            enter, forget, leave, new = gate.split(size, dim=1)
            torch.mul(enter, new, out=cell)
            if start:
                cell.addcmul_(forget, cells[last])
            if cell_clip < math.inf:
                cell.clamp_(-cell_clip, cell_clip)
            torch.tanh(cell, out=squashed[now])
            torch.mm(leave * squashed[now], projection_weight.t(), out=output)
            if projection_clip < math.inf:
                output.clamp_(-projection_clip, projection_clip)
            start, before = start + number, start
        ctx.batch_sizes, ctx.cell_clip, ctx.projection_clip = batch_sizes, cell_clip, projection_clip
        ctx.save_for_backward(
            inputs, input_weight, hidden_weight, projection_weight, gates, cells, squashed, outputs
        )
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        inputs, input_weight, hidden_weight, projection_weight, gates, cells, squashed, outputs = (
            ctx.saved_tensors
        )
        size = projection_weight.shape[1]
        batch_sizes = ctx.batch_sizes
        grad_gates = torch.empty_like(gates)
        grad_projected = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        grad_cell = gates.new_zeros(0, size)
        stop, following = len(inputs), slice(0, 0)
        for step in range(len(batch_sizes) - 1, -1, -1):
            number = batch_sizes[step]
            now = slice(stop - number, stop)
            going_on = len(grad_cell)
            enter, forget, leave, new = gates[now].split(size, dim=1)
            grad_projected[now][:going_on].addmm_(grad_gates[following], hidden_weight)
            if ctx.projection_clip < math.inf:
                grad_projected[now] *= outputs[now].abs() < ctx.projection_clip
            grad_hidden = grad_projected[now] @ projection_weight
            by_enter, by_forget, by_leave, by_new = grad_gates[now].split(size, dim=1)
            torch.mul(grad_hidden * squashed[now], leave * (1 - leave), out=by_leave)
            grad_hidden *= leave
            into_cell = torch.addcmul(grad_hidden, grad_hidden, squashed[now].square(), value=-1)
            into_cell[:going_on] += grad_cell
            if ctx.cell_clip < math.inf:
                into_cell *= cells[now].abs() < ctx.cell_clip
            torch.mul(into_cell * new, enter * (1 - enter), out=by_enter)
            torch.mul(into_cell * enter, 1 - new.square(), out=by_new)
            if step:
                last = slice(now.start - batch_sizes[step - 1], now.start - batch_sizes[step - 1] + number)
                torch.mul(into_cell * cells[last], forget * (1 - forget), out=by_forget)
            else:
                by_forget.zero_()
            grad_cell = into_cell.mul_(forget)
            stop, following = now.start, now
        # For all words but the first ones of pieces: the output before each, and where the words are.
        starts = [sum(batch_sizes[:step]) for step in range(len(batch_sizes))]
        parts = [
            outputs[start : start + number] for start, number in zip(starts, batch_sizes[1:], strict=False)
        ]
        previous = torch.cat(parts) if parts else outputs[:0]
        later = slice(batch_sizes[0] if batch_sizes else 0, None)
        return (
            grad_gates @ input_weight,
            grad_gates.t() @ inputs,
            grad_gates[later].t() @ previous,
            grad_gates.sum(0),
            grad_projected.t() @ (gates[:, 2 * size : 3 * size] * squashed),
            None,
            None,
            None,
        )

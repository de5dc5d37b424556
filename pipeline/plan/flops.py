"""How many operations a network needs for a sample, counted on the real network without computing anything.

Counted are the multiplications and additions of matrix products, forward and backward, as model FLOPs (Chowdhery et al.
2022, appendix B): recomputation to save memory does not count. Attention counts every pair of tokens of the same
document once, also where a causal mask hides half of them, as there; what packing hides between documents does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from pipeline.plan.no_numbers import DATA_DEPENDENT

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Count:
    """Operations of forward and backward of a micro-batch."""

    products: int
    """Of matrix products outside of attention."""
    attention: int
    """Of the two products of attention, scores and mixing, for pairs of tokens that see each other."""
    how: str
    """`counted`, or why a formula had to take the place of counting."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.products + self.attention


def count_flops(build: Callable[[], nn.Module], inputs: Mapping[str, np.ndarray]) -> Count:
    """Operations of a micro-batch.

    Args:
        build: makes the network; called where tensors have no storage, so that no size is too large.
        inputs: the arguments of its forward pass, as the objective makes them.

    Returns:
        What was counted. Numbers that a network reads to cut its inputs shorter (ELMo's characters) are taken as small
        as they can be. Where a network cannot run without numbers at all, 6 operations for each parameter and token
        (Kaplan et al. 2020, section 2.1), embeddings left out; 0 where it cannot even be built. `how` tells.
    """
    why, estimate = "", 0
    for place in (torch.device("meta"), FakeTensorMode(allow_non_fake_inputs=True)):
        on_meta = isinstance(place, torch.device)
        # Both have no storage. Code for accelerators runs on the first, which knows nothing of autocast; code that
        # reads numbers runs on the second, which cannot select by a mask.
        try:
            with place:
                # What it read from files, such as a teacher's weights, comes along.
                model = build().to("meta") if on_meta else build()
                estimate = _by_formula(model, inputs)
                tensors = {
                    name: torch.empty(array.shape, dtype=_dtype(array)) for name, array in inputs.items()
                }
                return _run(model, inputs, tensors)
        except Exception as error:
            # Networks read and refuse what they like; a figure for the log must not end a run.
            why = f"{why}; {type(error).__name__}: {error}".lstrip("; ")
    return Count(estimate, 0, f"6 per parameter and token, because: {why}")


def _run(model: nn.Module, inputs: Mapping[str, np.ndarray], tensors: Mapping[str, Tensor]) -> Count:
    attention, products = _Attention(inputs), _Products(inputs)
    model.train()
    with torch.enable_grad(), attention, products:
        losses, _ = model(**tensors)
        torch.stack(list(losses.values())).sum().backward()
    return Count(products.flops, attention.flops, "counted")


def product_formula(func: Any) -> Callable[..., int] | None:
    """PyTorch's formula for the operations of a matrix product, which it does not apply to those that add in place;
    None for other operations."""
    packet = func._overloadpacket
    return flop_registry.get(_IN_PLACE.get(packet, packet))


_IN_PLACE = {_aten.addmm_: _aten.addmm, _aten.baddbmm_: _aten.baddbmm}


def _dtype(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(array[:0]).dtype


def _by_formula(model: nn.Module, inputs: Mapping[str, np.ndarray]) -> int:
    embeddings = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    parameters = sum(each.numel() for each in model.parameters() if id(each) not in embeddings)
    tokens = max(array.size for array in inputs.values() if array.ndim == 2)
    return 6 * parameters * tokens


class _Products(TorchDispatchMode):
    """Counts matrix products by PyTorch's own formulas, and answers for operations whose result depends on numbers.

    `FlopCounterMode` sorts operations by module too, and fails where a module is called without gradients.
    """

    def __init__(self, inputs: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.flops = 0
        self._integers = [
            array for array in inputs.values() if array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
        ]
        self._read: list[tuple[Tensor, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DATA_DEPENDENT:
            known = (number for tensor, number in self._read if tensor is args[0])
            return next(known, DATA_DEPENDENT[func](*args))
        out = func(*args, **kwargs)
        if func is _aten.unbind.int and args[0].dim() == 1:
            # `tolist` reads numbers one by one, here from the input with as many elements.
            numbers = next((each for each in self._integers if each.size == args[0].numel()), ())
            self._read = [(tensor, int(number)) for tensor, number in zip(out, numbers, strict=False)]
        if (formula := product_formula(func)) is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


class _Attention(TorchFunctionMode):
    """Counts attention by the documents of the rows, in place of computing it for whole rows."""

    def __init__(self, inputs: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.flops = 0
        self._pieces = {
            name: np.diff(array.astype(np.int64))
            for name, array in inputs.items()
            if name.endswith("cu_seqlens")
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attend(*args[:3])
        return func(*args, **kwargs)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, length, size = query.shape
        pairs = self._pairs(batch, length, key.shape[2])
        # Two products of 2 operations a pair forward, and twice as many backward.
        times = 3 if torch.is_grad_enabled() and query.requires_grad else 1
        self.flops += times * 2 * heads * pairs * (size + value.shape[3])
        # Gradients must reach all three; their values do not matter here.
        return query + (key.mean(2, keepdim=True) + value.mean(2, keepdim=True))

    def _pairs(self, batch: int, length: int, key_length: int) -> int:
        """Pairs of tokens of the same piece: of queries of one side and keys of the same or of the other side."""
        sides = [self._side(batch * each) for each in (length, key_length)]
        if sides[0] is None or sides[1] is None or len(sides[0]) != len(sides[1]):
            return batch * length * key_length
        return int((sides[0] * sides[1]).sum())

    def _side(self, tokens: int) -> np.ndarray | None:
        """Lengths of the pieces of a side with so many tokens; None where its rows are not packed."""
        return next((lengths for lengths in self._pieces.values() if lengths.sum() == tokens), None)

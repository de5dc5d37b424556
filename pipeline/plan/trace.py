"""One micro-batch of a network, run without numbers: which memory lives when, and how many operations it takes.

Tensors have shapes and no storage, so that a network of any size is run in a second on any machine. Every operation is
seen by `Watch`, which counts the bytes that come to life and, through weak references, those that die; and the
operations of matrix products. Attention, which is a kernel here and decomposed there, is counted where it is called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.plan.flops import Flops, product_formula

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

Device = Literal["cuda", "cpu"]
Place = Literal["meta", "cpu"]
"""Where tensors without storage pretend to be. A build of torch without CUDA cannot differentiate tensors that claim to
be there; on `meta`, networks take the way that they have for accelerators."""
_ROUNDING = {"cuda": 512, "cpu": 1}
"""Bytes to which CUDA's caching allocator rounds a block up."""
_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Trace:
    """Operations of forward and backward of one micro-batch; and their memory, without parameters and gradients."""

    flops: Flops

    inputs_bytes: int
    """The micro-batch on the device."""
    kept_bytes: int
    """Activations that the forward pass keeps for the backward pass."""
    forward_bytes: int
    """Most bytes that are alive at a time in the forward pass."""
    gathering_bytes: int
    """Most bytes alive before the last module with parameters of its own: until then ZeRO-3 may gather weights."""
    peaks: tuple[tuple[int, int], ...]
    """(gradient elements finished, most bytes alive meanwhile), for every stretch of the backward pass between two
    finished gradients; the first begins with the forward pass. A gradient counts until it is finished."""

    def peak(self, held: Callable[[int], int]) -> int:
        """Most bytes alive at a time, where `held` says how many bytes so many finished gradients take."""
        return max(alive + held(finished) for finished, alive in self.peaks)


def trace(model: nn.Module, inputs: Mapping[str, np.ndarray], device: Device, place: Place) -> Trace:
    """Run a network of tensors without storage.

    Args:
        model: built in `without_storage`, in training mode.
        inputs: arguments of its forward pass. Their shapes count, and the numbers of those with one dimension, which
            networks may read: the boundaries of pieces, the lengths of words.
        device: what it is to be computed on: decides the kernels of attention and dropout.
        place: where the model was made.
    """
    with without_storage(place):
        tensors = {name: torch.empty(each.shape, dtype=_dtype(each)) for name, each in inputs.items()}
    watch = Watch(_ROUNDING[device], Flops.of(inputs))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    given = [*model.parameters(), *model.buffers(), *tensors.values()]
    watch.ignore(given)
    peaks: list[tuple[int, int]] = []
    finished = 0

    def finish(parameter: Tensor) -> None:
        nonlocal finished
        peaks.append((finished, watch.restart()))
        finished += parameter.numel()
        parameter.grad = None

    gathering = 0

    def begin(*_: Any) -> None:
        nonlocal gathering
        if not watch.in_backward:
            gathering = watch.peak

    hooks: list[Any] = [each.register_post_accumulate_grad_hook(finish) for each in parameters]
    hooks += [each.register_forward_pre_hook(begin) for each in model.modules() if _has_own(each)]
    try:
        with (
            _fake_mode() if place == "cpu" else nullcontext(),
            _functions(device, place, watch, inputs, _kernels(model)),
            watch,
        ):
            losses, correct = model(**tensors)
            loss = torch.stack(list(losses.values())).sum()
            forward_bytes, kept = watch.peak, watch.alive
            watch.in_backward = True
            del losses, correct
            loss.backward()
            del loss
        peaks.append((finished, watch.restart()))
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in parameters:
            parameter.grad = None
    return Trace(
        flops=watch.flops,
        inputs_bytes=sum(_rounded(each.nbytes, watch.rounding) for each in tensors.values()),
        kept_bytes=kept,
        forward_bytes=forward_bytes,
        gathering_bytes=gathering,
        peaks=_merged(peaks),
    )


def _dtype(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(array[:0].copy()).dtype


def _has_own(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def without_storage(place: Place) -> AbstractContextManager[Any]:
    """A context in which tensors have no storage: what networks and inputs for `trace` are made in."""
    return torch.device("meta") if place == "meta" else _fake_mode()


@cache
def _fake_mode() -> FakeTensorMode:
    # Imported where it is needed, here and below, because it loads torch's compiler, which takes over a second: workers
    # trace too, most of them on `meta`.
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


class Watch(TorchDispatchMode):
    """Counts the bytes of storages from the operation that makes them to their end, and operations of products."""

    def __init__(self, rounding: int, flops: Flops) -> None:
        super().__init__()
        self.rounding, self.flops = rounding, flops
        self.in_backward = False
        self.alive = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def ignore(self, tensors: list[Tensor]) -> None:
        """Storages that are counted elsewhere."""
        for tensor in tensors:
            self._known.add(tensor.untyped_storage())

    @property
    def recomputes(self) -> bool:
        """Whether a layer runs again in the backward pass, which is no part of a model's operations."""
        return self.in_backward and torch.is_grad_enabled()

    def restart(self) -> int:
        """The most bytes that were alive since the last call."""
        found, self.peak = self.peak, self.alive
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DATA_DEPENDENT:
            return _DATA_DEPENDENT[func](*args)
        if func is _aten.index.Tensor:
            args = (args[0], _as_numbers(args[1]), *args[2:])
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._see(tensor)
        if (workspace := _WORKSPACES.get(func)) is not None:
            self.peak = max(self.peak, self.alive + workspace(*args))
        if not self.recomputes and (formula := product_formula(func)) is not None:
            self.flops.products += formula(*args, **kwargs, out_val=out)
        if func in _PRODUCTS and out.dtype != torch.float32 and out.device.type == "cpu":
            # A CPU adds up products of short numbers in float32, in memory of their own.
            self.peak = max(self.peak, self.alive + 4 * out.numel())
        return out

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        size = _rounded(storage.nbytes(), self.rounding)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.alive -= size


def _rounded(size: int, rounding: int) -> int:
    return -(-size // rounding) * rounding


def _merged(peaks: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Of equal numbers of finished gradients the highest peak alone."""
    highest: dict[int, int] = {}
    for finished, alive in peaks:
        highest[finished] = max(alive, highest.get(finished, 0))
    return tuple(highest.items())


def _zero(tensor: Tensor) -> float | int:
    """The number of a tensor of one element. Networks read most numbers only to refuse wrong inputs."""
    return 0.0 if tensor.dtype.is_floating_point else 0


def _every_place(tensor: Tensor) -> Tensor:
    """The indices of as many places as there can be: [elements, dimensions] int64."""
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


_DATA_DEPENDENT: Mapping[Any, Callable[..., Any]] = {
    _aten._local_scalar_dense.default: _zero,
    _aten.nonzero.default: _every_place,
}
"""Answers by operation whose result depends on numbers, each a function of the operation's arguments."""


def _as_numbers(indices: Any) -> list[Tensor | None]:
    """Indices by which a tensor is read, with numbers of places in the place of marks: all that may be marked."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            found.append(index)
        else:
            found += [index.new_empty(index.numel(), dtype=torch.int64) for _ in range(index.dim())]
    return found


_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default)


def _backward_of_flash(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> int:
    """Float32 sums of the queries' gradients, inside the kernel."""
    return query.numel() * 4


_WORKSPACES: Mapping[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_backward.default: _backward_of_flash,
    _aten._scaled_dot_product_efficient_attention_backward.default: _backward_of_flash,
}
"""Bytes that kernels take inside, by operation."""


def _kernels(model: nn.Module) -> list[tuple[Any, str]]:
    """The kernels of attention that a network calls beside PyTorch's usual one. Their import takes over a second."""
    if not any(getattr(module, "varlen", False) for module in model.modules()):
        return []
    import torch.nn.attention.varlen as varlen

    return [(varlen, "varlen_attn")]


@contextmanager
def _functions(
    device: Device,
    place: Place,
    watch: Watch,
    inputs: Mapping[str, np.ndarray],
    kernels: Sequence[tuple[Any, str]],
) -> Iterator[None]:
    """While it lasts, functions that cannot run without numbers have an answer, attention is counted, and functions for
    which PyTorch takes another kernel on CUDA take that.

    A mode for functions would do without exchanging them, but it is off where layers are computed again.

    Args:
        kernels: functions of attention beside PyTorch's usual one, by module and name.
    """

    def counted(attend: Callable[..., Any]) -> Callable[..., Any]:
        def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **settings: Any) -> Any:
            if not watch.recomputes:
                watch.flops.attend(query, key, value)
            return attend(query, key, value, *rest, **settings)

        return attention

    on_cuda = device == "cuda"
    dot_product = _attention if on_cuda else F.scaled_dot_product_attention
    exchanged: list[tuple[Any, str, Any]] = [
        (F, "scaled_dot_product_attention", counted(dot_product)),
        *((owner, name, counted(getattr(owner, name))) for owner, name in kernels),
        (F, "dropout", _dropout if on_cuda else F.dropout),
    ]
    if place == "cpu":
        from torch._subclasses.fake_tensor import FakeTensor

        lists = {each.size: each.tolist() for each in reversed([*inputs.values()]) if each.ndim == 1}
        exchanged.append((FakeTensor, "tolist", lambda each: lists[each.numel()]))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in exchanged]
    try:
        for owner, name, function in exchanged:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Flash attention where nothing is masked and numbers are short, else the memory-efficient kernel, which wants the
    mask as numbers."""
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        out, *_ = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
        return out
    bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            numbers = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
            attn_mask = numbers.masked_fill(attn_mask.logical_not(), float("-inf"))
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        bias = attn_mask.expand(shape)
    trains = torch.is_grad_enabled() and query.requires_grad
    out, *_ = _aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, trains, dropout_p, is_causal, scale=scale
    )
    return out


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(input, p, training)[0] if training and p > 0 else input

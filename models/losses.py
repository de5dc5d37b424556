"""Cross-entropy of a vocabulary projection, computed chunk by chunk: logits of all tokens never exist at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ELEMENTS = 1 << 25
"""Logits that exist at a time: 128 MiB in float32. Much fewer make thin matrix products, which are slow."""
_CHUNK_ELEMENTS_OF_CPU = 15 << 19
"""On a CPU: 30 MiB. From 32 MiB on, malloc asks the kernel for new pages at each allocation."""


EACH = "each"
"""Beside the numbers of right predictions, networks give under this name the losses of their first term one by one:
[predictions] float32 in nats, without a gradient."""


class CrossEntropy(NamedTuple):
    """Losses of some predictions."""

    total: Tensor
    """float32 scalar: their sum, in nats."""
    correct: Tensor
    """int64 scalar: how many have their highest score at the target, the first of them if several are equal."""
    each: Tensor
    """[predictions] float32: the loss of each of them, without a gradient."""


def summed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    chunk_elements: int | None = None,
) -> CrossEntropy:
    """Cross-entropy of softmax(hidden @ weight.T + bias) against `targets`, summed over tokens.

    Gradients are computed in the forward pass, chunk by chunk, so that memory does not grow with tokens x
    vocabulary (as in Liger's and Apple's fused losses: Hsu et al. 2024; Wijmans et al. 2025).

    Args:
        hidden: [tokens, hidden]; may have no tokens.
        weight: [vocabulary, hidden].
        bias: [vocabulary] or None.
        targets: [tokens] int64.
        chunk_elements: logits that exist at a time; None for what is fastest on the device.
    """
    if chunk_elements is None:
        chunk_elements = _CHUNK_ELEMENTS_OF_CPU if hidden.device.type == "cpu" else CHUNK_ELEMENTS
    # Inside the function gradients are always off.
    training = torch.is_grad_enabled()
    return CrossEntropy(
        *_LinearCrossEntropy.apply(  # pyright: ignore
            hidden, weight, bias, targets, chunk_elements, training
        )
    )


def sums_by_group(each: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """Losses added up by group, on their device and without waiting for it.

    Every group is a sum of its own, not a scatter: on a GPU a scatter adds in an order that changes from run to run.

    Args:
        each: [predictions] losses.
        groups: [predictions] integers; a prediction outside of 0 ... num_groups - 1 belongs to no group.

    Returns:
        [num_groups, 2] float64: the sum of each group, and how many predictions it has.
    """
    numbers = torch.arange(num_groups, dtype=groups.dtype, device=groups.device)
    belongs = groups == numbers[:, None]
    sums = torch.where(belongs, each, 0.0).sum(1, dtype=torch.float64)
    return torch.stack((sums, belongs.sum(1, dtype=torch.float64)), 1)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        chunk_elements: int,
        training: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        want = ctx.needs_input_grad if training else (False,) * 3
        grad_hidden = torch.empty_like(hidden) if want[0] else None
        # Accumulate in float32: half precision would drop small contributions of later chunks.
        grad_weight = (
            torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if want[1] else None
        )
        grad_bias = (
            torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
            if bias is not None and want[2]
            else None
        )
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        each = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        rows = max(1, chunk_elements // weight.shape[0])
        for start in range(0, len(targets), rows):
            part, wanted = hidden[start : start + rows], targets[start : start + rows, None]
            scores = F.linear(part, weight, bias).float()
            # The first of equal scores is the prediction: in half precision many tie.
            (highest, best), own = scores.max(-1, keepdim=True), scores.gather(-1, wanted)
            correct += (best == wanted).sum()
            probabilities = scores.softmax(-1)
            # The highest probability is 1 / sum(exp(scores - highest)), and never so small that it has no logarithm.
            own = own - highest + probabilities.amax(-1, keepdim=True).log()
            loss -= own.sum()
            torch.neg(own[:, 0], out=each[start : start + rows])
            if not any(want):
                continue
            # The gradient of the logits is softmax minus one-hot.
            errors = probabilities.scatter_(-1, wanted, own.exp() - 1)
            if grad_bias is not None:
                grad_bias += errors.sum(0)
            errors = errors.to(part.dtype)
            if grad_hidden is not None:
                torch.mm(errors, weight.to(part.dtype), out=grad_hidden[start : start + rows])
            if grad_weight is not None:
                _add_product(grad_weight, errors, part)
        # In fp16 the sums may be beyond its range until they are scaled; autograd casts what leaves `backward`.
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(correct, each)
        # Without this, the backward pass would be handed zeros as long as `each`.
        ctx.set_materialize_grads(False)
        return loss, correct, each

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        scale = grad_outputs[0]
        grad_hidden, *grads = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = (grad_hidden.to(scale.dtype) * scale).to(grad_hidden.dtype)
        return (grad_hidden, *(None if grad is None else grad * scale for grad in grads), None, None, None)


def _add_product(total: Tensor, errors: Tensor, part: Tensor) -> None:
    """total += errors.T @ part, in float32."""
    if part.dtype == total.dtype:
        total.addmm_(errors.t(), part)
    elif part.device.type == "cuda":
        total += torch.mm(errors.t(), part, out_dtype=total.dtype)
    else:
        total += errors.t().to(total.dtype) @ part.to(total.dtype)

"""Memory of the activations of a micro-batch, in closed form: what each layer keeps for the backward pass (after
Korthikanti et al. 2022, section 4.1, for the layers of `models/`), and the temporary results beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from torch import nn

from models.config import TransformerConfig
from models.elmo.config import ElmoConfig
from models.heads import VocabularyProjection
from models.losses import CHUNK_ELEMENTS
from pipeline.optimizers.base import FLOAT_BYTES
from pipeline.plan.flops import character_columns, stacks_of

_LOGITS = 2
"""Float32 tensors of the size of a chunk of logits: scores and probabilities, which become errors in place. In half
precision the product before them and the errors after them are as large as another one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a micro-batch, each proportional to its samples but the lengths."""

    rows: float
    tokens: float
    """Tokens of the rows that the only stack or the encoder reads; words, with their marks, in an ELMo."""
    length: int
    """Tokens of one of these rows."""
    decoder_tokens: float
    decoder_length: int
    predicted: float
    """Positions that reach the vocabulary projection."""
    read: float
    """Positions that any head reads."""
    words: float
    """Distinct words of an ELMo."""
    windows: int
    """Windows of characters per word and filter of an ELMo, summed over all filters."""
    negatives: int
    """Words of a sampled softmax; 0 for a full one."""
    masked: bool
    """Whether rows hold several pieces, which an attention without variable lengths masks."""
    inputs_bytes: float

    @classmethod
    def of(cls, config: Any, inputs: Mapping[str, np.ndarray], rows: int) -> Self:
        """Sizes of the arguments of a network with this configuration."""
        is_elmo = isinstance(config, ElmoConfig)
        read = inputs.get("words" if is_elmo else "input_ids", np.zeros((0, 0)))
        written = inputs.get("decoder_input_ids", np.zeros((0, 0)))
        predicted = len(inputs["predicted_positions"])
        positions = [len(each) for name, each in inputs.items() if name.endswith("_positions")]
        windows = 0
        if is_elmo:
            columns = character_columns(config, inputs["characters"])
            windows = sum((columns - width + 1) * number for width, number in config.filters)
        return cls(
            rows=rows,
            tokens=read.size,
            length=read.shape[-1],
            decoder_tokens=written.size,
            decoder_length=written.shape[-1],
            predicted=predicted,
            read=max(positions),
            words=len(inputs.get("characters", ())),
            windows=windows,
            negatives=len(inputs.get("negatives", ())),
            masked="cu_seqlens" in inputs,
            inputs_bytes=sum(each.nbytes for each in inputs.values()),
        )

    def scaled(self, rows: int) -> Shape:
        """The sizes of another number of samples."""
        factor = rows / self.rows
        names = ("tokens", "decoder_tokens", "predicted", "read", "words", "inputs_bytes")
        return replace(self, rows=rows, **{name: getattr(self, name) * factor for name in names})


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of a micro-batch, without parameters and their gradients."""

    kept: int
    """Held at the end of the forward pass for the backward pass."""
    working: int
    """Most bytes of temporary results beside those."""

    @property
    def peak(self) -> int:
        """The most at a time."""
        return self.kept + self.working


def activations_of(
    model: nn.Module, shape: Shape, *, item: int, on_cuda: bool, varlen: bool, recomputes: bool
) -> Activations:
    """Memory of a forward and a backward pass.

    Args:
        model: the network that is trained; only its layers and configurations are looked at.
        item: bytes of an activation.
        varlen: whether attention takes pieces of different lengths without a mask.
        recomputes: whether layers are computed again in the backward pass.
    """
    config: Any = model.config
    if isinstance(config, ElmoConfig):
        return _of_elmo(config, shape, item)
    kept = working = 0.0
    for stack, has_memory in stacks_of(model):
        tokens = shape.decoder_tokens if has_memory else shape.tokens
        length = shape.decoder_length if has_memory else shape.length
        one = _layer_bytes(stack.config, shape, length, item, on_cuda, varlen, has_memory) * tokens
        hidden = stack.config.hidden_size * item * tokens
        count = len(stack.layers)
        kept += count * hidden + one if recomputes else count * one
        kept += hidden + stack.config.embedding_width * item * tokens
        working = max(
            working, (2 * stack.config.intermediate_size + 4 * stack.config.hidden_size) * item * tokens
        )
    vocabulary, width = config.require_vocab_size(), config.embedding_width
    for module in model.modules():
        if isinstance(module, VocabularyProjection):
            # Gradients are computed in the forward pass: those of the matrix, and of each prediction.
            kept += FLOAT_BYTES * vocabulary * width
            kept += shape.predicted * (2 * width + 2 * config.hidden_size) * item
    copies = _LOGITS + (1 if item < FLOAT_BYTES else 0)
    logits = copies * FLOAT_BYTES * min(shape.predicted * vocabulary, max(CHUNK_ELEMENTS, vocabulary))
    if isinstance(getattr(model, "teacher", None), nn.Module):
        # Scores of student and teacher, their logarithms and gradients, at all tokens, in chunks.
        logits = 4 * copies * FLOAT_BYTES * min(shape.read * vocabulary, CHUNK_ELEMENTS)
    # The backward pass begins by scaling the gradient of the matrix.
    return Activations(int(kept), int(max(working, logits, FLOAT_BYTES * vocabulary * width)))


def _layer_bytes(
    config: TransformerConfig,
    shape: Shape,
    length: int,
    item: int,
    on_cuda: bool,
    varlen: bool,
    has_memory: bool,
) -> float:
    """Bytes that a layer keeps for each of its tokens.

    The inputs and outputs of attention and feed-forward blocks, sums and normalised sums of the residual stream;
    dropout keeps a mask, and a masked attention the mask as numbers.
    """
    hidden, heads, inner = config.hidden_size, config.attention_size, config.intermediate_size
    mask = 1 if on_cuda else item
    kept = (4 * hidden + 2 * heads + 2 * config.key_value_size) * item
    if config.positions == "rotary":
        kept += (heads + config.key_value_size) * item
    if config.key_value_heads != config.num_heads:
        kept += 2 * heads * item
    kept += (4 * inner if config.gated else inner if config.activation == "relu" else 2 * inner) * item
    kept += FLOAT_BYTES * config.num_heads
    if config.dropout:
        kept += 2 * hidden * mask
    if config.activation_dropout:
        kept += inner * (mask + item)
    if not varlen and (shape.masked or config.positions == "relative_bias"):
        kept += length * item * (config.num_heads if config.positions == "relative_bias" else 1)
    if config.attention_dropout and not on_cuda:
        # Only the plain kernel drops attention weights out on a CPU: it keeps them all, and their mask.
        kept += 3 * length * config.num_heads * item
    if has_memory:
        memory = shape.tokens / max(shape.decoder_tokens, 1)
        kept += (2 * hidden + 2 * heads + 2 * config.key_value_size * memory) * item
        if not varlen and shape.masked:
            kept += shape.length * item
    return kept


def _of_elmo(config: ElmoConfig, shape: Shape, item: int) -> Activations:
    cells, width = config.cell_size, config.projection_size
    layer = 4 * cells + 2 * cells + 4 * width
    kept = 2 * config.num_layers * shape.tokens * layer * item + 2 * shape.tokens * width * item
    kept += shape.words * config.num_filters * (6 + 6 * config.num_highway_layers) * item
    vocabulary = config.require_vocab_size()
    candidates = shape.negatives or vocabulary
    logits = _LOGITS * FLOAT_BYTES * min(shape.predicted * candidates, CHUNK_ELEMENTS)
    kept += 2 * FLOAT_BYTES * vocabulary * width + 4 * shape.predicted * width * item
    working = max(shape.words * shape.windows * 2 * item, logits, FLOAT_BYTES * vocabulary * width)
    working = max(working, (8 * cells + 4 * width) * shape.tokens * item)
    return Activations(int(kept), int(working))

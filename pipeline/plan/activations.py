"""Memory of the activations of a micro-batch, in closed form: what each layer keeps for the backward pass (after
Korthikanti et al. 2022, section 4.1, for the layers of `models/`), and the temporary results beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from models.config import TransformerConfig
from models.elmo.config import ElmoConfig
from models.heads import VocabularyProjection
from models.losses import CHUNK_ELEMENTS
from pipeline.engine.device import DTYPES
from pipeline.optimizers.base import FLOAT_BYTES
from pipeline.plan.flops import character_columns, stacks_of
from pipeline.plan.network import EXAMPLE_ROWS, Network

_LOGITS = 2
"""Float32 tensors of the size of a chunk of logits: scores and probabilities, which become errors in place. In half
precision the product before them and the errors after them are as large as another one."""


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of a micro-batch, without parameters and their gradients."""

    kept: int
    """Held at the end of the forward pass for the backward pass."""
    working: int
    """Most bytes of temporary results beside those."""
    inputs: int


def activations_of(network: Network, rows: int, sequence_length: int, *, recomputes: bool) -> Activations:
    """Memory of a forward and a backward pass of a network in training.

    Args:
        rows: samples of the micro-batch.
        sequence_length: of the phase that they are of.
        recomputes: whether layers are computed again in the backward pass.
    """
    model, inputs, factor = network.model, network.example(sequence_length), rows / EXAMPLE_ROWS
    config: Any = model.config
    item = DTYPES[network.config.precision].itemsize
    on_cuda, varlen = network.on_cuda, network.attention.backend == "varlen"
    inputs_bytes = int(sum(each.nbytes for each in inputs.values()) * factor)
    predicted = len(inputs["predicted_positions"]) * factor
    if isinstance(config, ElmoConfig):
        kept, working = _of_elmo(config, inputs, predicted, factor, item)
        return Activations(int(kept), int(working), inputs_bytes)
    source, masked = inputs["input_ids"], not varlen and "cu_seqlens" in inputs
    kept = working = 0.0
    for stack, has_memory in stacks_of(model):
        own, side = stack.config, inputs["decoder_input_ids"] if has_memory else source
        tokens = side.size * factor
        each = _layer_bytes(own, side.shape[-1], item, on_cuda, masked, varlen)
        if has_memory:
            read = own.key_value_size * source.size / side.size
            each += (2 * own.hidden_size + 2 * own.attention_size + 2 * read) * item
            each += source.shape[-1] * item if masked else 0
        layer, hidden, count = each * tokens, own.hidden_size * item * tokens, len(stack.layers)
        kept += count * hidden + layer if recomputes else count * layer
        kept += hidden + own.embedding_width * item * tokens
        working = max(working, (2 * own.intermediate_size + 4 * own.hidden_size) * item * tokens)
    vocabulary, width = config.require_vocab_size(), config.embedding_width
    for module in model.modules():
        if isinstance(module, VocabularyProjection):
            # Gradients are computed in the forward pass: those of the matrix, and of each prediction.
            kept += FLOAT_BYTES * vocabulary * width
            kept += predicted * (2 * width + 2 * config.hidden_size) * item
    copies = _LOGITS + (1 if item < FLOAT_BYTES else 0)
    logits = copies * FLOAT_BYTES * min(predicted * vocabulary, max(CHUNK_ELEMENTS, vocabulary))
    if isinstance(getattr(model, "teacher", None), nn.Module):
        # Scores of student and teacher, their logarithms and gradients, at all tokens that a head reads, in chunks.
        positions = max(len(array) for name, array in inputs.items() if name.endswith("_positions"))
        logits = 4 * copies * FLOAT_BYTES * min(positions * factor * vocabulary, CHUNK_ELEMENTS)
    # The backward pass begins by scaling the gradient of the matrix.
    return Activations(int(kept), int(max(working, logits, FLOAT_BYTES * vocabulary * width)), inputs_bytes)


def _layer_bytes(
    config: TransformerConfig, length: int, item: int, on_cuda: bool, masked: bool, varlen: bool
) -> float:
    """Bytes that a layer keeps for each of its tokens, without cross-attention.

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
    if config.positions == "relative_bias" and not varlen:
        kept += length * item * config.num_heads
    elif masked:
        kept += length * item
    if config.attention_dropout and not on_cuda:
        # Only the plain kernel drops attention weights out on a CPU: it keeps them all, and their mask.
        kept += 3 * length * config.num_heads * item
    return kept


def _of_elmo(
    config: ElmoConfig, inputs: Mapping[str, np.ndarray], predicted: float, factor: float, item: int
) -> tuple[float, float]:
    """Bytes that are kept, and of temporary results."""
    cells, width, characters = config.cell_size, config.projection_size, inputs["characters"]
    # Distinct words are as frequent in a larger micro-batch.
    tokens, words = inputs["words"].size * factor, len(characters) * factor
    kept = 2 * config.num_layers * tokens * (6 * cells + 4 * width) * item + 2 * tokens * width * item
    kept += words * config.num_filters * (6 + 6 * config.num_highway_layers) * item
    vocabulary = config.require_vocab_size()
    candidates = len(inputs.get("negatives", ())) or vocabulary
    logits = _LOGITS * FLOAT_BYTES * min(predicted * candidates, CHUNK_ELEMENTS)
    kept += 2 * FLOAT_BYTES * vocabulary * width + 4 * predicted * width * item
    columns = character_columns(config, characters)
    windows = sum((columns - size + 1) * number for size, number in config.filters)
    working = max(words * windows * 2 * item, logits, FLOAT_BYTES * vocabulary * width)
    return kept, max(working, (8 * cells + 4 * width) * tokens * item)

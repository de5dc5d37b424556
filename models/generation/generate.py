"""Text generation with a decoder or an encoder-decoder: `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from models.config import TransformerConfig
from models.generation.beam import beam_search
from models.generation.config import GenerationConfig
from models.generation.reader import Reader
from models.generation.sampling import Constraints, Generated, sampler, write_rows
from models.language_models import CausalLanguageModel, SequenceToSequence
from models.stacks import position_limit


@torch.no_grad()
def generate(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    config: GenerationConfig = GenerationConfig(),
    *,
    read_both_ways: bool = False,
) -> Generated:
    """Continue prompts with a decoder, or write the output of an encoder-decoder.

    Greedy search and beam search give the same sequences as transformers' `generate` for the same weights. Here,
    sequences are always filled up with `pad_token_id` (transformers' beam search fills up with the end token if
    `pad_token_id` is 0).

    Args:
        model: a CausalLanguageModel or SequenceToSequence; dropout is off while it writes.
        input_ids: [batch, length] int64 prompts of a decoder, padded on the left, or input of the encoder, padded on
            the right.
        attention_mask: [batch, length] bool or int, true (or 1) at tokens; None if nothing is padded.
        read_both_ways: whether a decoder's prompt is read in both directions, as prefix language models are trained.

    Raises:
        ValueError: the network cannot write, a shape, token or length does not fit it, or its scores are NaN.
    """
    if not isinstance(model, CausalLanguageModel | SequenceToSequence):
        raise ValueError(
            f"a {type(model).__name__} does not write; generate with a network of kind decoder "
            "(CausalLanguageModel) or encoder_decoder (SequenceToSequence)"
        )
    _check_tokens(config, model.config, input_ids)
    mask = _padded(input_ids, attention_mask)
    with _evaluating(model):
        if isinstance(model, CausalLanguageModel):
            prompts = input_ids
            # A learned prefix takes the first positions.
            left = model.config.max_positions - model.decoder.first_position
            constraints = _constraints(config, replace(model.config, max_positions=left), prompts.shape[1])
            padding = None if mask is None else _left_padding(mask)
            lengths = input_ids.new_full((len(input_ids),), input_ids.shape[1])
            lengths = lengths if padding is None else lengths - padding
            both_ways = lengths if read_both_ways else None
            reader = Reader(model, attention_mask=mask, prefix_lengths=both_ways)
        else:
            if read_both_ways:
                raise ValueError("read_both_ways belongs to a decoder; an encoder reads both ways anyway")
            if config.decoder_start_token_id is None:
                raise ValueError(
                    "an encoder_decoder begins with a token: set decoder_start_token_id (the end token in BART, the "
                    "padding token in T5)"
                )
            prompts = input_ids.new_full((len(input_ids), 1), config.decoder_start_token_id)
            constraints = _constraints(config, model.config, prompts.shape[1])
            padding = None
            reader = Reader(model, memory=model.encoder.memory(input_ids, attention_mask=mask))
        if config.num_beams > 1:
            return beam_search(reader, prompts, padding, constraints)
        choose = sampler(config) if config.do_sample else lambda logits, *_: logits.argmax(-1)
        return write_rows(reader, prompts, padding, constraints, choose)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, and restore the mode of every module afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _constraints(config: GenerationConfig, network: TransformerConfig, prompt_length: int) -> Constraints:
    """The lengths of this generation."""
    if config.max_new_tokens is not None:
        name, longest = "max_new_tokens", prompt_length + config.max_new_tokens
    elif config.max_length is not None:
        name, longest = "max_length", config.max_length
    else:
        name, longest = "max_positions", network.max_positions
    limit = position_limit(network)
    if longest <= prompt_length:
        raise ValueError(
            f"{name} is {longest}, but prompts have {prompt_length} tokens already; raise it, set max_new_tokens "
            "instead, or shorten the prompts"
        )
    if limit is not None and longest > limit:
        raise ValueError(
            f"{name} allows sequences of {longest} tokens (prompts have {prompt_length}), but the network has "
            f"max_positions: {limit}; set {name} to at most {limit - prompt_length * (name == 'max_new_tokens')}, "
            "or shorten the prompts"
        )
    constraints = Constraints(config, prompt_length, longest)
    if constraints.min_length > longest:
        least = "min_new_tokens" if constraints.min_length > config.min_length else "min_length"
        raise ValueError(
            f"{least} asks for sequences of {constraints.min_length} tokens, but {name} ends them at {longest}; "
            f"lower {least} or raise {name}"
        )
    return constraints


def _padded(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
    """The mask as bool; None where it hides nothing."""
    if input_ids.dim() != 2 or not input_ids.numel():
        raise ValueError(
            f"input_ids must have shape [batch, length] with a row and a token at least, not {list(input_ids.shape)}"
        )
    if attention_mask is None:
        return None
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask must have the shape of input_ids, {list(input_ids.shape)}, "
            f"not {list(attention_mask.shape)}"
        )
    mask = attention_mask.bool()
    if not mask.any(1).all():
        row = int((~mask.any(1)).nonzero()[0])
        raise ValueError(f"row {row} of attention_mask hides all tokens; give every row one at least")
    return None if mask.all() else mask


def _left_padding(mask: Tensor) -> Tensor:
    """[batch] int64 tokens of padding before each prompt."""
    padding = (~mask).sum(1)
    if not mask[:, -1].all() or (mask[:, 1:] < mask[:, :-1]).any():
        raise ValueError(
            "a decoder continues at the end of its prompts: pad them on the left, so that every row of "
            "attention_mask is 0 ... 0 1 ... 1"
        )
    return padding


def _check_tokens(config: GenerationConfig, network: TransformerConfig, input_ids: Tensor) -> None:
    """All ids are rows of the embedding."""
    size = network.require_vocab_size()
    given = config.token_ids
    if input_ids.numel():
        lowest, highest = int(input_ids.min()), int(input_ids.max())
        given |= {"the lowest of input_ids": lowest, "the highest of input_ids": highest}
    wrong = [f"{name} is {token}" for name, token in given.items() if not 0 <= token < size]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)}, but the network's vocab_size is {size}; use the tokenizer that it was trained with"
        )

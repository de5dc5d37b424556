"""Beam search.

The finished sequences of a text are ranked by log-probability / (written tokens) ** `length_penalty`, and the search of
a text ends when its unfinished ones cannot improve on them (or are thought not to; see `early_stopping`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.generation.reader import Reader, check_numbers
from models.generation.sampling import Constraints, Generated

IMPOSSIBLE = -1e9
"""Score of an empty slot: below all real scores, and finite so that sums and quotients do not become NaN."""


@dataclass
class Hypotheses:
    """Sequences of some texts, the best of each text first."""

    sequences: Tensor
    """[texts, beams, max_length] int64."""
    scores: Tensor
    """[texts, beams] float32."""
    lengths: Tensor
    """[texts, beams] int64 tokens of each; 0 where there is no sequence yet."""

    def select(self, texts: Tensor) -> Hypotheses:
        """The hypotheses of the given texts: numbers, or a bool for each."""
        return Hypotheses(self.sequences[texts], self.scores[texts], self.lengths[texts])

    def best(self, scores: Tensor, count: int) -> tuple[Hypotheses, Tensor]:
        """The `count` best of each text by other scores, [texts, beams], and their former places, [texts, count]."""
        scores, places = scores.topk(count)
        return Hypotheses(_take(self.sequences, places), scores, self.lengths.gather(1, places)), places


def beam_search(
    reader: Reader, prompts: Tensor, padding: Tensor | None, constraints: Constraints
) -> Generated:
    """Continue prompts.

    Args:
        prompts: [texts, prompt length] int64.
        padding: [texts] int64 tokens of padding before the prompts, where there is any.

    Returns:
        The best `num_return_sequences` of the `num_beams` finished sequences of each text, best first. Forced tokens
        count as certain in the scores.
    """
    config = constraints.config
    beams, start = config.num_beams, prompts.shape[1]
    logits = reader.read(prompts).repeat_interleave(beams, 0)
    reader.repeat(beams)
    running, finished = _begin(prompts, constraints)
    result = finished.select(torch.arange(len(prompts), device=prompts.device))
    texts = torch.arange(len(prompts), device=prompts.device)
    for length in range(start, constraints.max_length):
        candidates, parents = _extend(running, logits, padding, constraints, length)
        ended = candidates.lengths > 0
        finished = _collect(finished, candidates, constraints)
        running, places = candidates.best(candidates.scores.masked_fill(ended, IMPOSSIBLE), beams)
        over = _is_over(running, finished, constraints, length + 1)
        if over.any():
            done, found = texts[over], finished.select(over)
            result.sequences[done], result.scores[done] = found.sequences, found.scores
            result.lengths[done] = found.lengths
        first_rows = torch.arange(len(parents), device=parents.device)[:, None] * beams
        reader.reorder((first_rows + parents.gather(1, places)).flatten())
        if over.any():
            kept = (~over).nonzero().flatten()
            if not len(kept):
                break
            reader.keep(kept)
            texts, running, finished = texts[kept], running.select(kept), finished.select(kept)
            padding = None if padding is None else padding[kept]
        logits = reader.read(running.sequences[:, :, length].flatten()[:, None])
    count = config.num_return_sequences
    lengths = result.lengths[:, :count].flatten().clamp_min(start)
    sequences = result.sequences[:, :count].flatten(0, 1)[:, : int(lengths.max())]
    return Generated(sequences, result.scores[:, :count].flatten(), lengths, start)


def _begin(prompts: Tensor, constraints: Constraints) -> tuple[Hypotheses, Hypotheses]:
    """Empty running and finished hypotheses. The beams are equal at first, so only the first one counts."""
    config = constraints.config
    shape = len(prompts), config.num_beams
    sequences = prompts.new_full((*shape, constraints.max_length), config.fill_token_id)
    sequences[:, :, : prompts.shape[1]] = prompts[:, None]
    nothing = torch.full(shape, IMPOSSIBLE, device=prompts.device)
    lengths = prompts.new_zeros(shape)
    first = nothing.clone()
    first[:, 0] = 0.0
    return Hypotheses(sequences, first, lengths), Hypotheses(sequences.clone(), nothing, lengths.clone())


def _extend(
    running: Hypotheses, logits: Tensor, padding: Tensor | None, constraints: Constraints, length: int
) -> tuple[Hypotheses, Tensor]:
    """The 2 * beams best sequences with one token more, so that enough are left when as many as there are beams end;
    `lengths` is set where they end. Also the beams that they continue, [texts, 2 * beams]."""
    eos, (texts, beams) = constraints.config.eos_token_id, running.scores.shape
    padding = None if padding is None else padding.repeat_interleave(beams)
    written = running.sequences[:, :, :length].flatten(0, 1)
    scores = constraints.apply(logits.log_softmax(-1), written, padding)
    vocab_size = scores.shape[1]
    totals = scores.view(texts, beams, vocab_size) + running.scores[:, :, None]
    best, places = totals.flatten(1).topk(2 * beams)
    check_numbers(best)
    parents, tokens = places // vocab_size, places % vocab_size
    sequences = _take(running.sequences, parents)
    sequences[:, :, length] = tokens
    last = length + 1 == constraints.max_length
    ended = torch.full_like(tokens, last, dtype=torch.bool) if eos is None else (tokens == eos) | last
    return Hypotheses(sequences, best, ended * (length + 1)), parents


def _collect(finished: Hypotheses, candidates: Hypotheses, constraints: Constraints) -> Hypotheses:
    """The best finished sequences with those that have just ended among the first of the candidates: one that ends
    with a lower rank would not have survived."""
    beams = finished.scores.shape[1]
    length = candidates.lengths[:, :beams]
    written = (length - constraints.prompt_length).clamp_min(1)
    scores = candidates.scores[:, :beams] / written**constraints.config.length_penalty
    merged = Hypotheses(
        torch.cat([finished.sequences, candidates.sequences[:, :beams]], 1),
        torch.cat([finished.scores, scores.masked_fill(length == 0, IMPOSSIBLE)], 1),
        torch.cat([finished.lengths, length], 1),
    )
    return merged.best(merged.scores, beams)[0]


def _is_over(running: Hypotheses, finished: Hypotheses, constraints: Constraints, length: int) -> Tensor:
    """[texts] bool: nothing better is expected."""
    config, start = constraints.config, constraints.prompt_length
    full = (finished.lengths > 0).all(1)
    longest = config.early_stopping == "never" and config.length_penalty > 0
    written = (constraints.max_length if longest else length) - start
    hoped_for = running.scores[:, 0] / written**config.length_penalty
    over = hoped_for <= finished.scores[:, -1]
    if length == constraints.max_length:
        over = torch.ones_like(over)
    return over | full if config.early_stopping is True else over


def _take(sequences: Tensor, places: Tensor) -> Tensor:
    """[texts, beams, length] at [texts, count] beams: [texts, count, length]."""
    return sequences.gather(1, places[:, :, None].expand(-1, -1, sequences.shape[2]))

"""How probable answers are to a network: the mean log-probability of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data_prep.ragged import Ragged
from pipeline.ask.prompting.networks import LanguageModel
from pipeline.tune.batches import pad_rows


@dataclass(frozen=True, slots=True)
class Question:
    """Places of a sequence, and a token at each whose log-probability is wanted."""

    ids: tuple[int, ...]
    """What the network reads; the encoder's input, in an encoder-decoder."""
    places: tuple[int, ...]
    """Positions in `ids` that predict; in `written`, in an encoder-decoder."""
    targets: tuple[int, ...]
    """A token for each place."""
    written: tuple[int, ...] = ()
    """The decoder's input, in an encoder-decoder."""
    prefix: int = 0
    """Tokens at the beginning that a decoder reads both ways; 0 for none."""


@torch.no_grad()
def log_probabilities(
    network: LanguageModel, questions: Sequence[Question], batch_tokens: int = 8192
) -> list[np.ndarray]:
    """Log-probabilities in nats, float32 [places], of each question. Equal sequences are read once."""
    by_sequence: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for number, question in enumerate(questions):
        key = (question.ids, question.written, (question.prefix,))
        by_sequence.setdefault(key, []).append(number)
    groups = sorted(by_sequence.values(), key=lambda numbers: _length(questions[numbers[0]]))
    found = [np.empty(0, dtype=np.float32)] * len(questions)
    for batch in _batches(groups, questions, batch_tokens):
        rows = [questions[numbers[0]] for numbers in batch]
        asked = [[questions[number] for number in numbers] for numbers in batch]
        places = [(row, place) for row, each in enumerate(asked) for one in each for place in one.places]
        targets = [target for each in asked for one in each for target in one.targets]
        hidden = _READERS[network.kind](network, rows)
        at = torch.tensor(places, device=hidden.device)
        scores = _project(network, hidden[at[:, 0], at[:, 1]]).float().log_softmax(-1)
        values = (
            scores.gather(1, torch.tensor(targets, device=scores.device)[:, None]).squeeze(1).cpu().numpy()
        )
        start = 0
        for number in (number for numbers in batch for number in numbers):
            stop = start + len(questions[number].places)
            found[number] = values[start:stop]
            start = stop
    return found


def _length(question: Question) -> int:
    return len(question.ids) + len(question.written)


def _batches(
    groups: Sequence[list[int]], questions: Sequence[Question], batch_tokens: int
) -> Iterator[list[list[int]]]:
    """Sequences of similar length together."""
    batch: list[list[int]] = []
    for numbers in groups:
        if batch and (len(batch) + 1) * _length(questions[numbers[0]]) > batch_tokens:
            yield batch
            batch = []
        batch.append(numbers)
    if batch:
        yield batch


def _padded(network: LanguageModel, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """int64 [rows, longest] ids and their mask, padded on the right."""
    ragged = Ragged.of([np.array(row, dtype=np.int64) for row in rows])
    padded = pad_rows(ragged, np.arange(len(rows)), network.tokenizer.special["pad"])
    ids, mask = (torch.from_numpy(each).to(network.device) for each in padded)
    return ids, mask


def _encoded(network: LanguageModel, rows: Sequence[Question]) -> Tensor:
    ids, mask = _padded(network, [row.ids for row in rows])
    return network.model.encoder(ids, attention_mask=mask)


def _from_the_left(network: LanguageModel, rows: Sequence[Question]) -> Tensor:
    ids, mask = _padded(network, [row.ids for row in rows])
    prefixes = torch.tensor([row.prefix for row in rows], device=ids.device) if rows[0].prefix else None
    hidden = network.model.decoder(ids, attention_mask=mask, prefix_lengths=prefixes)
    return hidden * network.model.logit_scale


def _written(network: LanguageModel, rows: Sequence[Question]) -> Tensor:
    ids, mask = _padded(network, [row.ids for row in rows])
    # What follows the last place is padding, which no place before it sees.
    written, _ = _padded(network, [row.written for row in rows])
    return network.model.decode(written, network.model.encode(ids, mask))


def _project(network: LanguageModel, hidden: Tensor) -> Tensor:
    model = network.model
    if network.kind == "encoder_decoder":
        return model.project(hidden)
    stack = model.encoder if network.kind == "masked" else model.decoder
    return model.head(hidden, stack.embeddings.token_weight)


_READERS: Mapping[str, Callable[[LanguageModel, Sequence[Question]], Tensor]] = {
    "masked": _encoded,
    "left_to_right": _from_the_left,
    "encoder_decoder": _written,
}
"""By kind of prediction: questions to [rows, length, hidden]."""

"""The prompt of an example, as questions about the tokens of each answer, and their log-probabilities to a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cluster.artefacts.errors import ConfigError, MismatchError
from data_prep.ragged import Ragged
from models.language_models import MaskedLanguageModel, SequenceToSequence
from pipeline.ask.config import Scoring
from pipeline.ask.prompting.networks import LanguageModel
from pipeline.tasks.forms import Example
from pipeline.tasks.tokenizer import generation_format
from pipeline.tune.encoding import batches_of, pad_rows

_PLACE = re.compile(r"\[([xyz])\]")
LEAST_ROOM = 8
"""Tokens that demonstrations must leave for a text."""
Texts = tuple[str, str | None]
"""The text of an example, and the second one of a pair."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with `[x]` for the text of an example, `[y]` for the second text of a pair, and `[z]` for the answer
    (Schick and Schütze 2021, section 3.1; Petroni et al. 2019)."""

    text: str

    def __post_init__(self) -> None:
        places = _PLACE.findall(self.text)
        if missing := [f"[{place}]" for place in "xz" if place not in places]:
            raise ConfigError(
                f"The template {self.text!r} has no {' and no '.join(missing)}.",
                next_step='write [x] where the text stands and [z] where the answer does: "[x] It was [z]."',
            )
        if repeated := [f"[{place}]" for place in "yz" if places.count(place) > 1]:
            raise ConfigError(
                f"The template {self.text!r} has {' and '.join(repeated)} more than once.",
                next_step="leave it in one place",
            )

    @property
    def has_pair(self) -> bool:
        """Whether there is a place for a second text."""
        return "[y]" in self.text

    @property
    def ends_with_answer(self) -> bool:
        """Whether no text of the example follows the answer."""
        after = self.text.partition("[z]")[2]
        return not _PLACE.search(after)

    def check_task(self, is_pair: bool) -> None:
        """
        Raises:
            ConfigError: the template has a place too many, or too few, for the texts of a task.
        """
        found, remedy = "no [y]", 'write [y] where the second text stands: "[x] ? [z], [y]"'
        if self.has_pair:
            found, remedy = "[y]", "leave out [y]"
        if self.has_pair != is_pair:
            texts = "pairs of texts" if is_pair else "single texts"
            raise ConfigError(
                f"The template {self.text!r} has {found}, and the task has {texts}.", next_step=remedy
            )

    def halves(self, first: str, second: str | None) -> tuple[str, str]:
        """The text before the answer and the text after it."""
        given = {"x": first.strip(), "y": (second or "").strip()}
        before, _, after = self.text.partition("[z]")
        # A text may itself contain `[y]`: places are filled in one pass.
        fill = lambda half: _PLACE.sub(lambda match: given[match[1]], half)  # noqa: E731
        return fill(before), fill(after)

    def answered(self, example: Example, answer: str) -> str:
        """An example with its answer, as a demonstration."""
        before, after = self.halves(example.text_a, example.text_b)
        return f"{before}{answer}{after}"


@dataclass(frozen=True, slots=True)
class Question:
    """Places of a sequence, and a token at each whose log-probability is wanted."""

    ids: tuple[int, ...]
    """Input of the network; of the encoder, in an encoder-decoder."""
    places: tuple[int, ...]
    """Positions in `ids` that predict; in `written`, in an encoder-decoder."""
    targets: tuple[int, ...]
    """A token for each place."""
    written: tuple[int, ...] = ()
    """The decoder's input, in an encoder-decoder."""
    prefix: int = 0
    """Tokens at the beginning that a decoder reads both ways; 0 for none."""


@dataclass(frozen=True)
class Prompter:
    """A template with its answers and demonstrations, for a network."""

    network: LanguageModel
    template: Template
    answers: tuple[str, ...]
    """Per label."""
    demonstrations: str = ""
    """Text before the template, with a separator at its end."""
    scoring: Scoring = "left_to_right"
    max_length: int = 512

    def __post_init__(self) -> None:
        if self.network.kind != "masked" and not self.template.ends_with_answer:
            raise ConfigError(
                f"The template {self.template.text!r} has text after [z], which {self.network.reference}, reading"
                " from the left, would not see.",
                next_step='let the template end with the answer: "[x] It was [z]"',
            )
        if self._length("", "") + LEAST_ROOM > self.max_length:
            raise MismatchError(
                f"The template and its demonstrations have {self._length('', '')} tokens, and the prompt may have"
                f" {self.max_length}.",
                next_step="lower --shots (--shots 0 leaves out all demonstrations), or shorten the template",
            )
        self._check_answers()

    def scores(self, texts: Sequence[Texts], batch_tokens: int) -> np.ndarray:
        """float32 [texts, labels]: the mean log-probability of each answer's tokens, in nats."""
        fitted = [self.fitted(*each) for each in texts]
        asked = [self.questions(*each, label) for each in fitted for label in range(len(self.answers))]
        found = iter(log_probabilities(self.network, [one for each in asked for one in each], batch_tokens))
        means = [np.concatenate([next(found) for _ in each]).mean() for each in asked]
        return np.array(means, dtype=np.float32).reshape(len(texts), len(self.answers))

    def questions(self, first: str, second: str | None, label: int) -> list[Question]:
        """Token sequences to ask for an answer; together a place for each of its tokens."""
        return _ASKED[self.network.kind](self, first, second, label)

    def answer_ids(self, label: int) -> list[int]:
        """The tokens of an answer, with the space before it where the template has one. An encoder-decoder begins its
        text with the answer."""
        before = self.template.halves("", "")[0]
        spaced = self.network.kind != "encoder_decoder" and before.endswith(" ")
        return self.network.tokenizer.encode(" " * spaced + self.answers[label].strip()).ids

    def fitted(self, first: str, second: str | None) -> Texts:
        """The texts, cut at their ends until the prompt has `max_length` tokens: always the longer one."""
        while (excess := self._length(first, second) - self.max_length) > 0:
            tokens = [self.network.tokenizer.encode(text or "") for text in (first, second)]
            longer = int(len(tokens[1].ids) > len(tokens[0].ids))
            # Whole words are cut where a cut word has more tokens than before.
            kept = len(tokens[longer].ids) - excess
            text = (second or "") if longer else first
            cut = text[: tokens[longer].offsets[kept - 1][1]] if kept > 0 else ""
            shorter = cut if len(cut) < len(text) else text[:-1]
            first, second = (first, shorter) if longer else (shorter, second)
        return first, second

    def halves(self, first: str, second: str | None) -> tuple[str, str]:
        """The prompt before the answer and after it."""
        before, after = self.template.halves(first, second)
        return self.demonstrations + before, after

    def _length(self, first: str, second: str | None) -> int:
        longest = 0
        for label in range(len(self.answers)):
            question = self.questions(first, second, label)[-1]
            longest = max(longest, len(question.ids), len(question.written))
        return longest

    def _check_answers(self) -> None:
        unknown = self.network.tokenizer.special.get("unk")
        found: dict[tuple[int, ...], str] = {}
        for label, answer in enumerate(self.answers):
            ids = tuple(self.answer_ids(label))
            if not ids or (unknown in ids and unknown != self.network.tokenizer.special["eos"]):
                raise ConfigError(
                    f"The tokenizer of {self.network.reference} does not know the answer {answer!r}.",
                    next_step="choose a word of its vocabulary: cloze tokenizer encode",
                )
            if ids in found:
                raise ConfigError(
                    f"The answers {found[ids]!r} and {answer!r} are the same tokens.",
                    next_step="choose other words",
                )
            found[ids] = answer


def _ask_masked(prompter: Prompter, first: str, second: str | None, label: int) -> list[Question]:
    network, tokenizer = prompter.network, prompter.network.tokenizer
    around = network.around()
    before, after = prompter.halves(first, second)
    before, targets = tokenizer.before_mask(before), prompter.answer_ids(label)
    masks = tokenizer.mask * len(targets)
    found = tokenizer.encode(before + masks + after)
    start, stop = len(before), len(before) + len(masks)
    places = [
        len(around.first) + number
        for number, (token, span) in enumerate(zip(found.ids, found.offsets, strict=True))
        if token == tokenizer.mask_id and span[0] < stop and span[1] > start
    ]
    assert len(places) == len(targets), "every mask is a token"
    ids = [*around.first, *found.ids, *around.last]
    if prompter.scoring == "joint" or len(targets) == 1:
        return [Question(tuple(ids), tuple(places), tuple(targets))]
    asked = []
    for place, target in zip(places, targets, strict=True):
        asked.append(Question(tuple(ids), (place,), (target,)))
        ids[place] = target
    return asked


def _ask_from_the_left(prompter: Prompter, first: str, second: str | None, label: int) -> list[Question]:
    network, tokenizer = prompter.network, prompter.network.tokenizer
    before = tokenizer.before_mask(prompter.halves(first, second)[0])
    prompt = network.read(before) or [tokenizer.special["bos"]]
    targets = prompter.answer_ids(label)
    places = range(len(prompt) - 1, len(prompt) + len(targets) - 1)
    prefix = len(prompt) if network.reads_both_ways else 0
    return [Question((*prompt, *targets[:-1]), tuple(places), tuple(targets), prefix=prefix)]


def _ask_encoder_decoder(prompter: Prompter, first: str, second: str | None, label: int) -> list[Question]:
    network, targets = prompter.network, prompter.answer_ids(label)
    source = network.read(prompter.halves(first, second)[0].rstrip())
    layout = generation_format(network.config, network.tokenizer, None)
    begins = [layout.start, *layout.target.first]
    places = range(len(begins) - 1, len(begins) + len(targets) - 1)
    return [Question(tuple(source), tuple(places), tuple(targets), written=(*begins, *targets[:-1]))]


_ASKED: Mapping[str, Callable[[Prompter, str, str | None, int], list[Question]]] = {
    "masked": _ask_masked,
    "left_to_right": _ask_from_the_left,
    "encoder_decoder": _ask_encoder_decoder,
}
"""By kind of prediction."""


@torch.no_grad()
def log_probabilities(
    network: LanguageModel, questions: Sequence[Question], batch_tokens: int = 8192
) -> list[np.ndarray]:
    """Log-probabilities in nats, float32 [places], of each question. Equal sequences are read once."""
    by_sequence: dict[tuple[tuple[int, ...], tuple[int, ...], int], list[int]] = {}
    for number, question in enumerate(questions):
        by_sequence.setdefault((question.ids, question.written, question.prefix), []).append(number)
    lengths = {key: len(key[0]) + len(key[1]) for key in by_sequence}
    found = [np.empty(0, dtype=np.float32)] * len(questions)
    for batch in batches_of(sorted(by_sequence, key=lengths.__getitem__), lengths.__getitem__, batch_tokens):
        asked = [(row, number) for row, key in enumerate(batch) for number in by_sequence[key]]
        places = [(row, place) for row, number in asked for place in questions[number].places]
        targets = [target for _, number in asked for target in questions[number].targets]
        hidden = _hidden(network, [questions[by_sequence[key][0]] for key in batch])
        rows, columns = torch.tensor(places, device=hidden.device).T
        scores = network.model.project(hidden[rows, columns]).float().log_softmax(-1)
        values = scores.gather(1, torch.tensor(targets, device=scores.device)[:, None]).squeeze(1)
        parts = values.cpu().split([len(questions[number].places) for _, number in asked])
        for (_, number), part in zip(asked, parts, strict=True):
            found[number] = part.numpy()
    return found


def _padded(network: LanguageModel, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """int64 [rows, longest] ids and their mask, padded on the right."""
    ragged = Ragged.of([np.array(row, dtype=np.int64) for row in rows])
    padded = pad_rows(ragged, np.arange(len(rows)), network.tokenizer.special["pad"])
    ids, mask = (torch.from_numpy(each).to(network.device) for each in padded)
    return ids, mask


def _hidden(network: LanguageModel, rows: Sequence[Question]) -> Tensor:
    """[rows, length, hidden] of the stack that predicts."""
    model = network.model
    ids, mask = _padded(network, [row.ids for row in rows])
    if isinstance(model, SequenceToSequence):
        # After the last place there is only padding, which no earlier place sees.
        written, _ = _padded(network, [row.written for row in rows])
        return model.decoder(written, memory=model.encoder.memory(ids, attention_mask=mask))
    if isinstance(model, MaskedLanguageModel):
        return model.encoder(ids, attention_mask=mask)
    prefixes = torch.tensor([row.prefix for row in rows], device=ids.device) if rows[0].prefix else None
    return model.decoder(ids, attention_mask=mask, prefix_lengths=prefixes)

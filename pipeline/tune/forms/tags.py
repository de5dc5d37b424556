"""Tagging: a label for every word of a sentence, predicted at one of its tokens (Devlin et al. 2019, section 5.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_prep.ragged import Ragged
from models.classifiers import TokenClassifier
from models.config import ElmoConfig, NetworkConfig
from models.elmo.encoder import read_sentences
from models.elmo.representations import ElmoTagger
from models.features import FeatureTagger
from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.forms import TaggedSentence
from pipeline.tasks.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.encoding import EncodedRows
from pipeline.tune.forms.base import (
    STACK_PARTS,
    Metrics,
    PaddedBatch,
    PreparedTask,
    Scorer,
    TaskContext,
)
from pipeline.tune.forms.classification import token_reader

ABSENT = -1
"""The position of a word without a token in its sequence, because it was cut or has no characters to read."""
_IGNORED = -100
"""The label that F.cross_entropy leaves out."""


@dataclass(frozen=True, slots=True)
class EncodedSentences(EncodedRows):
    """Sentences with the place and the label of each word; for ELMo, the ids are zeros for its words."""

    words: tuple[tuple[str, ...], ...]
    """Per sentence the words that are read."""
    positions: Ragged
    """Per sentence and word the position of its token in the sequence, int64; ABSENT where there is none."""
    labels: Ragged
    """Per sentence and word the index of its label, int64; -100 for a tag that is no label."""

    segment_ids = None

    @property
    def predictions(self) -> np.ndarray:
        """int64 [sentences]: words that a label is learnt for."""
        before = np.cumsum(np.concatenate([[0], self.positions.values != ABSENT]))
        return np.diff(before[self.positions.offsets])

    @property
    def longest(self) -> int:
        """Words of the longest sentence."""
        return int(self.labels.lengths.max())


Tokens = list[tuple[np.ndarray, np.ndarray]]
"""Per sentence its token ids, special tokens included, and the position of each word's token, ABSENT where there is
none; both int64."""
Read = Callable[[EncodedSentences, np.ndarray], dict[str, Tensor]]
"""(sentences, int64 indices of the sentences in a batch) to the arguments of a network."""


def _encode_tokens(context: TaskContext, sentences: Sequence[TaggedSentence]) -> Tokens:
    """Words as tokens; the label is at the first one, as in BERT, or at a decoder's last one, which has read the
    word."""
    sequences = sequence_format(context.network, context.tokenizer)
    side = "last" if context.network.network == "decoder" else "first"
    found = context.tokenizer.ids_with_offsets([" ".join(sentence.words) for sentence in sentences])
    rows = []
    for sentence, (ids, offsets) in zip(sentences, found, strict=True):
        tokens = word_tokens(sentence.words, offsets, side)
        kept = min(len(ids), context.settings.max_length - sequences.specials_of_single)
        row = np.array([*sequences.first, *ids[:kept].tolist(), *sequences.last], dtype=np.int64)
        inside = (tokens != ABSENT) & (tokens < kept)
        rows.append((row, np.where(inside, tokens + len(sequences.first), ABSENT)))
    return rows


def _encode_words(context: TaskContext, sentences: Sequence[TaggedSentence]) -> Tokens:
    """Words as they are, one position each, as ELMo reads them."""
    longest = context.settings.max_length
    numbers = [np.arange(len(sentence.words)) for sentence in sentences]
    return [
        (np.zeros(min(len(number), longest), dtype=np.int64), np.where(number < longest, number, ABSENT))
        for number in numbers
    ]


def _word_reader(network: NetworkConfig, tokenizer: TextTokenizer) -> Read:
    """Words by their characters."""
    assert isinstance(network, ElmoConfig), "only ELMo reads characters"

    def read(part: EncodedSentences, rows: np.ndarray) -> dict[str, Tensor]:
        sentences = [part.words[row][: len(part.input_ids[row])] for row in rows]
        return read_sentences(sentences, network.max_characters)._asdict()

    return read


TAGGERS: Mapping[str, Scorer] = MappingProxyType(
    {
        "encoder": Scorer(TokenClassifier, STACK_PARTS["encoder"]),
        "decoder": Scorer(TokenClassifier, STACK_PARTS["decoder"]),
        "elmo": Scorer(ElmoTagger, STACK_PARTS["elmo"], ElmoTagger.penalty),
    }
)
"""By kind of network, which gives [batch, length, labels] logits."""


class TagsTask(PreparedTask):
    """A task of tagging with its encoded sentences."""

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        data, is_elmo = context.data, context.network.network == "elmo"
        tokens_of = _encode_words if is_elmo else _encode_tokens
        numbers = {label: number for number, label in enumerate(data.labels)}

        def encode(sentences: Sequence[TaggedSentence]) -> EncodedSentences:
            rows, positions = zip(*tokens_of(context, sentences), strict=True)
            # Tags that only the evaluation has are no labels: whatever is predicted for them is wrong.
            labels = [[numbers.get(tag, _IGNORED) for tag in each.tags] for each in sentences]
            return EncodedSentences(
                input_ids=Ragged.of(rows),
                words=tuple(sentence.words for sentence in sentences),
                positions=Ragged.of(positions),
                labels=Ragged.of([np.array(each, dtype=np.int64) for each in labels]),
            )

        self.train, self.evaluation = encode(data.train), encode(data.evaluation)
        reader = _word_reader if is_elmo else token_reader
        self.read = reader(context.network, context.tokenizer)
        scorer = TAGGERS[context.network.network]
        self.scorer = scorer.on(FeatureTagger, context.network, context.settings.features)
        self.parts = self.scorer.parts
        if unknown := {tag for each in self.examples for tag in each.tags}.difference(self.labels):
            named = ", ".join(sorted(unknown))
            self.notes = (f"no training example has {named} of the evaluation, which count as missed",)

    def build(self) -> nn.Module:
        return self.scorer.build(self.network, len(self.labels))

    def batch(self, part: EncodedSentences, rows: np.ndarray) -> PaddedBatch:
        """Sequences with the positions and labels of their words, padded to the longest sentence of all."""
        shape = (len(rows), part.longest)
        positions, labels = np.full(shape, ABSENT), np.full(shape, _IGNORED)
        for number, row in enumerate(rows):
            places = part.positions[row]
            positions[number, : len(places)] = places
            labels[number, : len(places)] = np.where(places == ABSENT, _IGNORED, part.labels[row])
        targets = {"positions": torch.from_numpy(positions), "labels": torch.from_numpy(labels)}
        return PaddedBatch(self.read(part, rows), targets)

    def logits(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 [batch, longest, labels] scores at the words' positions."""
        logits = model(**batch.inputs).float()
        places = batch.targets["positions"].clamp(min=0).unsqueeze(-1).expand(-1, -1, logits.shape[-1])
        return logits.gather(1, places)

    def loss_of(self, model: nn.Module, logits: Tensor, batch: PaddedBatch) -> Tensor:
        """Cross-entropy of the words' labels, with the network's penalty."""
        labels = batch.targets["labels"].flatten()
        loss = F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum", ignore_index=_IGNORED)
        return self.scorer.penalised(loss, model, (labels != _IGNORED).sum())

    def comparable(self, logits: Tensor, batch: PaddedBatch) -> tuple[Tensor, Tensor]:
        """A distribution for each word that has a token."""
        present = (batch.targets["labels"] != _IGNORED).flatten()
        return logits.flatten(0, 1), present.float()

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """int64 [batch, longest]: the index of each word's label; ABSENT for words without a token."""
        best = self.logits(model, batch).argmax(-1)
        return best.masked_fill(batch.targets["positions"] == ABSENT, ABSENT)

    def measure(self, outputs: np.ndarray) -> Metrics:
        return self.config.measure(self.examples, self.tags(outputs))

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, words, right and predicted tags."""
        lines = [
            {"id": each.id, "words": each.words, "tags": each.tags, "predictions": predicted}
            for each, predicted in zip(self.examples, self.tags(outputs), strict=True)
        ]
        return {"predictions.jsonl": json_lines(lines)}

    def tags(self, outputs: np.ndarray) -> list[list[str]]:
        """Per sentence a tag for every word; words that were cut get `config.outside`."""
        outside = self.config.outside if self.config.outside in self.labels else self.labels[0]
        return [
            [
                outside if number == ABSENT else self.labels[number]
                for number in row[: len(sentence.words)].tolist()
            ]
            for sentence, row in zip(self.examples, outputs, strict=True)
        ]


def word_tokens(words: Sequence[str], offsets: np.ndarray, side: str) -> np.ndarray:
    """int64 [words]: the first or the last token of each word, by the `side`; ABSENT where a word has none.

    Args:
        offsets: int64 [tokens, 2], characters of the words joined by spaces; a token may begin with the space.
    """
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[: len(words)]
    found = np.full(len(words), ABSENT, dtype=np.int64)
    # A token belongs to the word of its last character; one without characters belongs to no word.
    tokens = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    owner = np.searchsorted(starts, offsets[tokens, 1] - 1, "right") - 1
    order = slice(None, None, -1) if side == "first" else slice(None)
    # The last of several assignments to one place counts.
    found[owner[order]] = tokens[order]
    return found

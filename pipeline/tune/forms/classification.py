"""Classification: a label for a text or a pair of texts; with regression, a number. And multiple choice: every choice
is read with its question, and the best scored one is taken (Devlin et al. 2019, section 4.4; Radford et al. 2018,
section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cluster.artefacts.errors import MismatchError
from data_prep.tokenizers.word_lexicon import Lexicon
from models.classifiers import ChoiceClassifier, SequenceClassifier
from models.config import ElmoConfig, NetworkConfig
from models.elmo.encoder import read_sentences
from models.elmo.representations import ElmoClassifier
from models.features import FeatureClassifier
from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.forms import Choices, Example
from pipeline.tasks.tokenizer import TextTokenizer, sequence_format, starts_with_padding
from pipeline.tune.encoding import EncodedExamples, encode_examples, pad_rows
from pipeline.tune.forms.base import (
    EVALUATION_BATCH_SIZE,
    STACK_PARTS,
    NetworkPart,
    PaddedBatch,
    PreparedTask,
    Scorer,
    TaskContext,
    excerpt,
)

Read = Callable[[Any, np.ndarray], dict[str, Tensor]]
"""(encoded rows, int64 indices of the rows in a batch) to the arguments of a network."""


def token_reader(network: NetworkConfig, tokenizer: TextTokenizer) -> Read:
    """Rows of token ids, padded; also the ids that a decoder reads if it starts with padding."""
    pad_id = tokenizer.pad_id
    decoder_start = network.network == "encoder_decoder" and starts_with_padding(network)

    def read(part: Any, rows: np.ndarray) -> dict[str, Tensor]:
        input_ids, present = pad_rows(part.input_ids, rows, pad_id)
        arrays = {"input_ids": input_ids, "attention_mask": present}
        if part.segment_ids is not None:
            arrays["segment_ids"] = pad_rows(part.segment_ids, rows, 0)[0]
        if decoder_start:
            arrays["decoder_input_ids"] = np.insert(input_ids[:, :-1], 0, pad_id, axis=1)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    return read


def word_reader(network: NetworkConfig, tokenizer: TextTokenizer) -> Read:
    """Words by their characters, as ELMo reads them.

    Raises:
        MismatchError: the tokenizer is not a word lexicon.
    """
    assert isinstance(network, ElmoConfig), "only ELMo reads characters"
    try:
        lexicon = Lexicon.read(tokenizer.path.read_text(encoding="utf-8"))
    except (ValueError, KeyError):
        raise MismatchError(
            f"ELMo reads words, but the tokenizer {tokenizer.path} is no word lexicon.",
            next_step="start from the tokenizer that the network was trained with",
        ) from None

    def read(part: EncodedExamples, rows: np.ndarray) -> dict[str, Tensor]:
        sentences = [lexicon.words(part.input_ids[row]) for row in rows]
        return read_sentences(sentences, network.max_characters)._asdict()

    return read


CLASSIFIERS: Mapping[str, Scorer] = MappingProxyType(
    {
        "encoder": Scorer(
            SequenceClassifier,
            # BERT's classifier starts from the pooler of next-sentence prediction, where there was one.
            (*STACK_PARTS["encoder"], NetworkPart("head.dense.", ("pair_head.pooler.",), required=False)),
        ),
        "decoder": Scorer(SequenceClassifier, STACK_PARTS["decoder"]),
        "encoder_decoder": Scorer(SequenceClassifier, STACK_PARTS["encoder_decoder"]),
        "elmo": Scorer(ElmoClassifier, STACK_PARTS["elmo"], ElmoClassifier.penalty),
    }
)
"""By kind of network, whose [batch, labels] logits are scores of labels."""


class ClassificationTask(PreparedTask):
    """A task of classification with its encoded examples."""

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        data, sequences = context.data, sequence_format(context.network, context.tokenizer)
        scorer = CLASSIFIERS[context.network.network]
        label_type, length = np.float32 if self.config.regression else np.int64, context.settings.max_length

        def encode(examples: Sequence[Example]) -> EncodedExamples:
            return encode_examples(context.tokenizer, sequences, examples, length, label_type)

        self.train, self.evaluation = encode(data.train), encode(data.evaluation)
        self.test = encode(data.test) if data.test else None
        reader = word_reader if context.network.network == "elmo" else token_reader
        self.read = reader(context.network, context.tokenizer)
        self.scorer = scorer.on(FeatureClassifier, context.network, context.settings.features)
        self.parts = self.scorer.parts
        labels = self.train.labels
        if not self.config.regression and len(labels) >= 3 and len(np.unique(labels)) == len(labels):
            self.notes = (
                f"each of the {len(labels):,} training examples has a label of its own, from which nothing can be"
                " learned about others; name the column of labels (columns.label), if this one holds ids",
            )

    def build(self) -> nn.Module:
        return self.scorer.build(self.network, max(1, len(self.labels)))

    def batch(self, part: EncodedExamples, rows: np.ndarray) -> PaddedBatch:
        """Sequences with their labels."""
        return PaddedBatch(self.read(part, rows), {"labels": torch.from_numpy(part.labels[rows])})

    def logits(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 [batch, labels] scores; [batch, 1] numbers in a regression."""
        return model(**batch.inputs).float()

    def loss_of(self, model: nn.Module, logits: Tensor, batch: PaddedBatch) -> Tensor:
        """Cross-entropy of the labels, or squared error of the numbers, with the network's penalty."""
        labels = batch.targets["labels"]
        if self.config.regression:
            loss = F.mse_loss(logits.squeeze(-1), labels, reduction="sum")
        else:
            loss = F.cross_entropy(logits, labels, reduction="sum")
        return self.scorer.penalised(loss, model, len(labels))

    def comparable(self, logits: Tensor, batch: PaddedBatch) -> tuple[Tensor, Tensor]:
        """A distribution for each text."""
        return logits, logits.new_ones(len(logits))

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        return self.logits(model, batch)

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, names of the right and of the predicted label, and the score of every label; in a regression,
        id and both numbers. All with the group, where there is one, and with excerpts of the texts."""
        lines = []
        for example, scores in zip(self.examples, outputs, strict=True):
            if self.config.regression:
                found = {"label": example.label, "prediction": float(scores[0])}
            else:
                right, predicted = (self.labels[int(number)] for number in (example.label, scores.argmax()))
                found = {"label": right, "prediction": predicted, "logits": scores.tolist()}
            texts = {
                "group": example.group,
                "text": excerpt(example.text_a),
                "text_b": excerpt(example.text_b or ""),
            }
            shown = {name: text for name, text in texts.items() if text}
            lines.append({"id": example.id, **found, **shown})
        return {"predictions.jsonl": json_lines(lines)}


@dataclass(frozen=True, slots=True)
class EncodedChoices(EncodedExamples):
    """Questions with their choices: ids and segments are of all choices of all questions, in order, each with its
    question; labels are the indices of the right choices."""

    first: np.ndarray
    """int64 [questions + 1]: choices of question `i` are the texts from `first[i]` up to `first[i + 1]` (exclusive)."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [questions]: tokens of the longest choice of each."""
        return np.maximum.reduceat(self.input_ids.lengths, self.first[:-1])

    @property
    def most_choices(self) -> int:
        """Choices of the question that has most."""
        return int(np.diff(self.first).max())


class ChoicesTask(PreparedTask):
    """A task of multiple choice with its encoded examples."""

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        data, sequences = context.data, sequence_format(context.network, context.tokenizer)

        def encode(examples: Sequence[Choices]) -> EncodedChoices:
            texts = [Example(each.id, *pair, 0) for each in examples for pair in each.pairs]
            # No choice gets more tokens with its question.
            rows = encode_examples(context.tokenizer, sequences, texts, context.settings.max_length)
            return EncodedChoices(
                rows.input_ids,
                rows.segment_ids,
                np.array([each.label for each in examples], dtype=np.int64),
                np.cumsum([0, *(len(each.pairs) for each in examples)], dtype=np.int64),
            )

        self.train, self.evaluation = encode(data.train), encode(data.evaluation)
        self.test = encode(data.test) if data.test else None
        self.read = token_reader(context.network, context.tokenizer)
        # The tensors have the names of a classifier with one label.
        self.parts = CLASSIFIERS[context.network.network].parts
        scored = (self.evaluation, *([self.test] if self.test else ()))
        # Fewer rows, because each has several sequences.
        self.evaluation_batch_size = max(
            1, EVALUATION_BATCH_SIZE // max(part.most_choices for part in scored)
        )

    def build(self) -> nn.Module:
        return ChoiceClassifier(self.network)

    def batch(self, part: EncodedChoices, rows: np.ndarray) -> PaddedBatch:
        """[batch, choices, length] texts; where a question has fewer choices than others, its first one is repeated."""
        width = part.most_choices
        first, count = part.first[rows], np.diff(part.first)[rows]
        present = np.arange(width) < count[:, None]
        texts = first[:, None] + np.where(present, np.arange(width), 0)
        inputs = self.read(part, texts.flatten())
        shaped = {name: tensor.view(len(rows), width, -1) for name, tensor in inputs.items()}
        targets = {"labels": torch.from_numpy(part.labels[rows]), "present": torch.from_numpy(present)}
        return PaddedBatch(shaped, targets)

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """Cross-entropy of the right choices."""
        return F.cross_entropy(self.outputs(model, batch), batch.targets["labels"], reduction="sum")

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 [batch, most choices] scores; -inf where a question has fewer choices."""
        return model(**batch.inputs).float().masked_fill(~batch.targets["present"], float("-inf"))

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, indices of the right and of the chosen choice, the score of each choice, and excerpts of the
        texts."""
        lines = [
            {
                "id": example.id,
                "label": example.label,
                "prediction": int(scores.argmax()),
                "scores": scores[: len(example.pairs)].tolist(),
                "text": excerpt(example.pairs[0][0]),
                "choices": [excerpt(second) for _, second in example.pairs],
            }
            for example, scores in zip(self.examples, outputs, strict=True)
        ]
        return {"predictions.jsonl": json_lines(lines)}

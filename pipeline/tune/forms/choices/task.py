"""Multiple choice: every choice is read with its question, and the best scored one is taken (Devlin et al. 2019,
section 4.4; Radford et al. 2018, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.classifiers import ChoiceClassifier
from models.config import TransformerConfig
from pipeline.tune.encoding import EncodedExamples, encode_examples
from pipeline.tune.files.lines import json_lines
from pipeline.tune.forms.base import (
    EVALUATION_BATCH_SIZE,
    Metrics,
    PaddedBatch,
    Part,
    TaskContext,
    excerpt,
)
from pipeline.tune.forms.choices.settings import Choices, ChoicesTaskConfig
from pipeline.tune.forms.classification.settings import Example
from pipeline.tune.forms.classification.task import CLASSIFIERS, Read, token_reader
from pipeline.tune.tokenizer import SequenceFormat, TextTokenizer, sequence_format


@dataclass(frozen=True, slots=True)
class EncodedChoices:
    """Questions with their choices."""

    texts: EncodedExamples
    """All choices of all questions, in order, each with its question; labels without a meaning."""
    first: np.ndarray
    """int64 [questions + 1]: choices of question `i` are the texts from `first[i]` up to `first[i + 1]` (exclusive)."""
    labels: np.ndarray
    """int64 [questions]: the number of the right choice."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [questions]: tokens of the longest choice of each."""
        return np.maximum.reduceat(self.texts.lengths, self.first[:-1])

    @property
    def predictions(self) -> np.ndarray:
        """int64 [questions]: one choice each."""
        return np.ones(len(self), dtype=np.int64)

    @property
    def most_choices(self) -> int:
        """Choices of the question that has most."""
        return int(np.diff(self.first).max())


@dataclass(frozen=True, slots=True)
class ChoicesTask:
    """A task of multiple choice with its encoded examples."""

    network: TransformerConfig
    config: ChoicesTaskConfig
    train: EncodedChoices
    evaluation: EncodedChoices
    examples: Sequence[Choices]
    """The examples of `evaluation`."""
    read: Read
    test: EncodedChoices | None = None
    test_examples: Sequence[Choices] = ()
    """The examples of `test`."""

    notes = ()

    @classmethod
    def prepare(cls, context: TaskContext) -> ChoicesTask:
        """Encode every choice with its question."""
        network, tokenizer = context.network, context.tokenizer
        assert isinstance(network, TransformerConfig), "a workload checks which networks carry this form"
        sequences = sequence_format(network, tokenizer)
        data = context.data
        train, evaluation, test = (
            encode_choices(tokenizer, sequences, examples, context.settings.max_length) if examples else None
            for examples in (data.train, data.evaluation, data.test)
        )
        assert train is not None
        assert evaluation is not None, "only the test set may be missing"
        read = token_reader(network, tokenizer)
        return cls(network, context.config, train, evaluation, data.evaluation, read, test, data.test)

    @property
    def parts(self) -> tuple[Part, ...]:
        # The tensors have the names of a classifier with one label.
        return CLASSIFIERS[self.network.network].scorer.parts

    @property
    def evaluation_batch_size(self) -> int:
        """Fewer rows, because each has several sequences."""
        parts = (self.evaluation, *([self.test] if self.test else ()))
        return max(1, EVALUATION_BATCH_SIZE // max(part.most_choices for part in parts))

    def build(self) -> nn.Module:
        return ChoiceClassifier(self.network)

    def batch(self, part: EncodedChoices, rows: np.ndarray) -> PaddedBatch:
        """[batch, choices, length] texts; where a question has fewer choices than others, its first one is repeated."""
        width = part.most_choices
        first, count = part.first[rows], np.diff(part.first)[rows]
        present = np.arange(width) < count[:, None]
        texts = first[:, None] + np.where(present, np.arange(width), 0)
        inputs = self.read(part.texts, texts.flatten())
        shaped = {name: tensor.view(len(rows), width, -1) for name, tensor in inputs.items()}
        targets = {"labels": torch.from_numpy(part.labels[rows]), "present": torch.from_numpy(present)}
        return PaddedBatch(shaped, targets)

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """Cross-entropy of the right choices."""
        return F.cross_entropy(self.outputs(model, batch), batch.targets["labels"], reduction="sum")

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 [batch, most choices] scores; -inf where a question has fewer choices."""
        return model(**batch.inputs).float().masked_fill(~batch.targets["present"], float("-inf"))

    def measure(self, outputs: np.ndarray) -> Metrics:
        """The task's metrics."""
        return self.config.measure(self.examples, outputs)

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, numbers of the right and of the chosen choice, the score of each choice, and excerpts of the
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

    def submission(self, outputs: np.ndarray) -> dict[str, bytes]:
        """Files for the task's leaderboard."""
        return self.config.submission(self.test_examples, outputs)

    def baselines(self) -> dict[str, Metrics]:
        return {}


def encode_choices(
    tokenizer: TextTokenizer, sequences: SequenceFormat, examples: Sequence[Choices], max_length: int
) -> EncodedChoices:
    """Encode; no choice gets more than `max_length` tokens with its question, special tokens included."""
    texts = [Example(each.id, *pair, 0) for each in examples for pair in each.pairs]
    return EncodedChoices(
        texts=encode_examples(tokenizer, sequences, texts, max_length),
        first=np.cumsum([0, *(len(each.pairs) for each in examples)], dtype=np.int64),
        labels=np.array([each.label for each in examples], dtype=np.int64),
    )

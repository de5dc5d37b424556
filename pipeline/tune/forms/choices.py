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
from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.forms import Choices, Example
from pipeline.tasks.tokenizer import sequence_format
from pipeline.tune.encoding import EncodedExamples, encode_examples
from pipeline.tune.forms.base import EVALUATION_BATCH_SIZE, PaddedBatch, PreparedTask, TaskContext, excerpt
from pipeline.tune.forms.classification import CLASSIFIERS, token_reader


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

"""Classification: a label for a text or a pair of texts; with regression, a number."""

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
from models.classifiers import SequenceClassifier
from models.config import ElmoConfig, NetworkConfig
from models.elmo.encoder import read_sentences
from models.elmo.representations import ElmoClassifier
from models.features import FeatureClassifier
from pipeline.tune.batches import pad_rows
from pipeline.tune.encoding import EncodedExamples, encode_examples
from pipeline.tune.forms.base import (
    EVALUATION_BATCH_SIZE,
    STACK_PARTS,
    Comparable,
    Metrics,
    PaddedBatch,
    Part,
    TaskContext,
    excerpt,
    json_lines,
)
from pipeline.tune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.tune.forms.scorers import Scorer, scorer_of
from pipeline.tune.tokenizer import TextTokenizer, sequence_format, starts_with_padding

Read = Callable[[Any, np.ndarray], dict[str, Tensor]]
"""(encoded rows, int64 numbers of the rows in a batch) to the arguments of a network."""


@dataclass(frozen=True, slots=True)
class Classifier:
    """How one kind of network classifies."""

    scorer: Scorer
    """Its networks give [batch, labels] logits."""
    reader: Callable[[NetworkConfig, TextTokenizer], Read]
    """Makes the function that turns examples into its arguments."""


def token_reader(network: NetworkConfig, tokenizer: TextTokenizer) -> Read:
    """Rows of token ids, padded; where a decoder starts with padding, the ids that it reads, too."""
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


CLASSIFIERS: Mapping[str, Classifier] = MappingProxyType(
    {
        "encoder": Classifier(
            # BERT's classifier starts from the pooler of next-sentence prediction, where there was one.
            Scorer(
                SequenceClassifier,
                (*STACK_PARTS["encoder"], Part("head.dense.", ("pair_head.pooler.",), required=False)),
            ),
            token_reader,
        ),
        "decoder": Classifier(Scorer(SequenceClassifier, STACK_PARTS["decoder"]), token_reader),
        "encoder_decoder": Classifier(
            Scorer(SequenceClassifier, STACK_PARTS["encoder_decoder"]), token_reader
        ),
        "elmo": Classifier(Scorer(ElmoClassifier, (Part("encoder."),), ElmoClassifier.penalty), word_reader),
    }
)
"""By kind of network."""


@dataclass(frozen=True, slots=True)
class ClassificationTask:
    """A task of classification with its encoded examples."""

    network: NetworkConfig
    train: EncodedExamples
    evaluation: EncodedExamples
    examples: Sequence[Example]
    """The examples of `evaluation`."""
    labels: tuple[str, ...]
    config: ClassificationTaskConfig
    read: Read
    scorer: Scorer
    test: EncodedExamples | None = None
    test_examples: Sequence[Example] = ()
    """The examples of `test`."""

    evaluation_batch_size = EVALUATION_BATCH_SIZE

    @classmethod
    def prepare(cls, context: TaskContext) -> ClassificationTask:
        """Encode the examples."""
        data, tokenizer = context.data, context.tokenizer
        sequences = sequence_format(context.network, tokenizer)
        classifier = CLASSIFIERS[context.network.network]
        label_type = np.float32 if context.config.regression else np.int64

        def encode(examples: Sequence[Example]) -> EncodedExamples:
            return encode_examples(tokenizer, sequences, examples, context.settings.max_length, label_type)

        return cls(
            network=context.network,
            train=encode(data.train),
            evaluation=encode(data.evaluation),
            examples=data.evaluation,
            labels=data.labels,
            config=context.config,
            read=classifier.reader(context.network, tokenizer),
            scorer=scorer_of(
                classifier.scorer, FeatureClassifier, context.network, context.settings.features
            ),
            test=encode(data.test) if data.test else None,
            test_examples=data.test,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """A note where each training example has a label of its own."""
        labels = self.train.labels
        if self.config.regression or len(labels) < 3 or len(np.unique(labels)) < len(labels):
            return ()
        return (
            f"each of the {len(labels):,} training examples has a label of its own, from which nothing can be learned"
            " about others; name the column of labels (columns.label), if this one holds ids",
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.scorer.parts

    def build(self) -> nn.Module:
        return self.scorer.build(self.network, max(1, len(self.labels)))

    def batch(self, part: EncodedExamples, rows: np.ndarray) -> PaddedBatch:
        """Sequences with their labels."""
        return PaddedBatch(self.read(part, rows), {"labels": torch.from_numpy(part.labels[rows])})

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """Cross-entropy of the labels, or squared error of the numbers, with the network's penalty."""
        return self.loss_of(model, self.outputs(model, batch), batch)

    def loss_of(self, model: nn.Module, outputs: Tensor, batch: PaddedBatch) -> Tensor:
        """The loss of outputs that the network gave."""
        labels = batch.targets["labels"]
        if self.config.regression:
            loss = F.mse_loss(outputs.squeeze(-1), labels, reduction="sum")
        else:
            loss = F.cross_entropy(outputs, labels, reduction="sum")
        return self.scorer.penalised(loss, model, len(labels))

    def comparable(self, model: nn.Module, batch: PaddedBatch) -> tuple[Tensor, Comparable]:
        """The outputs, and the same again: a distribution for each text."""
        outputs = self.outputs(model, batch)
        return outputs, Comparable(outputs, outputs.new_ones(len(outputs)))

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 [batch, labels] logits; [batch, 1] numbers in a regression."""
        return model(**batch.inputs).float()

    def measure(self, outputs: np.ndarray) -> Metrics:
        """The task's metrics of the labels with the highest scores, or of the numbers."""
        return self.config.measure(self.examples, outputs)

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, names of the right and of the predicted label, and the score of every label; in a regression,
        id and both numbers. All with the group, where there is one, and with excerpts of the texts."""
        describe = self._number_line if self.config.regression else self._label_line
        lines = map(describe, self.examples, outputs)
        return {"predictions.jsonl": json_lines(lines)}

    def submission(self, outputs: np.ndarray) -> dict[str, bytes]:
        """Files for the task's leaderboard."""
        return self.config.submission(self.test_examples, outputs, self.labels)

    def _label_line(self, example: Example, scores: np.ndarray) -> dict[str, Any]:
        return {
            "id": example.id,
            "label": self.labels[int(example.label)],
            "prediction": self.labels[int(scores.argmax())],
            "logits": scores.tolist(),
        } | _texts(example)

    def _number_line(self, example: Example, output: np.ndarray) -> dict[str, Any]:
        return {"id": example.id, "label": example.label, "prediction": float(output[0])} | _texts(example)

    def baselines(self) -> dict[str, Metrics]:
        return {}


def _texts(example: Example) -> dict[str, str]:
    found = {"group": example.group, "text": excerpt(example.text_a), "text_b": excerpt(example.text_b or "")}
    return {name: text for name, text in found.items() if text}

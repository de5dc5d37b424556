"""Question answering by spans: where in the passage the answer begins and ends (Devlin et al. 2019, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.classifiers import SpanClassifier, best_spans, span_loss
from models.config import TransformerConfig
from pipeline.tune.forms.base import (
    EVALUATION_BATCH_SIZE,
    HIDDEN,
    STACK_PARTS,
    Comparable,
    Metrics,
    PaddedBatch,
    Part,
    TaskContext,
    excerpt,
    json_lines,
)
from pipeline.tune.forms.classification.task import Read, token_reader
from pipeline.tune.forms.spans.answers import Answered, answer_questions, with_probabilities
from pipeline.tune.forms.spans.settings import Question, SpanTaskConfig
from pipeline.tune.forms.spans.windows import Windows, encode_questions
from pipeline.tune.metrics.squad import answer_metrics
from pipeline.tune.metrics.squad2 import unanswerable_metrics
from pipeline.tune.tokenizer import sequence_format


@dataclass(frozen=True, slots=True)
class SpanTask:
    """A task of question answering with its windows."""

    network: TransformerConfig
    config: SpanTaskConfig
    train: Windows
    evaluation: Windows
    questions: Sequence[Question]
    """The questions of `evaluation`."""
    metrics: tuple[str, ...]
    read: Read

    test = None
    notes = ()
    evaluation_batch_size = EVALUATION_BATCH_SIZE

    @classmethod
    def prepare(cls, context: TaskContext) -> SpanTask:
        """Encode the questions."""
        data, config, network = context.data, context.config, context.network
        assert isinstance(network, TransformerConfig), "a workload checks which networks carry this form"
        sequences = sequence_format(network, context.tokenizer)
        train, evaluation = (
            encode_questions(
                context.tokenizer,
                sequences,
                questions,
                max_length=context.settings.max_length,
                max_query_length=config.max_query_length,
                doc_stride=config.doc_stride,
            )
            for questions in (data.train, data.evaluation)
        )
        return cls(
            network=network,
            config=config,
            train=train,
            evaluation=evaluation,
            questions=data.evaluation,
            metrics=config.metrics,
            read=token_reader(network, context.tokenizer),
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        return STACK_PARTS[self.network.network]

    def build(self) -> nn.Module:
        return SpanClassifier(self.network)

    def batch(self, part: Windows, rows: np.ndarray) -> PaddedBatch:
        """Windows with the positions of their answers, and masks of where a predicted answer may begin and end."""
        inputs = self.read(part, rows)
        token = np.arange(inputs["input_ids"].shape[1]) - part.begin[rows, None] + part.first[rows, None]
        own = part.own[rows, :, None]
        targets = {
            "answer": part.answer[rows],
            "begins": (token >= own[:, 0]) & (token < own[:, 1]),
            "ends": (token >= part.first[rows, None]) & (token < (part.first + part.size)[rows, None]),
        }
        return PaddedBatch(inputs, {name: torch.from_numpy(array) for name, array in targets.items()})

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """Mean of the cross-entropies of begin and end, summed over windows."""
        return self.loss_of(model, model(**batch.inputs), batch)

    def loss_of(self, model: nn.Module, outputs: Tensor, batch: PaddedBatch) -> Tensor:
        """The loss of logits [batch, length, 2] that the network gave."""
        return span_loss(outputs, batch.targets["answer"], batch.inputs["attention_mask"])

    def comparable(self, model: nn.Module, batch: PaddedBatch) -> tuple[Tensor, Comparable]:
        """The logits [batch, length, 2], and distributions over tokens, of which begin and end count half."""
        logits = model(**batch.inputs)
        places = logits.float().masked_fill(~batch.inputs["attention_mask"].unsqueeze(-1), HIDDEN)
        places = places.transpose(1, 2).flatten(0, 1)
        return logits, Comparable(places, places.new_full((len(places),), 0.5))

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float32 [batch, n_best + 1, 3]: first and last position in the window, and score, of the best spans, and last
        of the first special token, which stands for having no answer."""
        begins, ends = batch.targets["begins"], batch.targets["ends"]
        longest, n_best = self.config.max_answer_length, self.config.n_best
        logits = model(**batch.inputs).float()
        best = best_spans(logits, begins, ends, max_length=longest, n_best=n_best)
        none = F.pad(logits[:, 0].sum(-1, keepdim=True), (2, 0))
        return torch.cat([best, none.unsqueeze(1)], 1)

    def measure(self, outputs: np.ndarray) -> Metrics:
        """Exact match and F1 of the best answers; where questions may have none, as SQuAD 2.0 measures them."""
        right = [question.right for question in self.questions]
        answered = self.answered(outputs)
        if self.config.answerable:
            found = answer_metrics(right, answered.predictions)
        else:
            found = unanswerable_metrics(right, answered.predictions, answered.no_answer)
        return {name: found[name] for name in self.metrics}

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, right texts, predicted text, the best texts with their scores and probabilities, the question
        and the part of its context with the first answer; and one JSON object from ids to texts, which SQuAD's own
        evaluation reads. Where questions may have no answer, another one from ids to the probabilities of that."""
        answered = self.answered(outputs)
        ids = [question.id for question in self.questions]
        lines = [
            {
                "id": question.id,
                "answers": list(question.right),
                "prediction": prediction,
                "n_best": with_probabilities(best),
                "question": excerpt(question.question),
                "context": excerpt(question.context, question.answers[0].start if question.answers else 0),
            }
            for question, prediction, best in zip(
                self.questions, answered.predictions, answered.n_best, strict=True
            )
        ]
        files = {
            "predictions.jsonl": json_lines(lines),
            "answers.json": orjson.dumps(dict(zip(ids, answered.predictions, strict=True))),
        }
        if not self.config.answerable:
            probabilities = dict(zip(ids, answered.no_answer.tolist(), strict=True))
            files["na_prob.json"] = orjson.dumps(probabilities)
        return files

    def submission(self, outputs: np.ndarray) -> dict[str, bytes]:
        return {}

    def baselines(self) -> dict[str, Metrics]:
        return {}

    def answered(self, outputs: np.ndarray) -> Answered:
        """Texts from spans."""
        return answer_questions(self.config, self.questions, self.evaluation, outputs)

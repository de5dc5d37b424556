"""Instruction tuning: a network learns the tokens of responses, and none of the turns before them (Ouyang et al. 2022,
section 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cluster.artefacts.errors import ConfigError
from models.config import TransformerConfig
from pipeline.tune.forms.base import (
    EVALUATION_BATCH_SIZE,
    EncodedPart,
    Metrics,
    PaddedBatch,
    Part,
    TaskContext,
    excerpt,
    json_lines,
)
from pipeline.tune.forms.generation.writers import texts_before_end, written_after
from pipeline.tune.forms.instructions.readers import READERS, Reader
from pipeline.tune.forms.instructions.settings import Conversation, InstructionTaskConfig
from pipeline.tune.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class InstructionTask:
    """A task of instruction tuning with its encoded conversations."""

    network: TransformerConfig
    config: InstructionTaskConfig
    reader: Reader
    train: EncodedPart
    evaluation: EncodedPart
    conversations: Sequence[Conversation]
    """The conversations of `evaluation`."""
    last: np.ndarray
    """int64 [conversations]: the row of `evaluation` with the last response of each."""
    tokenizer: TextTokenizer
    notes: tuple[str, ...]

    test = None

    @classmethod
    def prepare(cls, context: TaskContext) -> InstructionTask:
        """Encode the conversations.

        Raises:
            ConfigError: a turn holds a special token, or no response begins before `training.max_length`.
            MismatchError: tokenizer and template do not fit together.
        """
        data, network = context.data, context.network
        assert isinstance(network, TransformerConfig), "a workload checks which networks carry this form"
        reader = READERS[network.network](context)
        train, notes = reader.rows_to_learn(data.train)
        evaluation, last = reader.rows_to_score(data.evaluation)
        if not len(train) or not evaluation.predictions.any():
            raise ConfigError(
                f"No response begins within training.max_length={context.settings.max_length} tokens.",
                next_step="raise training.max_length",
            )
        return cls(
            network=network,
            config=context.config,
            reader=reader,
            train=train,
            evaluation=evaluation,
            conversations=data.evaluation,
            last=last,
            tokenizer=context.tokenizer,
            notes=tuple(notes),
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.reader.parts

    @property
    def evaluation_batch_size(self) -> int:
        """Fewer rows where beam search follows several sequences for each."""
        return max(1, EVALUATION_BATCH_SIZE // self.config.num_beams)

    def build(self) -> nn.Module:
        return self.reader.build()

    def batch(self, part: Any, rows: np.ndarray) -> PaddedBatch:
        """Rows with the positions and tokens of their responses; where responses are written, with their prompts."""
        return self.reader.batch(part, rows)

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """Cross-entropy of the tokens of responses."""
        return self.reader.loss(model, batch)

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float64 [batch, 2]: the loss of each row in nats, and its learned tokens. Where responses are written,
        [batch, 2 + max_response_length] with the ids of the written tokens, padded."""
        places = batch.targets["places"]
        each = torch.zeros(places.shape, dtype=torch.float64, device=places.device)
        each[places] = self.reader.losses(model, batch).double()
        found = torch.stack([each.sum(1), places.sum(1).double()], 1)
        return torch.cat([found, self._written(model, batch).double()], 1)

    def measure(self, outputs: np.ndarray) -> Metrics:
        """Likelihood, perplexity and loss of all responses; and of written ones, exact match and ROUGE."""
        losses, tokens = outputs[:, :2].sum(0).tolist()
        return self.config.measure(self.conversations, losses, tokens, self.texts(outputs))

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, the loss of the last row of a conversation in nats, its learned tokens, the last turn of the
        user, and the last response; where responses are written, the reference and the prediction."""
        written = self.texts(outputs)
        lines = []
        for number, (each, row) in enumerate(zip(self.conversations, outputs[self.last], strict=True)):
            response = {"response": excerpt(each.response)}
            if written is not None:
                response = {"reference": each.response, "prediction": written[number]}
            facts = {"id": each.id, "loss": float(row[0]), "tokens": int(row[1]), **response}
            lines.append(facts | {"source": excerpt(each.turns[-2].content)})
        return {"predictions.jsonl": json_lines(lines)}

    def submission(self, outputs: np.ndarray) -> dict[str, bytes]:
        return {}

    def baselines(self) -> dict[str, Metrics]:
        return {}

    def texts(self, outputs: np.ndarray) -> list[str] | None:
        """The written responses: the tokens before the first `eos`, decoded; None where none were written."""
        if not self.config.write_responses:
            return None
        special = self.tokenizer.special
        hidden = {special["pad"], special["bos"], special["eos"]}
        return texts_before_end(self.tokenizer, outputs[self.last, 2:].astype(np.int64), hidden)

    def _written(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """[batch, max_response_length] ids of written tokens; [batch, 0] where none are written."""
        if "prompts" not in batch.targets:
            return batch.targets["places"].new_zeros(len(batch.targets["places"]), 0)
        search = self.config.reading(self.network, self.tokenizer).search
        assert search is not None, "this form writes"
        return written_after(self.reader.writer(model), batch, search)

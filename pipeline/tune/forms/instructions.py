"""Instruction tuning: a network learns the tokens of responses, and none of the turns before them (Ouyang et al. 2022,
section 3.5).

A decoder reads from left to right, several conversations in a row; an encoder-decoder one response at a time, after
everything before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cluster.artefacts.errors import ConfigError
from data_prep.ragged import Ragged
from models.language_models import CausalLanguageModel, ConditionalGenerator
from models.losses import EACH
from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.instructions import Conversation
from pipeline.tasks.tokenizer import GenerationFormat, generation_format
from pipeline.tune.encoding import EncodedRows, pad_rows, single_rows
from pipeline.tune.forms.base import (
    EVALUATION_BATCH_SIZE,
    Metrics,
    NetworkPart,
    PaddedBatch,
    PreparedTask,
    TaskContext,
    excerpt,
    unwrapped,
)
from pipeline.tune.forms.conversations import ConversationEncoder, PackedConversations
from pipeline.tune.forms.generation import (
    EncodedPairs,
    encoder_decoder_batch,
    texts_before_end,
    written_after,
)


class InstructionTask(PreparedTask):
    """A task of instruction tuning with its encoded conversations; a class for each kind of network.

    The targets of a batch hold `places`, bool [batch, width], true where a token is predicted; and where responses are
    written, `prompts` with `prompt_mask`.
    """

    last: np.ndarray
    """int64 [conversations]: the row of `evaluation` with the last response of each."""
    begins: ClassVar[bool]
    """Whether the network reads the token that begins a text before a conversation."""

    def __init__(self, context: TaskContext) -> None:
        """
        Raises:
            ConfigError: a turn holds a special token, or no response begins before `training.max_length`.
            MismatchError: tokenizer and template do not fit together.
        """
        super().__init__(context)
        self.max_length = context.settings.max_length
        encoder = ConversationEncoder(context.tokenizer, self.config.template, begins=self.begins)
        self.train, notes = self.rows_to_learn(encoder, context.data.train)
        self.evaluation, self.last = self.rows_to_score(encoder, context.data.evaluation)
        if not len(self.train) or not self.evaluation.predictions.any():
            raise ConfigError(
                f"No response begins within training.max_length={self.max_length} tokens.",
                next_step="raise training.max_length",
            )
        self.notes = tuple(notes)
        # Fewer rows where beam search follows several sequences for each.
        self.evaluation_batch_size = max(1, EVALUATION_BATCH_SIZE // self.config.num_beams)

    def rows_to_learn(
        self, encoder: ConversationEncoder, conversations: Sequence[Conversation]
    ) -> tuple[EncodedRows, list[str]]:
        """Rows to train on, and notes on what was cut."""
        raise NotImplementedError

    def rows_to_score(
        self, encoder: ConversationEncoder, conversations: Sequence[Conversation]
    ) -> tuple[EncodedRows, np.ndarray]:
        """Rows to evaluate on, and `last`."""
        raise NotImplementedError

    def losses(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """[predicted] float32 in nats: the loss of each token."""
        raise NotImplementedError

    def writer(self, model: nn.Module) -> nn.Module:
        """The network that `generate` takes."""
        raise NotImplementedError

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """float64 [batch, 2]: the loss of each row in nats, and its learned tokens. Where responses are written,
        [batch, 2 + max_response_length] with the ids of the written tokens, padded."""
        places = batch.targets["places"]
        each = torch.zeros(places.shape, dtype=torch.float64, device=places.device)
        each[places] = self.losses(model, batch).double()
        found = torch.stack([each.sum(1), places.sum(1).double()], 1)
        if "prompts" not in batch.targets:
            return found
        search = self.config.reading(self.network, self.tokenizer).search
        assert search is not None, "this form writes"
        written = written_after(self.writer(model), batch, search)
        return torch.cat([found, written.double()], 1)

    def measure(self, outputs: np.ndarray) -> Metrics:
        """Likelihood, perplexity and loss of all responses; and of written ones, exact match and ROUGE."""
        losses, tokens = outputs[:, :2].sum(0).tolist()
        return self.config.measure(self.examples, losses, tokens, self.texts(outputs))

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, the loss of the last row of a conversation in nats, its learned tokens, the last turn of the
        user, and the last response; where responses are written, the reference and the prediction."""
        written = self.texts(outputs)
        lines = []
        for number, (each, row) in enumerate(zip(self.examples, outputs[self.last], strict=True)):
            response = {"response": excerpt(each.response)}
            if written is not None:
                response = {"reference": each.response, "prediction": written[number]}
            facts = {"id": each.id, "loss": float(row[0]), "tokens": int(row[1]), **response}
            lines.append(facts | {"source": excerpt(each.turns[-2].content)})
        return {"predictions.jsonl": json_lines(lines)}

    def texts(self, outputs: np.ndarray) -> list[str] | None:
        """The written responses: the tokens before the first `eos`, decoded; None where none were written."""
        if not self.config.write_responses:
            return None
        special = self.tokenizer.special
        special_ids = {special["pad"], special["bos"], special["eos"]}
        return texts_before_end(self.tokenizer, outputs[self.last, 2:].astype(np.int64), special_ids)


class DecoderInstructions(InstructionTask):
    """Conversations as a decoder reads them."""

    parts = (NetworkPart("", ("",)),)
    begins = True

    def build(self) -> nn.Module:
        return CausalLanguageModel(self.network)

    def rows_to_learn(
        self, encoder: ConversationEncoder, conversations: Sequence[Conversation]
    ) -> tuple[PackedConversations, list[str]]:
        """Packed rows; conversations without a response before the cut are left out."""
        encoded, length = encoder.encode(conversations), self.max_length
        kept = [each for each in encoded if each.responses[0][0] < length]
        rows = PackedConversations.of(kept, length, packed=self.config.packed)
        cut = sum(len(each.ids) > length for each in encoded)
        lost = len(encoded) - len(kept)
        filled = rows.lengths.sum() / max(1, len(rows) * length)
        return rows, [
            *_cut(cut, len(encoded), f"longer than max_length={length}, and cut at their end"),
            *_cut(lost, len(encoded), "left out, because no response begins before the cut"),
            f"{len(kept)} conversations lie in {len(rows)} rows, which are {filled:.1%} full",
        ]

    def rows_to_score(
        self, encoder: ConversationEncoder, conversations: Sequence[Conversation]
    ) -> tuple[PackedConversations, np.ndarray]:
        """A row for each conversation, with the prompt of its last response where responses are written."""
        encoded = encoder.encode(conversations)
        rows = PackedConversations.of(encoded, self.max_length, packed=False)
        if self.config.write_responses:
            # A long conversation is cut to the turns just before the response.
            prompts = [each.ids[: each.responses[-1][0]][-self.max_length :] for each in encoded]
            rows = replace(rows, prompts=Ragged.of(prompts))
        return rows, np.arange(len(rows))

    def batch(self, part: PackedConversations, rows: np.ndarray) -> PaddedBatch:
        """Rows with the boundaries of their conversations."""
        pad_id = self.tokenizer.pad_id
        input_ids, _ = pad_rows(part.input_ids, rows, pad_id)
        learned = pad_rows(part.learned, rows, 0)[0].astype(bool)
        # A token is predicted by the one before it.
        places = np.roll(learned, -1, axis=1)
        inputs = {
            "input_ids": input_ids,
            "predicted_positions": np.flatnonzero(places),
            "targets": input_ids[learned],
            "cu_seqlens": part.boundaries(rows, input_ids.shape[1]),
        }
        targets: dict[str, np.ndarray] = {"places": places}
        if part.prompts is not None:
            prompts, present = pad_rows(part.prompts, rows, pad_id, left=True)
            targets |= {"prompts": prompts, "prompt_mask": present}
        return PaddedBatch.of(inputs, targets)

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        return model(**batch.inputs)[0]["clm"]

    def losses(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        return model(**batch.inputs)[1][EACH]

    def writer(self, model: nn.Module) -> nn.Module:
        return unwrapped(model)


class EncoderDecoderInstructions(InstructionTask):
    """Responses as an encoder-decoder writes them; the encoder reads everything before."""

    parts = (NetworkPart("network.", ("",)),)
    begins = False

    def build(self) -> nn.Module:
        return ConditionalGenerator(self.network)

    @property
    def format(self) -> GenerationFormat:
        """The tokens around sources and responses."""
        return generation_format(self.network, self.tokenizer, None)

    def rows_to_learn(
        self, encoder: ConversationEncoder, conversations: Sequence[Conversation]
    ) -> tuple[EncodedPairs, list[str]]:
        """A row for each response."""
        layout, pairs = self.format, encoder.encode_pairs(conversations)
        limits = (
            (layout.source, self.max_length, "after more than max_length tokens; the first ones are cut"),
            (
                layout.target,
                self.config.max_response_length,
                "longer than max_response_length, and cut at their end",
            ),
        )
        notes = []
        for texts, (side, length, note) in zip(pairs, limits, strict=True):
            count = int((texts.lengths > length - side.specials_of_single).sum())
            notes += _cut(count, len(texts), note, "responses")
        return self._rows(*pairs), notes

    def rows_to_score(
        self, encoder: ConversationEncoder, conversations: Sequence[Conversation]
    ) -> tuple[EncodedPairs, np.ndarray]:
        """A row for each response."""
        counts = [sum(turn.role == "assistant" for turn in each.turns) for each in conversations]
        return self._rows(*encoder.encode_pairs(conversations)), np.cumsum(counts) - 1

    def batch(self, part: EncodedPairs, rows: np.ndarray) -> PaddedBatch:
        """Pairs, with the prompts only where responses are written."""
        found = encoder_decoder_batch(part, rows, self.tokenizer.pad_id, self.format.start)
        lengths = part.targets.lengths[rows]
        places = torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])
        targets = {"places": places, "targets": found.targets["targets"]}
        if self.config.write_responses:
            targets |= {name: found.targets[name] for name in ("prompts", "prompt_mask")}
        return PaddedBatch(found.inputs, targets)

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        return self.losses(model, batch).sum()

    def losses(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        return F.cross_entropy(model(**batch.inputs).float(), batch.targets["targets"], reduction="none")

    def writer(self, model: nn.Module) -> nn.Module:
        return unwrapped(model).network  # pyright: ignore[reportReturnType]

    def _rows(self, sources: Ragged, responses: Ragged) -> EncodedPairs:
        layout = self.format
        return EncodedPairs(
            # The end of a source is what the response is to.
            single_rows(layout.source, sources, self.max_length, keep_end=True),
            single_rows(layout.target, responses, self.config.max_response_length),
        )


def _cut(count: int, total: int, what: str, things: str = "conversations") -> Iterator[str]:
    if count:
        yield f"{count} of {total} {things} ({count / total:.1%}) are {what}"


KINDS: Mapping[str, type[InstructionTask]] = MappingProxyType(
    {"decoder": DecoderInstructions, "encoder_decoder": EncoderDecoderInstructions}
)
"""By kind of network."""


def instruction_task(context: TaskContext) -> InstructionTask:
    """The task for the kind of network."""
    return KINDS[context.network.network](context)

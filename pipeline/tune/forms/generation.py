"""Generation of a text for a text, by beam search (Lewis et al. 2020, section 3.3); with a decoder, after a prompt
(Radford et al. 2019, section 3.6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
import torch.nn.functional as F
from torch import Tensor, nn

from data_prep.ragged import Ragged
from models.generation.config import GenerationConfig
from models.generation.generate import generate
from models.language_models import ConditionalGenerator, smoothed_loss
from pipeline.tasks.files.lines import json_lines
from pipeline.tasks.forms import TextPair
from pipeline.tasks.metrics.texts import sentences
from pipeline.tasks.tokenizer import TextTokenizer
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


@dataclass(frozen=True, slots=True)
class EncodedPairs(EncodedRows):
    """Source and target texts: the rows are the sources; after a decoder's source, its prompt."""

    targets: Ragged
    """Per pair the token ids of the target, int64."""

    @property
    def predictions(self) -> np.ndarray:
        """int64 [pairs]: tokens of each target."""
        return self.targets.lengths


def encoder_decoder_batch(part: EncodedPairs, rows: np.ndarray, pad_id: int, start: int) -> PaddedBatch:
    """Pairs, the target shifted by one to the right for the decoder."""
    input_ids, present = pad_rows(part.input_ids, rows, pad_id)
    written, predicted = pad_rows(part.targets, rows, pad_id)
    decoder_input_ids = np.roll(written, 1, axis=1)
    decoder_input_ids[:, 0] = start
    inputs = {
        "input_ids": input_ids,
        "attention_mask": present,
        "decoder_input_ids": decoder_input_ids,
        "predicted_positions": np.flatnonzero(predicted),
    }
    targets = {"targets": written[predicted], "prompts": input_ids, "prompt_mask": present}
    return PaddedBatch.of(inputs, targets)


def decoder_batch(part: EncodedPairs, rows: np.ndarray, pad_id: int, start: int) -> PaddedBatch:
    """Sources and targets in one sequence, padded on the right; and the sources as prompts, padded on the left."""
    sources, targets = part.input_ids.take(rows), part.targets.take(rows)
    joined = Ragged.of([np.concatenate([sources[n], targets[n][:-1]]) for n in range(len(rows))])
    input_ids, _ = pad_rows(joined, np.arange(len(rows)), pad_id)
    place = np.arange(input_ids.shape[1])
    # The last token of a prompt predicts the first one of the target.
    first = sources.lengths[:, None] - 1
    predicted = (place >= first) & (place < first + targets.lengths[:, None])
    prompts, present = pad_rows(part.input_ids, rows, pad_id, left=True)
    inputs = {"input_ids": input_ids, "predicted_positions": np.flatnonzero(predicted)}
    given = {"targets": targets.values, "prompts": prompts, "prompt_mask": present}
    return PaddedBatch.of(inputs, given)


def written_after(network: nn.Module, batch: PaddedBatch, search: GenerationConfig) -> Tensor:
    """int64 [batch, max_new_tokens]: the ids that a network writes after the `prompts` of a batch, padded."""
    assert search.max_new_tokens is not None, "a task bounds what is written"
    found = generate(network, batch.targets["prompts"], batch.targets["prompt_mask"], search)
    written = found.sequences[:, found.prompt_length :]
    return F.pad(written, (0, search.max_new_tokens - written.shape[1]), value=search.pad_token_id)


def texts_before_end(tokenizer: TextTokenizer, ids: np.ndarray, special_ids: Collection[int]) -> list[str]:
    """The texts of written ids, int64 [texts, length]: before the first `eos`, decoded without special ones."""
    eos, rows = tokenizer.special["eos"], []
    for row in ids.tolist():
        end = row.index(eos) if eos in row else len(row)
        rows.append([token for token in row[:end] if token not in special_ids])
    return tokenizer.texts(rows)


BATCHES: Mapping[str, Callable[[EncodedPairs, np.ndarray, int, int], PaddedBatch]] = MappingProxyType(
    {"encoder_decoder": encoder_decoder_batch, "decoder": decoder_batch}
)
"""By kind of network, from (pairs, int64 indices of the pairs, padding, start token) to the arguments of the network;
the targets hold the ids of `targets`, and `prompts` with `prompt_mask`, which generation reads."""


class GenerationTask(PreparedTask):
    """A task of generation with its encoded pairs."""

    parts = (NetworkPart("network.", ("",)),)

    def __init__(self, context: TaskContext) -> None:
        """
        Raises:
            MismatchError: the vocabulary lacks the language tag.
        """
        super().__init__(context)
        config, tokenizer = self.config, self.tokenizer
        # Byte-level tokens of words begin with a space, also after a decoder's prompt.
        before_target = " " if self.network.network == "decoder" else ""
        self.format = config.format(self.network, tokenizer)

        def encode(pairs: Sequence[TextPair]) -> EncodedPairs:
            sources = tokenizer.rows([pair.source for pair in pairs])
            targets = tokenizer.rows([before_target + pair.target for pair in pairs])
            return EncodedPairs(
                single_rows(self.format.source, sources, context.settings.max_length),
                single_rows(self.format.target, targets, config.max_target_length),
            )

        self.train, self.evaluation = encode(context.data.train), encode(context.data.evaluation)
        # Fewer rows, because beam search follows several sequences for each.
        self.evaluation_batch_size = max(1, EVALUATION_BATCH_SIZE // config.num_beams)

    def build(self) -> nn.Module:
        return ConditionalGenerator(self.network)

    def batch(self, part: EncodedPairs, rows: np.ndarray) -> PaddedBatch:
        """Pairs as the network reads them."""
        return BATCHES[self.network.network](part, rows, self.tokenizer.pad_id, self.format.start)

    def loss(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """Cross-entropy of the tokens of the targets."""
        return smoothed_loss(model(**batch.inputs), batch.targets["targets"], self.config.label_smoothing)

    def outputs(self, model: nn.Module, batch: PaddedBatch) -> Tensor:
        """int64 [batch, max_target_length]: generated ids, without the start token, padded."""
        generator: Any = unwrapped(model)
        search = self.config.reading(self.network, self.tokenizer).search
        assert search is not None, "this form writes"
        return written_after(generator.network, batch, search)

    def measure(self, outputs: np.ndarray) -> Metrics:
        """The task's metrics of the generated texts."""
        return self.config.measure(self.examples, self.texts(outputs))

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, the reference, the generated text, and an excerpt of the source; and one JSON object of the
        metrics' signatures, where they have some."""
        lines = [
            {"id": pair.id, "reference": pair.target, "prediction": text, "source": excerpt(pair.source)}
            for pair, text in zip(self.examples, self.texts(outputs), strict=True)
        ]
        files = {"predictions.jsonl": json_lines(lines)}
        signatures = self.config.signatures()
        return files | ({"signatures.json": orjson.dumps(signatures)} if signatures else {})

    def baselines(self) -> dict[str, Metrics]:
        """For summaries, the first sentences of each source: Lead-1 of XSum (Narayan et al. 2018, section 5), Lead-3 of
        CNN/DailyMail (See et al. 2017, section 5)."""
        count = self.config.num_lead
        if count is None:
            return {}
        found = first_sentences([self.config.lead(pair.source) for pair in self.examples], count)
        return {f"lead-{count}": self.config.measure(self.examples, found)}

    def texts(self, outputs: np.ndarray) -> list[str]:
        """The generated texts: the tokens before the first `eos`, decoded."""
        special_ids = {*self.format.target.first, self.format.start, self.tokenizer.pad_id}
        return texts_before_end(self.tokenizer, outputs, special_ids)


def first_sentences(texts: Sequence[str], count: int = 1) -> list[str]:
    """The first sentences of each text, a line each."""
    return ["\n".join(found[:count]) for found in sentences(texts)]

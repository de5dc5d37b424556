"""Generation of a text for a text, by beam search (Lewis et al. 2020, section 3.3); with a decoder, after a prompt
(Radford et al. 2019, section 3.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from torch import Tensor, nn

from data_prep.ragged import Ragged
from models.config import TransformerConfig
from models.language_models import smoothed_loss
from pipeline.tune.encoding import single_rows
from pipeline.tune.forms.base import (
    EVALUATION_BATCH_SIZE,
    Metrics,
    PaddedBatch,
    Part,
    TaskContext,
    excerpt,
    json_lines,
    unwrapped,
)
from pipeline.tune.forms.generation.settings import GenerationTaskConfig, TextPair
from pipeline.tune.forms.generation.writers import (
    WRITERS,
    EncodedPairs,
    texts_before_end,
    written_after,
)
from pipeline.tune.metrics.rouge import sentences
from pipeline.tune.tokenizer import GenerationFormat, SequenceFormat, TextTokenizer


@dataclass(frozen=True, slots=True)
class GenerationTask:
    """A task of generation with its encoded pairs."""

    network: TransformerConfig
    config: GenerationTaskConfig
    train: EncodedPairs
    evaluation: EncodedPairs
    pairs: Sequence[TextPair]
    """The pairs of `evaluation`."""
    format: GenerationFormat
    tokenizer: TextTokenizer

    parts = (Part("network.", ("",)),)
    test = None
    notes = ()

    @classmethod
    def prepare(cls, context: TaskContext) -> GenerationTask:
        """Encode the pairs.

        Raises:
            MismatchError: the vocabulary lacks the language tag.
        """
        data, config, network, tokenizer = context.data, context.config, context.network, context.tokenizer
        assert isinstance(network, TransformerConfig), "a workload checks which networks carry this form"
        writer = WRITERS[network.network]
        layout = config.format(network, tokenizer)

        def encode(pairs: Sequence[TextPair]) -> EncodedPairs:
            sources = [pair.source for pair in pairs]
            targets = [writer.before_target + pair.target for pair in pairs]
            return EncodedPairs(
                _encode(tokenizer, layout.source, sources, context.settings.max_length),
                _encode(tokenizer, layout.target, targets, config.max_target_length),
            )

        return cls(
            network=network,
            config=config,
            train=encode(data.train),
            evaluation=encode(data.evaluation),
            pairs=data.evaluation,
            format=layout,
            tokenizer=tokenizer,
        )

    @property
    def evaluation_batch_size(self) -> int:
        """Fewer rows, because beam search follows several sequences for each."""
        return max(1, EVALUATION_BATCH_SIZE // self.config.num_beams)

    def build(self) -> nn.Module:
        return WRITERS[self.network.network].build(self.network)

    def batch(self, part: EncodedPairs, rows: np.ndarray) -> PaddedBatch:
        """Pairs as the network reads them."""
        batch = WRITERS[self.network.network].batch
        return batch(part, rows, self.tokenizer.pad_id, self.format.start)

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
        return self.config.measure(self.pairs, self.texts(outputs))

    def files(self, outputs: np.ndarray) -> dict[str, bytes]:
        """JSON lines: id, the reference, the generated text, and an excerpt of the source; and one JSON object of the
        metrics' signatures, where they have some."""
        lines = [
            {"id": pair.id, "reference": pair.target, "prediction": text, "source": excerpt(pair.source)}
            for pair, text in zip(self.pairs, self.texts(outputs), strict=True)
        ]
        files = {"predictions.jsonl": json_lines(lines)}
        signatures = self.config.signatures()
        return files | ({"signatures.json": orjson.dumps(signatures)} if signatures else {})

    def submission(self, outputs: np.ndarray) -> dict[str, bytes]:
        return {}

    def baselines(self) -> dict[str, Metrics]:
        """For summaries, the first sentences of each source: Lead-1 of XSum (Narayan et al. 2018, section 5), Lead-3 of
        CNN/DailyMail (See et al. 2017, section 5)."""
        count = self.config.num_lead
        if count is None:
            return {}
        found = first_sentences([self.config.lead(pair.source) for pair in self.pairs], count)
        return {f"lead-{count}": self.config.measure(self.pairs, found)}

    def texts(self, outputs: np.ndarray) -> list[str]:
        """The generated texts: the tokens before the first `eos`, decoded."""
        hidden = {*self.format.target.first, self.format.start, self.tokenizer.pad_id}
        return texts_before_end(self.tokenizer, outputs, hidden)


def first_sentences(texts: Sequence[str], count: int = 1) -> list[str]:
    """The first sentences of each text, a line each."""
    return ["\n".join(found[:count]) for found in sentences(texts)]


def _encode(
    tokenizer: TextTokenizer, layout: SequenceFormat, texts: Sequence[str], max_length: int
) -> Ragged:
    return single_rows(layout, tokenizer.rows(texts), max_length)

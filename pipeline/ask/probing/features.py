"""Hidden states of the words of texts, from every layer of any network; words and pairs of words with their labels, and
the labels of control tasks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cluster.artefacts.errors import MismatchError
from data_prep.ragged import Ragged
from models.config import ElmoConfig, NetworkConfig, TransformerConfig
from models.elmo.encoder import read_sentences
from models.features import FeatureExtractor, FeatureSettings, hidden_states, num_layers_of
from models.stacks import position_limit
from pipeline.checkpoint.references import Weights, resolve_model
from pipeline.tasks.forms import Example, TaggedSentence
from pipeline.tasks.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.encoding import batches_of, pad_rows
from pipeline.tune.forms.base import STACK_PARTS
from pipeline.tune.networks import take_parts

Span = tuple[int, int]
"""Characters of a text, from and up to (exclusive)."""
WORD = re.compile(r"\w+|[^\w\s]")
"""Words of a text, for networks that read words: letters and digits together, every other character by itself."""
_BATCH_TOKENS = 4096
_LONGEST = 512
"""Tokens of the longest sequence that a network without a table of positions reads."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with the words to look at."""

    text: str
    spans: tuple[Span, ...]
    """At least one."""
    words: tuple[Span, ...] | None = None
    """All words of the text, for networks that read words; None takes those of WORD."""

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Passage:
        """Words joined by spaces; all are looked at."""
        spans, start = [], 0
        for word in words:
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return cls(" ".join(words), tuple(spans), tuple(spans))


@dataclass(frozen=True)
class FeatureNetwork:
    """A network whose hidden states are looked at."""

    reference: str
    fingerprint: str
    extractor: FeatureExtractor
    config: NetworkConfig
    tokenizer: TextTokenizer

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.extractor.parameters()).device

    @property
    def num_layers(self) -> int:
        """Layers above the embeddings, which are layer 0."""
        return num_layers_of(self.config)

    def layer(self, number: int) -> int:
        """The index of a layer counted from the embeddings, 0; -1 is the last.

        Raises:
            MismatchError: the network has no such layer.
        """
        count = self.num_layers + 1
        if not -count <= number < count:
            raise MismatchError(
                f"{self.reference} has no layer {number}.",
                next_step=f"name one from 0 (the embeddings) to {count - 1}, or -1 for the last",
            )
        return number % count


def load_features(reference: str, runs_dir: Path, weights: Weights = "model") -> FeatureNetwork:
    """The network of a reference: the encoder of an encoder-decoder, the discriminator of an ELECTRA.

    Raises:
        ReferenceNotFoundError, CorruptCheckpointError, MismatchError: as `resolve_model`; and MismatchError for weights
            that do not fit or are not finite.
    """
    pretrained = resolve_model(reference, runs_dir, weights)
    config = pretrained.model
    if isinstance(config, TransformerConfig) and config.network == "encoder_decoder":
        config = replace(config, network="encoder", num_decoder_layers=None)
    with torch.device("meta"):
        extractor = FeatureExtractor(config, FeatureSettings())
    extractor.to_empty(device="cpu")
    parts = STACK_PARTS[config.network]
    take_parts(extractor, parts, pretrained.state_dict())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return FeatureNetwork(
        reference=pretrained.reference,
        fingerprint=pretrained.fingerprint,
        extractor=extractor.eval().to(device),
        config=config,
        tokenizer=TextTokenizer(pretrained.tokenizer_path),
    )


def word_vectors(
    network: FeatureNetwork, passages: Sequence[Passage], layers: Sequence[int] | None = None
) -> np.ndarray:
    """The mean of the hidden states of the tokens of each span.

    A text that is longer than the network's positions is read from a little before its first span on.

    Args:
        layers: numbers from 0, the embeddings; None takes all.

    Returns:
        float32 [layers, spans of all passages, width]; NaN at spans without tokens, or outside the part of a
        text that is read.
    """
    read = _read_words if isinstance(network.config, ElmoConfig) else _read_tokens
    chosen = list(range(network.num_layers + 1)) if layers is None else [network.layer(n) for n in layers]
    starts = np.cumsum([0, *(len(passage.spans) for passage in passages)])
    order = sorted(range(len(passages)), key=lambda number: len(passages[number].text))
    found: np.ndarray | None = None
    # About as many characters as make _BATCH_TOKENS tokens.
    for numbers in batches_of(order, lambda number: len(passages[number].text) + 8, 4 * _BATCH_TOKENS):
        for number, vectors in zip(
            numbers, read(network, [passages[n] for n in numbers], chosen), strict=True
        ):
            if found is None:
                shape = (len(chosen), int(starts[-1]), vectors.shape[-1])
                found = np.full(shape, np.nan, dtype=np.float32)
            found[:, starts[number] : starts[number + 1]] = vectors
    assert found is not None, "there are no passages"
    return found


@torch.no_grad()
def _read_tokens(
    network: FeatureNetwork, passages: Sequence[Passage], layers: Sequence[int]
) -> Iterator[np.ndarray]:
    around = sequence_format(network.config, network.tokenizer)
    assert isinstance(network.config, TransformerConfig)
    limit = position_limit(network.config) or _LONGEST
    rows, places = [], []
    for passage, (ids, offsets) in zip(
        passages, network.tokenizer.ids_with_offsets([passage.text for passage in passages]), strict=True
    ):
        own = [_overlapping(offsets, span) for span in passage.spans]
        room = limit - around.specials_of_single
        # The first token that is read: 0, or later where the first span would lie outside.
        first = int(own[0][0]) if len(own[0]) else 0
        first = 0 if first < room // 2 or len(ids) <= room else min(first - room // 2, len(ids) - room)
        kept = ids[first : first + room]
        rows.append(np.array([*around.first, *kept, *around.last], dtype=np.int64))
        shift = len(around.first) - first
        places.append([each[(each >= first) & (each < first + len(kept))] + shift for each in own])
    padded = pad_rows(Ragged.of(rows), np.arange(len(rows)), network.tokenizer.pad_id)
    input_ids, mask = (torch.from_numpy(each).to(network.device) for each in padded)
    states = hidden_states(network.extractor, input_ids=input_ids, attention_mask=mask)
    yield from _means(states, layers, places)


@torch.no_grad()
def _read_words(
    network: FeatureNetwork, passages: Sequence[Passage], layers: Sequence[int]
) -> Iterator[np.ndarray]:
    assert isinstance(network.config, ElmoConfig)
    sentences, places = [], []
    for passage in passages:
        spans = passage.words or tuple(match.span() for match in WORD.finditer(passage.text))
        sentences.append([passage.text[start:stop] for start, stop in spans])
        offsets = np.array(spans, dtype=np.int64).reshape(-1, 2)
        places.append([_overlapping(offsets, span) for span in passage.spans])
    inputs: dict[str, Any] = read_sentences(sentences, network.config.max_characters)._asdict()
    inputs = {name: each.to(network.device) for name, each in inputs.items()}
    states = hidden_states(network.extractor, **inputs)
    yield from _means(states, layers, places)


def _overlapping(offsets: np.ndarray, span: Span) -> np.ndarray:
    """The tokens that share a character with a span."""
    return np.flatnonzero((offsets[:, 0] < span[1]) & (offsets[:, 1] > span[0]))


def _means(
    states: torch.Tensor, layers: Sequence[int], places: Sequence[Sequence[np.ndarray]]
) -> Iterator[np.ndarray]:
    """Per passage float32 [layers, spans, width]."""
    chosen = states[list(layers)].float().cpu().numpy()
    for number, own in enumerate(places):
        vectors = [
            chosen[:, number, each].mean(1)
            if len(each)
            else np.full((len(layers), chosen.shape[-1]), np.nan, dtype=np.float32)
            for each in own
        ]
        yield np.stack(vectors, 1)


@dataclass(frozen=True, slots=True)
class Features:
    """What a probe classifies, as it sees them: the words of some sentences, or pairs of sentences. Words outside the
    part of a sentence that the network reads are left out."""

    vectors: np.ndarray
    """float32 [layers, items, width]."""
    labels: np.ndarray
    """int64 [items]."""
    words: tuple[str, ...]
    """Per item its word, which decides the label of the control task."""

    @classmethod
    def read(cls, vectors: np.ndarray, labels: Sequence[int], words: Sequence[str]) -> Features:
        """The items whose vectors are numbers."""
        kept = np.flatnonzero(np.isfinite(vectors).all((0, 2)))
        chosen = np.array(labels, dtype=np.int64)[kept]
        return cls(vectors[:, kept], chosen, tuple(words[number] for number in kept.tolist()))


def tagged_words(
    network: FeatureNetwork, sentences: Sequence[TaggedSentence], labels: Sequence[str], layers: Sequence[int]
) -> Features:
    """The hidden state of every word, with its tag."""
    vectors = word_vectors(network, [Passage.of_words(sentence.words) for sentence in sentences], layers)
    tags = [labels.index(tag) for sentence in sentences for tag in sentence.tags]
    return Features.read(vectors, tags, [word for sentence in sentences for word in sentence.words])


def word_pairs(
    network: FeatureNetwork, examples: Sequence[Example], labels: Sequence[str], layers: Sequence[int]
) -> Features:
    """A word in two sentences, of WiC: |u - v| and u * v of its hidden states side by side (Conneau et al. 2017,
    section 3.1). Where the word itself does not occur, its form with the longest common beginning does."""
    passages, words = [], []
    for example in examples:
        word, _, first = example.text_a.partition(": ")
        words.append(word)
        passages += [Passage(text, (find_form(text, word),)) for text in (first, example.text_b or "")]
    vectors = word_vectors(network, passages, layers)
    first, second = vectors[:, 0::2], vectors[:, 1::2]
    vectors = np.concatenate([np.abs(first - second), first * second], -1)
    return Features.read(vectors, [int(example.label) for example in examples], words)


def find_form(text: str, word: str) -> Span:
    """The characters of a word, or of the word most like it; the whole text where none begins alike."""
    spans = [match.span() for match in WORD.finditer(text)]
    word, forms = word.lower(), [text[start:stop].lower() for start, stop in spans]
    if word in forms:
        return spans[forms.index(word)]
    # Characters that two words begin with alike.
    pairs = [zip(form, word, strict=False) for form in forms]
    alike = [sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], each)) for each in pairs]
    best = max(alike, default=0)
    return spans[alike.index(best)] if best else (0, len(text))


FEATURES: Mapping[str, Callable[[FeatureNetwork, Sequence[Any], Sequence[str], Sequence[int]], Features]] = {
    "tags": tagged_words,
    "classification": word_pairs,
}
"""By form of task, the features of its examples: (network, examples, labels, layers)."""


def control_labels(words: Sequence[str], frequencies: np.ndarray, seed: int) -> np.ndarray:
    """int64 [words]: a random label for each different word, drawn by the frequencies of the task's labels (Hewitt and
    Liang 2019, section 2); a function of (seed, word)."""
    bounds = np.cumsum(frequencies / frequencies.sum())[:-1]
    drawn = {}
    for word in set(words):
        digest = hashlib.blake2b(f"{seed}/{word}".encode(errors="surrogatepass"), digest_size=6).digest()
        uniform = int.from_bytes(digest, "little") / 2**48
        drawn[word] = np.searchsorted(bounds, uniform, "right")
    return np.array([drawn[word] for word in words], dtype=np.int64)

"""The inputs of a run: its token stores, the samples cut from them, the vocabulary, and the network they need."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import MANIFEST_NAME, InputEntry, hash_json
from cluster.artefacts.seals import SeenFiles
from cluster.artefacts.storage import contents_of
from data_prep.token_store import TokenStore
from models.config import NetworkConfig
from pipeline.objectives.base import Batch, OutsideModels, Resolve, input_entries, resolve_references
from pipeline.objectives.vocabulary import Vocabulary, make_vocabulary
from pipeline.run.config import PretrainConfig
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.index_cache import IndexCache
from pipeline.samples.loader import Lengths
from pipeline.samples.mixture import Sampling, Split, StoreShare
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Inputs:
    """The stores of a run, its samples, and the network's shape."""

    config: PretrainConfig
    stores: list[TokenStore]
    model: NetworkConfig
    vocabulary: Vocabulary
    outside: OutsideModels
    """The models that the objective's settings refer to."""
    cache: IndexCache | None = None
    """Cache of the indices of epochs."""

    @cached_property
    def phases(self) -> list[tuple[int, TokenDataset]]:
        """The first step of every phase, and its training samples."""
        found, first = [], 0
        for phase in self.config.phases:
            found.append((first, self._dataset(self.config.length_of(phase), "train", phase.weights)))
            first += phase.steps
        return found

    @property
    def train(self) -> TokenDataset:
        """The training samples of the last phase, which is the whole run if there are no phases."""
        return self.phases[-1][1]

    @cached_property
    def held_out(self) -> TokenDataset:
        """The samples of evaluations, of the last phase's length."""
        return self._dataset(self.config.batch.sequence_length, "held_out")

    @cached_property
    def held_out_by_source(self) -> dict[str, TokenDataset]:
        """The held-out samples of each source of the stores alone; only of sources that have enough of them."""
        found = {}
        for source in sorted({name for store in self.stores for name in store.source_names}):
            with suppress(ConfigError):
                found[source] = self._dataset(self.config.batch.sequence_length, "held_out", source=source)
        return found

    @cached_property
    def source_names(self) -> list[str]:
        """The sources whose losses are reported apart, in alphabetical order; none if only one is read."""
        found = {
            name
            for store, one in zip(self.stores, self.config.data.stores, strict=True)
            for name in store.source_names
            if one.sources is None or name in one.sources
        }
        return sorted(found) if len(found) > 1 else []

    @property
    def data_fingerprint(self) -> str:
        """The fingerprint of all training samples."""
        prints = [[first, dataset.fingerprint] for first, dataset in self.phases]
        return prints[0][1] if len(prints) == 1 else hash_json(prints)

    @cached_property
    def entries(self) -> list[InputEntry]:
        """The inputs that checkpoints of the run name: the stores, and the models that the objective refers to."""
        tokens = [
            InputEntry(kind="tokens", uri=store.place, fingerprint=store.fingerprint) for store in self.stores
        ]
        return [*tokens, *input_entries(self.outside)]

    def require_samples(self) -> None:
        """Cut the documents of all datasets into samples.

        Raises:
            ConfigError: the documents of training, or the held-out ones, do not give a single sample.
        """
        _ = self.phases, self.held_out

    def corrupt(self, packed: Packed, noise: Noise) -> Batch:
        """The objective's batch for packed samples; `noise` is the run's."""
        return self.config.objective.corrupt(packed, noise, self.vocabulary)

    def build_model(self) -> nn.Module:
        """The network with the heads that the objective trains."""
        return self.config.objective.build_model(self.model, self.outside)

    def lengths(self, noise: Noise) -> Lengths | None:
        """Lengths, to sort the samples of a step by; None if all texts have one length."""
        return self.config.objective.lengths(noise)

    def _dataset(
        self,
        sequence_length: int,
        split: Split,
        weights: Sequence[float] | None = None,
        source: str | None = None,
    ) -> TokenDataset:
        config = self.config
        wanted = config.objective.reading(sequence_length)
        sampling = Sampling(
            sequence_length=wanted.length,
            seed=config.seed,
            held_out=config.data.held_out,
            split=split,
            format=config.format,
            relation=wanted.relation,
            attention=config.batch.attention,
            pad=self.vocabulary["pad"],
            with_sentence_starts=wanted.sentence_starts,
            with_langs=wanted.langs,
            source_names=self.source_names or None,
            language_temperature=config.data.language_temperature,
            shared_targets=config.batch.shared_targets,
        )
        return TokenDataset(self._shares(weights, source), sampling, cache=self.cache)

    def _shares(self, weights: Sequence[float] | None, source: str | None) -> list[StoreShare]:
        """The stores with a weight above 0, restricted to one source if `source` is given."""
        found = []
        for number, (store, one) in enumerate(zip(self.stores, self.config.data.stores, strict=True)):
            weight = one.weight if weights is None else weights[number]
            sources = one.sources
            if source is not None:
                if source not in (store.source_names if sources is None else sources):
                    continue
                sources = (source,)
            if weight > 0:
                found.append(StoreShare(store, weight, sources, one.langs))
        return found


def open_inputs(
    config: PretrainConfig,
    *,
    verify: bool,
    resolve: Resolve,
    seen: SeenFiles | None = None,
    cache: IndexCache | None = None,
) -> Inputs:
    """Open the stores, hashing every file when `verify`, and fit the network's vocabulary to them.

    Args:
        resolve: finds the models that the objective's settings refer to.
        seen: files that need not be hashed again; those that are right are added.
        cache: of the indices of epochs.

    Raises:
        CorruptArtefactError, MismatchError, ConfigError, ReferenceNotFoundError: as the parts raise them; that the
            objective, the network and the tokens fit together is checked here, before anything is started.
    """
    stores = [TokenStore.open(store.path, verify=verify, seen=seen) for store in config.data.stores]
    vocabulary = open_vocabulary(config, stores)
    model = replace(config.model, vocab_size=vocabulary.size)
    outside = resolve_references(config.objective, resolve)
    config.objective.check_fit(model, vocabulary, outside)
    return Inputs(config, stores, model, vocabulary, outside, cache)


def open_vocabulary(config: PretrainConfig, stores: Sequence[TokenStore]) -> Vocabulary:
    """The vocabulary of the tokens, with the tokens that the objective adds, such as `<mask>` or sentinels.

    Raises:
        MismatchError: the configured vocabulary has no place for some tokens.
        CorruptArtefactError: a store names no special tokens, or its tokenizer is none.
    """
    languages = sorted({name for store in stores for name in store.lang_codes})
    roles, extra_tokens = dict(stores[0].special_tokens), config.objective.extra_tokens(languages)
    with contents_of(stores[0].path / MANIFEST_NAME):
        pad, ends = roles["pad"], (roles["bos"], roles["eos"])
    if pad in ends:
        # GPT-2's vocabulary has one token for both; if texts ended with padding, the network would learn no end.
        del roles["pad"]
        extra_tokens = ("<pad>", *extra_tokens)
    with contents_of(stores[0].tokenizer_path):
        vocabulary = make_vocabulary(
            stores[0].tokenizer_path.read_text(encoding="utf-8"),
            roles,
            extra_tokens,
            size=max(store.vocab_size for store in stores),
        )
    configured, needed = config.model.vocab_size, vocabulary.size
    if configured is None or configured == needed:
        return vocabulary
    if configured < needed:
        raise MismatchError(
            f"model.vocab_size is {configured}, but the tokens of {stores[0].place}, with the objective's own, need"
            f" {needed}.",
            next_step=f"remove model.vocab_size from the configuration, or set it to {needed} or more",
        )
    return vocabulary.enlarged(configured)

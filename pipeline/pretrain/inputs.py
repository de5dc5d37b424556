"""What a run reads: its token stores, the samples cut from them, and the network they need."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.errors import MismatchError
from data_prep.token_store import TokenStore
from models.config import TransformerConfig
from pipeline.batches.token_dataset import Ingredient, Split, TokenDataset
from pipeline.objectives.mlm import Vocabulary
from pipeline.pretrain.config import PretrainConfig


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the run reads: stores, samples and the network's shape."""

    stores: list[TokenStore]
    train: TokenDataset
    held_out: TokenDataset
    model: TransformerConfig
    vocabulary: Vocabulary


def open_inputs(config: PretrainConfig, *, verify: bool) -> Inputs:
    """Open the stores, hashing every file when `verify`, and fit the network's vocabulary to them.

    Raises:
        CorruptArtefactError, MismatchError, ConfigError: as the parts raise them.
    """
    stores = [TokenStore.open(store.path, verify=verify) for store in config.data.stores]
    special = stores[0].special_tokens
    if "mask" not in special:
        raise MismatchError(
            f"The tokenizer of {stores[0].path} has no mask token, which masked language modelling needs.",
            next_step="prepare the data with a trained byte_level_bpe tokenizer, or one that has `<mask>`",
        )
    vocab_size = require_vocab_size(config.model.vocab_size, stores)
    return Inputs(
        stores=stores,
        train=_dataset(stores, config, "train"),
        held_out=_dataset(stores, config, "held_out"),
        model=replace(config.model, vocab_size=vocab_size),
        vocabulary=Vocabulary(vocab_size, special["mask"], tuple(sorted(special.values()))),
    )


def require_vocab_size(configured: int | None, stores: list[TokenStore]) -> int:
    """The vocabulary of the network: that of the tokens, unless the configuration asks for a larger one.

    Raises:
        MismatchError: the configured vocabulary has no place for some tokens.
    """
    needed = max(store.vocab_size for store in stores)
    if configured is not None and configured < needed:
        raise MismatchError(
            f"model.vocab_size is {configured}, but the tokens of {stores[0].path} need {needed}.",
            next_step=f"remove model.vocab_size from the configuration, or set it to {needed} or more",
        )
    return configured or needed


def _dataset(stores: list[TokenStore], config: PretrainConfig, split: Split) -> TokenDataset:
    return TokenDataset(
        [
            Ingredient(store, wanted.weight, wanted.sources, wanted.langs)
            for store, wanted in zip(stores, config.data.stores, strict=True)
        ],
        sequence_length=config.batch.sequence_length,
        seed=config.seed,
        held_out=config.data.held_out,
        split=split,
    )

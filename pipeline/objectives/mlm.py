"""Masked language modelling: predict the hidden 15% from both sides (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from models.config import TransformerConfig
from models.masked_language_model import MaskedLanguageModel
from pipeline.batches.noise import Noise
from pipeline.batches.packing import Packed
from pipeline.config import Config

Attention = Literal["documents", "full"]


class MaskedLM(Config):
    """Settings of the masked-LM objective."""

    kind: Literal["mlm"] = "mlm"
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the maskable tokens of each sample that are predicted."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the predicted positions whose input is `<mask>`."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the predicted positions whose input is a random token; the rest stay as they are."""
    dynamic: bool = True
    """New masks every epoch (Liu et al. 2019, section 4.1); False masks a sample alike in all epochs."""

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskedLM:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share + random_share must not exceed 1")
        return self


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What masking has to know about the tokens."""

    size: int
    mask: int
    special: tuple[int, ...]
    """Ids that are never predicted and never drawn at random."""


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    """A micro-batch ready for the network."""

    input_ids: torch.Tensor
    """[batch, length] int64, corrupted."""
    cu_seqlens: torch.Tensor
    """[pieces + 1] int32 document boundaries in the flattened batch."""
    predicted_positions: torch.Tensor
    """[predicted] int64 positions in the flattened batch, ascending."""
    targets: torch.Tensor
    """[predicted] int64 original ids at those positions."""

    @property
    def num_predicted(self) -> int:
        """Tokens that the loss is about."""
        return len(self.targets)

    def to(self, device: torch.device) -> MaskedBatch:
        """The same batch on `device`."""
        moved = (
            t.to(device) for t in (self.input_ids, self.cu_seqlens, self.predicted_positions, self.targets)
        )
        return MaskedBatch(*moved)


def choose_positions(noise: Noise, rate: float, maskable: np.ndarray) -> np.ndarray:
    """Pick the positions to predict: the `rate` lowest-noise maskable positions of every row.

    Args:
        noise: keyed per position, state [batch, length].
        maskable: [batch, length] bool.

    Returns:
        [batch, length] bool with exactly round(rate * maskable.sum(-1)) True per row, and at least one where
        anything is maskable (Devlin et al. 2019, section 3.1, with a fixed count so that batches cost the same).
    """
    draws = np.where(maskable, noise.bits(), np.iinfo(np.uint64).max)
    available = maskable.sum(axis=1)
    counts = np.maximum(np.rint(rate * available).astype(np.int64), np.minimum(available, 1))
    ranks = np.argsort(np.argsort(draws, axis=1, kind="stable"), axis=1, kind="stable")
    return (ranks < counts[:, None]) & maskable


def corrupt(packed: Packed, noise: Noise, config: MaskedLM, vocabulary: Vocabulary) -> MaskedBatch:
    """Hide tokens: of the predicted positions 80% become `<mask>`, 10% a random token, 10% stay (by default).

    Args:
        noise: the run's noise; this adds epoch, sample and position.
    """
    ids = packed.input_ids
    epochs = packed.epochs if config.dynamic else np.zeros_like(packed.epochs)
    positions = np.arange(ids.shape[1], dtype=np.uint64)
    here = noise.at("mlm", epochs[:, None], packed.sample_ids[:, None], positions[None, :])
    maskable = ~np.isin(ids, np.asarray(vocabulary.special, dtype=ids.dtype))
    predicted = choose_positions(here.at("choose"), config.rate, maskable)
    flat = np.flatnonzero(predicted)
    at_predicted = Noise(here.state.reshape(-1)[flat])
    replaced = _replacements(ids.reshape(-1)[flat], at_predicted, config, vocabulary)
    corrupted = ids.astype(np.int64)
    corrupted.reshape(-1)[flat] = replaced
    return MaskedBatch(
        input_ids=torch.from_numpy(corrupted),
        cu_seqlens=torch.from_numpy(packed.cu_seqlens),
        predicted_positions=torch.from_numpy(flat),
        targets=torch.from_numpy(ids.reshape(-1)[flat].astype(np.int64)),
    )


def loss(
    model: MaskedLanguageModel, batch: MaskedBatch, attention: Attention
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Forward pass.

    Returns:
        The cross-entropy in nats summed over the predicted tokens (float32 scalar), and counts that add up over
        micro-batches: `correct`, the tokens predicted right.
    """
    boundaries = batch.cu_seqlens if attention == "documents" else None
    summed, correct = model(batch.input_ids, batch.predicted_positions, batch.targets, boundaries)
    return summed, {"correct": correct}


def build_model(config: TransformerConfig) -> MaskedLanguageModel:
    """The network that this objective trains."""
    return MaskedLanguageModel(config)


def _replacements(original: np.ndarray, noise: Noise, config: MaskedLM, vocabulary: Vocabulary) -> np.ndarray:
    """int64 [predicted]: what the network reads at the predicted positions."""
    ordinary = _ordinary_tokens(vocabulary)
    drawn = ordinary[noise.at("token").integers(len(ordinary))]
    share = noise.at("share").uniform()
    random = share < config.mask_share + config.random_share
    return np.where(share < config.mask_share, vocabulary.mask, np.where(random, drawn, original))


@lru_cache(maxsize=4)
def _ordinary_tokens(vocabulary: Vocabulary) -> np.ndarray:
    """int64 ids that may be drawn at random."""
    return np.setdiff1d(np.arange(vocabulary.size), np.asarray(vocabulary.special))

"""Every system, by its tiny configuration, learns a batch of real text by heart."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from models.initialization import init_weights
from pipeline.checkpoint.references import resolve_model
from pipeline.config.loading import load_config
from pipeline.objectives.base import Batch
from pipeline.run.config import PretrainConfig
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.samples.noise import Noise
from tests.pipeline.real_text import write_text_store

PRETRAIN = Path(__file__).parents[2] / "configs" / "pretrain"
STUDENT = "distilbert-tiny"
TINY = sorted(path.stem for path in PRETRAIN.glob("*-tiny.yaml") if path.stem != STUDENT)
BY_HEART = 0.1
"""Nats per prediction under which a batch is known by heart; the first loss is about 7."""


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(name: str) -> Path:
        langs = ("en", "de") if name == "tiny-languages" else ("en",)
        kind = "tiny-sentencepiece" if name == "tiny-languages" else name
        return write_text_store(tmp_path_factory.mktemp("stores") / name / "tokens", kind, langs)

    return make


@pytest.mark.parametrize("name", TINY)
def test_tiny_run_learns_a_batch_by_heart(name: str, store_of: Callable[[str], Path]):
    path = PRETRAIN / f"{name}.yaml"
    wanted = Path(OmegaConf.load(path).data.stores[0].path).parent.name
    overrides = [f"data.stores=[{{path: {store_of(wanted)}}}]", "optimizer.lr=3e-3"]
    config = load_config(PretrainConfig, path, overrides)
    inputs = open_inputs(config, verify=False, resolve=resolve_model)
    model = inputs.build_model()
    init_weights(model, config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr, fused=True)
    batch = inputs.corrupt(inputs.train.batch(np.arange(4)), Noise.of("train", config.seed))
    losses = [update(inputs, model.train(), optimizer, batch)]
    wanted_loss = BY_HEART + (unknowable(batch) if name == "elmo-tiny" else 0.0)
    while max(losses[-1].values()) >= wanted_loss:
        assert len(losses) < 400
        losses.append(update(inputs, model, optimizer, batch))
    assert max(losses[0].values()) > 6 or name == "elmo-tiny"


def update(
    inputs: Inputs, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
) -> dict[str, float]:
    terms = inputs.config.objective.terms()
    losses, _ = model(**{name: torch.from_numpy(array) for name, array in batch.inputs.items()})
    assert losses.keys() == batch.counts.keys()
    means = {term: loss / batch.counts[term] for term, loss in losses.items()}
    optimizer.zero_grad()
    torch.stack([terms[term].weight * mean for term, mean in means.items()]).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return {term: mean.item() for term, mean in means.items()}


def unknowable(batch: Batch) -> float:
    """Nats per prediction that ELMo cannot know of a batch that it knows by heart: which of its sentences this one is.

    The chain rule makes their entropy of all conditional ones, in either direction.
    """
    words, bounds = batch.inputs["word_ids"], batch.inputs["cu_seqlens"]
    pieces = Counter(tuple(words[start:end]) for start, end in itertools.pairwise(bounds))
    nats = sum(count * math.log(pieces.total() / count) for count in pieces.values())
    return nats / min(batch.counts.values())

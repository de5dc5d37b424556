"""Every system, by its tiny configuration, learns real text: one batch by heart, and where the size allows it more than
how often each token occurs."""

from __future__ import annotations

import itertools
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from omegaconf import OmegaConf
from torch import Tensor, nn

from data_prep.token_store import TokenStore
from models.initialization import init_weights
from pipeline.checkpoint.references import resolve_model
from pipeline.config.loading import load_config
from pipeline.objectives.base import Batch
from pipeline.run.config import PretrainConfig
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.samples.batch_plan import BatchPlan
from pipeline.samples.loader import StepLoader
from pipeline.samples.noise import Noise
from tests.pipeline.real_text import write_text_store

PRETRAIN = Path(__file__).parents[2] / "configs" / "pretrain"
STUDENT = "distilbert-tiny"
TINY = sorted(path.stem for path in PRETRAIN.glob("*-tiny.yaml") if path.stem != STUDENT)
BY_HEART = 0.1
"""Nats per prediction under which a batch is known by heart; the first loss is about 7."""
BEYOND_UNIGRAM = {"gpt-tiny": 150, "llama-tiny": 150, "prefix-lm-tiny": 200, "elmo-tiny": 60}
"""Steps after which these are well under the unigram entropy. What predicts few tokens of a step needs minutes."""


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(name: str) -> Path:
        langs = ("en", "de") if name == "tiny-languages" else ("en",)
        kind = "tiny-sentencepiece" if name == "tiny-languages" else name
        return write_text_store(tmp_path_factory.mktemp("stores") / name / "tokens", kind, langs)

    return make


def open_tiny(name: str, store_of: Callable[[str], Path], *overrides: str) -> Inputs:
    path = PRETRAIN / f"{name}.yaml"
    wanted = Path(OmegaConf.load(path).data.stores[0].path).parent.name
    stores = f"data.stores=[{{path: {store_of(wanted)}}}]"
    return open_inputs(
        load_config(PretrainConfig, path, [stores, *overrides]), verify=False, resolve=resolve_model
    )


def build(inputs: Inputs) -> tuple[nn.Module, torch.optim.Optimizer]:
    config = inputs.config
    model = inputs.build_model()
    init_weights(model, config.seed)
    return model.train(), torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr, fused=True)


def batches(inputs: Inputs, samples: int) -> Iterator[Batch]:
    plan = BatchPlan(samples, samples)
    noise = Noise.of("train", inputs.config.seed)
    loader = StepLoader(inputs.phases, plan, lambda p: inputs.corrupt(p, noise), rank=0, world_size=1)
    for step in range(1_000_000):
        yield loader.micro_batch(step, 0)


def mean_losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}
    losses, _ = model(**tensors)
    assert losses.keys() == batch.counts.keys()
    return {term: loss / batch.counts[term] for term, loss in losses.items()}


def update(
    inputs: Inputs, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
) -> dict[str, float]:
    terms = inputs.config.objective.terms()
    means = mean_losses(model, batch)
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


@pytest.mark.parametrize("name", TINY)
def test_tiny_run_learns_a_batch_by_heart(name: str, store_of: Callable[[str], Path]):
    inputs = open_tiny(name, store_of, "optimizer.lr=3e-3")
    model, optimizer = build(inputs)
    batch = next(batches(inputs, 4))
    wanted = BY_HEART + (unknowable(batch) if name == "elmo-tiny" else 0.0)
    first = found = update(inputs, model, optimizer, batch)
    for _ in range(400):
        found = update(inputs, model, optimizer, batch)
        if max(found.values()) < wanted:
            break
    assert max(first.values()) > 6 or name == "elmo-tiny"
    assert max(found.values()) < wanted


def test_tiny_student_comes_nearer_to_its_teacher(store_of: Callable[[str], Path], tmp_path: Path):
    """A BERT of two layers as `transformers` saves it, with the tokens of the data."""
    store = TokenStore.open(store_of("tiny-wordpiece"), verify=False)
    config = transformers.BertConfig(
        vocab_size=store.vocab_size,
        num_hidden_layers=2,
        hidden_size=128,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "teacher")
    shutil.copy(store.tokenizer_path, tmp_path / "teacher" / "tokenizer.json")
    inputs = open_tiny(STUDENT, store_of, f"objective.teacher={tmp_path / 'teacher'}")
    model, optimizer = build(inputs)
    samples = batches(inputs, inputs.config.batch.samples)
    losses = [update(inputs, model, optimizer, next(samples)) for _ in range(30)]
    first, last = losses[0], losses[-1]
    assert last["mlm"] < first["mlm"] - 0.3
    assert first.keys() == {"mlm", "soft", "cosine"}
    assert last["cosine"] < 0.9 * first["cosine"]


@pytest.mark.parametrize(("name", "steps"), BEYOND_UNIGRAM.items())
def test_tiny_run_learns_more_than_how_often_tokens_occur(
    name: str, steps: int, store_of: Callable[[str], Path]
):
    inputs = open_tiny(name, store_of)
    model, optimizer = build(inputs)
    samples = batches(inputs, inputs.config.batch.samples)
    losses = [update(inputs, model, optimizer, next(samples)) for _ in range(steps)]
    last = np.mean([list(loss.values()) for loss in losses[-10:]])
    assert last < unigram_entropy(inputs) - 0.3


def unigram_entropy(inputs: Inputs) -> float:
    """Nats per token of the training text, end-of-text tokens included."""
    ids = inputs.train.batch(np.arange(500)).input_ids
    return float(scipy.stats.entropy(np.bincount(ids[ids != inputs.vocabulary["pad"]])))

"""Every prediction counts for the source whose document has what is predicted; nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from data_prep.ragged import Ragged
from data_prep.token_writer import EncodedBatch
from data_prep.tokenizers import WordLexicon
from models.hf.directory import save_hf_directory
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from models.losses import EACH, sums_by_group
from pipeline.objectives.base import Batch
from pipeline.objectives.vocabulary import make_vocabulary
from pipeline.run.inputs import Inputs
from pipeline.samples.noise import Noise
from pipeline.samples.packed import NO_SOURCE
from tests.conftest import commit_tokens
from tests.pipeline.test_refusals import TINY, open_objective
from tests.published_networks import PRESETS

NAMES = ["books", "common_crawl", "wikipedia"]
WORDS_OF_A_SOURCE = 60
ROLES = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
WORDS = [f"word{number:03d}" for number in range(WORDS_OF_A_SOURCE * len(NAMES))]
LEXICON = WordLexicon(vocab_size=1024).train(
    [" ".join(WORDS[: len(WORDS) - step]) for step in range(len(WORDS))]
)[0]
FIRST_WORD = make_vocabulary(LEXICON, ROLES).size - len(WORDS)
"""Words are numbered source by source: an id tells the source of its document."""
LENGTH = 32
NOISE = Noise.of("train", 1)


def source_of_id(ids: np.ndarray) -> np.ndarray:
    """The source that has these words."""
    return (ids - FIRST_WORD) // WORDS_OF_A_SOURCE


def write_sources(path: Path, *names: str) -> Path:
    """Commit a token store with a file of 40 documents of each source."""
    generator = np.random.Generator(np.random.Philox(len(names)))
    shards = []
    for name in names:
        first = FIRST_WORD + WORDS_OF_A_SOURCE * NAMES.index(name)
        lengths = generator.integers(4, 30, 40)
        batch = EncodedBatch(
            doc_ids=pa.array([f"{path.name}:{name}-{number}" for number in range(len(lengths))]),
            langs=pa.array(["en"] * len(lengths)),
            input_ids=Ragged.of(
                [first + generator.permutation(WORDS_OF_A_SOURCE)[:length] for length in lengths]
            ),
            sentence_starts=Ragged.of([np.array([0, 2], np.int32) for _ in lengths]),
        )
        shards.append((name, batch))
    return commit_tokens(path, shards, LEXICON, FIRST_WORD + len(WORDS), ROLES)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("stores")
    return [
        write_sources(directory / "first", "wikipedia", "books"),
        write_sources(directory / "second", "common_crawl", "wikipedia"),
    ]


SETTINGS: dict[str, dict[str, Any]] = {
    "mlm": {},
    "mlm with pairs": {"pairs": "nsp"},
    "mlm of n-grams": {"units": "ngram", "rate": 0.3},
    "span": {},
    "rtd": {"rate": 0.3},
    "distill": {},
    "clm": {},
    "prefix_lm": {},
    "bart_denoising": {},
    "mbart_denoising": {},
    "t5_span_corruption": {"final_sentinel": True},
    "ul2_mixture_of_denoisers": {},
    "bilm": {},
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("teacher")
    vocabulary = make_vocabulary(LEXICON, ROLES, ("<mask>",))
    shape = replace(PRESETS["roberta-base"], **TINY, vocab_size=vocabulary.size)
    network = MaskedLanguageModel(shape)
    init_weights(network, 1)
    save_hf_directory(directory, network.state_dict(), shape)
    (directory / "tokenizer.json").write_text(vocabulary.tokenizer_json)
    return directory


Opener = Callable[..., Inputs]
"""Opens the stores for an objective, with settings of the batch; `apart` makes each source a store of its own."""


@pytest.fixture(params=SETTINGS)
def opened(request: pytest.FixtureRequest, stores: list[Path], teacher: Path) -> Opener:
    kind, chosen = request.param.split()[0], SETTINGS[request.param]
    if kind == "distill":
        chosen = {"teacher": str(teacher), "start_from_teacher": False}

    def make(*, apart: bool = False, **batch: Any) -> Inputs:
        data: list[dict[str, Any]] = [{"path": str(path)} for path in stores]
        if apart:
            of_sources = [(stores[0], "wikipedia"), (stores[0], "books"), (stores[1], "common_crawl")]
            data = [{"path": str(path), "sources": [source]} for path, source in of_sources]
        batch = {"sequence_length": LENGTH, **batch}
        return open_objective(stores[0], kind, chosen, batch=batch, data={"stores": data})

    return make


def corrupted(inputs: Inputs, samples: Any) -> Batch:
    return inputs.corrupt(inputs.train.batch(samples), NOISE)


def first_term(inputs: Inputs) -> str:
    return next(iter(inputs.config.objective.terms()))


@pytest.mark.parametrize("attention", ["documents", "full"])
def test_every_prediction_is_of_the_source_that_has_its_target(opened: Opener, attention: str):
    for format in opened().config.reading.formats:
        inputs = opened(format=format, attention=attention)
        batch = corrupted(inputs, range(40))
        sources, targets = require_sources(batch), first_targets(batch)
        assert len(sources) == len(targets) == batch.counts[first_term(inputs)]
        is_word = (targets >= FIRST_WORD) & (targets < FIRST_WORD + len(WORDS))
        assert (sources[is_word] == source_of_id(targets[is_word])).all()
        assert len(np.unique(sources[is_word])) == len(NAMES)
        assert (sources != NO_SOURCE).all()
        # Texts may end with what is shown, so that their `</s>` stands with a word that is not predicted.
        ends = ("prefix_lm",) if attention == "documents" else ("prefix_lm", "ul2_mixture_of_denoisers")
        if format == "best_fit" and inputs.config.objective.kind not in ends:
            # Documents are whole, and of each some words are predicted.
            words, special = np.flatnonzero(is_word), np.flatnonzero(~is_word)
            assert len(special) or inputs.config.objective.kind in ("mlm", "span", "rtd", "distill")
            place = np.searchsorted(words, special)
            around = np.stack([np.maximum(place - 1, 0), np.minimum(place, len(words) - 1)])
            assert (sources[special] == sources[words[around]]).any(axis=0).all()


def require_sources(batch: Batch) -> np.ndarray:
    assert batch.sources is not None
    assert batch.sources.dtype == np.int16
    return batch.sources


def first_targets(batch: Batch) -> np.ndarray:
    """What the first term predicts."""
    if "targets" in batch.inputs:
        return batch.inputs["targets"]
    return batch.inputs["word_ids"][batch.inputs["predicted_positions"] + 1]


def test_batches_are_bit_identical_with_and_without_sources(opened: Opener):
    inputs = opened()
    packed = inputs.train.batch(range(12))
    found, plain = (inputs.corrupt(each, NOISE) for each in (packed, replace(packed, sources=None)))
    assert plain.sources is None
    assert found.counts == plain.counts
    assert found.inputs.keys() == plain.inputs.keys()
    for name, array in plain.inputs.items():
        np.testing.assert_array_equal(array, found.inputs[name], name, strict=True)


def test_losses_of_the_sources_add_up_and_are_those_of_each_source_alone(opened: Opener):
    """Rows of one source each, so that a source can be read alone; the noise of a row is the same in any batch."""
    inputs = opened(apart=True)
    model, term, objective = inputs.build_model().eval(), first_term(inputs), inputs.config.objective
    init_weights(model, seed=1)
    with_accuracy = {name for name, one in objective.terms().items() if one.has_accuracy}

    def losses_of(samples: np.ndarray) -> tuple[float, torch.Tensor]:
        batch = corrupted(inputs, samples)
        with torch.no_grad():
            losses, correct = model(**{name: torch.from_numpy(array) for name, array in batch.inputs.items()})
        assert correct.keys() - {EACH} == with_accuracy
        sources = torch.from_numpy(require_sources(batch))
        return losses[term].item(), sums_by_group(correct[EACH], sources, len(NAMES))

    samples = np.arange(24)
    total, together = losses_of(samples)
    assert total > 0
    assert together[:, 0].sum().item() == pytest.approx(total, rel=1e-5)
    assert together[:, 1].sum() == corrupted(inputs, samples).counts[term]
    origins = [inputs.train.origin(sample).store for sample in samples.tolist()]
    sources = np.array(["wikipedia", "books", "common_crawl"])[origins]
    for number, name in enumerate(NAMES):
        alone, apart = losses_of(samples[sources == name])
        assert together[number, 0].item() == pytest.approx(alone, rel=1e-5)
        assert together[number, 1] == apart[number, 1] > 0

"""Held-out samples are the same ones however they are shared out; losses by term and source; one metric decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from cluster.artefacts.errors import ConfigError
from cluster.group import Rank
from data_prep.ragged import Ragged
from data_prep.token_store import TokenStore
from data_prep.token_writer import EncodedBatch
from data_prep.tokenizers import WordLexicon
from models.hf.directory import save_hf_directory
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from models.losses import EACH, sums_by_group
from pipeline.checkpoint.checkpoint import Counters, TrainerState
from pipeline.objectives import ObjectiveChoice
from pipeline.objectives.base import Batch
from pipeline.objectives.vocabulary import make_vocabulary
from pipeline.pretrain import evaluation
from pipeline.pretrain.batches import HostBatch, Totals
from pipeline.pretrain.evaluation import Evaluation, standard_error
from pipeline.run.inputs import Inputs
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.mixture import Sampling, StoreShare
from pipeline.samples.noise import Noise
from pipeline.samples.packed import NO_SOURCE, Packed
from pipeline.terms import Term, deciding_metric, with_perplexities
from tests.conftest import commit_tokens
from tests.pipeline.ranks import make_config
from tests.pipeline.small_checkpoints import state_at
from tests.pipeline.test_refusals import TINY, open_objective
from tests.published_networks import PRESETS

SAMPLES = 64


class Engine:
    """Its loss is the sum of samples' squared numbers."""

    device = torch.device("cpu")

    def __call__(self, ids: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"mlm": (ids.double() ** 2).sum()}, {}

    def eval(self) -> None: ...

    def train(self) -> None: ...


def prepare(packed: Packed) -> HostBatch:
    ids = torch.from_numpy(packed.sample_ids.astype(np.int64))
    return HostBatch({"ids": ids}, {"mlm": len(ids)}, packed.sample_ids, None)


def by_remainder(sample_ids: np.ndarray, epochs: np.ndarray, length: int) -> np.ndarray:
    return (sample_ids % 5).astype(np.int64)


@pytest.mark.parametrize("lengths", [None, by_remainder])
def test_the_same_samples_are_measured_whatever_the_micro_batches_and_workers(
    store: Path, lengths: Any, monkeypatch: pytest.MonkeyPatch
):
    share = StoreShare(TokenStore.open(store))
    dataset = TokenDataset([share], Sampling(sequence_length=16, seed=1, held_out=0.2, split="held_out"))
    expected = (dataset.identify(np.arange(SAMPLES))[0].astype(np.float64) ** 2).sum()
    of_ranks: list[tuple[float, float]] = []

    def summed(sums: Tensor, others: list[float]) -> tuple[list[float], list[float]]:
        of_ranks.append((float(sums[0]), others[0]))
        return sums.tolist(), others

    monkeypatch.setattr(evaluation, "summed", summed)
    engine: Any = Engine()
    for micro_batch_size, workers in ((64, 1), (6, 1), (9, 4), (100, 3)):
        sizes = {"samples": SAMPLES, "micro_batch_size": micro_batch_size, "lengths": lengths, "seed": 0}
        measure = Evaluation({"": dataset}, prepare, {"mlm": Term()}, (), **sizes).measure
        of_ranks.clear()
        for rank in range(workers):
            measure(engine, Rank(rank, workers, rank, 1), lambda: None)
        assert np.sum(of_ranks, axis=0).tolist() == [expected, SAMPLES]


def test_means_of_sources_are_over_all_micro_batches_of_all_ranks_for_the_first_term():
    terms = {"forward": 0.5, "backward": 0.5}
    ranks = [Totals(terms, ["books", "common_crawl", "wikipedia"], torch.device("cpu")) for _ in range(2)]
    batches = (0, [1.0, 2.0, 6.0], [0, 2, 2]), (0, [], []), (1, [4.0, 100.0], [2, -1])
    for rank, each, sources in batches:
        losses = torch.tensor(each)
        numbers = torch.tensor(sources, dtype=torch.int64)
        ranks[rank].add(dict.fromkeys(terms, losses.sum()), {EACH: losses}, numbers)
    found = ranks[0].means((ranks[0].sums + ranks[1].sums).tolist(), dict.fromkeys(terms, 5.0))
    assert {name: mean for name, mean in found.items() if name.count("/") == 2} == {
        "forward/loss/books": 1.0,
        "forward/loss/wikipedia": pytest.approx(4.0),
    }


def measured(losses: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Mean loss of a prediction, and its standard error, from the micro-batches of one evaluation."""
    products = [(losses * losses).sum(), (losses * counts).sum(), (counts * counts).sum()]
    mean = losses.sum() / counts.sum()
    return mean, standard_error(mean, counts.sum(), len(losses), products)


def test_it_is_the_error_of_a_mean_where_micro_batches_are_equally_large():
    means = np.random.Generator(np.random.Philox(1)).normal(5.0, 0.3, 64)
    _, error = measured(20 * means, np.full(64, 20.0))
    assert error == pytest.approx(means.std(ddof=1) / 8)
    assert measured(np.array([10.0, 20.0]), np.array([5.0, 10.0])) == (2.0, 0.0)


def test_it_is_the_spread_of_the_loss_over_evaluations_with_alike_predictions_and_unequal_micro_batches():
    generator = np.random.Generator(np.random.Philox(2))
    found = []
    for _ in range(400):
        counts = generator.integers(10, 30, 100).astype(float)
        # Predictions of a micro-batch share a difficulty: they are no independent draws.
        losses = counts * generator.normal(5.0, 0.4, 100) + np.sqrt(counts) * generator.normal(0, 0.2, 100)
        found.append(measured(losses, counts))
    means, errors = np.array(found).T
    assert errors.mean() == pytest.approx(means.std(), rel=0.1)


NOT_LIKELIHOODS = {"nsp", "sop", "rtd", "soft", "cosine"}


def terms_of(**objective: Any) -> dict[str, Term]:
    settings: Any = TypeAdapter(ObjectiveChoice).validate_python(objective)
    return dict(settings.terms())


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        ({"kind": "mlm"}, "loss"),
        ({"kind": "mlm", "pairs": "nsp"}, "mlm/loss"),
        ({"kind": "mlm", "pairs": "sop"}, "mlm/loss"),
        ({"kind": "span"}, "mlm/loss"),
        ({"kind": "span", "boundary": False}, "loss"),
        ({"kind": "rtd"}, "rtd/loss"),
        ({"kind": "distill", "teacher": "t"}, "mlm/loss"),
        ({"kind": "clm"}, "loss"),
        ({"kind": "t5_span_corruption"}, "loss"),
        ({"kind": "bilm"}, "loss"),
    ],
    ids=str,
)
def test_every_objective_says_which_metric_decides_and_which_terms_are_language_models(
    objective: dict[str, Any], metric: str
):
    terms = terms_of(**objective)
    assert deciding_metric(terms) == metric
    assert {name for name, term in terms.items() if not term.is_likelihood} == NOT_LIKELIHOODS & terms.keys()


def test_perplexity_is_of_each_language_models_own_mean():
    found = with_perplexities({"loss": 52.0, "mlm/loss": 2.0, "rtd/loss": 1.0}, terms_of(kind="rtd"))
    assert found == {"loss": 52.0, "mlm/loss": 2.0, "rtd/loss": 1.0, "mlm/perplexity": math.exp(2.0)}
    found = with_perplexities({"clm/loss": 1e4}, {"clm": Term(is_likelihood=True)})
    assert found["clm/perplexity"] == math.inf


def test_an_unknown_metric_is_refused_with_those_that_are_measured(tmp_path: Path):
    with pytest.raises(ConfigError, match="mlm/perplexity, rtd/loss, rtd/accuracy"):
        make_config(tmp_path, tmp_path, "evaluation.metric=rtd/perplexity", objective="{kind: rtd}")
    chosen = make_config(tmp_path, tmp_path, "evaluation.metric=rtd/accuracy", objective="{kind: rtd}")
    assert chosen.metric == "rtd/accuracy"


def restored(counters: Counters, metric: str) -> Counters:
    """As a resumed run has it: out of the checkpoint's JSON."""
    names = ("held_out", "best", "evaluations_since_best")
    state = state_at(7, metric=metric, **{name: getattr(counters, name) for name in names})
    read = TrainerState.model_validate(orjson.loads(orjson.dumps(state.model_dump(mode="json"))))
    return read.counters(metric)


@given(
    values=st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 0.25, 0.5, 0.75]), max_size=8),
    killed=st.integers(0, 8),
    metric=st.sampled_from(["loss", "mlm/accuracy"]),
)
@example(values=[math.nan, 0.5, 0.75], killed=1, metric="loss")
def test_evaluations_without_numbers_are_never_best_and_a_resumed_run_counts_them_alike(
    values: list[float], killed: int, metric: str
):
    whole, resumed = Counters.at_start(), Counters.at_start()
    for number, value in enumerate(values):
        if number == killed:
            resumed = restored(resumed, metric)
        for counters in (whole, resumed):
            counters.add_evaluation({metric: value, "lr": 1.0}, metric, 0.0)
    for name in ("held_out", "best", "evaluations_since_best"):
        assert getattr(whole, name) == getattr(resumed, name)
    finite = [value for value in values if math.isfinite(value)]
    best = max if metric.endswith("accuracy") else min
    assert whole.best == (best(finite) if finite else None)
    behind = len(values) - 1 - values.index(best(finite)) if finite else len(values)
    assert whole.evaluations_since_best == behind


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

"""The first batches of every objective in every format that it reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from data_prep.document import Document
from data_prep.token_store import TokenStore
from pipeline.objectives import OBJECTIVES
from pipeline.objectives.base import Batch
from pipeline.run.config import PretrainConfig
from pipeline.run.inputs import Inputs, open_vocabulary
from pipeline.samples.batch_plan import BatchPlan
from pipeline.samples.loader import StepLoader
from pipeline.samples.noise import Noise
from tests.data_prep.conftest import sentences
from tests.golden.book import digest
from tests.golden.losses import ELMO, FAMILIES
from tests.pipeline.ranks import TRANSFORMER, make_config
from tests.pipeline.real_text import write_text_store

STEPS = 3
SHOWN = 24
"""Numbers of an array that are recorded, of the first batch in the format of the objective's paper."""
DOCUMENTS = 120
CASES: dict[str, str] = {
    **{kind: f"{{kind: {kind}}}" for kind in FAMILIES},
    "distill": "{kind: distill, teacher: none}",
    "mlm of n-grams": "{kind: mlm, units: ngram}",
    "mlm with next sentences": "{kind: mlm, pairs: nsp}",
    "mlm with order of sentences": "{kind: mlm, pairs: sop}",
    "span with next sentences": "{kind: span, pairs: nsp}",
}
"""Every objective, and settings of them that read other samples."""


def values(directory: Path) -> dict[str, Any]:
    """By objective and format, the fingerprint of the samples and the first batches."""
    assert {case.split()[0] for case in CASES} == OBJECTIVES.keys(), "say in CASES how an objective is tried"
    generator = random.Random(7)
    texts = [sentences(generator, generator.randint(2, 24)) for _ in range(DOCUMENTS)]
    documents = [Document(f"golden:{n}", "golden", "", "", "en", text) for n, text in enumerate(texts)]
    store = write_text_store(directory / "tokens", "tiny", ("en", "de"), documents)
    words = write_text_store(directory / "words", "tiny-words", ("en", "de"), documents)
    found: dict[str, Any] = {}
    for name, objective in CASES.items():
        kind = name.split()[0]
        config = make_config(
            directory,
            words if kind == "bilm" else store,
            "steps=100",
            *FAMILIES.get(kind, ()),
            *(("model.num_segments=2",) if "pairs" in objective else ()),
            objective=objective,
            model=ELMO if kind == "bilm" else TRANSFORMER,
        )
        found[name] = {
            format: _batches(
                config.model_copy(update={"batch": config.batch.model_copy(update={"format": format})})
            )
            for format in config.reading.formats
        }
        found[name]["first batch"] = _shown(config)
    return found


def _loader(config: PretrainConfig) -> StepLoader[Batch]:
    stores = [TokenStore.open(store.path) for store in config.data.stores]
    # What an objective refers to, such as a teacher, is not read here.
    inputs = Inputs(config, stores, config.model, open_vocabulary(config, stores), {})
    noise = Noise.of("train", config.seed)
    plan = BatchPlan(config.batch.samples, config.batch.samples)
    return StepLoader(inputs.phases, plan, lambda packed: inputs.corrupt(packed, noise), rank=0, world_size=1)


def _batches(config: PretrainConfig) -> dict[str, Any]:
    loader = _loader(config)
    _, dataset = loader.phase(0)
    batches = [loader.micro_batch(step, 0) for step in range(STEPS)]
    return {
        "fingerprint": dataset.fingerprint,
        "samples of an epoch": list(dataset.samples_per_epoch),
        "predictions": [batch.counts for batch in batches],
        "batches": [digest(*(batch.inputs[name] for name in sorted(batch.inputs))) for batch in batches],
    }


def _shown(config: PretrainConfig) -> dict[str, list[Any]]:
    batch = _loader(config).micro_batch(0, 0)
    return {name: array.reshape(-1)[:SHOWN].tolist() for name, array in batch.inputs.items()}

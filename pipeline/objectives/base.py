"""The interface of an objective: the samples it reads, how it corrupts a micro-batch, and the network it trains.

An objective is a subclass of `Objective` in a module of this package. Only `build_model` imports torch, so that reading
a configuration does not.

Some objectives read trained models beside their samples, such as the teacher of a distillation: a setting of the type
`ModelReference` names one. Objectives never look a reference up: `resolve_references` does, once, with the function
that its caller hands in. An objective gets the models by the settings' names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import numpy as np
from pydantic import AfterValidator, Field

from cluster.artefacts.credentials import require_no_credentials
from cluster.artefacts.manifest import InputEntry
from models.config import NetworkConfig
from pipeline.config.loading import Config
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.formats import SINGLE_FORMATS
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed, Reading
from pipeline.terms import Term

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pipeline.samples.loader import Lengths


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch ready for the network."""

    inputs: dict[str, np.ndarray]
    """Keyword arguments of the network's `forward`; arrays of int64 ids and positions, int32 boundaries, or
    float32 numbers, which become tensors on the rank's device."""
    counts: dict[str, int]
    """Number of predictions that each loss term sums over. The trainer divides each term's sum by the count of the
    global batch."""
    sources: np.ndarray | None = None
    """[predictions of the first term] int16, in their order: index of the source of each predicted token;
    None unless `Packed.sources` was filled in."""


def boundaries(packed: Packed) -> dict[str, np.ndarray]:
    """`cu_seqlens` as a network's argument; left out when every row is a single piece, which needs no mask."""
    return {} if len(packed.cu_seqlens) == len(packed.input_ids) + 1 else {"cu_seqlens": packed.cu_seqlens}


_REFERENCE = object()
ModelReference = Annotated[str, AfterValidator(require_no_credentials), Field(min_length=1), _REFERENCE]
"""A setting that names a trained model. Its neighbour `runs_dir` is the directory of the runs to look in."""
OUTSIDE_KIND = "checkpoint"
"""Kind of the manifest's entries of such models."""


class TrainedModel(Protocol):
    """The model of a reference, verified."""

    @property
    def directory(self) -> Path:
        """Directory of its files."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of its contents."""
        ...

    @property
    def model(self) -> NetworkConfig:
        """Its network."""
        ...

    @property
    def tokenizer_path(self) -> Path:
        """Its `tokenizer.json`."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Its float32 weights, by the names of cloze's networks."""
        ...


Resolve = Callable[[str, Path], TrainedModel]
"""Finds the model of a reference, by the reference and the directory of runs; raises ReferenceNotFoundError."""
OutsideModels = Mapping[str, TrainedModel]
"""Models by the name of the setting that refers to each."""


def resolve_references(settings: Any, resolve: Resolve) -> dict[str, TrainedModel]:
    """The models that the settings of an objective refer to; empty for most objectives.

    Raises:
        ReferenceNotFoundError: there is no such model.
    """
    fields = type(settings).model_fields
    names = [name for name, field in fields.items() if _REFERENCE in field.metadata]
    return {name: resolve(getattr(settings, name), settings.runs_dir) for name in names}


def pin_references(settings: Any, resolve: Resolve) -> Any:
    """The settings with the model's directory in place of each reference: `RUN@best` may mean another checkpoint
    later in the run, and workers may run in another directory.

    Raises:
        ReferenceNotFoundError: there is no such model.
    """
    found = resolve_references(settings, resolve)
    if not found:
        return settings
    places = {name: str(model.directory.resolve()) for name, model in found.items()}
    return settings.model_copy(update={**places, "runs_dir": settings.runs_dir.resolve()})


def input_entries(outside: OutsideModels) -> list[InputEntry]:
    """The models as the manifests of checkpoints name them."""
    return [
        InputEntry(kind=OUTSIDE_KIND, uri=str(model.directory), fingerprint=model.fingerprint)
        for model in outside.values()
    ]


class Objective(Config):
    """The settings of an objective, and what it does; the default of its field `kind` is its name.

    Networks return `(losses, correct)`: by term the summed loss (float32 scalar, in nats where it is a likelihood) and,
    where it applies, the right predictions (int64); beside the latter, the losses of the first term one by one
    (`models.losses.EACH`).
    """

    NETWORKS: ClassVar[tuple[str, ...]]
    """Kinds of network (`model.network`) that can carry the objective."""
    kind: str

    def reading(self, sequence_length: int) -> Reading:
        """The samples that it asks for; here any text, contiguous by default."""
        return Reading(SINGLE_FORMATS, sequence_length)

    def extra_tokens(self, languages: Sequence[str]) -> tuple[str, ...]:
        """Texts of tokens that the tokenizer may lack, such as `<mask>` or sentinels; appended to its vocabulary
        in this order. `languages` are the ISO 639-1 codes of the data."""
        return ()

    def check_fit(self, config: Any, vocabulary: Vocabulary, outside: OutsideModels) -> None:
        """Make sure that it goes with a network and a vocabulary; most go with all.

        Args:
            outside: the models that the settings refer to.

        Raises:
            ConfigError, MismatchError: they do not fit together.
        """

    def lengths(self, noise: Noise) -> Lengths | None:
        """The lengths of samples whose rows become texts of different lengths, with the run's noise; None if all have
        one length."""
        return None

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Make inputs and targets. A pure function: `noise` is the run's, and this adds epoch, sample and
        position, so that a sample's noise does not depend on its micro-batch."""
        raise NotImplementedError

    def terms(self) -> Mapping[str, Term]:
        """The terms of the loss by name; the first is also reported by source. One of them, or their weighted sum,
        decides which of two checkpoints is better (`deciding_metric`)."""
        raise NotImplementedError

    def build_model(self, config: Any, outside: OutsideModels) -> nn.Module:
        """The network with the heads that this objective trains.

        Args:
            config: of a network of a kind in `NETWORKS`.
            outside: the models that the settings refer to.

        Raises:
            ConfigError, MismatchError: they do not fit together.
        """
        raise NotImplementedError

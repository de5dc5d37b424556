"""Trained models that an objective reads beside its samples, such as the teacher of a distillation.

A setting of the type `ModelReference` names one. Objectives never look a reference up: `resolve_references` does, once,
with the function that its caller hands in. An objective gets the model as the keyword argument of the setting's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import AfterValidator, Field

from cluster.artefacts.credentials import require_no_credentials
from cluster.artefacts.manifest import InputEntry
from models.config import NetworkConfig
from pipeline.config.loading import Config

if TYPE_CHECKING:
    from torch import Tensor

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
    return {name: resolve(getattr(settings, name), settings.runs_dir) for name in _references(settings)}


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


def _references(settings: Config) -> Iterator[str]:
    for name, field in type(settings).model_fields.items():
        if _REFERENCE in field.metadata:
            yield name

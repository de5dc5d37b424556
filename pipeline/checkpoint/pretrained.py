"""Trained weights with all that is needed to use them, and reading them from a Hugging Face directory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from cluster.artefacts.errors import CorruptCheckpointError, MismatchError
from cluster.artefacts.manifest import MANIFEST_NAME, InputEntry, hash_file
from cluster.artefacts.reading import read_bytes
from cluster.artefacts.signatures import refuse_unsigned
from cluster.artefacts.storage import contents_of, is_committed, open_artefact
from pipeline.checkpoint import checkpoint as checkpoints
from pipeline.checkpoint.hub import hub_name
from pipeline.checkpoint.tokenizer_files import find_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from models.config import NetworkConfig
    from models.hf.heads import Head

Weights = Literal["model", "ema"]
"""The weights as training left them, or their moving average."""
WEIGHT_FILES = {"model": checkpoints.MODEL_FILE, "ema": checkpoints.EMA_FILE}
_SHOWN_TENSORS = 3


@dataclass(frozen=True, slots=True)
class PretrainedModel:
    """Weights with their network, their tokenizer and their place in the lineage."""

    directory: Path
    reference: str
    """Canonical: `RUN@STEP` for a run's checkpoint, `NAME@COMMIT` for a model of the Hub, otherwise the directory."""
    run_id: str | None
    """MLflow run that made it; None for a Hugging Face directory."""
    step: int | None
    fingerprint: str
    model: NetworkConfig
    tokenizer_path: Path
    head: Head | None = None
    """The head that a Hugging Face directory names; None for a checkpoint, whose tensors show it."""
    weights: Weights = "model"
    weights_file: Path | None = None
    """The file of a fine-tuned network; None where `directory` is given."""
    wrapper: str = ""
    """Prefix of the names in `weights_file` that the network itself does not have."""
    origin: InputEntry | None = None
    """The artefact that holds `weights_file`, for lineages."""
    model_id: str | None = None
    """MLflow logged model, where `references.with_logged_model` found one."""

    left_out: tuple[str, ...] = ()
    """Tensors of a Hugging Face directory that are not part of the network: a head for another task."""

    @property
    def name(self) -> str:
        """A short name: the model's on the Hub, or the directory's."""
        hub = hub_name(self.reference)
        in_hub = hub is not None and hub.revision == self.directory.name
        return hub.repository.replace("/", "_") if hub and in_hub else self.directory.resolve().name

    def state_dict(self) -> dict[str, Tensor]:
        """float32 weights by the names of cloze's networks; of a published BERT, with the pooler that classification
        starts from, whichever head its file has."""
        from safetensors.torch import load_file

        if self.weights_file is not None:
            with contents_of(self.weights_file):
                found = load_file(self.weights_file)
            return {name.removeprefix(self.wrapper): tensor for name, tensor in found.items()}
        if self.step is not None:
            file = self.directory / WEIGHT_FILES[self.weights]
            with contents_of(file, CorruptCheckpointError):
                return load_file(file)
        from models.hf.directory import read_hf_directory

        imported = read_hf_directory(self.directory)
        return imported.pooler | imported.state_dict


def is_export(directory: Path) -> bool:
    """Whether `manifest.json` there is one of cloze, damaged or not: other tools use this name, too."""
    if not is_committed(directory):
        return False
    try:
        contents = orjson.loads(read_bytes(directory / MANIFEST_NAME))
    except ValueError:
        return True
    return isinstance(contents, dict) and bool({"fingerprint", "created_by", "checksum"} & contents.keys())


def read_directory(directory: Path, reference: str = "") -> PretrainedModel:
    """The model of a Hugging Face directory, verified.

    Args:
        reference: its canonical reference; else the directory.

    Raises:
        ReferenceNotFoundError: it has no tokenizer.
        CorruptArtefactError: it was exported by cloze, and its bytes changed.
        MismatchError: it holds what these networks cannot carry, or is damaged.
    """
    from models.hf.directory import check_tokenizer, read_hf_directory, weight_files

    tokenizer = find_tokenizer(directory)
    if is_export(directory):
        open_artefact(directory, repair="export it again, or fetch the directory again")
    else:
        refuse_unsigned(str(directory), "a model that another program wrote")
    try:
        imported = read_hf_directory(directory)
        check_tokenizer(tokenizer, imported.config.require_vocab_size())
        fingerprint = "+".join(hash_file(file)[0] for file in weight_files(directory))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        # config.json and tokenizer.json may say anything at all.
        raise MismatchError(
            f"{directory} cannot be read as a model: {error}",
            next_step="name a directory that `save_pretrained` or `cloze export` wrote",
        ) from None
    left_out = tuple(name for name in imported.left_out if not (imported.pooler and "pooler.dense" in name))
    _report_left_out(reference or str(directory), left_out)
    return PretrainedModel(
        directory=directory,
        reference=reference or str(directory),
        run_id=None,
        step=None,
        fingerprint=fingerprint,
        model=imported.config,
        tokenizer_path=tokenizer,
        head=imported.head,
        left_out=left_out,
    )


def _report_left_out(reference: str, names: tuple[str, ...]) -> None:
    if names:
        more = f" and {len(names) - _SHOWN_TENSORS} more" if len(names) > _SHOWN_TENSORS else ""
        shown = ", ".join(names[:_SHOWN_TENSORS])
        print(f"{reference}: a head that is not read was left out: {shown}{more}", file=sys.stderr)

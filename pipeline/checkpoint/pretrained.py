"""Trained weights with all that is needed to use them, and reading them from a Hugging Face directory."""

from __future__ import annotations

import hashlib
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from cluster.artefacts.errors import CorruptCheckpointError, MismatchError, ReferenceNotFoundError
from cluster.artefacts.manifest import MANIFEST_NAME, InputEntry, hash_file, write_durably
from cluster.artefacts.private import cache_directory
from cluster.artefacts.reading import read_bytes
from cluster.artefacts.signatures import refuse_unsigned
from cluster.artefacts.storage import contents_of, is_committed, open_artefact, storage_errors
from pipeline.checkpoint import checkpoint as checkpoints
from pipeline.checkpoint.hub import CONFIG_FILE, TOKENIZER_FILES, VOCABULARY_FILES, hub_name

if TYPE_CHECKING:
    from torch import Tensor

    from models.config import NetworkConfig
    from models.hf.heads import Head


TOKENIZER_FILE = "tokenizer.json"


def find_tokenizer(directory: Path) -> Path:
    """The `tokenizer.json` of a Hugging Face directory, or one in the cache that `transformers` made of the others.

    Raises:
        ReferenceNotFoundError: there is no tokenizer, or one that cannot be converted.
    """
    own = directory / TOKENIZER_FILE
    if own.is_file():
        return own
    if not any((directory / name).is_file() for name in VOCABULARY_FILES):
        raise _absent(directory, "")
    converted = cache_directory() / "tokenizers" / _key(directory) / TOKENIZER_FILE
    if not converted.is_file():
        contents = _convert(directory)
        with storage_errors(converted.parent):
            converted.parent.mkdir(parents=True, exist_ok=True)
            write_durably(converted, contents.encode())
    return converted


def _convert(directory: Path) -> str:
    """The tokenizer as `tokenizers` stores it."""
    from transformers import AutoTokenizer

    try:
        # The error holds the reasons for a failure; the library's output before it describes other programs.
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            found = AutoTokenizer.from_pretrained(
                directory, use_fast=True, local_files_only=True, trust_remote_code=False
            )
        converted = found.backend_tokenizer
        # Classes begin with a vocabulary of special tokens when their files are not there or say nothing.
        wrong = [
            token for token, number in _stored(directory).items() if converted.token_to_id(token) != number
        ]
        if wrong or converted.get_vocab_size() <= len(found.all_special_tokens):
            raise ValueError(f"{type(found).__name__} does not read it")
        return converted.to_str()
    except Exception as error:  # files that say anything at all, read by code of every age
        raise _absent(directory, f"{type(error).__name__}: {error}".partition("\n")[0]) from None


def _stored(directory: Path) -> dict[str, int]:
    """The ids that the vocabulary's file gives to tokens; none for sentencepiece, where every class has its own ids."""
    words, pairs = directory / "vocab.txt", directory / "vocab.json"
    if words.is_file():
        lines = words.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return {line.rstrip("\r"): number for number, line in enumerate(lines)}
    return dict(orjson.loads(pairs.read_bytes())) if pairs.is_file() else {}


def _key(directory: Path) -> str:
    """A name for the files that a tokenizer is made from, and for the version that converts them."""
    import transformers

    digest = hashlib.sha256(transformers.__version__.encode())
    for name in (CONFIG_FILE, *TOKENIZER_FILES):
        file = directory / name
        if file.is_file():
            digest.update(f"\0{name}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _absent(directory: Path, reason: str) -> ReferenceNotFoundError:
    there = [name for name in VOCABULARY_FILES if (directory / name).is_file()]
    tried = f", and its {there[0]} cannot be converted: {reason}" if reason else ""
    return ReferenceNotFoundError(
        f"{directory} has no {TOKENIZER_FILE}{tried}.",
        next_step="save its fast tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
    )


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
    def input(self) -> InputEntry:
        """The entry of the artefact that holds the weights, for manifests of what is made from them."""
        return self.origin or InputEntry(
            kind=checkpoints.KIND, uri=self.reference, fingerprint=self.fingerprint
        )

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
    """Whether `manifest.json` there is one of cloze, damaged or not: other tools also use this name."""
    if not is_committed(directory):
        return False
    try:
        contents = orjson.loads(read_bytes(directory / MANIFEST_NAME))
    except ValueError:
        return True
    return isinstance(contents, dict) and bool({"fingerprint", "created_by", "checksum"} & contents.keys())


def hash_weights(directory: Path) -> str:
    """xxh3_128 of the weight files, joined by `+`, which scores record of their start; empty without such files."""
    from models.hf.directory import weight_files

    try:
        return "+".join(hash_file(file)[0] for file in weight_files(directory))
    except ValueError:
        return ""


def read_directory(directory: Path, reference: str = "") -> PretrainedModel:
    """The model of a Hugging Face directory, verified.

    Args:
        reference: its canonical reference; else the directory.

    Raises:
        ReferenceNotFoundError: it has no tokenizer.
        CorruptArtefactError: it was exported by cloze, and its bytes changed.
        MismatchError: it holds what these networks cannot carry, or is damaged.
    """
    from models.hf.directory import check_tokenizer, read_hf_directory

    tokenizer = find_tokenizer(directory)
    if is_export(directory):
        open_artefact(directory, repair="export it again, or fetch the directory again")
    else:
        refuse_unsigned(str(directory), "a model that another program wrote")
    try:
        imported = read_hf_directory(directory)
        check_tokenizer(tokenizer, imported.config.require_vocab_size())
        fingerprint = hash_weights(directory)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        # config.json and tokenizer.json may say anything at all.
        raise MismatchError(
            f"{directory} cannot be read as a model: {error}",
            next_step="name a directory that `save_pretrained` or `cloze export` wrote",
        ) from None
    left_out = tuple(name for name in imported.left_out if not (imported.pooler and "pooler.dense" in name))
    if left_out:
        more = f" and {len(left_out) - _SHOWN_TENSORS} more" if len(left_out) > _SHOWN_TENSORS else ""
        shown = ", ".join(left_out[:_SHOWN_TENSORS])
        who = reference or directory
        print(f"{who}: a head that is not read was left out: {shown}{more}", file=sys.stderr)
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

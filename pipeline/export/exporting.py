"""From a network to a directory that others read; verified before it is committed.

A Transformer becomes a Hugging Face directory, and `transformers` itself must compute the same from it. An ELMo
becomes a directory with its own loader (models/elmo/README.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from cluster.artefacts.errors import (
    ClozeError,
    CorruptArtefactError,
    ExportError,
    MismatchError,
    StorageError,
)
from cluster.artefacts.manifest import InputEntry, hash_json, read_manifest, write_durably
from cluster.artefacts.storage import commit, is_committed, staging_directory, storage_errors
from data_prep.tokenizers.special import NAMES, find_special_tokens
from models.config import ElmoConfig, NetworkConfig, TransformerConfig
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.checkpoint.references import PretrainedModel, Weights, resolve_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from models.generation.config import GenerationConfig
    from models.hf.heads import Head

KIND = "export"
ELMO = "ELMo"
"""The architecture that has its own loader."""
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
PARTS = ("discriminator", "generator")
"""Networks of an ELECTRA."""
ROLE_NAMES = {
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "mask": ("mask_token",),
}
"""Names of the roles of special tokens in tokenizer_config.json."""


@dataclass(frozen=True, slots=True)
class Source:
    """A network to export, wherever it comes from."""

    state_dict: Mapping[str, Tensor]
    config: NetworkConfig
    head: Head | None
    """The head on top of the network; None for an ELMo, which `transformers` does not have."""
    tokenizer_json: str
    input: InputEntry
    """The artefact that it was read from."""
    labels: tuple[str, ...] = ()
    """Names of the labels, where it classifies and they are known."""
    notes: tuple[str, ...] = ()
    """Parts of the artefact that are not exported."""
    chat_template: str | None = None
    """How conversations are written, in Jinja; None where it learned none."""
    search: GenerationConfig | None = None
    """How its texts were written when it was scored; None where none were."""
    max_length: int | None = None
    """Tokens of the longest text that it was scored on; None takes the network's positions."""
    cut: Literal["left", "right"] = "right"
    """The side of a longer text that is cut."""
    part: str | None = None
    """`generator` or `discriminator`, where one of an ELECTRA was asked for."""
    trial: str | None = None
    """`TASK-INITIAL-SEED`, where one of several fine-tuned networks was asked for."""
    weights: Weights = "model"


@dataclass(frozen=True, slots=True)
class Export:
    """A finished export."""

    directory: Path
    family: str
    """Architecture of `transformers`, or ELMo."""
    auto_class: str
    """The class whose `from_pretrained` reads it, or the function."""
    fingerprint: str
    difference: float | None
    """Largest absolute difference of any logit between our network and the one that was read back; None when not
    verified."""
    notes: tuple[str, ...]
    """Parts of the checkpoint that the directory lacks."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON-like data."""
        return {**asdict(self), "directory": str(self.directory)}


def export(
    reference: str,
    directory: Path,
    *,
    runs_dir: Path,
    part: str | None = None,
    family: str | None = None,
    weights: Weights = "model",
    verify: bool = True,
) -> Export:
    """Write the network of a checkpoint as a directory that others read.

    Args:
        reference: any reference to a model.
        part: `generator` or `discriminator` of an ELECTRA; None takes the discriminator.
        weights: `ema` takes the moving average of a run that keeps one.

    Raises:
        ReferenceNotFoundError, CorruptCheckpointError: as `resolve_model`.
        ExportError, StorageError: as `write_export`.
    """
    with explained(reference):
        model = resolve_model(reference, runs_dir, weights)
        source = network_of(model, part)
        if model.step is not None and isinstance(source.config, TransformerConfig):
            source = replace(source, tokenizer_json=_around_pretrained(source, source.config))
    return write_export(source, directory, family=family, verify=verify)


def write_export(source: Source, directory: Path, *, family: str | None, verify: bool) -> Export:
    """Write a network as a directory that others read.

    Args:
        family: architecture to write; None takes the first that can carry the network.
        verify: read the directory back with `transformers` and compare logits before it is committed.

    Raises:
        ExportError: the network cannot be written, or its export computes other logits.
        StorageError: `directory` exists and is not empty.
    """
    refuse_other(directory, source.input)
    asked = {"part": source.part, "trial": source.trial}
    key = hash_json([KIND, source.input.fingerprint, *asked.values(), family, source.weights])
    writer = _write_elmo if isinstance(source.config, ElmoConfig) else write_hugging_face
    with staged(directory, key) as staging:
        with explained(source.input.uri):
            name, auto_class, difference = writer(staging, source, family, verify)
        manifest = commit(
            staging,
            directory,
            KIND,
            config={
                "family": name,
                **asked,
                "network": asdict(source.config),
                **({} if source.weights == "model" else {"weights": source.weights}),
            },
            inputs=[source.input],
            stats={"largest_difference": difference},
        )
    return Export(directory, name, auto_class, manifest.fingerprint, difference, source.notes)


@contextmanager
def explained(exported: str) -> Iterator[None]:
    """Turn the ValueErrors that `models` raises about a network into an ExportError that names `exported`."""
    try:
        yield
    except ClozeError:
        raise
    except ValueError as error:
        raise ExportError(f"{exported} cannot be exported: {error}") from None


@contextmanager
def staged(directory: Path, key: str) -> Iterator[Path]:
    """The staging directory of an export. A failed export leaves nothing behind: no partial work is continued."""
    staging = staging_directory(directory, key)
    try:
        with storage_errors(staging):
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def network_of(model: PretrainedModel, part: str | None = None) -> Source:
    """The network with one head in the model that an objective trains: parts that serve only training are left out.

    Args:
        part: `generator` or `discriminator` of an ELECTRA; None takes the discriminator.

    Raises:
        MismatchError: the model has no such part.
        ValueError: its head is not known.
    """
    text = model.tokenizer_path.read_text(encoding="utf-8")
    entry = InputEntry(kind=CHECKPOINT_KIND, uri=model.reference, fingerprint=model.fingerprint)
    state_dict, config = model.state_dict(), model.model
    if isinstance(config, ElmoConfig):
        refuse_option("part", part, f"{model.reference} is an ELMo, which is exported whole")
        return Source(state_dict, config, None, text, entry, weights=model.weights)
    from models.hf.heads import exported_part, generator_part

    is_electra = any(name.startswith("generator.") for name in state_dict)
    if part is not None and not (is_electra and part in PARTS):
        raise MismatchError(
            f"{model.reference} has no part {part!r} of its own.",
            next_step=f"--part may be {' or '.join(PARTS)}" if is_electra else "leave out --part",
        )
    if part == "generator":
        shape, tensors = _generator_config(model, config), generator_part(state_dict)
        return Source(tensors, shape, "masked_lm", text, entry, part=part, weights=model.weights)
    chosen = exported_part(state_dict, config, model.head)
    return Source(
        chosen.state_dict,
        config,
        chosen.head,
        text,
        entry,
        notes=chosen.notes,
        part=part,
        weights=model.weights,
    )


def _generator_config(model: PretrainedModel, config: TransformerConfig) -> TransformerConfig:
    from pipeline.checkpoint.checkpoint import read_trainer_state
    from pipeline.objectives.rtd import ReplacedTokenDetection, generator_config

    settings = read_trainer_state(model.directory).identity["objective"]
    return generator_config(ReplacedTokenDetection.model_validate(settings).generator, config)


def _around_pretrained(source: Source, config: TransformerConfig) -> str:
    """The tokenizer with the special tokens that pre-training put around a text, where they depend on the network: a
    decoder's text begins with `<s>` and goes on, and T5's encoder reads none before it."""
    from tokenizers.processors import TemplateProcessing

    is_decoder, is_t5 = config.network == "decoder", config.positions == "relative_bias"
    tokenizer = _tokenizer_of(source)
    number = find_special_tokens(tokenizer).get("bos" if is_decoder else "eos")
    if number is None or not (is_decoder or is_t5):
        return source.tokenizer_json
    token = tokenizer.id_to_token(number)
    single, pair = ("S $A", "S $A $B") if is_decoder else ("$A S", "$A S $B S")
    special = {"id": "S", "ids": [number], "tokens": [token]}
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=[special])
    return tokenizer.to_str()


def _tokenizer_of(source: Source) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(source.tokenizer_json)
    except Exception as error:  # the library raises bare Exception
        raise MismatchError(
            f"The tokenizer.json of {source.input.uri} is no tokenizer: {error}",
            next_step="put the tokenizer there that the network was trained with",
        ) from None


def is_artefact(directory: Path, kind: str) -> bool:
    """Whether a directory is an artefact of a kind, as far as an intact manifest says."""
    try:
        return is_committed(directory) and read_manifest(directory).kind == kind
    except CorruptArtefactError:
        return False


def refuse_option(name: str, value: str | None, reason: str, remedy: str = "leave it out") -> None:
    """Refuse an option of the command line that does not apply; None means that it was not given.

    Raises:
        MismatchError: the option was given.
    """
    if value is not None:
        raise MismatchError(f"--{name} {value} has no meaning here: {reason}.", next_step=remedy)


def refuse_other(directory: Path, exported: InputEntry) -> None:
    """Refuse to write over other files, or over an export that is there already.

    Raises:
        StorageError: `directory` exists and is not empty.
    """
    if not directory.exists():
        return
    if directory.is_dir() and not any(directory.iterdir()):
        with storage_errors(directory):
            directory.rmdir()
        return
    if is_artefact(directory, KIND):
        manifest = read_manifest(directory)
        if manifest.inputs[0].fingerprint == exported.fingerprint:
            raise StorageError(
                f"{directory} holds an export of {manifest.inputs[0].uri} already.",
                kept="it, as it is",
                next_step=f"use it, or export to another directory; or first: rm -r {directory}",
            )
    raise StorageError(
        f"{directory} exists, and an export does not write over other files.",
        kept="everything in it",
        next_step="name a directory that does not exist",
    )


def write_hugging_face(
    staging: Path, source: Source, family: str | None, verify: bool
) -> tuple[str, str, float | None]:
    """Write a Transformer into an empty directory; returns its family, the class that reads it, and the largest
    difference, None where nothing was verified."""
    from models.hf.directory import save_hf_directory
    from models.hf.family import TokenIds
    from models.hf.heads import carrier_of

    assert isinstance(source.config, TransformerConfig)
    roles = write_tokenizer(staging, source)
    exported = save_hf_directory(
        staging,
        source.state_dict,
        source.config,
        TokenIds(pad=roles["pad"], bos=roles.get("bos"), eos=roles.get("eos")),
        head=source.head,
        family=family,
        labels=source.labels or None,
        search=source.search,
    )
    difference = None
    if verify:
        from pipeline.export.verification import verify_export

        difference = verify_export(staging, source.state_dict, source.config, exported.head)
    return exported.family, carrier_of(source.config, exported.head).auto_class, difference


def _write_elmo(
    staging: Path, source: Source, family: str | None, verify: bool
) -> tuple[str, str, float | None]:
    from models.elmo.export import load_elmo, save_elmo
    from models.elmo.language_model import ElmoLanguageModel
    from models.hf.families import check_values

    assert isinstance(source.config, ElmoConfig)
    if family not in (None, ELMO):
        raise ValueError(
            f"an ELMo is of no family of Hugging Face models such as {family!r}; leave out --family"
        )
    check_values(source.state_dict, "the weights to export")
    model = ElmoLanguageModel(source.config)
    model.load_state_dict(dict(source.state_dict))
    save_elmo(staging, model, source.tokenizer_json)
    difference = None
    if verify:
        from pipeline.export.verification import compare_elmo

        difference = compare_elmo(load_elmo(staging), model)
    return ELMO, "models.elmo.export.load_elmo", difference


def write_tokenizer(staging: Path, source: Source) -> dict[str, int]:
    """tokenizer.json with the settings that AutoTokenizer wants; returns the ids of special tokens by role."""
    assert isinstance(source.config, TransformerConfig)
    tokenizer = _tokenizer_of(source)
    roles = find_special_tokens(tokenizer)
    if "pad" not in roles:
        raise MismatchError(
            f"The tokenizer.json of {source.input.uri} has no token to pad with.",
            next_step=f"add one under a usual name: {', '.join(NAMES['pad'])}",
        )
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source.max_length or source.config.max_positions,
        "clean_up_tokenization_spaces": False,
        # What goes on writing stands at the end of its text.
        "padding_side": "left" if source.head == "causal_lm" else "right",
        "truncation_side": source.cut,
        # Whether the class gives segments of itself depends on its version.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if source.config.num_segments > 1:
        settings["model_input_names"].insert(1, "token_type_ids")
    if source.chat_template is not None:
        settings["chat_template"] = source.chat_template
    for role, names in ROLE_NAMES.items():
        if role in roles:
            settings |= dict.fromkeys(names, tokenizer.id_to_token(roles[role]))
    write_durably(staging / TOKENIZER_FILE, source.tokenizer_json.encode())
    write_durably(staging / TOKENIZER_CONFIG_FILE, orjson.dumps(settings, option=orjson.OPT_INDENT_2))
    return roles

"""From a network to a directory that others read; verified before it is committed.

A Transformer becomes a Hugging Face directory, and `transformers` itself must compute the same from it. An ELMo
becomes a directory with its own loader (models/elmo/README.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from cluster.artefacts.errors import (
    ClozeError,
    CorruptArtefactError,
    ExportError,
    MismatchError,
    StorageError,
)
from cluster.artefacts.manifest import InputEntry, hash_json, read_manifest
from cluster.artefacts.storage import commit, is_committed, staged, storage_errors
from data_prep.tokenizers.special import find_special_tokens
from models.config import ElmoConfig, TransformerConfig
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.checkpoint.references import PretrainedModel, Weights, resolve_model
from pipeline.export.formats import Export, Source, tokenizer_of, write_elmo, write_hugging_face

KIND = "export"
PARTS = ("discriminator", "generator")
"""Networks of an ELECTRA."""


def source_of(reference: str, runs_dir: Path, part: str | None, weights: Weights) -> Source:
    """The network of a checkpoint, as `network_of`, with the tokenizer as pre-training used it.

    Raises:
        ReferenceNotFoundError, CorruptCheckpointError, MismatchError: as `resolve_model`; and MismatchError where the
            model has no such part.
        ExportError: the head is not known.
    """
    with explained(reference):
        model = resolve_model(reference, runs_dir, weights)
        source = network_of(model, part)
        if model.step is not None and isinstance(source.config, TransformerConfig):
            source = replace(source, tokenizer_json=_around_pretrained(source, source.config))
    return source


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
    writer = write_elmo if isinstance(source.config, ElmoConfig) else write_hugging_face
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
        from pipeline.checkpoint.checkpoint import read_trainer_state
        from pipeline.objectives.rtd import ReplacedTokenDetection, generator_config

        settings = read_trainer_state(model.directory).identity["objective"]
        shape = generator_config(ReplacedTokenDetection.model_validate(settings).generator, config)
        tensors = generator_part(state_dict)
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


def _around_pretrained(source: Source, config: TransformerConfig) -> str:
    """The tokenizer with the special tokens that pre-training put around a text, where they depend on the network: a
    decoder's text begins with `<s>` and has no end, and T5's encoder reads none before it."""
    from tokenizers.processors import TemplateProcessing

    is_decoder, is_t5 = config.network == "decoder", config.positions == "relative_bias"
    tokenizer = tokenizer_of(source)
    number = find_special_tokens(tokenizer).get("bos" if is_decoder else "eos")
    if number is None or not (is_decoder or is_t5):
        return source.tokenizer_json
    token = tokenizer.id_to_token(number)
    single, pair = ("S $A", "S $A $B") if is_decoder else ("$A S", "$A S $B S")
    special = {"id": "S", "ids": [number], "tokens": [token]}
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=[special])
    return tokenizer.to_str()


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

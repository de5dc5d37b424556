"""From a network to a directory that others read; verified before it is committed.

A Transformer becomes a Hugging Face directory, and `transformers` itself must compute the same from it; weights of
parameter-efficient fine-tuning one that `peft` reads over an exported network. An ELMo becomes a directory with its own
loader (models/elmo/README.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from pipeline.checkpoint.references import PretrainedModel, Weights, resolve_model
from pipeline.export.formats import (
    Export,
    Source,
    tokenizer_of,
    write_elmo,
    write_hugging_face,
    write_tokenizer,
)

if TYPE_CHECKING:
    from torch import nn

KIND = "export"
PARTS = ("discriminator", "generator")
"""Networks of an ELECTRA."""
BASE = "base"
"""The folder of an adapter with the network that it changes."""


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


def write_peft(
    model: nn.Module, source: Source, directory: Path, *, family: str | None, verify: bool = True
) -> Export:
    """Write adapter_config.json, adapter_model.safetensors and the tokenizer that texts were learned with, and beside
    them, in `base`, the network that they change: with its head, so that it has the task's labels.

    Args:
        model: a network with LoRA or a prefix.
        source: the same network, whose tensors of LoRA or of a prefix are left out of `base`.
        family: architecture that its base is exported as; None takes the first that can carry the network.
        verify: as in `write_export`, for `base`.

    Raises:
        ExportError: `peft` has no such method, or `base` computes other logits.
        StorageError: `directory` exists and is not empty.
    """
    from models.hf.families import choose_family
    from models.hf.heads import build_on_meta, carrier_of, num_labels_of
    from models.peft.hf import TASK_TYPES, save_peft_directory, to_peft

    config, head, exported = source.config, source.head, source.input
    assert isinstance(config, TransformerConfig), "ELMo has no such methods"
    assert head is not None, "only an ELMo has no head"
    refuse_other(directory, exported)
    with explained(exported.uri):
        chosen = choose_family(config, head, family)
        files = to_peft(model, head, chosen.name, base=str(directory.absolute() / BASE))
    auto_class = carrier_of(config, head).auto_class.replace("AutoModel", "peft.AutoPeftModel")
    # The class of `peft` for question answering loses the segments (peft 0.21).
    if head not in TASK_TYPES or (head == "question_answering" and config.num_segments > 1):
        # This one takes the class of the network from adapter_config.json, where it has no task type.
        auto_class = "peft.AutoPeftModel"
        mapping = {"base_model_class": chosen.class_name(head), "parent_library": "transformers"}
        files = replace(files, config=files.config | {"task_type": None, "auto_mapping": mapping})
    plain = build_on_meta(config, head, num_labels_of(source.state_dict, head)).state_dict()
    below = replace(source, state_dict={name: source.state_dict[name] for name in plain})
    with staged(directory, hash_json([KIND, "peft", exported.fingerprint, chosen.name])) as staging:
        (staging / BASE).mkdir()
        with explained(exported.uri):
            write_hugging_face(staging / BASE, below, chosen.name, verify)
        write_tokenizer(staging, source)
        save_peft_directory(staging, files)
        manifest = commit(
            staging,
            directory,
            KIND,
            config={"family": chosen.name, "peft": True},
            inputs=[exported],
            stats={},
        )
    note = (
        f"adapter_config.json names {BASE} by its full path; name it anew there when the directory was moved"
    )
    return Export(directory, chosen.name, auto_class, manifest.fingerprint, None, (*source.notes, note))


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
    entry = model.input
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
    kept = exported_part(state_dict, config, model.head)
    return Source(
        kept.state_dict, config, kept.head, text, entry, notes=kept.notes, part=part, weights=model.weights
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

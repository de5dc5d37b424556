"""Exports of checkpoints and of fine-tuned networks, which lie in directories of scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.artefacts.errors import ExportError, MismatchError
from cluster.artefacts.manifest import MANIFEST_NAME, InputEntry
from cluster.artefacts.storage import contents_of
from cluster.copies import place_of
from models.config import ElmoConfig, TransformerConfig
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.checkpoint.references import Weights
from pipeline.export.exporting import is_artefact, refuse_option, source_of, write_export, write_peft
from pipeline.export.formats import Export, Source
from pipeline.tasks import TASKS
from pipeline.tune.finetuned import FinetunedNetwork, finetuned_network, split_scores
from pipeline.tune.scores import KIND, START, TOKENIZER_FILE

if TYPE_CHECKING:
    from torch import Tensor, nn


def export(
    reference: str,
    directory: Path,
    *,
    runs_dir: Path,
    part: str | None = None,
    trial: str | None = None,
    family: str | None = None,
    weights: Weights = "model",
    verify: bool = True,
    peft: bool = False,
) -> Export:
    """Write a network as a directory that others read.

    Args:
        reference: any reference to a model, or a directory of scores whose models were kept (`SCORES@TRIAL` names one).
        part: `generator` or `discriminator` of an ELECTRA; None takes the discriminator.
        trial: `TASK-INITIAL-SEED` among the trainings of scores; None where there is only one.
        family: architecture to write; None takes the first that can carry the network.
        weights: `ema` takes the moving average of a run that keeps one.
        verify: read the directory back with `transformers` and compare logits before it is committed.
        peft: write what LoRA or prefix tuning trained as the library `peft` reads it, over an export of the checkpoint;
            otherwise LoRA is added to the weights.

    Raises:
        ReferenceNotFoundError, CorruptCheckpointError, CorruptArtefactError: the network cannot be read.
        MismatchError: an option does not apply to it.
        ExportError: it cannot be written, or its export computes other logits.
        StorageError: `directory` exists and is not empty.
    """
    path, named = split_scores(reference)
    trial = trial or named
    if not is_artefact(path, KIND):
        remedy = "leave it out, or name the scores of a fine-tuning"
        refuse_option("trial", trial, f"{reference} is no directory of scores", remedy)
        source = source_of(reference, runs_dir, part, weights)
        return write_export(source, directory, family=family, verify=verify)
    refuse_option("part", part, f"{path} holds scores, and their networks have no parts")
    if weights != "model":
        raise MismatchError(
            f"--ema has no meaning here: {path} holds scores, and fine-tuning keeps no average.",
            next_step="leave it out",
        )
    found = finetuned_network(path, trial)
    if peft:
        from pipeline.tune.networks import method_of

        if method_of(found.weights_file) is None:
            raise ExportError(
                f"{path} holds whole networks: they were trained without training.peft.",
                next_step="leave out --peft",
            )
        adapted = _adapted(found, runs_dir)
        source = _for_others(_source(found, path, adapted.state_dict()), found, path)
        return write_peft(adapted, source, directory, family=family, verify=verify)
    source = _plain(found, path, runs_dir)
    if isinstance(source.config, ElmoConfig):
        raise ExportError(
            f"{path} holds a classifier on top of an ELMo, which no library can read; the biLM below it is the"
            " checkpoint's, unchanged.",
            next_step=f"export the checkpoint (cloze lineage {path} names it), or read the classifier with"
            " pipeline.tune.export.load_finetuned",
        )
    return write_export(_for_others(source, found, path), directory, family=family, verify=verify)


def _for_others(source: Source, found: FinetunedNetwork, scores: Path) -> Source:
    """The network with all that others need to read and write texts as it was scored."""
    from pipeline.tasks.tokenizer import TextTokenizer, with_own_padding, with_template

    assert isinstance(source.config, TransformerConfig), "ELMo is not exported"
    tokenizer = TextTokenizer(scores / TOKENIZER_FILE)
    reading = found.task().reading(source.config, tokenizer)
    written = with_template(tokenizer, reading.around, reading.special_tokens)
    network, tensors = source.config, source.state_dict
    if (source.head, network.network) == ("sequence_classification", "decoder"):
        # `transformers` reads the scores of labels at the last token that is not padding.
        written, network, tensors = with_own_padding(written, network, tensors)
    return replace(
        source,
        tokenizer_json=written,
        config=network,
        state_dict=tensors,
        search=reading.search,
        max_length=found.settings["training"]["max_length"],
        cut=reading.cut,
    )


def load_finetuned(directory: Path, trial: str | None = None, runs_dir: Path = Path("runs")) -> Source:
    """Read a fine-tuned network from an artefact of scores, with its weights as float32 tensors in host memory.

    Args:
        trial: as `finetuned_network` takes it.
        runs_dir: where the run lies whose checkpoint LoRA was trained over.

    Raises:
        CorruptArtefactError, ReferenceNotFoundError: as `finetuned_network`; or the checkpoint below LoRA is gone.
        ExportError: its weights cannot be those of a plain network: adapters and prefixes are more than that.
    """
    return _plain(finetuned_network(directory, trial), directory, runs_dir)


def _plain(found: FinetunedNetwork, directory: Path, runs_dir: Path) -> Source:
    from safetensors.torch import load_file

    from models.peft.apply import merge
    from pipeline.tune.networks import WRAPPER, method_of

    if method_of(found.weights_file) is None:
        with contents_of(found.weights_file):
            tensors = load_file(found.weights_file)
    else:
        adapted = _adapted(found, runs_dir)
        try:
            tensors = merge(adapted).state_dict()
        except ValueError as error:
            raise ExportError(
                f"{directory} cannot be exported as a plain network: {error}.",
                next_step="of prefix tuning of a language model, add --peft; read others with"
                " pipeline.tune.networks.load_adapted",
            ) from None
    tensors = {name.removeprefix(WRAPPER): tensor for name, tensor in tensors.items()}
    return _source(found, directory, tensors)


def _source(found: FinetunedNetwork, directory: Path, tensors: Mapping[str, Tensor]) -> Source:
    """A network among scores with what an export needs beside its tensors."""
    with contents_of(directory / MANIFEST_NAME):
        return Source(
            state_dict=tensors,
            config=found.network,
            head=TASKS[found.settings["kind"]].head_of(found.network),
            tokenizer_json=(directory / TOKENIZER_FILE).read_text(encoding="utf-8"),
            input=InputEntry(kind=KIND, uri=place_of(directory), fingerprint=found.manifest.fingerprint),
            labels=found.labels,
            trial=found.asked,
            chat_template=found.task().chat_template(found.network),
        )


def _adapted(found: FinetunedNetwork, runs_dir: Path) -> nn.Module:
    """The network with its method, over the checkpoint that it started from."""
    from pipeline.checkpoint.references import resolve_model
    from pipeline.tune.networks import load_adapted

    started = next((entry for entry in found.manifest.inputs if entry.kind == CHECKPOINT_KIND), None)
    if started is None or START in found.manifest.config:
        raise ExportError(
            "A network that was trained with training.peft over another fine-tuned network is not exported.",
            next_step="train it over an export of that network",
        )
    base = resolve_model(started.uri, runs_dir)
    if base.fingerprint != started.fingerprint:
        raise MismatchError(
            f"{base.reference} is not the checkpoint that the network was trained over any more.",
            next_step="name the runs directory that holds it: --runs-dir DIR",
        )
    head = TASKS[found.settings["kind"]].head_of(found.network)
    return load_adapted(found.weights_file, found.network, head, max(1, len(found.labels)), base.state_dict())

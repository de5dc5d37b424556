"""Weights of parameter-efficient fine-tuning, as a directory that `peft` reads over an exported network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cluster.artefacts.manifest import hash_json
from cluster.artefacts.storage import commit, staged
from models.config import TransformerConfig
from pipeline.export.exporting import KIND, explained, refuse_other
from pipeline.export.formats import Export, Source, write_hugging_face, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from models.hf.heads import Head

BASE = "base"
"""The folder of an adapter with the network that it changes."""
_CLASSES: Mapping[Head, str] = {
    "sequence_classification": "AutoPeftModelForSequenceClassification",
    "token_classification": "AutoPeftModelForTokenClassification",
    "question_answering": "AutoPeftModelForQuestionAnswering",
    "causal_lm": "AutoPeftModelForCausalLM",
    "seq2seq_lm": "AutoPeftModelForSeq2SeqLM",
}
_ANY_CLASS = "AutoPeftModel"
"""Takes the class of the network from adapter_config.json, where it has no task type."""


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
    from models.hf.heads import build_on_meta, num_labels_of
    from models.peft.hf import save_peft_directory, to_peft

    config, head, exported = source.config, source.head, source.input
    assert isinstance(config, TransformerConfig), "ELMo has no such methods"
    assert head is not None, "only an ELMo has no head"
    refuse_other(directory, exported)
    with explained(exported.uri):
        chosen = choose_family(config, head, family)
        files = to_peft(model, head, chosen.name, base=str(directory.absolute() / BASE))
    # The class of `peft` for question answering loses the segments (peft 0.21).
    is_any = head not in _CLASSES or (head == "question_answering" and config.num_segments > 1)
    if is_any:
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
    read_by = f"peft.{_ANY_CLASS if is_any else _CLASSES[head]}"
    return Export(directory, chosen.name, read_by, manifest.fingerprint, None, (*source.notes, note))

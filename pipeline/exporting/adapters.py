"""What parameter-efficient fine-tuning trained, as a directory that `peft` reads over an exported network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster.artefacts.manifest import hash_json
from cluster.artefacts.storage import commit
from models.config import TransformerConfig
from pipeline.exporting.exporting import (
    KIND,
    Export,
    Source,
    explained,
    refuse_other,
    staged,
    write_tokenizer,
)

if TYPE_CHECKING:
    from torch import nn


def write_peft(
    model: nn.Module,
    source: Source,
    directory: Path,
    *,
    family: str | None,
    base: str,
) -> Export:
    """Write adapter_config.json, adapter_model.safetensors and the tokenizer that texts were learned with.

    Args:
        model: a network with LoRA or a prefix.
        source: its shape, head and tokenizer; the tensors are not read.
        family: architecture that its base is exported as; None takes the first that can carry the network.
        base: name of the base, for adapter_config.json.

    Raises:
        ExportError: `peft` has no such method.
        StorageError: `directory` exists and is not empty.
    """
    from models.hf.families import choose_family
    from models.peft.hf import save_peft_directory, to_peft

    config, head, exported = source.config, source.head, source.input
    assert isinstance(config, TransformerConfig), "ELMo has no such methods"
    assert head is not None, "only an ELMo has no head"
    refuse_other(directory, exported)
    with explained(exported.uri):
        name = choose_family(config, head, family).name
        files = to_peft(model, head, name, base=base)
    with staged(directory, hash_json([KIND, "peft", exported.fingerprint, name])) as staging:
        write_tokenizer(staging, source)
        save_peft_directory(staging, files)
        manifest = commit(
            staging, directory, KIND, config={"family": name, "peft": True}, inputs=[exported], stats={}
        )
    return Export(directory, name, "peft.PeftModel", manifest.fingerprint, None, source.notes)

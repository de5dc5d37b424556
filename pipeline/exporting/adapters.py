"""What parameter-efficient fine-tuning trained, as a directory that `peft` reads over an exported network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster.artefacts.manifest import InputEntry, hash_json
from cluster.artefacts.storage import commit
from models.config import TransformerConfig
from pipeline.exporting.exporting import KIND, Export, explained, refuse_other, staged

if TYPE_CHECKING:
    from torch import nn

    from models.hf.heads import Head


def write_peft(
    model: nn.Module,
    config: TransformerConfig,
    head: Head,
    directory: Path,
    *,
    exported: InputEntry,
    family: str | None,
    base: str,
) -> Export:
    """Write adapter_config.json and adapter_model.safetensors.

    Args:
        model: a network with LoRA or a prefix.
        exported: the artefact that it was read from.
        family: architecture that its base is exported as; None takes the first that can carry the network.
        base: name of the base, for adapter_config.json.

    Raises:
        ExportError: `peft` has no such method.
        StorageError: `directory` exists and is not empty.
    """
    from models.hf.families import choose_family
    from models.peft.hf import save_peft_directory, to_peft

    refuse_other(directory, exported)
    with explained(exported.uri):
        name = choose_family(config, head, family).name
        files = to_peft(model, head, name, base=base)
    with staged(directory, hash_json([KIND, "peft", exported.fingerprint, name])) as staging:
        save_peft_directory(staging, files)
        manifest = commit(
            staging, directory, KIND, config={"family": name, "peft": True}, inputs=[exported], stats={}
        )
    return Export(directory, name, "peft.PeftModel", manifest.fingerprint, None, ())

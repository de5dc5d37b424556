"""Model directories as `transformers` reads and writes them: config.json, model.safetensors and their companions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from models.config import TransformerConfig
from models.generation.config import GenerationConfig
from models.hf.families import Exported, export_model, import_model
from models.hf.family import Imported, TokenIds
from models.hf.heads import Head
from models.weights import write_safetensors

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE = "model.safetensors"


def save_hf_directory(
    path: str | Path,
    state_dict: Mapping[str, Tensor],
    config: TransformerConfig,
    token_ids: TokenIds | None = None,
    *,
    head: Head | None = None,
    family: str | None = None,
    labels: Sequence[str] | None = None,
    search: GenerationConfig | None = None,
) -> Exported:
    """Write a network so that `AutoModelForMaskedLM.from_pretrained(path)` or its kin reads it.

    config.json is written last; without it, no reader takes the directory for a model. Arguments, result and errors are
    those of `export_model`; after an error nothing is written.

    Args:
        path: directory; made if needed, other files in it are left alone.
    """
    exported = export_model(
        state_dict, config, token_ids, head=head, family=family, labels=labels, search=search
    )
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG_FILE, INDEX_FILE, GENERATION_FILE):
        (directory / name).unlink(missing_ok=True)
    # Contiguous, and none in another one's memory: safetensors stores every name for itself.
    apart: dict[str, Tensor] = {}
    places = set()
    for name, tensor in exported.tensors.items():
        tensor = tensor.detach().contiguous()
        apart[name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
    write_safetensors(directory / WEIGHTS_FILE, apart, {"format": "pt"})
    if exported.generation_config is not None:
        write_json(directory / GENERATION_FILE, exported.generation_config)
    write_json(directory / CONFIG_FILE, exported.config)
    return exported


def read_hf_directory(path: str | Path) -> Imported:
    """Read a Hugging Face model directory into host memory.

    Raises:
        ValueError: a file is missing or damaged, the tokenizer has more ids than the network, or the model is one that
            `import_model` refuses.
    """
    directory = Path(path)
    config_dict = read_json(directory, CONFIG_FILE)
    tensors: dict[str, Tensor] = {}
    for file in weight_files(directory):
        try:
            tensors |= load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged: {error}; fetch it again") from error
    try:
        imported = import_model(tensors, config_dict)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error
    if (directory / TOKENIZER_FILE).is_file():
        check_tokenizer(directory / TOKENIZER_FILE, imported.config.require_vocab_size())
    return imported


def weight_files(path: str | Path) -> list[Path]:
    """The safetensors files of a model directory, one or several shards, by name.

    Raises:
        ValueError: there are none, or one that the index names is missing.
    """
    directory = Path(path)
    if (directory / WEIGHTS_FILE).is_file():
        return [directory / WEIGHTS_FILE]
    if (directory / INDEX_FILE).is_file():
        shards = read_json(directory, INDEX_FILE).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ValueError(f"{directory / INDEX_FILE} has no weight_map; fetch the directory again")
        files = [directory / Path(name).name for name in sorted({str(name) for name in shards.values()})]
        if missing := [file.name for file in files if not file.is_file()]:
            raise ValueError(
                f"{directory} has no {', '.join(missing)}, which {INDEX_FILE} names; fetch it again"
            )
        return files
    if old := sorted(file.name for file in directory.glob("pytorch_model*.bin")):
        architecture = (read_json(directory, CONFIG_FILE).get("architectures") or ["AutoModel"])[0]
        raise ValueError(
            f"{directory} has its weights only in {old[0]}, a format that can run code when it is read; rewrite it "
            f"once as {WEIGHTS_FILE}, if you trust it:\n  python -c \"import transformers; m = '{directory}'; "
            f'transformers.{architecture}.from_pretrained(m).save_pretrained(m)"'
        )
    raise _missing(directory, WEIGHTS_FILE)


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a directory. Raises ValueError where there is none."""
    file = directory / name
    if not file.is_file():
        raise _missing(directory, name)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with sorted keys."""
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _missing(directory: Path, name: str) -> ValueError:
    return ValueError(
        f"{directory} has no {name}; a Hugging Face model directory with {CONFIG_FILE} and {WEIGHTS_FILE} is needed "
        "(save_pretrained writes one)"
    )


def check_tokenizer(file: Path, vocab_size: int) -> None:
    """Refuse a tokenizer.json with ids that have no embedding; a network may have more.

    Raises:
        ValueError: the tokenizer has an id of `vocab_size` or more.
    """
    tokenizer = read_json(file.parent, file.name)
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    # Unigram models list their pieces in the order of ids.
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    added = (token["id"] for token in tokenizer.get("added_tokens") or ())
    largest = max((*ids, *added), default=-1)
    if largest >= vocab_size:
        raise ValueError(
            f"{file} has ids up to {largest}, but vocab_size in {CONFIG_FILE} is {vocab_size}; "
            "put the tokenizer there that the network was trained with"
        )

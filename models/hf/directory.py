"""Model directories as `transformers` reads and writes them: config.json and model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.config import TransformerConfig
from models.hf.roberta import from_hf, to_hf

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_hf_directory(
    path: str | Path,
    state_dict: Mapping[str, Tensor],
    config: TransformerConfig,
    *,
    pad_token_id: int = 1,
    bos_token_id: int = 0,
    eos_token_id: int = 2,
) -> None:
    """Write a network so that `AutoModelForMaskedLM.from_pretrained(path)` or its kin reads it.

    config.json is written last; without it, no reader takes the directory for a model.

    Args:
        path: directory; made if needed, other files in it are left alone.
        state_dict: as in `to_hf`.
        config: as in `to_hf`.
        pad_token_id: as in `to_hf`.
        bos_token_id: as in `to_hf`.
        eos_token_id: as in `to_hf`.

    Raises:
        ValueError: the state dict does not fit the configuration; the tensors are named.
    """
    tensors, hf_config = to_hf(
        state_dict, config, pad_token_id=pad_token_id, bos_token_id=bos_token_id, eos_token_id=eos_token_id
    )
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG_FILE).unlink(missing_ok=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    (directory / CONFIG_FILE).write_text(
        json.dumps(hf_config, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def load_hf_directory(path: str | Path) -> tuple[dict[str, Tensor], TransformerConfig]:
    """Read a Hugging Face model directory into host memory.

    Returns:
        The state dict and the configuration, as from `from_hf`.

    Raises:
        ValueError: a file is missing or damaged, or the model is one that `from_hf` refuses.
    """
    directory = Path(path)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / name).is_file():
            raise ValueError(
                f"{directory} has no {name}; a Hugging Face model directory with {CONFIG_FILE} and a single "
                f"{WEIGHTS_FILE} is needed (save_pretrained writes one)"
            )
    try:
        config_dict = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{directory / CONFIG_FILE} is not JSON: {error}") from error
    if not isinstance(config_dict, dict):
        raise ValueError(
            f"{directory / CONFIG_FILE} must hold a JSON object, not a {type(config_dict).__name__}"
        )
    try:
        tensors = load_file(directory / WEIGHTS_FILE)
    except SafetensorError as error:
        raise ValueError(f"{directory / WEIGHTS_FILE} is damaged: {error}") from error
    return from_hf(tensors, config_dict)

"""Lineage of a Hugging Face directory: it records no training, so a lineage ends there."""

from __future__ import annotations

import re
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.manifest import hash_file
from pipeline.checkpoint.hub import CONFIG_FILE, VOCABULARY_FILES, find_cached, hub_name

_IN_CACHE = re.compile(r"models--(?P<repository>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$")
"""The layout that the documentation of `huggingface_hub` describes."""


def find_model_directory(reference: str) -> Path | None:
    """The Hugging Face directory of a path, or of a name on the Hub that is in the local cache; None without one."""
    directory = Path(reference)
    if (directory / CONFIG_FILE).is_file():
        return directory
    name = hub_name(reference)
    cached = find_cached(name) if name is not None and not directory.exists() else None
    return cached.directory if cached is not None and (cached.directory / CONFIG_FILE).is_file() else None


def describe_model_directory(directory: Path) -> tuple[dict[str, Any], str]:
    """Facts from the configuration and the header of the weights, and why the weights cannot be read, empty where they
    can; the network is not built."""
    from models.hf.directory import weight_files

    try:
        weights, problem = _weights(weight_files(directory)), ""
    except ValueError as error:
        weights, problem = {}, str(error)
    try:
        config = orjson.loads((directory / CONFIG_FILE).read_bytes())
    except ValueError:
        config = {}
    config = config if isinstance(config, dict) else {}
    facts = {
        "architecture": ", ".join(map(str, config.get("architectures") or [])) or config.get("model_type"),
        **weights,
        "tokenizer": ", ".join(name for name in VOCABULARY_FILES if (directory / name).is_file()),
        **_revision(directory),
        "transformers": config.get("transformers_version"),
        "unknown": "the texts, settings and code of its training,"
        " because a Hugging Face directory does not record them",
    }
    return {name: fact for name, fact in facts.items() if fact}, problem


def hash_weights(directory: Path) -> str:
    """xxh3_128 of the weight files, joined by `+`, which scores record of their start; empty without such files."""
    from models.hf.directory import weight_files

    try:
        return "+".join(hash_file(file)[0] for file in weight_files(directory))
    except ValueError:
        return ""


def _weights(files: list[Path]) -> dict[str, Any]:
    """Counts from the headers of safetensors files.

    Raises:
        ValueError: a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    elements: Counter[str] = Counter()
    try:
        for file in files:
            with safe_open(file, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118 (not a mapping)
                    tensor = opened.get_slice(name)
                    elements[tensor.get_dtype()] += prod(tensor.get_shape())
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}; fetch it again") from error
    return {
        "parameters": elements.total(),
        "precision": ", ".join(sorted(elements)),
        "weights": ", ".join(file.name for file in files),
    }


def _revision(directory: Path) -> dict[str, str]:
    """The name and commit on the Hub, where the directory is part of its cache."""
    if found := _IN_CACHE.search(directory.absolute().as_posix()):
        return {"hub_model": found["repository"].replace("--", "/"), "hub_commit": found["commit"]}
    return {"hub_model": "unknown, because the directory is not in the Hub's cache"}

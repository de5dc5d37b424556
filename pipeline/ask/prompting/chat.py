"""The `chat_template` of scores or of a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from cluster.artefacts.storage import contents_of

if TYPE_CHECKING:
    from pipeline.checkpoint.references import PretrainedModel

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
_DEFAULT = "default"
"""The name that `transformers` gives to the first of several templates."""


def chat_template_of(pretrained: PretrainedModel) -> str | None:
    """The template that a network was trained with, in Jinja; None where it has none.

    Raises:
        CorruptArtefactError: a file of the directory cannot be read.
    """
    if pretrained.weights_file is not None:
        from pipeline.tune.export import chat_template_of, finetuned_network

        place, _, trial = pretrained.reference.rpartition("@")
        return chat_template_of(finetuned_network(Path(place), trial))
    own, config = (pretrained.directory / name for name in (TEMPLATE_FILE, CONFIG_FILE))
    if pretrained.step is not None or not (own.is_file() or config.is_file()):
        return None
    if own.is_file():
        with contents_of(own):
            return own.read_text(encoding="utf-8")
    with contents_of(config):
        found = orjson.loads(config.read_bytes()).get("chat_template")
    if isinstance(found, list):
        found = {each["name"]: each["template"] for each in found}.get(_DEFAULT)
    return found

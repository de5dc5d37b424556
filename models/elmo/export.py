"""An exported ELMo: a directory that PyTorch, safetensors and tokenizers suffice to read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from models.elmo.config import ElmoConfig
from models.elmo.encoder import pad_sentences, read_sentences
from models.elmo.language_model import ElmoLanguageModel
from models.hf.directory import read_json, write_json
from models.weights import check_tensors, check_values, write_safetensors

CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE = "config.json", "model.safetensors", "tokenizer.json"


class Layers(NamedTuple):
    """All layers of a biLM for the words of some sentences."""

    layers: Tensor
    """[num_layers + 1, sentences, longest, 2 x projection_size] float32, zeros after shorter sentences."""
    present: Tensor
    """[sentences, longest] bool, true at words."""


@dataclass(frozen=True, eq=False)
class Elmo:
    """A biLM that was read from a directory."""

    model: ElmoLanguageModel
    """The network, ready for evaluation, in host memory."""
    tokenizer_json: str
    """The lexicon: which word is which row of the softmax, and how text is split into words."""

    @property
    def config(self) -> ElmoConfig:
        return self.model.config

    def split(self, text: str) -> list[str]:
        """The words of a text, split as the training text was."""
        from tokenizers import Tokenizer

        splitter = Tokenizer.from_str(self.tokenizer_json).pre_tokenizer
        return [text[start:stop] for _, (start, stop) in splitter.pre_tokenize_str(text)]

    @torch.no_grad()
    def layers(self, sentences: list[list[str]]) -> Layers:
        """All layers of every word of sentences that are given as words.

        Raises:
            ValueError: there are no sentences, or one is a string.
        """
        inputs = read_sentences(sentences, self.config.max_characters).to(self.model.softmax.weight.device)
        found = self.model.encoder(*inputs)
        return Layers(*pad_sentences(found.float(), inputs.cu_seqlens))


def save_elmo(directory: str | Path, model: ElmoLanguageModel, tokenizer_json: str) -> None:
    """Write `config.json`, `model.safetensors` and `tokenizer.json`; existing files are replaced.

    Raises:
        ValueError: weights are NaN or infinite; their tensors are named.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    check_values(tensors, "the weights to export")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / WEIGHTS_FILE, tensors, {"format": "pt"})
    values = {"model_type": "elmo", "architectures": ["ElmoLanguageModel"], **asdict(model.config)}
    write_json(directory / CONFIG_FILE, values)
    (directory / TOKENIZER_FILE).write_text(tokenizer_json, encoding="utf-8")


def load_elmo(directory: str | Path) -> Elmo:
    """Read what `save_elmo` wrote.

    Raises:
        ValueError: a file is missing or damaged; tensors are missing, unexpected, of another shape, or not finite;
            they are named.
    """
    directory = Path(directory)
    for name in (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE):
        if not (directory / name).is_file():
            raise ValueError(
                f"{directory} has no {name}; a directory written by save_elmo (cloze export) is needed"
            )
    config = _read_config(directory)
    size = len(read_json(directory, TOKENIZER_FILE).get("model", {}).get("vocab", ()))
    if not 0 < size <= config.require_vocab_size():
        raise ValueError(
            f"{directory / TOKENIZER_FILE} has {size} words, but the network predicts {config.vocab_size}"
        )
    tokenizer_json = (directory / TOKENIZER_FILE).read_text(encoding="utf-8")
    with torch.device("meta"):
        model = ElmoLanguageModel(config)
    try:
        tensors = load_file(directory / WEIGHTS_FILE)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{directory / WEIGHTS_FILE} is damaged: {error}") from error
    check_tensors(model.state_dict(), tensors, str(directory / WEIGHTS_FILE))
    check_values(tensors, f"the weights in {directory / WEIGHTS_FILE}")
    model.load_state_dict(tensors, assign=True)
    return Elmo(model.eval().requires_grad_(False), tokenizer_json)


def _read_config(directory: Path) -> ElmoConfig:
    path, values = directory / CONFIG_FILE, read_json(directory, CONFIG_FILE)
    if values.pop("model_type", None) != "elmo" or values.pop("architectures", None) != ["ElmoLanguageModel"]:
        raise ValueError(
            f"{path} does not describe an ELMo: model_type must be elmo, architectures ElmoLanguageModel"
        )
    known = [field.name for field in fields(ElmoConfig)]
    if wrong := sorted(values.keys() ^ known):
        raise ValueError(f"{path} must have exactly the keys of ElmoConfig; it differs in {', '.join(wrong)}")
    filters = values["filters"]
    if not isinstance(filters, list) or not all(isinstance(each, list) for each in filters):
        raise ValueError(f"{path}: filters must be a list of [width, number], not {filters!r}")
    try:
        return ElmoConfig(**{**values, "filters": tuple(tuple(each) for each in filters)})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

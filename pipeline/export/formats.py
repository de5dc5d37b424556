"""The formats of exports: Hugging Face directories, verified by reading them back, ELMo's own, and models of MLflow."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from cluster.artefacts.errors import ExportError, MismatchError
from cluster.artefacts.manifest import InputEntry, write_durably
from data_prep.tokenizers.special import NAMES, find_special_tokens
from models.config import ElmoConfig, NetworkConfig, TransformerConfig
from pipeline.checkpoint.references import Weights
from pipeline.samples.noise import Noise

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from models.generation.config import GenerationConfig
    from models.hf.heads import Head

ELMO = "ELMo"
"""The architecture that has its own loader."""
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
ROLE_NAMES = {
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "mask": ("mask_token",),
}
"""Names of the roles of special tokens in tokenizer_config.json."""
TOLERANCE = 1e-4
"""Largest absolute difference of logits in float32."""
_ROWS = 3
_LENGTH = 24
_PIPELINES = {
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
"""Pipelines of transformers by class; for a class without one, such as sequence to sequence, the network's features."""


@dataclass(frozen=True, slots=True)
class Source:
    """A network to export, wherever it comes from."""

    state_dict: Mapping[str, Tensor]
    config: NetworkConfig
    head: Head | None
    """The head on top of the network; None for an ELMo, which `transformers` does not have."""
    tokenizer_json: str
    input: InputEntry
    """The artefact that it was read from."""
    labels: tuple[str, ...] = ()
    """Names of the labels, where it classifies and they are known."""
    notes: tuple[str, ...] = ()
    """Parts of the artefact that are not exported."""
    chat_template: str | None = None
    """How conversations are written, in Jinja; None where it learned none."""
    search: GenerationConfig | None = None
    """How its texts were written when it was scored; None where none were."""
    max_length: int | None = None
    """Tokens of the longest text that it was scored on; None takes the network's positions."""
    cut: Literal["left", "right"] = "right"
    """The side of a longer text that is cut."""
    part: str | None = None
    """`generator` or `discriminator`, where one of an ELECTRA was asked for."""
    trial: str | None = None
    """`TASK-INITIAL-SEED`, where one of several fine-tuned networks was asked for."""
    weights: Weights = "model"


@dataclass(frozen=True, slots=True)
class Export:
    """A finished export."""

    directory: Path
    family: str
    """Architecture of `transformers`, or ELMo."""
    auto_class: str
    """The class whose `from_pretrained` reads it, or the function."""
    fingerprint: str
    difference: float | None
    """Largest absolute difference of any logit between our network and the one that was read back; None when not
    verified."""
    notes: tuple[str, ...]
    """Parts of the checkpoint that the directory lacks."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON-like data."""
        return {**asdict(self), "directory": str(self.directory)}


def tokenizer_of(source: Source) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(source.tokenizer_json)
    except Exception as error:  # the library raises bare Exception
        raise MismatchError(
            f"The tokenizer.json of {source.input.uri} is no tokenizer: {error}",
            next_step="put the tokenizer there that the network was trained with",
        ) from None


def write_hugging_face(
    staging: Path, source: Source, family: str | None, verify: bool
) -> tuple[str, str, float | None]:
    """Write a Transformer into an empty directory; returns its family, the class that reads it, and the largest
    difference, None where nothing was verified."""
    from models.hf.directory import save_hf_directory
    from models.hf.family import TokenIds
    from models.hf.heads import carrier_of

    assert isinstance(source.config, TransformerConfig)
    roles = write_tokenizer(staging, source)
    exported = save_hf_directory(
        staging,
        source.state_dict,
        source.config,
        TokenIds(pad=roles["pad"], bos=roles.get("bos"), eos=roles.get("eos")),
        head=source.head,
        family=family,
        labels=source.labels or None,
        search=source.search,
    )
    config, head = source.config, exported.head
    difference = verify_export(staging, source.state_dict, config, head) if verify else None
    return exported.family, carrier_of(config, head).auto_class, difference


def write_elmo(
    staging: Path, source: Source, family: str | None, verify: bool
) -> tuple[str, str, float | None]:
    from models.elmo.export import load_elmo, save_elmo
    from models.elmo.language_model import ElmoLanguageModel

    assert isinstance(source.config, ElmoConfig)
    if family not in (None, ELMO):
        raise ValueError(
            f"an ELMo is of no family of Hugging Face models such as {family!r}; leave out --family"
        )
    model = ElmoLanguageModel(source.config)
    model.load_state_dict(dict(source.state_dict))
    save_elmo(staging, model, source.tokenizer_json)
    difference = None
    if verify:
        names = load_elmo(staging).model.state_dict()
        difference = max(
            float((tensor - names[name]).abs().max())
            for name, tensor in model.state_dict().items()
            if tensor.numel()
        )
        if difference != 0:
            raise ExportError(
                f"the network that was read back differs by {difference:.2g} from the one that was written",
                kept="nothing was committed",
            )
    return ELMO, "models.elmo.export.load_elmo", difference


def write_tokenizer(staging: Path, source: Source) -> dict[str, int]:
    """tokenizer.json with the settings that AutoTokenizer wants; returns the ids of special tokens by role."""
    assert isinstance(source.config, TransformerConfig)
    tokenizer = tokenizer_of(source)
    roles = find_special_tokens(tokenizer)
    if "pad" not in roles:
        raise MismatchError(
            f"The tokenizer.json of {source.input.uri} has no token to pad with.",
            next_step=f"add one under a usual name: {', '.join(NAMES['pad'])}",
        )
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source.max_length or source.config.max_positions,
        "clean_up_tokenization_spaces": False,
        # Decoders generate from the end of the text, so they pad left.
        "padding_side": "left" if source.head == "causal_lm" else "right",
        "truncation_side": source.cut,
        # Versions differ in whether the class returns segments by default.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if source.config.num_segments > 1:
        settings["model_input_names"].insert(1, "token_type_ids")
    if source.chat_template is not None:
        settings["chat_template"] = source.chat_template
    for role, names in ROLE_NAMES.items():
        if role in roles:
            settings |= dict.fromkeys(names, tokenizer.id_to_token(roles[role]))
    write_durably(staging / TOKENIZER_FILE, source.tokenizer_json.encode())
    write_durably(staging / TOKENIZER_CONFIG_FILE, orjson.dumps(settings, option=orjson.OPT_INDENT_2))
    return roles


def verify_export(
    directory: Path, state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head
) -> float:
    """Read a Hugging Face directory with `transformers` and compare all its outputs on random padded text.

    Returns:
        The largest absolute difference at tokens that are not padding.

    Raises:
        ExportError: it is above the tolerance, or `transformers` cannot read the directory.
    """
    import torch
    import transformers

    from models.hf.heads import carrier_of, ended_by, num_labels_of, their_inputs

    transformers.utils.logging.disable_progress_bar()
    carrier = carrier_of(config, head)
    ours = carrier.build(config, num_labels_of(state_dict, head))
    ours.load_state_dict(dict(state_dict))
    ours.eval()
    try:
        theirs = (
            getattr(transformers, carrier.auto_class)
            .from_pretrained(directory, dtype=torch.float32, use_safetensors=True, trust_remote_code=False)
            .eval()
        )
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    except Exception as error:
        raise ExportError(
            f"transformers {transformers.__version__} cannot read the export: {error}",
            kept="nothing was committed",
        ) from error
    if len(tokenizer) > config.require_vocab_size():
        raise ExportError(
            f"the tokenizer has {len(tokenizer)} tokens, and the network embeds {config.vocab_size}",
            kept="nothing was committed",
        )
    ids, mask = _random_text(config, theirs.config.pad_token_id or 0)
    with torch.no_grad():
        if config.network == "encoder_decoder":
            if head == "sequence_classification" and theirs.config.eos_token_id is not None:
                ids = ended_by(ids, mask, theirs.config.eos_token_id)
            decoder_ids = ids.flip(0)
            expected = theirs(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=decoder_ids)
            found = carrier.outputs(ours, ids, mask, decoder_ids)
            compared = torch.ones_like(mask)
        else:
            segments = torch.arange(ids.shape[1]).expand_as(ids) % max(config.num_segments, 1)
            expected = theirs(**their_inputs(config, ids, mask, segments, head))
            found = carrier.outputs(ours, ids, mask, segments)
            compared = mask
    differences = []
    for name in found:
        own, other = found[name], expected[name]
        if own.shape[:2] == compared.shape:
            own, other = own[compared], other[compared]
        differences.append(float((own.float() - other.float()).abs().max()))
    # NaN is above every number here, so that it is found in any output.
    difference = max(differences, key=lambda each: (math.isnan(each), each))
    if not difference < TOLERANCE:
        raise ExportError(
            f"transformers computes other logits from the export: they differ by {difference:.2g}, allowed is"
            f" {TOLERANCE}.",
            kept="nothing was committed",
            next_step="report it with the network's configuration; --no-verify writes it without this check",
        )
    return difference


def _random_text(config: TransformerConfig, pad: int) -> tuple[Tensor, Tensor]:
    """[rows, length] int64 ids and bool mask; every row is padded more than the one before.

    The padding id occurs only as padding: from it `transformers` derives RoBERTa's positions, and the end of a text
    that GPT-2 classifies.
    """
    import torch

    length, vocab_size = min(_LENGTH, config.max_positions), config.require_vocab_size()
    draws = Noise.of("export", vocab_size).at(torch.arange(_ROWS * length).numpy())
    draws = draws.integers(max(vocab_size - 1, 1))
    ids = torch.from_numpy(draws).view(_ROWS, length)
    mask = torch.arange(length) < torch.tensor([length, length - length // 4, length // 2])[:, None]
    return (ids + (ids >= pad)).where(mask, pad), mask


def save_flavour(exported: Export, directory: Path) -> str:
    """Write an MLflow model of an exported network to a new directory; returns the pipeline's task.

    Raises:
        ExportError: it is an ELMo, which transformers does not have.
    """
    if exported.family == ELMO:
        raise ExportError(
            "transformers has no ELMo, so MLflow cannot load it.", next_step="publish without --export"
        )
    import transformers
    from mlflow.transformers import save_model

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    task = _PIPELINES.get(exported.auto_class, "feature-extraction")
    requirements = [f"{name}=={version(name)}" for name in ("transformers", "torch")]
    with contextlib.redirect_stdout(sys.stderr):
        # MLflow 3.17 cannot find the class of a pipeline in transformers 5 from a path.
        load: Any = transformers.pipeline
        loaded = load(task, model=str(exported.directory), tokenizer=str(exported.directory), device="cpu")
        save_model(loaded, str(directory), pip_requirements=requirements)
    return task

"""LoRA and prefixes as the library `peft` stores them: adapter_config.json and adapter_model.safetensors, to be put on
an export of the network that was started from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.config import TransformerConfig
from models.hf.directory import write_json
from models.hf.families import FAMILIES
from models.hf.family import Family
from models.hf.heads import Head
from models.hf.names import Names, to_their_names
from models.peft.lora import LoraLinear, Update
from models.peft.prefix import Prefix
from models.peft.settings import LoraSettings, PrefixSettings
from models.weights import write_safetensors

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BASE = "base_model.model."
"""Prefix of the names there."""
TASK_TYPES: Mapping[Head, str] = {
    "sequence_classification": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
    "causal_lm": "CAUSAL_LM",
    "seq2seq_lm": "SEQ_2_SEQ_LM",
}
PRETRAINED: tuple[Head, ...] = ("encoder", "masked_lm", "pretraining", "causal_lm", "seq2seq_lm")
"""Heads that are part of the network that was started from."""


@dataclass(frozen=True)
class PeftFiles:
    """Contents of a directory that `peft` reads."""

    config: dict[str, Any]
    """The contents of adapter_config.json."""
    tensors: dict[str, Tensor]
    """The contents of adapter_model.safetensors."""


@torch.no_grad()
def to_peft(model: nn.Module, head: Head, family: str, base: str | None = None) -> PeftFiles:
    """Translate what was trained for `peft`.

    Args:
        model: a network after `apply_peft` with LoRA, or with a prefix.
        head: its head.
        family: name of the family that the network was exported as.
        base: directory or name of that export, for adapter_config.json.

    Raises:
        ValueError: the method is none that `peft` has in this form, or the family is not known.
    """
    settings = getattr(model, "peft_settings", None)
    chosen = next((one for one in FAMILIES if one.name == family), None)
    if chosen is None:
        raise ValueError(
            f"there is no family {family!r}; there are {', '.join(one.name for one in FAMILIES)}"
        )
    network: Any = getattr(model, "network", model)
    if isinstance(settings, LoraSettings):
        files = _lora(network, settings, chosen, head)
    elif isinstance(settings, PrefixSettings):
        files = _prefix(network, settings, head)
    else:
        kind = "none" if settings is None else settings.kind
        raise ValueError(f"peft has no {kind} as it is here; only lora and prefix are written in its format")
    common = {
        "base_model_name_or_path": base,
        "task_type": TASK_TYPES.get(head),
        "inference_mode": True,
    }
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in files.tensors.items()}
    return PeftFiles({**common, **files.config}, tensors)


def save_peft_directory(path: str | Path, files: PeftFiles) -> None:
    """Write a directory that `PeftModel.from_pretrained` reads; adapter_config.json is written last."""
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG_FILE).unlink(missing_ok=True)
    write_safetensors(directory / WEIGHTS_FILE, files.tensors, {"format": "pt"})
    write_json(directory / CONFIG_FILE, files.config)


def _lora(model: Any, settings: LoraSettings, family: Family, head: Head) -> PeftFiles:
    config: TransformerConfig = model.config
    prefix = family.prefix(head)
    # Where padding shifts positions, it does so in embeddings alone, which have no updates.
    table = {names.ours: names for names in family.body(config, prefix, 0)}
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    transposed = False
    for path, module in model.named_modules():
        if not isinstance(module, LoraLinear):
            continue
        names = table[f"{path}.weight"]
        transposed |= names.transposed
        for theirs, down, up in _updates(module, names):
            tensors |= {
                f"{BASE}{theirs}.lora_A.weight": down,
                f"{BASE}{theirs}.lora_B.weight": up,
            }
            ranks[theirs] = len(down)
    rank = Counter(ranks.values()).most_common(1)[0][0]
    others = {name: own for name, own in ranks.items() if own != rank}
    head_names = [] if head in PRETRAINED else family.heads(config, prefix)[head]
    tensors |= {
        f"{BASE}{name}": tensor for name, tensor in to_their_names(head_names, model.state_dict()).items()
    }
    return PeftFiles(
        {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": settings.scale * rank,
            "rank_pattern": others,
            "alpha_pattern": {name: settings.scale * own for name, own in others.items()},
            "lora_dropout": settings.dropout,
            "bias": "none",
            "fan_in_fan_out": transposed,
            "target_modules": sorted(ranks),
            "modules_to_save": _modules(head_names, prefix) or None,
        },
        tensors,
    )


def _updates(module: LoraLinear, names: Names) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Their linear layers that hold updated rows, with A and B.

    Several updates in one of their layers are one of a higher rank there: A has theirs one above the other, and each
    takes its own columns of B.
    """
    sizes = names.sizes or (module.out_features // len(names.theirs),) * len(names.theirs)
    first = 0
    for theirs, size in zip(names.theirs, sizes, strict=True):
        inside = [
            (start - first, update)
            for name, update in module.lora.items()
            if first <= (start := module.rows[name][0]) < first + size  # pyright: ignore[reportArgumentType]
        ]
        updates = [(start, update) for start, update in inside if isinstance(update, Update)]
        if updates:
            up = updates[0][1].up.new_zeros(size, sum(update.up.shape[1] for _, update in updates))
            column = 0
            for start, update in updates:
                rows, rank = update.up.shape
                up[start : start + rows, column : column + rank] = update.up
                column += rank
            yield theirs.removesuffix(".weight"), torch.cat([update.down for _, update in updates]), up
        first += size


def _modules(table: list[Names], prefix: str) -> list[str]:
    """The outermost modules of a head."""
    found = set()
    for name in (theirs for names in table for theirs in names.theirs):
        inside = prefix if prefix and name.startswith(prefix) else ""
        found.add(inside + name.removeprefix(inside).partition(".")[0])
    return sorted(found)


def _prefix(model: Any, settings: PrefixSettings, head: Head) -> PeftFiles:
    config: TransformerConfig = model.config
    if head != "causal_lm":
        raise ValueError(
            f"a prefix is written for causal_lm only, not for {head}: peft passes it as keys and values of earlier "
            "tokens, so that in BERT, RoBERTa and ELECTRA of transformers the text begins at the position after it, "
            "and here at the first; other classes take no earlier tokens, or use them in another place. "
            "Train lora instead, which peft takes with every head"
        )
    prefixes = [module for module in model.modules() if isinstance(module, Prefix)]
    # [length, layers, key or value, heads, head size], as peft divides a row.
    pairs = torch.stack([prefix.keys_and_values().permute(2, 0, 1, 3) for prefix in prefixes], 1)
    return PeftFiles(
        {
            "peft_type": "PREFIX_TUNING",
            "num_virtual_tokens": settings.length,
            "num_transformer_submodules": 1,
            "num_layers": config.decoder_layers,
            "num_attention_heads": config.key_value_heads,
            "token_dim": config.key_value_size,
            "encoder_hidden_size": config.key_value_size,
            "prefix_projection": False,
        },
        {"prompt_embeddings": pairs.flatten(1)},
    )

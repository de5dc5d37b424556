"""The families of Hugging Face models that are read and written, and how one is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from models.config import TransformerConfig
from models.generation.config import GenerationConfig
from models.hf import bart, bert, gpt2, llama, modernbert, roberta, t5
from models.hf.config_json import HfConfig, generation_keys, label_names, require_keys, search_keys
from models.hf.family import Family, Imported, Tensors, TokenIds
from models.hf.heads import LABELLED, Head, build_on_meta, exported_part, num_labels_of
from models.weights import check_tensors, check_values

FAMILIES: tuple[Family, ...] = (
    bert.FAMILY,
    bert.DISTILBERT,
    roberta.FAMILY,
    roberta.PRE_LAYER_NORM,
    bert.ELECTRA,
    modernbert.FAMILY,
    gpt2.FAMILY,
    llama.FAMILY,
    bart.FAMILY,
    bart.MBART_FAMILY,
    t5.FAMILY,
)
"""An export tries them in this order."""


@dataclass(frozen=True)
class Exported:
    """A network of ours as one of `transformers`."""

    family: str
    tensors: Tensors
    config: HfConfig
    """The contents of config.json."""
    head: Head
    generation_config: HfConfig | None
    """The contents of generation_config.json, where there is one."""
    notes: tuple[str, ...] = ()
    """The parts that were left out, for people."""


def import_model(tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]) -> Imported:
    """Translate a network of `transformers` into ours.

    Args:
        tensors: what `save_pretrained` stores.
        config_dict: the contents of config.json.

    Raises:
        ValueError: an architecture or a computation that is not supported; tensors are missing, unexpected, of another
            shape, or not finite; they are named.
    """
    architectures = config_dict.get("architectures") or []
    family = next((one for one in FAMILIES if architectures in ([name] for name in one.architectures)), None)
    if family is None:
        known = ", ".join(name for one in FAMILIES for name in one.architectures)
        raise ValueError(
            f"cannot read a Hugging Face model with architectures {architectures} "
            f"(model_type {config_dict.get('model_type')!r}); supported: {known}"
        )
    require_keys(config_dict, {"quantization_config": None})
    for name, tensor in tensors.items():
        # Other tensors, such as position ids, may be of any type.
        is_float = tensor.is_floating_point() and tensor.itemsize > 1
        if name.endswith(("weight", "bias")) and not is_float:
            raise ValueError(
                f"the Hugging Face weights hold {name} as {str(tensor.dtype).removeprefix('torch.')}; quantised "
                "weights are not read, save them as float32, float16 or bfloat16"
            )
    check_values(tensors, "the Hugging Face weights")
    try:
        found = family.from_hf(tensors, config_dict)
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"config.json has a value of a kind that has no meaning there: {error}") from error
    tensors, pooler = (
        {name: tensor.float() for name, tensor in each.items()} for each in (found.state_dict, found.pooler)
    )
    return replace(found, state_dict=tensors, pooler=pooler)


def export_model(
    state_dict: Mapping[str, Tensor],
    config: TransformerConfig,
    token_ids: TokenIds | None = None,
    *,
    head: Head | None = None,
    family: str | None = None,
    labels: Sequence[str] | None = None,
    search: GenerationConfig | None = None,
) -> Exported:
    """Translate a network of ours for `transformers`.

    Args:
        state_dict: of any network that `models.hf.heads` knows.
        token_ids: special tokens of its vocabulary.
        head: as in `exported_part`.
        family: name of the family to write; None takes the first that can carry the network.
        labels: names of a classifier's labels, in the order of its scores.
        search: how the network writes, with its special tokens; None writes the family's special tokens alone.

    Raises:
        ValueError: no family can carry the network, with every family's reasons; tensors are missing, unexpected, of
            another shape, or not finite; a special token is outside the vocabulary; there are not as many names as
            labels.
    """
    token_ids = token_ids or TokenIds()
    part = exported_part(state_dict, config, head)
    state_dict, head = part.state_dict, part.head
    num_labels = num_labels_of(state_dict, head)
    if labels is not None and len(labels) != num_labels:
        raise ValueError(f"{len(labels)} names of labels ({', '.join(labels)}) for {num_labels} labels")
    expected = build_on_meta(config, head, num_labels).state_dict()
    check_tensors(expected, state_dict, "the state dict to export")
    check_values(state_dict, "the state dict to export")
    size = config.require_vocab_size()
    for role, number in {"pad": token_ids.pad, "bos": token_ids.bos, "eos": token_ids.eos}.items():
        if number is not None and not 0 <= number < size:
            raise ValueError(
                f"the {role} token has the id {number}, but the network's vocabulary has {size} ids (vocab_size); "
                "export it with the tokenizer that it was trained with"
            )
    chosen = choose_family(config, head, family)
    tensors, config_dict = chosen.to_hf(state_dict, config, head, token_ids)
    dtype = next(iter(state_dict.values())).dtype
    config_dict["dtype"] = str(dtype).removeprefix("torch.")
    config_dict["architectures"] = [chosen.class_name(head)]
    if head in LABELLED or labels is not None:
        config_dict |= label_names(num_labels, labels)
    if head == "sequence_classification":
        # Without it, pipelines squash a number as they do the probability of a label.
        is_number = num_labels == 1 and labels is None
        config_dict["problem_type"] = "regression" if is_number else "single_label_classification"
    generation = chosen.generation_config(config_dict) if chosen.generation_config else None
    if search is not None:
        generation = generation_keys(config_dict) | search_keys(search)
    return Exported(chosen.name, tensors, config_dict, head, generation, part.notes)


def choose_family(config: TransformerConfig, head: Head, wanted: str | None) -> Family:
    candidates = [family for family in FAMILIES if wanted in (None, family.name)]
    if not candidates:
        names = ", ".join(family.name for family in FAMILIES)
        raise ValueError(f"there is no family {wanted!r} to write; there are {names}")
    obstacles = {}
    for family in candidates:
        has_head = head in family.architectures.values()
        obstacles[family.name] = family.obstacles(config, head) if has_head else [f"it has no head {head}"]
        if not obstacles[family.name]:
            return family
    reasons = "\n".join(f"  {name}: {'; '.join(reasons)}" for name, reasons in obstacles.items())
    raise ValueError(f"no family of Hugging Face models computes what this network computes:\n{reasons}")

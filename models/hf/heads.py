"""The heads that a network can have: which of our networks carries each, how `transformers` calls its class and its
outputs, and what is left out of an export because it serves only pre-training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from models.classifiers import ChoiceClassifier, SequenceClassifier, SpanClassifier, TokenClassifier
from models.config import Network, TransformerConfig
from models.electra import Discriminator
from models.hf.names import Names
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from models.stacks import Encoder
from models.weights import with_prefix

Head = Literal[
    "encoder",
    "masked_lm",
    "pretraining",
    "replaced_token_detection",
    "sequence_classification",
    "token_classification",
    "multiple_choice",
    "question_answering",
    "causal_lm",
    "seq2seq_lm",
]
"""The head on top of a network. `encoder` is a bare network, `pretraining` BERT's prediction of tokens and of pairs."""

FINE_TUNED: tuple[Head, ...] = (
    "sequence_classification",
    "token_classification",
    "multiple_choice",
    "question_answering",
)
"""The heads of fine-tuned encoders."""

SUFFIXES: Mapping[Head, str] = {
    "encoder": "Model",
    "masked_lm": "ForMaskedLM",
    "pretraining": "ForPreTraining",
    "replaced_token_detection": "ForPreTraining",
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "multiple_choice": "ForMultipleChoice",
    "question_answering": "ForQuestionAnswering",
    "causal_lm": "ForCausalLM",
    "seq2seq_lm": "ForConditionalGeneration",
}
Outputs: TypeAlias = dict[str, Tensor]
Model: TypeAlias = Any
"""A network of ours; which class it is follows from the kind of network and the head."""


def classes(prefix: str, *heads: Head) -> dict[str, Head]:
    """Classes of a family by their usual names: `classes("Bert", "masked_lm")` has `BertForMaskedLM`."""
    return {f"{prefix}{SUFFIXES[head]}": head for head in heads}


@dataclass(frozen=True)
class Carrier:
    """A network that carries a head."""

    build: Callable[[TransformerConfig, int], nn.Module]
    """(configuration, number of labels) to the network."""
    outputs: Callable[..., Outputs]
    """(network, input_ids, attention_mask, segment_ids) to scores under the names of `transformers`' outputs; an
    encoder-decoder takes (network, input_ids, attention_mask, decoder_input_ids). What is at padding has no meaning."""
    auto_class: str
    """The class of `transformers` whose `from_pretrained` reads an export."""


def carrier_of(config: TransformerConfig, head: Head) -> Carrier:
    """The network for a head.

    Raises:
        ValueError: no network of this kind carries the head.
    """
    found = CARRIERS.get((config.network, head))
    if found is None:
        heads = ", ".join(head for network, head in CARRIERS if network == config.network)
        raise ValueError(f"a network of kind {config.network} has no head {head}; it may have {heads}")
    return found


def build_on_meta(config: TransformerConfig, head: Head, num_labels: int = 1) -> nn.Module:
    """The network without memory: its state dict gives names and shapes."""
    with torch.device("meta"):
        return carrier_of(config, head).build(config, num_labels)


def head_of(state_dict: Mapping[str, Tensor], config: TransformerConfig) -> Head:
    """The head that a state dict has.

    Raises:
        ValueError: none that is known here.
    """
    signs = SIGNS[config.network]
    for sign, head in signs.items():
        if sign in state_dict:
            return head
    raise ValueError(
        f"the state dict to export has none of {', '.join(signs)}, so its head is not known; export the state of a "
        "whole network"
    )


def num_labels_of(state_dict: Mapping[str, Tensor], head: Head) -> int:
    """Labels that a state dict scores; 1 where the head has none of its own."""
    if head not in LABELLED:
        return 1
    return next(len(state_dict[name]) for name in SCORES if name in state_dict)


def labels_in(table: Sequence[Names], tensors: Mapping[str, Tensor]) -> int:
    """Rows of the scores in tensors of `transformers`; 1 where there are none."""
    names = next((names.theirs[0] for names in table if names.ours in SCORES), "")
    return (len(tensors[names]) if names in tensors and tensors[names].dim() else 0) or 1


def their_inputs(
    config: TransformerConfig,
    input_ids: Tensor,
    attention_mask: Tensor,
    segment_ids: Tensor | None,
    head: Head | None = None,
) -> dict[str, Tensor]:
    """Translate the arguments of `Carrier.outputs` to those of the class of `transformers`; with multiple choice, the
    rows are the choices of one question."""
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask.long()}
    if segment_ids is not None and config.num_segments:
        inputs["token_type_ids"] = segment_ids
    if head == "multiple_choice":
        return {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
    return inputs


def ended_by(input_ids: Tensor, attention_mask: Tensor, eos: int) -> Tensor:
    """Make `</s>` the last token and replace every other `</s>`: `transformers` pools an encoder-decoder at it, ours
    pools at the last token. Rows are padded on the right."""
    others = torch.where(input_ids == eos, eos - 1 if eos else eos + 1, input_ids)
    last = (attention_mask.long().sum(-1, keepdim=True) - 1).clamp_min(0)
    return others.scatter(1, last, eos)


def _scores(*names: str, beside: str | None = None, method: str = "__call__") -> Callable[..., Outputs]:
    """Outputs of one call of a network.

    Args:
        names: of the outputs; several divide the last dimension.
        beside: what the network calls the input beside the text; None where it takes none.
        method: of the network.
    """

    def outputs(model: Model, input_ids: Tensor, attention_mask: Tensor, other: Tensor | None) -> Outputs:
        others = {beside: other} if beside else {}
        found = getattr(model, method)(input_ids, attention_mask=attention_mask, **others)
        return dict(zip(names, [found] if len(names) == 1 else found.unbind(-1), strict=True))

    return outputs


_encoded = _scores("last_hidden_state", beside="segment_ids")


def _tokens_and_pairs(model: Model, *batch: Tensor | None) -> Outputs:
    hidden = _encoded(model.encoder, *batch)["last_hidden_state"]
    return {
        "prediction_logits": model.head(hidden, model.encoder.embeddings.token_weight),
        "seq_relationship_logits": model.pair_head(hidden[:, 0]),
    }


def _carriers(
    network: Network, beside: str | None, heads: Mapping[Head, tuple[Any, ...]]
) -> dict[tuple[Network, Head], Carrier]:
    """Carriers of one kind of network.

    Args:
        beside: as in `_scores`.
        heads: to the class that carries each and, where they are not its scores of labels, its outputs.
    """
    found: dict[tuple[Network, Head], Carrier] = {}
    for head, (build, *outputs) in heads.items():
        auto = "ForSeq2SeqLM" if head == "seq2seq_lm" else SUFFIXES[head].removesuffix("Model")
        with_labels = build if head in LABELLED else lambda config, _, build=build: build(config)
        given = outputs[0] if outputs else _scores("logits", beside=beside)
        found[network, head] = Carrier(with_labels, given, f"AutoModel{auto}")
    return found


LABELLED: tuple[Head, ...] = ("sequence_classification", "token_classification")
"""Heads with as many scores as there are labels."""
_SPANS = ("start_logits", "end_logits")
CARRIERS: Mapping[tuple[Network, Head], Carrier] = {
    **_carriers(
        "encoder",
        "segment_ids",
        {
            "encoder": (
                lambda config: nn.ModuleDict({"encoder": Encoder(config)}),
                lambda model, *batch: _encoded(model["encoder"], *batch),
            ),
            "masked_lm": (MaskedLanguageModel, _scores("logits", beside="segment_ids", method="logits")),
            "pretraining": (lambda config: MaskedLanguageModel(config, pair="nsp"), _tokens_and_pairs),
            "replaced_token_detection": (Discriminator,),
            "sequence_classification": (SequenceClassifier,),
            "token_classification": (TokenClassifier,),
            "multiple_choice": (
                ChoiceClassifier,
                lambda model, *batch: {
                    "logits": model(*(None if part is None else part[None] for part in batch))
                },
            ),
            "question_answering": (SpanClassifier, _scores(*_SPANS, beside="segment_ids")),
        },
    ),
    **_carriers(
        "decoder",
        None,
        {
            "causal_lm": (CausalLanguageModel, _scores("logits", method="logits")),
            "sequence_classification": (SequenceClassifier,),
            "token_classification": (TokenClassifier,),
        },
    ),
    **_carriers(
        "encoder_decoder",
        "decoder_input_ids",
        {
            "seq2seq_lm": (
                SequenceToSequence,
                _scores("logits", beside="decoder_input_ids", method="logits"),
            ),
            "sequence_classification": (SequenceClassifier,),
            "question_answering": (SpanClassifier, _scores(*_SPANS, beside="decoder_input_ids")),
        },
    ),
}

SIGNS: Mapping[Network, Mapping[str, Head]] = {
    "encoder": {
        "pair_head.output.weight": "pretraining",
        "head.decoder.bias": "masked_lm",
        "head.output.weight": "sequence_classification",
        "scores.weight": "token_classification",
        "output.weight": "question_answering",
        "encoder.embeddings.tokens.weight": "encoder",
    },
    "decoder": {
        "output.weight": "sequence_classification",
        "scores.weight": "token_classification",
        "decoder.embeddings.tokens.weight": "causal_lm",
    },
    "encoder_decoder": {
        "head.output.weight": "sequence_classification",
        "output.weight": "question_answering",
        "decoder.transformer.layers.0.attention.qkv.weight": "seq2seq_lm",
    },
}
"""Tensors that identify a head; the first that exists decides."""
SCORES = ("head.output.weight", "output.weight", "scores.weight")
"""Weights of the layers that score labels, in all networks."""


BOUNDARY = "boundary_head."
POOLER = "pair_head.pooler."
PAIRS = "pair_head.output.weight"
DISCRIMINATOR = "discriminator."
GENERATOR = "generator."
EMBEDDINGS = "encoder.embeddings."


@dataclass(frozen=True)
class Part:
    """A network with one head."""

    state_dict: dict[str, Tensor]
    head: Head
    notes: tuple[str, ...]
    """The parts that were left out, for people."""


def exported_part(
    state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head | None = None
) -> Part:
    """Leave out what serves only training.

    Args:
        state_dict: of any network.
        config: its configuration; of the discriminator, for ELECTRA.
        head: the head that it has; None finds out. A `Discriminator` and a network of multiple choice look like a
            classifier with one label, so they must be said.
    """
    if any(name.startswith(DISCRIMINATOR) for name in state_dict):
        note = "the generator is left out; it is a network of its own there"
        return Part(with_prefix(state_dict, DISCRIMINATOR), "replaced_token_detection", (note,))
    kept = {name: tensor for name, tensor in state_dict.items() if not name.startswith(BOUNDARY)}
    notes = [] if len(kept) == len(state_dict) else ["the head for span boundaries is left out"]
    if PAIRS not in kept:
        # A pooler without the scores of pairs is there for classification to start from.
        kept = {name: tensor for name, tensor in kept.items() if not name.startswith(POOLER)}
    found = head or head_of(kept, config)
    if found == "encoder":
        notes.append("there is no pooler; a class that has one makes up its weights")
    return Part(kept, found, tuple(notes))


def generator_part(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of ELECTRA's generator as a `MaskedLanguageModel`, from the state dict of an `Electra`.

    The embeddings that it shares with the discriminator are among its tensors. Export it with the generator's
    configuration.
    """
    lent = {
        name: tensor
        for name, tensor in with_prefix(state_dict, DISCRIMINATOR).items()
        if name.startswith(EMBEDDINGS) and not name.startswith(f"{EMBEDDINGS}projection.")
    }
    return {**lent, **with_prefix(state_dict, GENERATOR)}

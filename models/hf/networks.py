"""Heads: which of our networks carries each, and how `transformers` calls its class and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from models.causal_language_model import CausalLanguageModel
from models.classifiers import (
    CHOICE_CLASSIFIERS,
    DecoderClassifier,
    EncoderDecoderClassifier,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
)
from models.config import Network, TransformerConfig
from models.electra import Discriminator
from models.encoder import Encoder
from models.hf.heads import Head
from models.hf.names import Names
from models.masked_language_model import MaskedLanguageModel
from models.sequence_to_sequence import SequenceToSequence

Outputs: TypeAlias = dict[str, Tensor]
Model: TypeAlias = Any
"""A network of ours; which class it is follows from the kind of network and the head."""


@dataclass(frozen=True)
class Carrier:
    """A network that carries a head."""

    auto_class: str
    """The class of `transformers` whose `from_pretrained` reads an export."""
    build: Callable[[TransformerConfig, int], nn.Module]
    """(configuration, number of labels) to the network."""
    outputs: Callable[..., Outputs]
    """(network, input_ids, attention_mask, segment_ids) to scores under the names of `transformers`' outputs; an
    encoder-decoder takes (network, input_ids, attention_mask, decoder_input_ids). What is at padding has no meaning."""


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
    """The text with `</s>` as its last token and nowhere else: where `transformers` looks for the token of an
    encoder-decoder that represents the text, and ours takes the last one. Rows are padded on the right."""
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


def _hidden(model: Model, *batch: Tensor | None) -> Outputs:
    return _scores("last_hidden_state", beside="segment_ids")(model["encoder"], *batch)


def _tokens_and_pairs(model: Model, *batch: Tensor | None) -> Outputs:
    hidden = _scores("hidden", beside="segment_ids")(model.encoder, *batch)["hidden"]
    return {
        "prediction_logits": model.head(hidden, model.encoder.embeddings.token_weight),
        "seq_relationship_logits": model.pair_head(hidden[:, 0]),
    }


def _choices(model: Model, *batch: Tensor | None) -> Outputs:
    return {"logits": model(*(None if part is None else part[None] for part in batch))}


_labels = _scores("logits", beside="segment_ids")
_SPANS = ("start_logits", "end_logits")


def _encoder(config: TransformerConfig, num_labels: int) -> nn.Module:
    return nn.ModuleDict({"encoder": Encoder(config)})


def _without_labels(
    network: Callable[[TransformerConfig], nn.Module],
) -> Callable[[TransformerConfig, int], nn.Module]:
    return lambda config, _: network(config)


CARRIERS: Mapping[tuple[Network, Head], Carrier] = {
    ("encoder", "encoder"): Carrier("AutoModel", _encoder, _hidden),
    ("encoder", "masked_lm"): Carrier(
        "AutoModelForMaskedLM",
        _without_labels(MaskedLanguageModel),
        _scores("logits", beside="segment_ids", method="logits"),
    ),
    ("encoder", "pretraining"): Carrier(
        "AutoModelForPreTraining",
        lambda config, _: MaskedLanguageModel(config, pair="nsp"),
        _tokens_and_pairs,
    ),
    ("encoder", "replaced_token_detection"): Carrier(
        "AutoModelForPreTraining", _without_labels(Discriminator), _labels
    ),
    ("encoder", "sequence_classification"): Carrier(
        "AutoModelForSequenceClassification", SequenceClassifier, _labels
    ),
    ("encoder", "token_classification"): Carrier("AutoModelForTokenClassification", TokenClassifier, _labels),
    ("encoder", "multiple_choice"): Carrier(
        "AutoModelForMultipleChoice", _without_labels(CHOICE_CLASSIFIERS["encoder"]), _choices
    ),
    ("encoder", "question_answering"): Carrier(
        "AutoModelForQuestionAnswering",
        _without_labels(SpanClassifier),
        _scores(*_SPANS, beside="segment_ids"),
    ),
    ("decoder", "causal_lm"): Carrier(
        "AutoModelForCausalLM", _without_labels(CausalLanguageModel), _scores("logits", method="logits")
    ),
    ("decoder", "sequence_classification"): Carrier(
        "AutoModelForSequenceClassification", DecoderClassifier, _scores("logits")
    ),
    ("decoder", "token_classification"): Carrier(
        "AutoModelForTokenClassification", TokenClassifier, _scores("logits")
    ),
    ("encoder_decoder", "seq2seq_lm"): Carrier(
        "AutoModelForSeq2SeqLM",
        _without_labels(SequenceToSequence),
        _scores("logits", beside="decoder_input_ids", method="logits"),
    ),
    ("encoder_decoder", "sequence_classification"): Carrier(
        "AutoModelForSequenceClassification",
        EncoderDecoderClassifier,
        _scores("logits", beside="decoder_input_ids"),
    ),
    ("encoder_decoder", "question_answering"): Carrier(
        "AutoModelForQuestionAnswering",
        _without_labels(SpanClassifier),
        _scores(*_SPANS, beside="decoder_input_ids"),
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
"""Tensors by which a head is known; the first that is there decides."""
LABELLED: tuple[Head, ...] = ("sequence_classification", "token_classification")
"""Heads with as many scores as there are labels."""
SCORES = ("head.output.weight", "output.weight", "scores.weight")
"""Weights of the layers that score labels, in all networks."""

"""The heads that a network can have, by the names that `transformers`' classes end with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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
"""The head on top of a network; `models.hf.networks` says which network that is and how `transformers` calls it.
`encoder` is a bare network, `pretraining` BERT's prediction of tokens and of pairs."""

FINE_TUNED: tuple[Head, ...] = (
    "sequence_classification",
    "token_classification",
    "multiple_choice",
    "question_answering",
)
"""The heads with which encoders are fine-tuned."""

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


def classes(prefix: str, *heads: Head) -> dict[str, Head]:
    """Classes of a family by their usual names: `classes("Bert", "masked_lm")` has `BertForMaskedLM`."""
    return {f"{prefix}{SUFFIXES[head]}": head for head in heads}

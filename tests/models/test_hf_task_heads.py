"""Heads of fine-tuning on encoder-decoders and decoders compute the same in `transformers`, in both directions."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from models.hf.families import import_model
from models.hf.heads import ended_by, num_labels_of
from models.stacks import shifted_right
from tests.models.hf_configs import small
from tests.models.hf_oracle import (
    TOKENS,
    import_of,
    opened_by_transformers,
    random_network,
)
from tests.models.materials import padding, some_tokens

V1_1 = {"gated": True, "tie_embeddings": False}
CASES = [
    *product(["BART", "T5"], [{}, {"tie_embeddings": False}], ["sequence_classification"], [1, 3]),
    *product(["T5"], [V1_1], ["sequence_classification"], [1, 3]),
    *product(["BART", "mBART", "T5"], [{}], ["question_answering"], [1]),
    *product(["T5"], [V1_1], ["question_answering"], [1]),
    *product(["GPT-2", "LLaMA"], [{}], ["token_classification"], [5]),
]


@torch.no_grad()
@pytest.mark.parametrize(("family", "fields", "head", "labels"), CASES)
def test_head_scores_as_in_transformers(family, fields, head, labels):
    config = small(family, **fields)
    ours = random_network(config, head, 1, labels)
    theirs, exported = opened_by_transformers(ours, config, None, TOKENS)
    back = import_model(exported.tensors, exported.config)
    assert (exported.family, back.config, back.head) == (family, config, head)
    if head != "question_answering":
        assert num_labels_of(back.state_dict, head) == theirs.config.num_labels == labels
    if family == "mBART":  # Its decoder starts with the tag of the language, wherever that is.
        return
    mask = padding([14, 9, 2], 14)
    ids = ended_by(some_tokens(3, 14, 1), mask, TOKENS.eos or 0).where(mask, TOKENS.pad)
    expected = theirs(input_ids=ids, attention_mask=mask.long())
    seen = ... if head == "sequence_classification" else mask
    scores = (
        torch.stack([expected.start_logits, expected.end_logits], -1)
        if head == "question_answering"
        else expected.logits
    )
    # Both make the decoder's input themselves, each in its own way.
    start = {"decoder_input_ids": shifted_right(ids, mask, TOKENS.pad)} if family == "T5" else {}
    for network in (ours, import_of(theirs)):
        torch.testing.assert_close(network(ids, mask, **start)[seen], scores[seen], atol=1e-4, rtol=0)

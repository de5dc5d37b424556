"""`transformers` reads texts with an exported classifier as its fine-tuning did."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from cluster.artefacts.manifest import InputEntry
from models.classifiers import SequenceClassifier
from models.config import TransformerConfig
from pipeline.export.exporting import write_export
from pipeline.export.formats import Source
from pipeline.tune.encoding import encode_examples
from pipeline.tune.tasks.forms import Example
from pipeline.tune.text_reading import with_own_padding, with_template
from pipeline.tune.tokenizer import TextTokenizer, sequence_format

ENCODER = TransformerConfig(
    network="encoder",
    vocab_size=16,
    num_layers=1,
    hidden_size=16,
    num_heads=2,
    intermediate_size=32,
    max_positions=24,
    positions="learned",
    norm="post",
    embedding_norm=True,
    norm_eps=1e-12,
    activation="gelu",
    num_segments=2,
)
DECODER = dataclasses.replace(
    ENCODER, network="decoder", norm="pre", embedding_norm=False, activation="gelu_tanh", num_segments=0
)
BERT, GPT2 = ("[PAD]", "[CLS]", "[SEP]"), ("<|endoftext|>",)


def write_tokenizer(path, specials: tuple[str, ...]) -> TextTokenizer:
    """Words of `TEXTS`; no template, as in GPT-2's file."""
    vocabulary = {word: number for number, word in enumerate((*specials, "a", "good", "film", "bad"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=specials[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(each) for each in specials])
    tokenizer.save(str(path))
    return TextTokenizer(path)


TEXTS = [("a good film", "bad"), ("film", "a bad film"), ("bad", "good film")]


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(
    ("network", "specials"), [(ENCODER, BERT), (DECODER, BERT), (DECODER, GPT2)], ids=["bert", "gpt", "gpt2"]
)
def test_padded_batches_of_an_exported_classifier_give_our_logits(tmp_path, network, specials, pairs):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", specials)
    network = dataclasses.replace(network, vocab_size=tokenizer.vocab_size)
    ours = SequenceClassifier(network, 2).eval()
    written, shape, tensors = (
        with_template(tokenizer, sequence_format(network, tokenizer)),
        network,
        ours.state_dict(),
    )
    if network.network == "decoder":
        written, shape, tensors = with_own_padding(written, network, tensors)
    entry = InputEntry(kind="scores", uri="scores", fingerprint="0")
    source = Source(tensors, shape, "sequence_classification", written, entry)
    write_export(source, tmp_path / "export", family=None, verify=True)

    texts = [first for first, _ in TEXTS], [second for _, second in TEXTS] if pairs else None
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export").eval()
    read = AutoTokenizer.from_pretrained(tmp_path / "export")
    examples = [Example(first, first, second if pairs else None, 0) for first, second in TEXTS]
    encoded = encode_examples(tokenizer, sequence_format(network, tokenizer), examples, 24)
    with torch.no_grad():
        found = theirs(**read(*texts, padding=True, return_tensors="pt")).logits
        for number in range(len(TEXTS)):
            row = torch.from_numpy(encoded.input_ids[number])[None]
            rows = encoded.segment_ids
            segments = {} if rows is None else {"segment_ids": torch.from_numpy(rows[number])[None]}
            wanted = ours(row, **segments)
            torch.testing.assert_close(found[number], wanted[0], atol=1e-5, rtol=1e-5)

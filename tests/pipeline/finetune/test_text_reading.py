"""`transformers` reads texts with an exported classifier as its fine-tuning did."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from cluster.artefacts.manifest import InputEntry
from models.config import TransformerConfig
from models.decoder_classifier import DecoderClassifier
from models.peft.apply import apply_peft
from models.peft.settings import LoraSettings
from models.sequence_classifier import SequenceClassifier
from pipeline.exporting.adapters import write_peft
from pipeline.exporting.exporting import Source, write_export
from pipeline.finetune.encoding import encode_examples
from pipeline.finetune.forms.classification.settings import Example
from pipeline.finetune.text_reading import own_padding, with_own_padding, with_template
from pipeline.finetune.tokenizer import TextTokenizer, sequence_format

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
    ours = (DecoderClassifier if network.network == "decoder" else SequenceClassifier)(network, 2).eval()
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


@pytest.mark.parametrize("specials", [BERT, GPT2], ids=["gpt", "gpt2"])
def test_padded_batches_of_an_adapter_give_our_logits_in_peft(tmp_path, specials):
    from peft import AutoPeftModelForSequenceClassification
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", specials)
    network = dataclasses.replace(DECODER, vocab_size=tokenizer.vocab_size)
    ours = DecoderClassifier(network, 2)
    base = Source(
        ours.state_dict(),
        network,
        "sequence_classification",
        tokenizer.path.read_text(),
        InputEntry(kind="scores", uri="scores", fingerprint="0"),
    )
    write_export(base, tmp_path / "base", family=None, verify=False)
    apply_peft(ours, LoraSettings(rank=2, alpha=8.0), seed=0)
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    written = own_padding(with_template(tokenizer, sequence_format(network, tokenizer)))
    adapted = dataclasses.replace(base, tokenizer_json=written)
    write_peft(ours.eval(), adapted, tmp_path / "adapter", family=None, base=str(tmp_path / "base"))

    theirs = AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter", num_labels=2).eval()
    read = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    theirs.config.pad_token_id = read.pad_token_id
    texts = [first for first, _ in TEXTS]
    encoded = encode_examples(
        tokenizer,
        sequence_format(network, tokenizer),
        [Example(text, text, None, 0) for text in texts],
        24,
    )
    with torch.no_grad():
        found = theirs(**read(texts, padding=True, return_tensors="pt")).logits
        for number in range(len(texts)):
            wanted = ours(torch.from_numpy(encoded.input_ids[number])[None])
            torch.testing.assert_close(found[number], wanted[0], atol=1e-5, rtol=1e-5)

"""Tiny networks with random weights and tokenizers made on the spot, as `transformers` and as we save them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from models.elmo.config import ElmoConfig
from models.elmo.language_model import ElmoLanguageModel
from models.initialization import init_weights
from pipeline.checkpoint.store import CheckpointStore
from tests.pipeline.small_checkpoints import state_at, write_files

SENTENCES = [
    "the film was great and the plot was good",
    "a terrible film with a bad plot, really",
    "the capital of France is Paris.",
    "they play in the park; the play was long",
    "she plays a play about two players",
]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


KINDS = ("bert", "roberta", "electra_generator", "gpt2", "bart", "t5")
"""Functions of this module that make networks of `transformers`."""


def wordpiece(directory: Path) -> transformers.PreTrainedTokenizerFast:
    """A vocabulary as BERT's."""
    tokenizer: Any = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        SENTENCES, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return _saved(tokenizer, names, directory)


def byte_level(
    directory: Path, *, sentinels: int = 0, bert_like: bool = True
) -> transformers.PreTrainedTokenizerFast:
    """A vocabulary as RoBERTa's and BART's, or as GPT-2's."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", *(f"<extra_id_{n}>" for n in range(sentinels))]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special if bert_like else ["<|endoftext|>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if not bert_like:
        end = "<|endoftext|>"
        return _saved(tokenizer, {"bos": end, "eos": end, "unk": end}, directory)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    return _saved(tokenizer, names, directory)


def bert(directory: Path) -> Path:
    """A masked language model with WordPiece."""
    config = transformers.BertConfig(
        vocab_size=len(wordpiece(directory)), max_position_embeddings=64, pad_token_id=0, **SIZES
    )
    return _save(transformers.BertForMaskedLM(_drawn(config)), directory)


def roberta(directory: Path) -> Path:
    """A masked language model with byte-level BPE."""
    config = transformers.RobertaConfig(
        vocab_size=len(byte_level(directory)), max_position_embeddings=66, type_vocab_size=1, **SIZES
    )
    return _save(transformers.RobertaForMaskedLM(_drawn(config)), directory)


def electra_generator(directory: Path) -> Path:
    """The generator of an ELECTRA."""
    config = transformers.ElectraConfig(
        vocab_size=len(wordpiece(directory)), embedding_size=8, max_position_embeddings=64, **SIZES
    )
    return _save(transformers.ElectraForMaskedLM(_drawn(config)), directory)


def gpt2(directory: Path) -> Path:
    """A decoder."""
    vocab_size = len(byte_level(directory, bert_like=False))
    config = transformers.GPT2Config(
        vocab_size=vocab_size, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return _save(transformers.GPT2LMHeadModel(_drawn(config)), directory)


def bart(directory: Path) -> Path:
    """An encoder-decoder that writes whole texts."""
    vocab_size = len(byte_level(directory))
    stacks: dict[str, Any] = {
        f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in _STACK.items()
    }
    config = transformers.BartConfig(vocab_size=vocab_size, max_position_embeddings=64, d_model=16, **stacks)
    return _save(transformers.BartForConditionalGeneration(_drawn(config)), directory)


def t5(directory: Path) -> Path:
    """An encoder-decoder with sentinels."""
    vocab_size = len(byte_level(directory, sentinels=4))
    config = transformers.T5Config(
        vocab_size=vocab_size,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        pad_token_id=1,
        eos_token_id=2,
        **_START,
    )
    return _save(transformers.T5ForConditionalGeneration(_drawn(config)), directory)


_START: dict[str, Any] = {"decoder_start_token_id": 1}
_STACK: dict[str, Any] = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}


def elmo(directory: Path) -> Path:
    """A checkpoint of a bidirectional language model over characters."""
    config = ElmoConfig(
        vocab_size=400,
        character_size=4,
        filters=((1, 8), (2, 8)),
        num_highway_layers=1,
        projection_size=8,
        cell_size=16,
    )
    return checkpoint(directory, ElmoLanguageModel(config), "bilm")


def checkpoint(directory: Path, network: Any, objective: str) -> Path:
    """A checkpoint of a network of ours, whose `<mask>` leaves the space before it alone, as those trained here."""
    tokenizer: Any = byte_level(directory / "tokenizer").backend_tokenizer
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=False)])
    tokenizer.post_processor = None
    init_weights(network, seed=1)
    store = CheckpointStore(directory / "checkpoints")
    state = state_at(5, identity={"seed": 1, "objective": {"kind": objective}})
    files = {"model.safetensors": save(network.state_dict())}
    write_files(store, state, files, network=network.config, tokenizer_json=tokenizer.to_str())
    return store.fetch(5)


def _drawn(config: Any) -> Any:
    torch.manual_seed(3)
    return config


def _save(model: Any, directory: Path) -> Path:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in {id(each): each for each in model.parameters()}.values():
            if parameter.dim() > 1:
                # Under the usual small weights all predictions are alike.
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(directory)
    return directory


def _saved(
    tokenizer: Tokenizer, names: dict[str, str], directory: Path
) -> transformers.PreTrainedTokenizerFast:
    directory.mkdir(parents=True, exist_ok=True)
    tokens: dict[str, Any] = {f"{role}_token": name for role, name in names.items()}
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)
    saved.save_pretrained(directory)
    return saved

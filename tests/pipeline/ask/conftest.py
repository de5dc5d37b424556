"""Small networks of every kind with random weights, each made once: as `transformers` and as we save them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from models.elmo.config import ElmoConfig
from models.elmo.language_model import ElmoLanguageModel
from models.initialization import init_weights
from pipeline.ask.probing.features import load_features
from pipeline.ask.prompting.networks import load_language_model
from pipeline.checkpoint.store import CheckpointStore
from tests.pipeline.small_checkpoints import state_at, write_files

NOWHERE = Path("no-runs")
Make = Callable[[str], Any]
SENTENCES = [
    "the film was great and the plot was good",
    "a terrible film with a bad plot, really",
    "the capital of france is paris.",
    "they play in the park; the play was long",
    "she plays a play about two players",
]


def wordpiece(directory: Path) -> int:
    """Save a vocabulary as BERT's, of words and letters, and return its size."""
    letters = sorted(set("".join(SENTENCES)) - {" "})
    words = sorted({word.strip(",.;") for sentence in SENTENCES for word in sentence.split()} - {"players"})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words])
    numbers = {word: number for number, word in enumerate(vocabulary)}
    transformers.BertTokenizer(vocab=numbers).save_pretrained(directory)
    return len(numbers)


def byte_level(directory: Path, sentinels: int = 0) -> int:
    """Save a vocabulary as RoBERTa's and BART's."""
    special = ["<s>", "<pad>", "</s>", "<unk>", *(f"<extra_id_{n}>" for n in range(sentinels))]
    tokenizer = _trained(special)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names: Any = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    return _saved(tokenizer, names, directory)


def with_sentinels(directory: Path) -> int:
    """The same with those of T5."""
    return byte_level(directory, sentinels=4)


def one_special_token(directory: Path) -> int:
    """A vocabulary as GPT-2's."""
    end = "<|endoftext|>"
    return _saved(_trained([end]), {"bos": end, "eos": end, "unk": end}, directory)


def _trained(special: list[str]) -> Any:
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def _saved(tokenizer: Tokenizer, names: dict[str, str], directory: Path) -> int:
    tokens: Any = {f"{role}_token": name for role, name in names.items()}
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)
    saved.save_pretrained(directory)
    return len(saved)


LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 66, **LAYERS}
BERT = ENCODER | {"max_position_embeddings": 64}
DECODER = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
T5 |= {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
BART = {"max_position_embeddings": 64, "d_model": 16}
for side in ("encoder", "decoder"):
    BART |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 32}
KINDS = {
    "bert": (wordpiece, "BertForMaskedLM", BERT),
    "roberta": (byte_level, "RobertaForMaskedLM", ENCODER | {"type_vocab_size": 1}),
    "electra_generator": (wordpiece, "ElectraForMaskedLM", BERT | {"embedding_size": 8}),
    "gpt2": (one_special_token, "GPT2LMHeadModel", DECODER),
    "bart": (byte_level, "BartForConditionalGeneration", BART),
    "t5": (with_sentinels, "T5ForConditionalGeneration", T5),
}
"""Networks of `transformers`: their vocabulary, their class and its settings."""


def saved_network(kind: str, directory: Path) -> Path:
    """Save a network of this kind."""
    if kind == "elmo":
        sizes: Any = {"character_size": 4, "projection_size": 8, "cell_size": 16}
        config = ElmoConfig(vocab_size=400, filters=((1, 8), (2, 8)), num_highway_layers=1, **sizes)
        return checkpoint(directory, ElmoLanguageModel(config), "bilm")
    make_tokenizer, name, settings = KINDS[kind]
    of_kind = getattr(transformers, name)
    model = of_kind(of_kind.config_class(vocab_size=make_tokenizer(directory), **settings))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                # Under the usual small weights all predictions are alike.
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(directory)
    return directory


def checkpoint(directory: Path, network: Any, objective: str) -> Path:
    """A checkpoint of a network of ours, whose `<mask>` leaves the space before it alone, as those trained here."""
    tokenizer = _trained(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=False)])
    init_weights(network, seed=1)
    store = CheckpointStore(directory / "checkpoints")
    state = state_at(5, identity={"seed": 1, "objective": {"kind": objective}})
    files = {"model.safetensors": save(network.state_dict())}
    write_files(store, state, files, network=network.config, tokenizer_json=tokenizer.to_str())
    return store.fetch(5)


@pytest.fixture(scope="session")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """From a kind to the directory of its network."""
    return cache(lambda kind: saved_network(kind, tmp_path_factory.mktemp(kind) / "model"))


@pytest.fixture(scope="session")
def writer(directory_of: Make) -> Make:
    """From a kind to the network that predicts tokens."""
    return cache(lambda kind: load_language_model(str(directory_of(kind)), NOWHERE))


@pytest.fixture(scope="session")
def reader(directory_of: Make) -> Make:
    """From a kind to the network whose hidden states are read."""
    return cache(lambda kind: load_features(str(directory_of(kind)), NOWHERE))

"""Checkpoints of cloze are asked as they were pre-trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from cluster.artefacts.errors import MismatchError
from models.config import TransformerConfig
from models.electra import Electra
from models.elmo.config import ElmoConfig
from models.elmo.language_model import ElmoLanguageModel
from models.generation.config import GenerationConfig
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.ask.prompting.filling import fill
from pipeline.ask.prompting.networks import load_language_model
from pipeline.ask.prompting.prompter import Prompter, Template
from pipeline.ask.prompting.writing import write
from pipeline.checkpoint.store import CheckpointStore
from pipeline.objectives.rtd import ReplacedTokenDetection, generator_config
from tests.pipeline.ask.prompting.networks_of_transformers import SENTENCES
from tests.pipeline.small_checkpoints import state_at, write_files

NOWHERE = Path("no-runs")
SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32}
CONFIG = TransformerConfig(vocab_size=400, max_positions=48, **SIZES)


def tokenizer_json() -> str:
    """A byte-level vocabulary whose `<mask>` leaves the space before it alone, as those that are trained here."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer.to_str()


def checkpoint(directory: Path, network: Any, objective: str) -> str:
    init_weights(network, seed=1)
    store = CheckpointStore(directory / "checkpoints")
    state = state_at(5, identity={"seed": 1, "objective": {"kind": objective}})
    files = {"model.safetensors": save(network.state_dict())}
    write_files(store, state, files, network=network.config, tokenizer_json=tokenizer_json())
    return str(store.local(5))


def test_the_space_before_a_mask_is_part_of_the_hidden_word(tmp_path: Path):
    reference = checkpoint(tmp_path, MaskedLanguageModel(CONFIG, pair="nsp"), "mlm")
    network = load_language_model(reference, NOWHERE)
    ids = network.tokenizer.encode(network.tokenizer.with_masks("the [MASK] was great")).ids
    assert [network.tokenizer.token(token) for token in ids] == ["the", "<mask>", " was", " great"]
    assert len(fill(network, "the [MASK] was great").masks[0]) == 5


def test_the_generator_of_an_electra_checkpoint_fills_masks(tmp_path: Path):
    shape = generator_config(ReplacedTokenDetection().generator, CONFIG)
    electra = Electra(CONFIG, shape)
    network = load_language_model(checkpoint(tmp_path, electra, "rtd"), NOWHERE)
    assert network.config == shape
    ids = torch.tensor([[0, 7, 4, 9, 2]])
    hidden = electra.eval().generator(ids, torch.arange(5))
    expected = electra.generator.head(hidden, electra.generator.encoder.embeddings.token_weight)
    torch.testing.assert_close(network.model.logits(ids.to(network.device))[0].cpu(), expected)


@pytest.mark.parametrize(("objective", "both_ways"), [("clm", False), ("prefix_lm", True)])
def test_a_prompt_begins_with_the_first_token_and_is_read_as_in_training(
    objective: str, both_ways: bool, tmp_path: Path
):
    model = CausalLanguageModel(
        TransformerConfig(network="decoder", vocab_size=400, max_positions=48, **SIZES)
    )
    network = load_language_model(checkpoint(tmp_path, model, objective), NOWHERE)
    assert network.reads_both_ways == both_ways
    (question,) = Prompter(network, Template("[x] It was [z]"), ("great", "bad"), max_length=48).questions(
        "film", None, 0
    )
    assert question.ids[0] == 0
    assert question.prefix == (question.places[0] + 1 if both_ways else 0)
    written = write(network, "the film", GenerationConfig(max_new_tokens=4))
    ids = torch.tensor([[0, *network.tokenizer.encode("the film").ids]])
    prefixes = torch.tensor([ids.shape[1]]) if both_ways else None
    best = model.eval().logits(ids, prefix_lengths=prefixes)[0, -1].argmax()
    assert written[0].tokens[0] == int(best)


def test_an_encoder_decoder_of_cloze_writes(tmp_path: Path):
    config = TransformerConfig(network="encoder_decoder", vocab_size=400, max_positions=48, **SIZES)
    network = load_language_model(checkpoint(tmp_path, SequenceToSequence(config), "bart_denoising"), NOWHERE)
    assert len(fill(network, "the [MASK] was", 2).texts) == 2
    assert write(network, "the film", GenerationConfig(max_new_tokens=4))[0].tokens[0] == 0


def test_an_elmo_is_refused_with_the_verbs_to_use(tmp_path: Path):
    config = ElmoConfig(
        vocab_size=400,
        character_size=4,
        filters=((1, 8), (2, 8)),
        num_highway_layers=1,
        projection_size=8,
        cell_size=16,
    )
    with pytest.raises(MismatchError, match="cloze neighbors"):
        load_language_model(checkpoint(tmp_path, ElmoLanguageModel(config), "bilm"), NOWHERE)

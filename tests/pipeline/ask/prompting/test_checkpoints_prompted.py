"""Checkpoints of cloze are asked as they were pre-trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.artefacts.errors import MismatchError
from models.config import TransformerConfig
from models.electra import Electra
from models.generation.config import GenerationConfig
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.ask.prompting.networks import load_language_model
from pipeline.ask.prompting.prompter import Prompter, Template
from pipeline.ask.prompting.writing import fill, write
from pipeline.objectives.rtd import ReplacedTokenDetection, generator_config
from tests.pipeline.ask.conftest import NOWHERE
from tests.pipeline.ask.networks import checkpoint, elmo

SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32}
CONFIG = TransformerConfig(vocab_size=400, max_positions=48, **SIZES)
DECODER = TransformerConfig(network="decoder", vocab_size=400, max_positions=48, **SIZES)
ENCODER_DECODER = TransformerConfig(network="encoder_decoder", vocab_size=400, max_positions=48, **SIZES)


def loaded(directory: Path, model: Any, objective: str):
    return load_language_model(str(checkpoint(directory, model, objective)), NOWHERE)


def test_the_space_before_a_mask_is_part_of_the_hidden_word(tmp_path: Path):
    network = loaded(tmp_path, MaskedLanguageModel(CONFIG, pair="nsp"), "mlm")
    ids = network.tokenizer.encode(network.tokenizer.with_masks("the [MASK] was great")).ids
    assert [network.tokenizer.shown(token) for token in ids] == ["the", "<mask>", " was", " great"]
    assert len(fill(network, "the [MASK] was great").masks[0]) == 5


def test_the_generator_of_an_electra_checkpoint_fills_masks(tmp_path: Path):
    shape = generator_config(ReplacedTokenDetection().generator, CONFIG)
    electra = Electra(CONFIG, shape)
    network = loaded(tmp_path, electra, "rtd")
    assert network.config == shape
    ids = torch.tensor([[0, 7, 4, 9, 2]])
    expected = electra.eval().generator.logits(ids)
    torch.testing.assert_close(network.model.logits(ids.to(network.device)).cpu(), expected)


@pytest.mark.parametrize(("objective", "both_ways"), [("clm", False), ("prefix_lm", True)])
def test_a_prompt_begins_with_the_first_token_and_is_read_as_in_training(
    objective: str, both_ways: bool, tmp_path: Path
):
    model = CausalLanguageModel(DECODER)
    network = loaded(tmp_path, model, objective)
    assert network.reads_both_ways == both_ways
    prompter = Prompter(network, Template("[x] It was [z]"), ("great", "bad"), max_length=48)
    (question,) = prompter.questions("film", None, 0)
    assert question.ids[0] == 0
    assert question.prefix == (question.places[0] + 1 if both_ways else 0)
    written = write(network, "the film", GenerationConfig(max_new_tokens=4))
    ids = torch.tensor([[0, *network.tokenizer.encode("the film").ids]])
    prefixes = torch.tensor([ids.shape[1]]) if both_ways else None
    best = model.eval().logits(ids, prefix_lengths=prefixes)[0, -1].argmax()
    assert written[0].tokens[0] == int(best)


def test_an_encoder_decoder_of_cloze_writes(tmp_path: Path):
    network = loaded(tmp_path, SequenceToSequence(ENCODER_DECODER), "bart_denoising")
    assert len(fill(network, "the [MASK] was", 2).texts) == 2
    assert write(network, "the film", GenerationConfig(max_new_tokens=4))[0].tokens[0] == 0


def test_an_elmo_is_refused_with_the_verbs_to_use(tmp_path: Path):
    with pytest.raises(MismatchError, match="cloze neighbors"):
        load_language_model(str(elmo(tmp_path)), NOWHERE)

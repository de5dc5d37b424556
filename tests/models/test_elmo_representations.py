"""What tasks see of a biLM: mixtures as in equation 1, padding that changes nothing, a biLM that stays frozen."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from torch import nn

from models.elmo.encoder import pad_sentences, read_sentences
from models.elmo.language_model import ElmoLanguageModel
from models.elmo.representations import ElmoClassifier, ElmoRepresentations, ScalarMix
from models.initialization import init_weights
from tests.models.materials import tiny_elmo

CONFIG = tiny_elmo(num_highway_layers=1)
SENTENCES = [["a", "short", "one"], ["word"], ["this", "one", "is", "longer"]]
RAGGED = st.lists(st.lists(st.text(min_size=1, max_size=8), max_size=6), min_size=1, max_size=5)


def initialised(model: nn.Module, seed: int = 1):
    init_weights(model, seed)
    return model


@pytest.mark.parametrize("normalize", [False, True])
def test_mixture_is_equation_1(normalize: bool):
    draws = np.random.Generator(np.random.Philox(0))
    layers, scores, gamma = draws.normal(size=(3, 2, 5, 8)), draws.normal(size=3), 1.7
    mix = ScalarMix(3, normalize=normalize, l2=0.01)
    with torch.no_grad():
        mix.scores.copy_(torch.from_numpy(scores))
        mix.gamma.fill_(gamma)
    if normalize:
        deviation = layers.std(-1, keepdims=True)
        normal = (layers - layers.mean(-1, keepdims=True)) / deviation
    else:
        normal = layers
    expected = gamma * sum(share * layer for share, layer in zip(softmax(scores), normal, strict=True))
    found = mix(torch.from_numpy(layers).float()).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert mix.penalty().item() == pytest.approx(0.01 * (scores**2).sum(), rel=1e-5)


@given(RAGGED)
def test_sentences_come_back_in_rows_of_their_own_words(sentences: list[list[str]]):
    inputs = read_sentences(sentences, 12)
    places = torch.arange(len(inputs.words), dtype=torch.float32)[None, :, None] + 1
    rows, present = pad_sentences(places, inputs.cu_seqlens)
    assert present.sum(-1).tolist() == [len(sentence) for sentence in sentences]
    for number, start in enumerate(inputs.cu_seqlens[:-1].tolist()):
        words = rows[0, number, present[number], 0]
        assert words.tolist() == [start + 2 + offset for offset in range(len(words))]
    assert (rows[0, :, :, 0][~present] == 0).all()


def test_token_layer_is_first_and_stands_twice():
    model = initialised(ElmoLanguageModel(CONFIG)).eval()
    inputs = read_sentences(SENTENCES, CONFIG.max_characters)
    layers = model.encoder(*inputs)
    assert layers.shape == (3, len(inputs.words), 12)
    assert torch.equal(*layers[0].chunk(2, dim=-1))
    torch.testing.assert_close(layers[0, :, :6], model.encoder.tokens(inputs.characters)[inputs.words])


def test_representation_is_the_mixture_without_the_marks_of_a_sentence():
    model = initialised(ElmoRepresentations(CONFIG)).eval()
    inputs = read_sentences(SENTENCES, CONFIG.max_characters)
    found, present = model(*inputs)
    mixed = model.mix(model.encoder(*inputs))
    torch.testing.assert_close(found[2], mixed[-5:-1])
    torch.testing.assert_close(found[0, :3], mixed[1:4])
    assert present.tolist() == [[True] * 3 + [False], [True] + [False] * 3, [True] * 4]
    assert found[1, 1:].abs().max() == 0


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_biLM_gets_no_gradient_and_a_free_one_does(frozen: bool):
    model = initialised(ElmoRepresentations(CONFIG, frozen=frozen)).train()
    found, _ = model(*read_sentences(SENTENCES, CONFIG.max_characters))
    (found.square().sum() + model.penalty()).backward()
    assert all((parameter.grad is None) == frozen for parameter in model.encoder.parameters())
    assert model.mix.scores.grad is not None
    assert model.mix.scores.grad.abs().max() > 0


def test_classification_of_a_sentence_does_not_depend_on_its_batch():
    model = initialised(ElmoClassifier(CONFIG, 3, hidden_size=7)).eval()
    together = model(*read_sentences([*SENTENCES, []], CONFIG.max_characters))
    for number, sentence in enumerate([*SENTENCES, []]):
        alone = model(*read_sentences([sentence], CONFIG.max_characters))
        torch.testing.assert_close(together[number], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_classifier_computes_in_mixed_precision(frozen: bool):
    model = initialised(ElmoClassifier(CONFIG, 2, hidden_size=8, frozen=frozen)).eval()
    inputs = read_sentences(SENTENCES, 12)
    exact = model(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(*inputs)
        F.cross_entropy(mixed, torch.tensor([0, 1, 0])).backward()
    torch.testing.assert_close(mixed.float(), exact, atol=0.02, rtol=0.02)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_sentence_that_is_a_string_and_a_mixture_of_other_layers_are_refused():
    with pytest.raises(ValueError, match="3 layers"):
        ScalarMix(3)(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="sentence"):
        read_sentences(["not split"], 12)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no sentences"):
        read_sentences([], 12)

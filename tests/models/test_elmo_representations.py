"""What tasks see of a biLM: mixtures as in equation 1, padding that changes nothing, a biLM that stays frozen; and its
export, which gives the same after reloading, needs little to be read, and is refused when it is damaged."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.special import softmax

from data_prep.tokenizers import WordLexicon
from models.elmo.encoder import pad_sentences, read_sentences
from models.elmo.export import Elmo, load_elmo, save_elmo
from models.elmo.language_model import ElmoLanguageModel
from models.elmo.representations import ElmoClassifier, ElmoRepresentations, ElmoTagger, ScalarMix
from tests.models.materials import randomised, tiny_elmo

CONFIG = tiny_elmo(vocab_size=600, num_highway_layers=1)
SENTENCES = [["a", "short", "one"], ["word"], ["this", "one", "is", "longer"]]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "models" / "elmo" / "README.md"
LEXICON = WordLexicon(vocab_size=1024).train(["The river bank was muddy.", "She robbed a bank"])[0]
RAGGED = st.lists(st.lists(st.text(min_size=1, max_size=8), max_size=6), min_size=1, max_size=5)


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


def test_representation_is_the_mixture_without_the_marks_of_a_sentence_and_token_layer_stands_twice():
    model, inputs = randomised(ElmoRepresentations(CONFIG)), read_sentences(SENTENCES, CONFIG.max_characters)
    (found, present), layers = model(*inputs), model.encoder(*inputs)
    assert layers.shape == (3, len(inputs.words), 12)
    torch.testing.assert_close(layers[0], model.encoder.tokens(inputs.characters)[inputs.words].repeat(1, 2))
    mixed = model.mix(layers)
    torch.testing.assert_close(found[2], mixed[-5:-1])
    torch.testing.assert_close(found[0, :3], mixed[1:4])
    assert present.tolist() == [[True] * 3 + [False], [True] + [False] * 3, [True] * 4]
    assert found[1, 1:].abs().max() == 0


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_biLM_gets_no_gradient_and_a_free_one_does(frozen: bool):
    model = randomised(ElmoRepresentations(CONFIG, frozen=frozen)).train()
    found, _ = model(*read_sentences(SENTENCES, CONFIG.max_characters))
    (found.square().sum() + model.penalty()).backward()
    assert all((parameter.grad is None) == frozen for parameter in model.encoder.parameters())
    assert model.mix.scores.grad is not None
    assert model.mix.scores.grad.abs().max() > 0


def test_classification_of_a_sentence_does_not_depend_on_its_batch():
    model = randomised(ElmoClassifier(CONFIG, 3, hidden_size=7))
    together = model(*read_sentences([*SENTENCES, []], CONFIG.max_characters))
    for number, sentence in enumerate([*SENTENCES, []]):
        alone = model(*read_sentences([sentence], CONFIG.max_characters))
        torch.testing.assert_close(together[number], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_classifier_computes_in_mixed_precision(frozen: bool):
    model = randomised(ElmoClassifier(CONFIG, 2, hidden_size=8, frozen=frozen))
    inputs = read_sentences(SENTENCES, 12)
    exact = model(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(*inputs)
        F.cross_entropy(mixed, torch.tensor([0, 1, 0])).backward()
    torch.testing.assert_close(mixed.float(), exact, atol=0.02, rtol=0.02)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_elmo_tags_each_word_and_trains_only_its_mixture_and_scores():
    model = randomised(ElmoTagger(CONFIG, 4))
    scores = model(*read_sentences(SENTENCES, CONFIG.max_characters))
    assert scores.shape == (3, 4, 4)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"mix.scores", "mix.gamma", "scores.weight", "scores.bias"}
    alone = model(*read_sentences(SENTENCES[1:2], CONFIG.max_characters))
    torch.testing.assert_close(scores[1, 0], alone[0, 0], atol=1e-5, rtol=0)


def test_sentence_that_is_a_string_and_a_mixture_of_other_layers_are_refused():
    with pytest.raises(ValueError, match="3 layers"):
        ScalarMix(3)(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="sentence"):
        read_sentences(["not split"], 12)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no sentences"):
        read_sentences([], 12)


@pytest.fixture
def model() -> ElmoLanguageModel:
    return randomised(ElmoLanguageModel(CONFIG), 4)


@pytest.fixture
def exported(model: ElmoLanguageModel, tmp_path: Path) -> Path:
    save_elmo(tmp_path / "elmo", model, LEXICON)
    return tmp_path / "elmo"


def test_reloaded_network_gives_equal_layers_and_losses(model: ElmoLanguageModel, exported: Path):
    elmo, inputs = load_elmo(exported), read_sentences(SENTENCES, CONFIG.max_characters)
    assert (elmo.config, elmo.tokenizer_json) == (CONFIG, LEXICON)
    layers, present = elmo.layers(SENTENCES)
    assert layers.shape == (3, 3, 4, 12)
    assert present.sum(-1).tolist() == [3, 1, 4]
    expected = model.encoder(*inputs)
    assert torch.equal(layers[:, 0, :3], expected[:, 1:4])
    assert torch.equal(layers[:, 2], expected[:, 9:13])
    ids = {"word_ids": torch.arange(len(inputs.words)), "predicted_positions": torch.tensor([0, 1, 2, 5, 6])}
    ours, theirs = (network(**inputs._asdict(), **ids)[0] for network in (model, elmo.model))
    torch.testing.assert_close(theirs, ours, atol=0, rtol=0)


def test_text_is_split_as_in_training(exported: Path):
    words = ["The", "river", "'", "s", "naïve", "bank", "."]
    assert load_elmo(exported).split("The river's naïve  bank.") == words


def test_loading_needs_neither_the_trainer_nor_its_libraries(exported: Path):
    program = (
        "import sys; from models.elmo.export import load_elmo\n"
        f"print(load_elmo({str(exported)!r}).layers([['a', 'b']]).layers.shape)\n"
        "heavy = {'ray', 'deepspeed', 'mlflow', 'transformers', 'datasets', 'pydantic', 'pipeline', 'data_prep'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split("\n")[:2] == ["torch.Size([3, 1, 2, 12])", "[]"]


@pytest.mark.parametrize(
    "block", re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)
def test_page_can_be_followed(block: str, exported: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(exported.parent)
    names: dict = {}
    exec(block.replace('"DIR"', repr(exported.name)), names)
    assert isinstance(names["elmo"], Elmo)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_and_missing_files_are_named(name: str, exported: Path):
    whole = (exported / name).read_bytes()
    (exported / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=name):
        load_elmo(exported)
    (exported / name).unlink()
    with pytest.raises(ValueError, match=name):
        load_elmo(exported)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encoder.tokens.projection.weight", torch.full((6, 13), torch.nan)),
        ("softmax.bias", torch.full((600,), torch.inf)),
        ("encoder.forward_layers.1.gate_bias", None),
        ("encoder.extra", torch.zeros(1)),
        ("softmax.bias", torch.zeros(599)),
    ],
)
def test_wrong_tensors_are_refused_by_name(name: str, value: torch.Tensor | None, exported: Path):
    tensors = load_file(exported / "model.safetensors") | {name: value}
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    save_file(kept, exported / "model.safetensors")
    with pytest.raises(ValueError, match=name):
        load_elmo(exported)


def test_network_with_weights_that_are_no_numbers_is_not_exported(model: ElmoLanguageModel, tmp_path: Path):
    with torch.no_grad():
        model.softmax.bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"softmax\.bias"):
        save_elmo(tmp_path / "elmo", model, LEXICON)
    assert not (tmp_path / "elmo").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type"),
        ({"num_heads": 4}, "num_heads"),
        ({"filters": 3}, "filters"),
        ({"cell_size": 0}, "cell_size"),
        ({"vocab_size": 30}, "518 .* 30"),
    ],
)
def test_wrong_configuration_is_refused_with_its_key(change: dict, message: str, exported: Path):
    path = exported / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        load_elmo(exported)

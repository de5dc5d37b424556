"""ELMo: each part of the biLM against its formula, sentences apart from each other, a sampled softmax whose gradient is
that of the full one; what tasks see of it; and its export, which is read with little and refused when it is damaged."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.special import softmax
from torch import Tensor, nn
from torch.func import functional_call

from data_prep.tokenizers import WordLexicon
from models.elmo.config import NUM_CHARACTERS, ElmoConfig, spell, spell_sentence
from models.elmo.encoder import ElmoEncoder, TokenLayer, read_sentences
from models.elmo.export import load_elmo, save_elmo
from models.elmo.language_model import ElmoLanguageModel, sampled_softmax
from models.elmo.lstm import ProjectedLSTM, pack_by_time
from models.elmo.representations import ElmoClassifier, ElmoRepresentations, ElmoTagger, ScalarMix
from models.initialization import init_weights
from models.losses import EACH
from tests.models.materials import randomised, tiny_elmo

CONFIG = tiny_elmo(
    max_characters=16, filters=((1, 5), (2, 6), (3, 8)), num_highway_layers=2, vocab_size=600, dropout=0.0
)
LINE = [f"word{number}" for number in range(10)]
SENTENCES = [["a", "short", "one"], ["word"], ["this", "one", "is", "longer"]]
INPUTS = read_sentences(SENTENCES, 16)
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "models" / "elmo" / "README.md"
LEXICON = WordLexicon(vocab_size=1024).train(["The river bank was muddy.", "She robbed a bank"])[0]
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def make(config: ElmoConfig = CONFIG, seed: int = 1) -> ElmoLanguageModel:
    """A network with its initial weights."""
    model = ElmoLanguageModel(config)
    init_weights(model, seed)
    return model


def test_words_are_bytes_between_marks():
    assert NUM_CHARACTERS == 262
    assert spell("né".encode(), 8) == [259, ord("n") + 1, 0xC3 + 1, 0xA9 + 1, 260, 261, 261, 261]
    assert spell(b"abcdefgh", 6) == [259, *(byte + 1 for byte in b"abcd"), 260]
    sentence = [[259, character, 260, 261, 261] for character in (257, 98, 258)]
    assert list(spell_sentence(["a"], 5)) == sentence


@given(st.lists(st.binary(min_size=0, max_size=18), min_size=1, max_size=5), st.integers(0, 99))
def test_token_layer_is_the_plain_loop_over_words_filters_and_windows(words: list[bytes], seed: int):
    layer = randomised(TokenLayer(CONFIG), seed)
    rows = [spell(word, CONFIG.max_characters) for word in words]
    expected = torch.stack([plain_token_layer(layer, row) for row in rows])
    torch.testing.assert_close(layer(torch.tensor(rows)), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def plain_token_layer(layer: TokenLayer, row: Sequence[int]) -> Tensor:
    embedded = [layer.characters.weight[character] for character in row]
    values = []
    for convolution in layer.convolutions:
        for kernel, bias in zip(convolution.weight, convolution.bias, strict=True):
            width = kernel.shape[1]
            sums = [
                sum(kernel[:, offset] @ embedded[start + offset] for offset in range(width)) + bias
                for start in range(len(row) - width + 1)
            ]
            values.append(max(0.0, max(float(value) for value in sums)))
    hidden = torch.tensor(values)
    for highway in layer.highways:
        gate = torch.sigmoid(highway.gate.weight @ hidden + highway.gate.bias)
        changed = torch.relu(highway.transform.weight @ hidden + highway.transform.bias)
        hidden = gate * changed + (1 - gate) * hidden
    return layer.projection.weight @ hidden + layer.projection.bias


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(0, 99))
def test_lstm_without_clipping_is_pytorchs_with_gradients(lengths: list[int], seed: int):
    torch.manual_seed(seed)
    ours, theirs = ProjectedLSTM(3, 7, 4), nn.LSTM(3, 7, proj_size=4)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.4)
    sequences = [torch.randn(length, 3, requires_grad=True) for length in lengths]
    packing = pack_by_time(torch.tensor([0, *lengths]).cumsum(0), sum(lengths))
    packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    found = ours(torch.cat(sequences)[packing.forward], packing.batch_sizes)
    expected = functional_call(theirs, as_in_pytorch(ours), (packed,))[0].data
    assert packing.batch_sizes == tuple(packed.batch_sizes.tolist())
    torch.testing.assert_close(found, expected, **CLOSE)
    weights, leaves = torch.randn(expected.shape), [*sequences, *ours.parameters()]
    by_ours, by_theirs = (torch.autograd.grad((each * weights).sum(), leaves) for each in (found, expected))
    torch.testing.assert_close(by_ours, by_theirs, atol=1e-4, rtol=1e-4)


def as_in_pytorch(layer: ProjectedLSTM) -> dict[str, Tensor]:
    """Ours has gates i, f, o, g and one bias; PyTorch has i, f, g, o and two."""

    def reordered(tensor: Tensor) -> Tensor:
        enter, forget, leave, new = tensor.chunk(4)
        return torch.cat([enter, forget, new, leave])

    return {
        "weight_ih_l0": reordered(layer.input_weight),
        "weight_hh_l0": reordered(layer.hidden_weight),
        "bias_ih_l0": reordered(layer.gate_bias),
        "bias_hh_l0": torch.zeros(28),
        "weight_hr_l0": layer.projection_weight,
    }


def test_clipped_lstm_is_the_formula_step_by_step():
    torch.manual_seed(3)
    layer = ProjectedLSTM(3, 7, 4, cell_clip=0.3, projection_clip=0.2)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    inputs = torch.randn(11, 3)
    cell, hidden, expected = torch.zeros(7), torch.zeros(4), []
    for word in inputs:
        gates = layer.input_weight @ word + layer.hidden_weight @ hidden + layer.gate_bias
        enter, forget, leave, new = gates.chunk(4)
        cell = (forget.sigmoid() * cell + enter.sigmoid() * new.tanh()).clamp(-0.3, 0.3)
        hidden = (layer.projection_weight @ (leave.sigmoid() * cell.tanh())).clamp(-0.2, 0.2)
        expected.append(hidden)
    found = layer(inputs, [1] * len(inputs))
    torch.testing.assert_close(found, torch.stack(expected), **CLOSE)
    assert set((found.abs() == 0.2).unique().tolist()) == {True, False}
    by_ours, by_formula = (
        torch.autograd.grad(each.square().sum(), list(layer.parameters()))
        for each in (found, torch.stack(expected))
    )
    torch.testing.assert_close(by_ours, by_formula, **CLOSE)


@given(
    st.lists(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=9), min_size=1, max_size=6),
    st.booleans(),
)
def test_packed_sentences_are_as_each_alone(sentences: list[list[str]], clipping: bool):
    encoder = make().encoder.double()
    if clipping:
        for layer in (*encoder.forward_layers, *encoder.backward_layers):
            for parameter in layer.parameters():
                parameter.data.mul_(6.0)
    packed = read_sentences(sentences, CONFIG.max_characters)
    layers = encoder(*packed)
    for number, sentence in enumerate(sentences):
        alone = encoder(*read_sentences([sentence], CONFIG.max_characters))
        within = slice(int(packed.cu_seqlens[number]), int(packed.cu_seqlens[number + 1]))
        torch.testing.assert_close(layers[:, within], alone, atol=1e-9, rtol=1e-9)


def test_left_sees_only_what_is_before_and_right_only_what_is_behind():
    encoder = make().encoder
    changed = [*LINE[:5], "other", *LINE[6:]]
    before, after = (encoder(*read_sentences([line], CONFIG.max_characters)) for line in (LINE, changed))
    place, width = 6, CONFIG.projection_size  # the begin of the sentence is a word
    left, right = ((before == after)[..., half].all(-1).all(0) for half in (slice(width), slice(width, None)))
    assert left[:place].all()
    assert not left[place : place + 2].any()
    assert right[place + 1 :].all()
    assert not right[place - 1 : place + 1].any()


@torch.no_grad()
def test_second_layer_adds_its_input_and_the_first_does_not():
    encoder = make().encoder
    encoder.forward_layers[1].projection_weight.zero_()
    _, first, second = encoder.directions(*INPUTS)[0]
    assert first.abs().max() > 0
    assert torch.equal(first, second)
    encoder.forward_layers[0].projection_weight.zero_()
    assert encoder.directions(*INPUTS)[0][1].abs().max() == 0


def language_model_batch(sentences: list[list[str]]) -> dict[str, Tensor]:
    """Every word but the last of each sentence has one behind it to predict."""
    inputs = read_sentences(sentences, CONFIG.max_characters)
    words = [number for sentence in sentences for number in (0, *range(3, 3 + len(sentence)), 2)]
    followed = torch.ones(len(words), dtype=torch.bool)
    followed[inputs.cu_seqlens[1:] - 1] = False
    places = followed.nonzero().flatten()
    return {**inputs._asdict(), "word_ids": torch.tensor(words), "predicted_positions": places}


def test_network_loss_is_the_cross_entropy_of_its_logits():
    model, batch = make(), language_model_batch(SENTENCES)
    ids, places = batch["word_ids"], batch["predicted_positions"]
    losses, _ = model(**batch)
    left, right = (model.softmax(half) for half in model.encoder(*INPUTS)[-1].chunk(2, dim=-1))
    forward = F.cross_entropy(left[places], ids[places + 1], reduction="sum")
    backward = F.cross_entropy(right[places + 1], ids[places], reduction="sum")
    torch.testing.assert_close(losses, {"forward": forward, "backward": backward})


def test_compiled_network_gives_the_same_for_batches_of_any_lengths():
    plain, compiled = make(), make()
    compiled.compile(backend="eager")
    for sentences in ([LINE], [LINE[:2], LINE[3:4]], [LINE[1:8]]):
        batch = language_model_batch(sentences)
        assert plain(**batch)[0] == compiled(**batch)[0]
    assert compiled.state_dict().keys() == plain.state_dict().keys()


def test_dropout_acts_in_training_and_a_frozen_encoder_never_drops():
    config = replace(CONFIG, dropout=0.5)
    free, frozen = ElmoEncoder(config), ElmoEncoder(config, frozen=True)
    init_weights(free, 1)
    frozen.load_state_dict(free.state_dict())
    frozen.train()
    assert not torch.equal(free(*INPUTS)[1], free(*INPUTS)[1])
    assert torch.equal(frozen(*INPUTS), free.eval()(*INPUTS))


def test_initial_weights_follow_the_released_code():
    model = make(ElmoConfig(vocab_size=2000, num_highway_layers=1, projection_size=128, cell_size=1024), 5)
    tokens, lstm = model.encoder.tokens, model.encoder.forward_layers[0]
    assert isinstance(lstm, ProjectedLSTM)
    limit = (6 / (128 + 128 + 4096)) ** 0.5
    for weight, deviation in (
        (tokens.characters.weight, 3**-0.5),
        (tokens.projection.weight, 2048**-0.5),
        (model.softmax.weight, 128**-0.5),
        (lstm.hidden_weight, limit / 3**0.5),
    ):
        assert weight.std().item() == pytest.approx(deviation, rel=0.03)
    for weight, largest in (
        (tokens.convolutions[6].weight, 0.05),
        (lstm.input_weight, limit),
        (lstm.projection_weight, (6 / (1024 + 128)) ** 0.5),
    ):
        assert weight.abs().max().item() == pytest.approx(largest, rel=0.01)
    assert lstm.gate_bias.reshape(4, -1).mean(1).tolist() == [0, 1, 0, 0]
    highway, inputs = tokens.highways[0], torch.randn(3, 2048, generator=torch.Generator().manual_seed(0))
    assert torch.sigmoid(highway.gate(inputs)).mean().item() == pytest.approx(0.15, abs=0.03), "carries most"


WORDS = 400


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a softmax, and targets."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(30, 12, generator=generator, requires_grad=True)
    weight = torch.randn(WORDS, 12, generator=generator).mul(0.4).requires_grad_()
    bias = torch.randn(WORDS, generator=generator).requires_grad_()
    return hidden, weight, bias, torch.randint(WORDS, (30,), generator=generator)


def sampled(problem: tuple[Tensor, ...], negatives: Tensor, log_count: float) -> Tensor:
    hidden, weight, bias, targets = problem
    own, drawn = (torch.full((len(words),), log_count) for words in (targets, negatives))
    loss_of = sampled_softmax(weight, bias, targets, own, negatives, drawn)
    loss, each = loss_of(hidden, torch.arange(len(targets)))
    torch.testing.assert_close(each.sum(), loss.detach())
    assert not each.requires_grad
    return loss


def full_softmax(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum")


def test_with_all_words_drawn_it_is_the_full_softmax_with_its_gradients(problem: tuple[Tensor, ...]):
    found = sampled(problem, torch.randperm(WORDS, generator=torch.Generator().manual_seed(1)), 0.0)
    expected = full_softmax(*problem)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    gradients = (torch.autograd.grad(loss, problem[:3]) for loss in (found, expected))
    torch.testing.assert_close(*gradients, **CLOSE)


@pytest.mark.parametrize(("drawn", "allowed"), [(40, 0.15), (200, 0.03)])
def test_expected_gradient_approaches_that_of_the_full_softmax(
    problem: tuple[Tensor, ...], drawn: int, allowed: float
):
    (full,) = torch.autograd.grad(full_softmax(*problem), problem[0])
    generator, mean = torch.Generator().manual_seed(2), torch.zeros_like(full)
    for _ in range(400):
        negatives = torch.randperm(WORDS, generator=generator)[:drawn]
        # Every word is drawn with the same probability.
        mean += torch.autograd.grad(sampled(problem, negatives, np.log(drawn / WORDS)), problem[0])[0] / 400
    assert ((mean - full).norm() / full.norm()).item() < allowed


def test_target_that_was_drawn_does_not_count_twice(problem: tuple[Tensor, ...]):
    hidden, weight, bias, targets = problem
    assert sampled((hidden[:1], weight, bias, targets[:1]), targets[:1], 0.0).item() == 0.0


def test_evaluation_is_over_all_words_whatever_was_drawn():
    model = make().eval()
    batch = language_model_batch([["a", "b", "c"]]) | {"word_ids": torch.tensor([0, 7, 8, 9, 2])}
    drawn = {
        "log_counts": torch.zeros(5),
        "negatives": torch.tensor([11, 12, 13]),
        "negative_log_counts": torch.zeros(3),
    }
    full, correct = model(**batch)
    ignoring, _ = model(**batch, **drawn)
    assert correct.keys() == {"forward", "backward", EACH}
    assert all(torch.equal(full[term], ignoring[term]) for term in full)
    losses, beside = model.train()(**batch, **drawn)
    assert beside.keys() == {EACH}
    torch.testing.assert_close(beside[EACH].sum(), losses["forward"].detach())
    assert all(losses[term] < full[term] for term in full)
    losses["forward"].backward()
    touched = model.softmax.weight.grad.abs().sum(-1).nonzero().flatten().tolist()
    assert touched == [2, 7, 8, 9, 11, 12, 13]


def test_boundaries_words_and_sentences_of_another_kind_are_refused():
    for wrong in ([0, 3], [0, 4, 4, len(INPUTS.words)], [1, len(INPUTS.words)], [0]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            make().encoder(INPUTS.characters, INPUTS.words, torch.tensor(wrong))
    with pytest.raises(ValueError, match=r"\[words, 16\]"):
        make().encoder(*read_sentences([LINE], 20))
    with pytest.raises(ValueError, match="3 layers"):
        ScalarMix(3)(torch.zeros(2, 4))
    for sentences in (["not split"], []):
        with pytest.raises(ValueError, match="sentence"):
            read_sentences(sentences, 12)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("normalize", [False, True])
def test_mixture_is_equation_1(normalize: bool):
    draws = np.random.Generator(np.random.Philox(0))
    layers, scores = draws.normal(size=(3, 2, 5, 8)), draws.normal(size=3)
    mix = ScalarMix(3, normalize=normalize, l2=0.01)
    with torch.no_grad():
        mix.scores.copy_(torch.from_numpy(scores))
        mix.gamma.fill_(1.7)
    centred = (layers - layers.mean(-1, keepdims=True)) / layers.std(-1, keepdims=True)
    expected = 1.7 * np.tensordot(softmax(scores), centred if normalize else layers, 1)
    found = mix(torch.from_numpy(layers).float()).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert mix.penalty().item() == pytest.approx(0.01 * (scores**2).sum(), rel=1e-5)


def test_representation_is_the_mixture_without_the_marks_of_a_sentence_and_token_layer_stands_twice():
    model = randomised(ElmoRepresentations(CONFIG))
    (found, present), layers = model(*INPUTS), model.encoder(*INPUTS)
    assert layers.shape == (3, len(INPUTS.words), 12)
    torch.testing.assert_close(layers[0], model.encoder.tokens(INPUTS.characters)[INPUTS.words].repeat(1, 2))
    mixed = model.mix(layers)
    torch.testing.assert_close(found[2], mixed[-5:-1])
    torch.testing.assert_close(found[0, :3], mixed[1:4])
    assert present.tolist() == [[True] * 3 + [False], [True] + [False] * 3, [True] * 4]
    assert found[1, 1:].abs().max() == 0


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_biLM_gets_no_gradient_and_a_free_one_does(frozen: bool):
    model = randomised(ElmoRepresentations(CONFIG, frozen=frozen)).train()
    (model(*INPUTS)[0].square().sum() + model.penalty()).backward()
    assert all((parameter.grad is None) == frozen for parameter in model.encoder.parameters())
    assert model.mix.scores.grad is not None
    assert model.mix.scores.grad.abs().max() > 0


def test_classification_and_tags_of_a_sentence_do_not_depend_on_its_batch():
    classifier, tagger = (
        randomised(ElmoClassifier(CONFIG, 3, hidden_size=7)),
        randomised(ElmoTagger(CONFIG, 4)),
    )
    sentences = [*SENTENCES, []]
    classes, tags = (model(*read_sentences(sentences, 16)) for model in (classifier, tagger))
    assert tags.shape == (4, 4, 4)
    for number, sentence in enumerate(sentences):
        alone = read_sentences([sentence], 16)
        torch.testing.assert_close(classes[number], classifier(*alone)[0], atol=1e-5, rtol=1e-5)
        own = tagger(*alone)[0, : len(sentence)]
        torch.testing.assert_close(tags[number, : len(sentence)], own, atol=1e-5, rtol=0)
    trained = {name for name, parameter in tagger.named_parameters() if parameter.requires_grad}
    assert trained == {"mix.scores", "mix.gamma", "scores.weight", "scores.bias"}


@pytest.mark.parametrize("frozen", [True, False])
def test_classifier_computes_in_mixed_precision(frozen: bool):
    model = randomised(ElmoClassifier(CONFIG, 2, hidden_size=8, frozen=frozen))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(*INPUTS)
        F.cross_entropy(mixed, torch.tensor([0, 1, 0])).backward()
    torch.testing.assert_close(mixed.float(), model(*INPUTS), atol=0.02, rtol=0.02)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@pytest.fixture
def model() -> ElmoLanguageModel:
    return randomised(ElmoLanguageModel(CONFIG), 4)


@pytest.fixture
def exported(model: ElmoLanguageModel, tmp_path: Path) -> Path:
    save_elmo(tmp_path / "elmo", model, LEXICON)
    return tmp_path / "elmo"


def test_reloaded_network_splits_texts_and_gives_equal_layers_and_losses(
    model: ElmoLanguageModel, exported: Path
):
    elmo = load_elmo(exported)
    assert (elmo.config, elmo.tokenizer_json) == (CONFIG, LEXICON)
    assert elmo.split("The river's naïve  bank.") == ["The", "river", "'", "s", "naïve", "bank", "."]
    layers, present = elmo.layers(SENTENCES)
    assert layers.shape == (3, 3, 4, 12)
    assert present.sum(-1).tolist() == [3, 1, 4]
    expected = model.encoder(*INPUTS)
    assert torch.equal(layers[:, 0, :3], expected[:, 1:4])
    assert torch.equal(layers[:, 2], expected[:, 9:13])
    ours, theirs = (network(**language_model_batch(SENTENCES))[0] for network in (model, elmo.model))
    torch.testing.assert_close(theirs, ours, atol=0, rtol=0)


def test_page_can_be_followed_with_neither_the_trainer_nor_its_libraries(exported: Path):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    heavy = "{'ray', 'deepspeed', 'mlflow', 'transformers', 'datasets', 'pydantic', 'pipeline', 'data_prep'}"
    program = "\n".join([*blocks, f"import sys; assert not {heavy} & set(sys.modules)"])
    command = [sys.executable, "-c", program.replace('"DIR"', repr(str(exported)))]
    assert len(blocks) > 0
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


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
    ("name", "value"), [("softmax.bias", torch.full((600,), torch.inf)), ("encoder.extra", torch.zeros(1))]
)
def test_wrong_tensors_are_refused_by_name(name: str, value: Tensor, exported: Path):
    tensors = load_file(exported / "model.safetensors") | {name: value}
    save_file(tensors, exported / "model.safetensors")
    with pytest.raises(ValueError, match=name):
        load_elmo(exported)


def test_network_with_weights_that_are_no_numbers_is_not_exported(model: ElmoLanguageModel, tmp_path: Path):
    with torch.no_grad():
        model.softmax.bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"softmax\.bias"):
        save_elmo(tmp_path / "elmo", model, LEXICON)
    assert not (tmp_path / "elmo").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "bert"), ("num_heads", 4), ("filters", 3), ("cell_size", 0), ("vocab_size", 30)],
)
def test_wrong_configuration_is_refused_with_its_key(key: str, value: object, exported: Path):
    path = exported / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=key if key != "vocab_size" else " 30"):
        load_elmo(exported)

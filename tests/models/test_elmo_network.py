"""ELMo's biLM: each part against its formula, sentences apart from each other; its sampled softmax is the full one
when everything is drawn, else close to it in its gradient."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from models.elmo.config import NUM_CHARACTERS, ElmoConfig, spell, spell_sentence
from models.elmo.encoder import ElmoEncoder, TokenLayer, read_sentences
from models.elmo.language_model import ElmoLanguageModel, sampled_softmax
from models.elmo.lstm import ProjectedLSTM, pack_by_time
from models.initialization import init_weights
from models.losses import EACH
from tests.models.materials import tiny_elmo

CONFIG = tiny_elmo(
    max_characters=16, filters=((1, 5), (2, 6), (3, 8)), num_highway_layers=2, vocab_size=40, dropout=0.0
)
LINE = [f"word{number}" for number in range(10)]
SENTENCES = st.lists(
    st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=9), min_size=1, max_size=6
)


def make(config: ElmoConfig = CONFIG, seed: int = 1, *, scale: float = 1.0) -> ElmoLanguageModel:
    """A network with its initial weights; `scale` widens those of the LSTMs so that they clip."""
    model = ElmoLanguageModel(config)
    init_weights(model, seed)
    with torch.no_grad():
        for layer in (*model.encoder.forward_layers, *model.encoder.backward_layers):
            for parameter in layer.parameters():
                parameter.mul_(scale)
    return model


def test_words_are_bytes_between_marks():
    assert NUM_CHARACTERS == 262
    assert spell("né".encode(), 8) == [259, ord("n") + 1, 0xC3 + 1, 0xA9 + 1, 260, 261, 261, 261]
    assert spell(b"abcdefgh", 6) == [259, *(byte + 1 for byte in b"abcd"), 260]
    sentence = [[259, character, 260, 261, 261] for character in (257, 98, 258)]
    assert list(spell_sentence(["a"], 5)) == sentence


@given(st.lists(st.binary(min_size=0, max_size=18), min_size=1, max_size=5), st.integers(0, 99))
def test_token_layer_is_the_plain_loop_over_words_filters_and_windows(words: list[bytes], seed: int):
    layer = TokenLayer(CONFIG)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
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
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    weights, leaves = torch.randn(expected.shape), [*sequences, *ours.parameters()]
    by_ours, by_theirs = (torch.autograd.grad((each * weights).sum(), leaves) for each in (found, expected))
    torch.testing.assert_close(by_ours[: len(lengths)], by_theirs[: len(lengths)], atol=1e-5, rtol=1e-4)
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
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    inputs = torch.randn(11, 3)
    cell, hidden, expected = torch.zeros(7), torch.zeros(4), []
    for word in inputs:
        gates = layer.input_weight @ word + layer.hidden_weight @ hidden + layer.gate_bias
        enter, forget, leave, new = gates.chunk(4)
        cell = (forget.sigmoid() * cell + enter.sigmoid() * new.tanh()).clamp(-0.3, 0.3)
        hidden = (layer.projection_weight @ (leave.sigmoid() * cell.tanh())).clamp(-0.2, 0.2)
        expected.append(hidden)
    found = layer(inputs, [1] * len(inputs))
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-6, rtol=1e-5)
    assert (found.abs() == 0.2).any()
    assert (found.abs() < 0.2).any()
    parameters = list(layer.parameters())
    by_formula = torch.autograd.grad(torch.stack(expected).square().sum(), parameters)
    for grad, formula in zip(torch.autograd.grad(found.square().sum(), parameters), by_formula, strict=True):
        torch.testing.assert_close(grad, formula, atol=1e-5, rtol=1e-4)


@given(SENTENCES, st.booleans())
def test_packed_sentences_are_as_each_alone(sentences: list[list[str]], clipping: bool):
    # Weights that make cells clip amplify rounding, too.
    encoder = make(scale=6.0).encoder.double() if clipping else make().encoder
    tolerance = 1e-9 if clipping else 1e-5
    packed = read_sentences(sentences, CONFIG.max_characters)
    layers = encoder(*packed)
    for number, sentence in enumerate(sentences):
        alone = encoder(*read_sentences([sentence], CONFIG.max_characters))
        within = slice(int(packed.cu_seqlens[number]), int(packed.cu_seqlens[number + 1]))
        torch.testing.assert_close(layers[:, within], alone, atol=tolerance, rtol=tolerance)


def test_left_sees_only_what_is_before_and_right_only_what_is_behind():
    encoder = make().encoder
    changed = [*LINE[:5], "other", *LINE[6:]]
    before = encoder(*read_sentences([LINE], CONFIG.max_characters))
    after = encoder(*read_sentences([changed], CONFIG.max_characters))
    place, width = 6, CONFIG.projection_size  # the begin of the sentence is a word
    left, right = ((before == after)[..., half].all(-1).all(0) for half in (slice(width), slice(width, None)))
    assert left[:place].all()
    assert not left[place : place + 2].any()
    assert right[place + 1 :].all()
    assert not right[place - 1 : place + 1].any()


@torch.no_grad()
def test_second_layer_adds_its_input_and_the_first_does_not():
    encoder, inputs = make().encoder, read_sentences([LINE], CONFIG.max_characters)
    encoder.forward_layers[1].projection_weight.zero_()
    _, first, second = encoder.directions(*inputs)[0]
    assert first.abs().max() > 0
    assert torch.equal(first, second)
    encoder.forward_layers[0].projection_weight.zero_()
    assert encoder.directions(*inputs)[0][1].abs().max() == 0


def language_model_batch(sentences: list[list[str]], config: ElmoConfig) -> dict[str, Tensor]:
    inputs = read_sentences(sentences, config.max_characters)
    ids = {word: number + 3 for number, word in enumerate(LINE)}
    words = [number for sentence in sentences for number in (0, *(ids[word] for word in sentence), 2)]
    followed = torch.ones(len(words), dtype=torch.bool)
    followed[inputs.cu_seqlens[1:] - 1] = False
    return {
        **inputs._asdict(),
        "word_ids": torch.tensor(words),
        "predicted_positions": followed.nonzero().flatten(),
    }


def test_compiled_network_gives_the_same_for_batches_of_any_lengths():
    plain, compiled = make(), make()
    compiled.compile(backend="eager")
    for sentences in ([LINE], [LINE[:2], LINE[3:4]], [LINE[1:8]]):
        batch = language_model_batch(sentences, CONFIG)
        assert plain(**batch)[0] == compiled(**batch)[0]
    assert compiled.state_dict().keys() == plain.state_dict().keys()


def test_dropout_acts_in_training_and_a_frozen_encoder_never_drops():
    config = replace(CONFIG, dropout=0.5)
    inputs = read_sentences([LINE], config.max_characters)
    free, frozen = ElmoEncoder(config), ElmoEncoder(config, frozen=True)
    init_weights(free, 1)
    frozen.load_state_dict(free.state_dict())
    frozen.train()
    assert not torch.equal(free(*inputs)[1], free(*inputs)[1])
    assert torch.equal(frozen(*inputs), free.eval()(*inputs))


def test_initial_weights_follow_the_released_code():
    model = ElmoLanguageModel(
        ElmoConfig(vocab_size=2000, num_highway_layers=1, projection_size=128, cell_size=1024)
    )
    init_weights(model, 5)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"filters": ((1, 0),)}, "filters"),
        ({"filters": ((17, 4),)}, "width 17"),
        ({"cell_clip": 0.0, "dropout": 1.0}, "cell_clip .*; dropout"),
        ({"num_layers": 0, "cell_size": True}, "num_layers .*; cell_size"),
    ],
)
def test_impossible_shapes_are_refused_with_all_their_problems(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_boundaries_and_words_of_another_shape_are_refused():
    inputs = read_sentences([LINE], CONFIG.max_characters)
    for wrong in ([0, 3], [0, 4, 4, len(inputs.words)], [1, len(inputs.words)], [0]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            make().encoder(inputs.characters, inputs.words, torch.tensor(wrong))
    with pytest.raises(ValueError, match=r"\[words, 16\]"):
        make().encoder(*read_sentences([LINE], 20))


WORDS, WIDTH, PREDICTED = 400, 12, 30


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a softmax, and targets."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(PREDICTED, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(WORDS, WIDTH, generator=generator).mul(0.4).requires_grad_()
    bias = torch.randn(WORDS, generator=generator).requires_grad_()
    return hidden, weight, bias, torch.randint(WORDS, (PREDICTED,), generator=generator)


def sampled(problem: tuple[Tensor, ...], negatives: Tensor, log_count: float) -> Tensor:
    hidden, weight, bias, targets = problem
    own, drawn = (torch.full((len(words),), log_count) for words in (targets, negatives))
    loss_of = sampled_softmax(weight, bias, targets, own, negatives, drawn)
    loss, each = loss_of(hidden, torch.arange(len(targets)))
    torch.testing.assert_close(each.sum(), loss.detach())
    assert not each.requires_grad
    return loss


def test_with_all_words_drawn_it_is_the_full_softmax_with_its_gradients(problem: tuple[Tensor, ...]):
    hidden, weight, bias, targets = problem
    found = sampled(problem, torch.randperm(WORDS, generator=torch.Generator().manual_seed(1)), 0.0)
    expected = F.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum")
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    for grad, full in zip(
        torch.autograd.grad(found, problem[:3]), torch.autograd.grad(expected, problem[:3]), strict=True
    ):
        torch.testing.assert_close(grad, full, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("drawn", "allowed"), [(40, 0.15), (200, 0.03)])
def test_expected_gradient_approaches_that_of_the_full_softmax(
    problem: tuple[Tensor, ...], drawn: int, allowed: float
):
    hidden, weight, bias, targets = problem
    full = torch.autograd.grad(F.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum"), hidden)[
        0
    ]
    generator = torch.Generator().manual_seed(2)
    mean = torch.zeros_like(full)
    for _ in range(400):
        negatives = torch.randperm(WORDS, generator=generator)[:drawn]
        # Every word is drawn with the same probability.
        loss = sampled(problem, negatives, np.log(drawn / WORDS))
        mean += torch.autograd.grad(loss, hidden)[0] / 400
    assert ((mean - full).norm() / full.norm()).item() < allowed


def test_target_that_was_drawn_does_not_count_twice(problem: tuple[Tensor, ...]):
    hidden, weight, bias, targets = problem
    for number in range(3):
        alone = hidden[number : number + 1], weight, bias, targets[number : number + 1]
        assert sampled(alone, targets[number : number + 1], 0.0).item() == 0.0


def test_evaluation_is_over_all_words_whatever_was_drawn():
    model = make(tiny_elmo(vocab_size=50, dropout=0.0)).eval()
    batch = {
        **read_sentences([["a", "b", "c"]], 12)._asdict(),
        "word_ids": torch.tensor([0, 7, 8, 9, 2]),
        "predicted_positions": torch.arange(4),
    }
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


def test_network_loss_is_the_cross_entropy_of_its_logits():
    model, inputs = make(tiny_elmo(vocab_size=20, dropout=0.0)), read_sentences([["x", "y"], ["z"]], 12)
    ids, places = torch.tensor([0, 5, 6, 2, 0, 7, 2]), torch.tensor([0, 1, 2, 4, 5])
    losses, _ = model(**inputs._asdict(), word_ids=ids, predicted_positions=places)
    left, right = (model.softmax(half) for half in model.encoder(*inputs)[-1].chunk(2, dim=-1))
    forward = F.cross_entropy(left[places], ids[places + 1], reduction="sum")
    backward = F.cross_entropy(right[places + 1], ids[places], reduction="sum")
    torch.testing.assert_close(losses["forward"], forward)
    torch.testing.assert_close(losses["backward"], backward)

"""Networks of pre-training: losses by their formulas, what is shared, and what learns. All learn a batch by heart in
`tests/pipeline/test_tiny_runs.py`."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from models.distillation import DistilledLanguageModel, every_nth_layer
from models.electra import Electra, draw_tokens, replace_tokens
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from models.losses import EACH
from models.span_boundary import SpanBoundaryLanguageModel
from tests.models.materials import gradients, randomised, small_config, some_tokens

CU_SEQLENS = torch.tensor([0, 7, 12, 22, 24], dtype=torch.int32)
PREDICTED = torch.tensor([1, 4, 13, 20])
TARGETS = torch.tensor([5, 6, 7, 8])
TOKENS = torch.arange(22)
"""Indices of all tokens but the padding behind the second row."""
INPUT_IDS = some_tokens(2, 12, 0)
INPUT_IDS[:, 0], INPUT_IDS.view(-1)[PREDICTED] = 0, 4
MASKED = {
    "input_ids": INPUT_IDS,
    "predicted_positions": PREDICTED,
    "targets": TARGETS,
    "cu_seqlens": CU_SEQLENS,
}
PAIRS = {
    **MASKED,
    "cu_seqlens": torch.tensor([0, 12, 22, 24], dtype=torch.int32),
    "segment_ids": (torch.arange(12) >= torch.tensor([[5], [7]])).long(),
    "pair_labels": torch.tensor([0, 1]),
}
SPANS = {
    "input_ids": INPUT_IDS,
    "predicted_positions": torch.tensor([2, 3, 4, 15]),
    "targets": TARGETS,
    "read_positions": torch.tensor([1, 2, 3, 4, 5, 14, 15, 16]),
    "left_positions": torch.tensor([1, 1, 1, 14]),
    "right_positions": torch.tensor([5, 5, 5, 16]),
    "span_offsets": torch.tensor([0, 1, 2, 0]),
}
PAIRS_OF_SPANS = {**PAIRS, "read_positions": torch.tensor([0, 1, 4, 12, 13, 20])}
DETECTED = {**MASKED, "token_positions": TOKENS}
SOFT = {**MASKED, "soft_positions": TOKENS}


def electra(**overrides: Any) -> Electra:
    config = small_config(num_segments=2, **overrides)
    return Electra(config, replace(config, hidden_size=4, num_heads=1, embedding_size=config.embedding_width))


def teacher(**overrides: Any) -> MaskedLanguageModel:
    return randomised(MaskedLanguageModel(small_config(num_layers=4, **overrides)), 5)


def masked(*, tied: bool = True) -> MaskedLanguageModel:
    return MaskedLanguageModel(small_config(tie_embeddings=tied))


NETWORKS = {
    "masked": (masked, MASKED),
    "untied": (lambda: masked(tied=False), MASKED),
    "pairs": (lambda: MaskedLanguageModel(small_config(num_segments=2), pair="nsp"), PAIRS),
    "spans": (lambda: SpanBoundaryLanguageModel(small_config(), 6), SPANS),
    "pairs of spans": (
        lambda: SpanBoundaryLanguageModel(small_config(num_segments=2), None, pair="nsp"),
        PAIRS_OF_SPANS,
    ),
    "electra": (electra, DETECTED),
    "electra, projected": (lambda: electra(embedding_size=8), DETECTED),
    "distilled": (lambda: DistilledLanguageModel(small_config(), teacher()), SOFT),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_gets_a_gradient(name: str):
    build, batch = NETWORKS[name]
    model = randomised(build())
    found = gradients(model, batch)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(gradient.abs().sum() > 0 for gradient in found.values())


@pytest.mark.parametrize(("name", "left"), [("masked", set()), ("electra", {"rtd"}), ("pairs", {"nsp"})])
def test_batch_without_predictions_costs_nothing_and_still_has_gradients(name: str, left: set[str]):
    build, batch = NETWORKS[name]
    nothing = torch.empty(0, dtype=torch.int64)
    model, batch = randomised(build()), batch | {"predicted_positions": nothing, "targets": nothing}
    losses, correct = model(**batch)
    assert losses.keys() == {"mlm"} | left
    assert (losses["mlm"].item(), correct["mlm"].item()) == (0.0, 0)
    gradient = gradients(model, batch)
    assert gradient.keys() == dict(model.named_parameters()).keys()
    assert any(each.abs().sum() > 0 for each in gradient.values()) == bool(left)


@pytest.mark.parametrize("tied", [True, False])
def test_masked_loss_is_the_summed_cross_entropy_at_predicted_positions_and_projects_no_other(tied: bool):
    model, projected = randomised(masked(tied=tied)), []
    logits = model.logits(INPUT_IDS, cu_seqlens=CU_SEQLENS).flatten(0, 1)[PREDICTED]
    targets = logits.argmax(-1)
    targets[1:3] = (targets[1:3] + 1) % 61
    model.head.dense.register_forward_hook(lambda _module, args, _out: projected.append(args[0].shape))
    losses, correct = model(INPUT_IDS, PREDICTED, targets, CU_SEQLENS)
    torch.testing.assert_close(losses["mlm"], F.cross_entropy(logits, targets, reduction="sum"))
    torch.testing.assert_close(correct[EACH].sum(), losses["mlm"].detach())
    assert (losses["mlm"].dtype, correct["mlm"].dtype) == (torch.float32, torch.int64)
    assert correct["mlm"] == 2
    assert projected == [(4, 16)]


def test_tied_embeddings_have_one_name_and_stay_tied_on_every_device():
    with torch.device("meta"):
        model, pair = masked(), electra(embedding_size=16)
    for network in (model, pair):
        network.to_empty(device="cpu")
        init_weights(network, seed=0)
    matrices = [name for name, tensor in model.state_dict().items() if tensor.shape == (61, 16)]
    assert matrices == ["encoder.embeddings.tokens.weight"]
    ours, theirs = (each.encoder.embeddings.token_weight for each in (pair.generator, pair.discriminator))
    assert ours is theirs
    assert set(pair.state_dict()) == {name for name, _ in pair.named_parameters()}
    assert all(loss.isfinite() for loss in pair.eval()(**DETECTED)[0].values())


@pytest.mark.parametrize("name", ["pairs", "pairs of spans"])
@torch.no_grad()
def test_segments_are_told_apart_and_rows_judged_one_by_one(name: str):
    build, batch = NETWORKS[name]
    model = randomised(build())

    def pair_loss(**changes: torch.Tensor) -> torch.Tensor:
        return model(**{**batch, **changes})[0]["nsp"]

    together = pair_loss() + pair_loss(pair_labels=torch.tensor([1, 0]))
    apart = [pair_loss(pair_labels=torch.full((2,), label)) for label in (0, 1)]
    torch.testing.assert_close(sum(apart), together)
    assert not torch.allclose(pair_loss(segment_ids=1 - batch["segment_ids"]), pair_loss())


def test_span_boundary_loss_is_that_of_the_formula_beside_the_masked_loss():
    model = randomised(SpanBoundaryLanguageModel(small_config(), 6))
    losses, correct = model(**SPANS)
    x = model.encoder(INPUT_IDS).flatten(0, 1)
    head, weight = model.boundary_head, model.encoder.embeddings.token_weight
    logits = []
    places = [SPANS[f"{name}"] for name in ("left_positions", "right_positions", "span_offsets")]
    for left, right, offset in zip(*places, strict=True):
        h0 = torch.cat([x[left], x[right], head.places.weight[offset]])
        h1 = head.first_norm(F.gelu(head.first.weight @ h0 + head.first.bias))
        y = head.second_norm(F.gelu(head.second.weight @ h1 + head.second.bias))
        logits.append(weight @ y + head.decoder.bias)
    logits = torch.stack(logits)
    torch.testing.assert_close(losses["sbo"], F.cross_entropy(logits, TARGETS, reduction="sum"))
    assert correct["sbo"].item() == (logits.argmax(-1) == TARGETS).sum()
    scores = model.head(x, weight)[SPANS["predicted_positions"]]
    torch.testing.assert_close(losses["mlm"], F.cross_entropy(scores, TARGETS, reduction="sum"))
    torch.testing.assert_close(correct[EACH].sum(), losses["mlm"].detach())


@pytest.fixture(params=[None, 8], ids=["same-width", "projected"])
def detector(request: pytest.FixtureRequest) -> Electra:
    return randomised(electra(embedding_size=request.param))


def test_discriminator_judges_every_token_but_padding_and_trains_no_generator(detector: Electra):
    torch.manual_seed(3)
    losses, correct = detector(**DETECTED)
    torch.manual_seed(3)
    hidden = detector.generator.encoder(INPUT_IDS, cu_seqlens=CU_SEQLENS, read=PREDICTED)
    sampled = draw_tokens(detector.generator, hidden)
    original = INPUT_IDS.flatten().index_copy(0, PREDICTED, TARGETS)
    read = INPUT_IDS.flatten().index_copy(0, PREDICTED, sampled)
    labels = (read != original).float()[TOKENS]
    scores = detector.discriminator(read.view(2, 12), cu_seqlens=CU_SEQLENS).flatten()[TOKENS]
    expected = F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
    torch.testing.assert_close(losses["rtd"], expected)
    assert correct["rtd"].item() == ((scores > 0).float() == labels).sum()
    torch.manual_seed(4)
    assert not torch.equal(detector(**DETECTED)[0]["rtd"], losses["rtd"]), "every seed draws other tokens"
    losses["rtd"].backward()
    assert all(parameter.grad is None for parameter in detector.generator.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in detector.discriminator.parameters())


def test_a_token_drawn_right_counts_as_original():
    ids, drawn = torch.tensor([[4, 3, 4, 4]]), torch.tensor([5, 9])
    read, is_replaced = replace_tokens(ids, torch.tensor([0, 2]), torch.tensor([5, 6]), drawn)
    assert read.tolist() == [[5, 3, 9, 4]]
    assert is_replaced.tolist() == [[False, False, True, False]]


def test_tokens_are_drawn_from_the_softmax(detector: Electra):
    torch.manual_seed(0)
    hidden = torch.randn(1, 4)
    logits = detector.generator.head(hidden, detector.generator.encoder.embeddings.token_weight)
    expected = logits[0].softmax(-1).detach()
    drawn = draw_tokens(detector.generator, hidden.expand(40_000, 4), chunk_elements=61 * 999)
    shares = torch.bincount(drawn, minlength=61) / len(drawn)
    assert (shares - expected).abs().max() < 5 * (expected / len(drawn)).sqrt().max()


def test_generator_with_other_embeddings_is_refused():
    with pytest.raises(ValueError, match="embedding_size"):
        Electra(small_config(), small_config(embedding_size=8))


def distilled(guide: MaskedLanguageModel, **options: Any) -> DistilledLanguageModel:
    return randomised(DistilledLanguageModel(small_config(), guide, **options), 3)


def test_losses_of_distillation_are_those_of_the_formulas():
    guide = teacher()
    student = distilled(guide)
    losses, correct = student(**SOFT)

    def read(network: Any) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = network.encoder(INPUT_IDS, cu_seqlens=CU_SEQLENS).flatten(0, 1)
        return hidden, network.head(hidden, network.encoder.embeddings.token_weight)

    (hidden, scores), (wanted, soft) = read(student), read(guide)
    mlm = F.cross_entropy(scores[PREDICTED], TARGETS, reduction="sum")
    # DistilBERT's released code: temperature 2, scaled by its square.
    divergence = F.kl_div(
        (scores[TOKENS] / 2).log_softmax(-1), (soft[TOKENS] / 2).softmax(-1), reduction="sum"
    )
    same = torch.ones(len(TOKENS))
    cosine = F.cosine_embedding_loss(hidden[TOKENS], wanted[TOKENS], same, reduction="sum")
    torch.testing.assert_close(losses, {"mlm": mlm, "soft": divergence * 4, "cosine": cosine})
    assert correct["mlm"].item() == (scores[PREDICTED].argmax(-1) == TARGETS).sum()
    torch.testing.assert_close(correct[EACH].sum(), mlm.detach())


def test_chunks_change_neither_the_divergence_nor_its_gradient():
    student, generator = distilled(teacher()), torch.Generator().manual_seed(0)
    hidden, wanted = (torch.randn(20, 16, generator=generator) for _ in range(2))
    results = []
    for chunk_elements in (1, 61 * 7, 1 << 24):
        own = hidden.clone().requires_grad_()
        student.zero_grad()
        loss = student.divergence(own, wanted, chunk_elements=chunk_elements)
        loss.backward()
        results.append((loss.detach(), own.grad, student.head.dense.weight.grad.clone()))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


def test_teacher_follows_its_student_and_is_neither_trained_nor_stored():
    guide, plain = teacher(), MaskedLanguageModel(small_config())
    before = {name: tensor.clone() for name, tensor in guide.state_dict().items()}
    student = DistilledLanguageModel(small_config(), guide).train()
    for network in (student, plain):
        init_weights(network, seed=5)
    # A random start does not depend on the teacher.
    torch.testing.assert_close(student.state_dict(), plain.state_dict(), rtol=0, atol=0)
    gradients(student, SOFT)
    assert all(parameter.grad is None for parameter in guide.parameters())
    assert not any(module.training for module in guide.modules())
    torch.testing.assert_close(guide.state_dict(), before, rtol=0, atol=0)
    student.bfloat16()
    assert {loss.dtype for loss in student(**SOFT)[0].values()} == {torch.float32}
    assert {parameter.dtype for parameter in guide.parameters()} == {torch.bfloat16}
    student.to("meta")
    assert not any(parameter.is_meta for parameter in guide.parameters())


def test_student_starts_from_copies_of_every_second_layer():
    guide = teacher()
    student = DistilledLanguageModel(small_config(), guide, teacher_layers=every_nth_layer(2, 4))
    init_weights(student, seed=5)
    theirs, prefix = guide.state_dict(), "encoder.transformer.layers."
    for name, tensor in student.state_dict().items():
        assert torch.equal(tensor, theirs[name.replace(f"{prefix}1.", f"{prefix}2.")]), name
    nn.init.zeros_(student.head.dense.weight)
    assert theirs["head.dense.weight"].abs().sum() > 0
    assert every_nth_layer(6, 12) == (0, 2, 4, 6, 8, 10)
    assert every_nth_layer(3, 12) == (0, 4, 8)
    with pytest.raises(ValueError, match="4 layers"):
        every_nth_layer(5, 4)


def test_student_may_have_no_token_types_and_without_the_cosine_another_width():
    guide = teacher(num_segments=2)
    student = DistilledLanguageModel(small_config(num_layers=1), guide, teacher_layers=[1]).eval()
    init_weights(student, seed=3)
    assert not any("segments" in name for name, _ in student.named_parameters())
    losses, _ = student(**SOFT, segment_ids=torch.zeros_like(INPUT_IDS))
    assert all(loss.isfinite() for loss in losses.values())
    narrow = DistilledLanguageModel(small_config(hidden_size=8), guide, hidden_loss=False)
    init_weights(narrow, seed=0)
    assert narrow(**SOFT)[0].keys() == {"mlm", "soft"}


@pytest.mark.parametrize(
    ("overrides", "layers", "named"),
    [
        ({"vocab_size": 60}, None, "tokenizer"),
        ({"hidden_size": 8}, None, "cosine"),
        ({"max_positions": 30}, None, "24 positions"),
        ({"intermediate_size": 8}, (0, 1), "intermediate_size 8"),
        ({"num_segments": 3}, (0, 1), "num_segments 3"),
        ({}, (0, 4), r"not \[4\]"),
        ({}, (0,), "1 layers"),
    ],
)
def test_teacher_that_does_not_fit_is_refused(overrides: dict, layers: tuple[int, ...] | None, named: str):
    with pytest.raises(ValueError, match=named):
        DistilledLanguageModel(small_config(**overrides), teacher(), teacher_layers=layers)

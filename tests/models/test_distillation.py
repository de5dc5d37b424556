from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from models.distillation import DistilledLanguageModel, every_nth_layer
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from models.losses import EACH
from tests.models.conftest import learn

CU_SEQLENS = torch.tensor([0, 7, 12, 22, 24], dtype=torch.int32)
PREDICTED = torch.tensor([1, 4, 13, 20])
TARGETS = torch.tensor([5, 6, 7, 8])
SOFT = torch.arange(22)
BATCH = {
    "predicted_positions": PREDICTED,
    "targets": TARGETS,
    "soft_positions": SOFT,
    "cu_seqlens": CU_SEQLENS,
}


@pytest.fixture
def input_ids() -> torch.Tensor:
    return torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def teacher(small_config, randomise) -> MaskedLanguageModel:
    network = MaskedLanguageModel(small_config(num_layers=4))
    init_weights(network, seed=1)
    randomise(network, 2)
    return network


@pytest.fixture
def student(small_config, teacher) -> DistilledLanguageModel:
    network = DistilledLanguageModel(small_config(), teacher).eval()
    init_weights(network, seed=3)
    return network


def test_equal_networks_have_no_divergence_and_no_cosine_loss(small_config, teacher, input_ids):
    twin = DistilledLanguageModel(small_config(num_layers=4), teacher, teacher_layers=range(4)).eval()
    init_weights(twin, seed=9)
    losses, _ = twin(input_ids, **BATCH)
    assert losses["soft"].item() == pytest.approx(0, abs=1e-4)
    assert losses["cosine"].item() == pytest.approx(0, abs=1e-4)
    expected, _ = teacher(input_ids, PREDICTED, TARGETS, CU_SEQLENS)
    torch.testing.assert_close(losses["mlm"], expected["mlm"])


def test_a_student_may_do_without_its_teachers_token_types(small_config, randomise, input_ids):
    teacher = MaskedLanguageModel(small_config(num_layers=2, num_segments=2))
    init_weights(teacher, seed=1)
    randomise(teacher, 2)
    student = DistilledLanguageModel(small_config(num_layers=1), teacher, teacher_layers=[1]).eval()
    init_weights(student, seed=3)
    assert not any("segments" in name for name, _ in student.named_parameters())
    assert torch.equal(student.encoder.embeddings.token_weight, teacher.encoder.embeddings.token_weight)
    losses, _ = student(input_ids, **BATCH, segment_ids=torch.zeros_like(input_ids))
    assert all(loss.isfinite() for loss in losses.values())
    with pytest.raises(ValueError, match="num_segments 3 instead of 0 or 2"):
        DistilledLanguageModel(small_config(num_layers=1, num_segments=3), teacher, teacher_layers=[1])


def test_losses_are_those_of_the_formulas(student, teacher, input_ids):
    losses, correct = student(input_ids, **BATCH)

    def read(network) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = network.encoder(input_ids, cu_seqlens=CU_SEQLENS).flatten(0, 1)
        return hidden, network.head(hidden, network.encoder.embeddings.token_weight)

    (hidden, scores), (wanted, soft) = read(student), read(teacher)
    mlm = F.cross_entropy(scores[PREDICTED], TARGETS, reduction="sum")
    # DistilBERT's released code: temperature 2, scaled by its square.
    divergence = F.kl_div((scores[SOFT] / 2).log_softmax(-1), (soft[SOFT] / 2).softmax(-1), reduction="sum")
    same_direction = torch.ones(len(SOFT))
    cosine = F.cosine_embedding_loss(hidden[SOFT], wanted[SOFT], same_direction, reduction="sum")
    torch.testing.assert_close(losses["mlm"], mlm)
    torch.testing.assert_close(losses["soft"], divergence * 4)
    torch.testing.assert_close(losses["cosine"], cosine)
    assert correct["mlm"].item() == (scores[PREDICTED].argmax(-1) == TARGETS).sum()
    assert correct.keys() == {"mlm", EACH}
    torch.testing.assert_close(correct[EACH].sum(), mlm.detach())


def test_chunks_change_neither_the_divergence_nor_its_gradient(student):
    generator = torch.Generator().manual_seed(0)
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


def test_teacher_is_neither_trained_nor_stored(student, teacher, small_config, input_ids):
    plain = MaskedLanguageModel(small_config())
    assert student.state_dict().keys() == plain.state_dict().keys()
    assert {name for name, _ in student.named_parameters()} == {name for name, _ in plain.named_parameters()}
    before = copy.deepcopy(teacher.state_dict())
    losses, _ = student.train()(input_ids, **BATCH)
    (5 * losses["soft"] + 2 * losses["mlm"] + losses["cosine"]).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in student.parameters())
    assert not any(module.training for module in teacher.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_teacher_follows_the_student(student, teacher, input_ids):
    student.bfloat16()
    assert {parameter.dtype for parameter in teacher.parameters()} == {torch.bfloat16}
    losses, _ = student(input_ids, **BATCH)
    assert {loss.dtype for loss in losses.values()} == {torch.float32}
    student.to("meta")
    assert not any(parameter.is_meta for parameter in teacher.parameters())


def test_student_starts_from_every_second_layer(small_config, teacher):
    student = DistilledLanguageModel(small_config(), teacher, teacher_layers=every_nth_layer(2, 4))
    init_weights(student, seed=5)
    theirs, prefix = teacher.state_dict(), "encoder.transformer.layers."
    for name, tensor in student.state_dict().items():
        source = name.replace(f"{prefix}1.", f"{prefix}2.")
        assert torch.equal(tensor, theirs[source]), name
    with torch.no_grad():
        student.head.dense.weight.zero_()
    assert theirs["head.dense.weight"].abs().sum() > 0


def test_layers_are_spread_over_the_teacher():
    assert every_nth_layer(6, 12) == (0, 2, 4, 6, 8, 10)
    assert every_nth_layer(3, 12) == (0, 4, 8)
    assert every_nth_layer(4, 4) == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="give it 4 layers or less"):
        every_nth_layer(5, 4)


def test_random_start_does_not_depend_on_the_teacher(small_config, teacher):
    student, plain = DistilledLanguageModel(small_config(), teacher), MaskedLanguageModel(small_config())
    init_weights(student, seed=5)
    init_weights(plain, seed=5)
    own = student.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in plain.state_dict().items())


@pytest.mark.parametrize(
    ("overrides", "arguments", "message"),
    [
        ({"vocab_size": 60}, {}, r"60 ids, the teacher's 61; use the teacher's tokenizer"),
        ({"hidden_size": 8}, {}, r"width 8 and 16 have no cosine"),
        ({"max_positions": 30}, {}, r"reads 24 positions, the student 30"),
        (
            {"intermediate_size": 8},
            {"teacher_layers": (0, 1)},
            r"has its shape, not intermediate_size 8 instead of 40",
        ),
        ({}, {"teacher_layers": (0, 4)}, r"layers are 0 to 3, not \[4\]"),
        ({}, {"teacher_layers": (0,)}, r"1 layers of the teacher are named for the student's 2"),
    ],
)
def test_networks_that_do_not_fit_are_refused(small_config, teacher, overrides, arguments, message):
    with pytest.raises(ValueError, match=message):
        DistilledLanguageModel(small_config(**overrides), teacher, **arguments)


def test_other_widths_fit_without_the_cosine(small_config, teacher, input_ids):
    student = DistilledLanguageModel(small_config(hidden_size=8), teacher, hidden_loss=False)
    init_weights(student, seed=0)
    losses, _ = student(input_ids, **BATCH)
    assert losses.keys() == {"mlm", "soft"}


def test_student_learns_its_teacher_by_heart(small_config, teacher, input_ids):
    student = DistilledLanguageModel(small_config(dropout=0.0, attention_dropout=0.0), teacher).train()
    init_weights(student, seed=0)
    targets = teacher.logits(input_ids, cu_seqlens=CU_SEQLENS).flatten(0, 1)[PREDICTED].argmax(-1)
    batch = {**BATCH, "targets": targets}
    weights = {"soft": 5.0, "mlm": 2.0, "cosine": 1.0}
    losses, correct = learn(student, lambda: student(input_ids, **batch), 200, **weights)
    assert correct["mlm"].item() == 4
    assert losses["soft"].item() / len(SOFT) < 0.05
    assert losses["cosine"].item() / len(SOFT) < 0.05

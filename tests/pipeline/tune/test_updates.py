"""Order, micro-batches, padding, learning rates and optimizers of a training's updates."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from torch import nn

from cluster.artefacts.errors import ConfigError
from data_prep.ragged import Ragged
from models.classifiers import SequenceClassifier
from pipeline.tasks.settings import TrainingConfig, optimizer_with_rates
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.encoding import pad_rows
from pipeline.tune.trainer import UpdatePlan, plan_updates
from pipeline.tune.trials import example_order, sample_examples
from tests.pipeline.tune.conftest import MODEL


def test_order_is_a_pure_function_of_seed_and_epoch():
    assert example_order(1, 0, 50).tolist() == example_order(1, 0, 50).tolist()
    assert sorted(example_order(1, 0, 50)) == list(range(50))
    assert example_order(1, 0, 50).tolist() != example_order(1, 1, 50).tolist()
    assert example_order(1, 0, 50).tolist() != example_order(2, 0, 50).tolist()


@pytest.mark.parametrize(("examples", "batch", "micro"), [(10, 4, 2), (10, 4, 3), (7, 8, 8), (1, 4, 1)])
def test_every_example_is_in_one_micro_batch_of_every_epoch(examples, batch, micro):
    plan = UpdatePlan(TrainingConfig(epochs=2, batch_size=batch), examples, micro, seed=1)
    batches = plan.epoch_batches(1)
    assert 2 * len(batches) == plan.num_updates
    pieces = [piece for rows in batches for piece in plan.micro_batches(rows)]
    assert sorted(np.concatenate(pieces)) == list(range(examples))
    assert max(map(len, pieces)) <= micro


def test_limited_training_examples_are_a_fixed_sample():
    assert sample_examples(5, None).tolist() == [0, 1, 2, 3, 4]
    assert sample_examples(5, 9).tolist() == [0, 1, 2, 3, 4]
    chosen = sample_examples(1000, 10)
    assert len(set(chosen.tolist())) == 10
    assert chosen.tolist() == sample_examples(1000, 10).tolist() == sorted(chosen)
    assert set(sample_examples(1000, 5)) <= set(chosen)


def test_padding_goes_to_the_longest_of_the_batch_on_the_right():
    rows = Ragged(np.arange(10, 19), np.array([0, 2, 5, 9]))
    padded, present = pad_rows(rows, np.array([1, 0]), fill=1)
    assert padded.tolist() == [[12, 13, 14], [10, 11, 1]]
    assert present.tolist() == [[True, True, True], [True, True, False]]


def test_rate_rises_linearly_then_falls_to_just_above_zero():
    settings = TrainingConfig(lr=1.0, warmup_fraction=0.2, epochs=1, batch_size=1)
    rates = [UpdatePlan(settings, 10, 1, seed=1).learning_rate(update) for update in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert UpdatePlan(settings, 1, 1, seed=1).learning_rate(0) == 1.0


def test_weight_decay_spares_biases_and_norms():
    model, settings = SequenceClassifier(MODEL, 2), TrainingConfig(weight_decay=0.1)
    decayed, spared = optimizer_with_rates(settings).make(model).param_groups
    assert decayed["weight_decay"] == 0.1
    assert spared["weight_decay"] == 0.0
    assert {p.dim() for p in decayed["params"]} == {2}
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_optimizer_is_adamw_of_its_authors_unless_a_setting_says_otherwise():
    (group,) = optimizer_with_rates(TrainingConfig()).make(nn.Linear(2, 2, bias=False)).param_groups
    assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)
    shared = TrainingConfig.model_validate({"optimizer": {"eps": 1e-6, "clip": None}, "lr": 1e-4})
    used = optimizer_with_rates(shared)
    (group,) = used.make(nn.Linear(2, 2, bias=False)).param_groups
    assert (used.lr, used.clip, group["betas"], group["eps"]) == (1e-4, None, (0.9, 0.999), 1e-6)
    task = {"kind": "rte", "path": "RTE", "training": {"optimizer": {"kind": "muon", "clip": None}}}
    own = FinetuneConfig.model_validate({"tasks": {"rte": task}, "training": shared}).training_of("rte")
    assert (own.optimizer.kind, own.optimizer.clip, own.lr) == ("muon", None, 1e-4)
    with pytest.raises(ValidationError, match=r"optimizer\.adamw\.lr"):
        TrainingConfig.model_validate({"optimizer": {"lr": 1e-4}})


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "remedy"),
    [
        (16, None, 2, "training.micro_batch_size=8"),
        (16, 8, 4, "training.micro_batch_size=4"),
        (2, None, 4, "training.micro_batch_size=1 and training.batch_size=4"),
    ],
)
def test_batch_that_processes_cannot_share_is_refused_with_the_remedy(batch, micro, processes, remedy):
    settings = TrainingConfig(batch_size=batch, micro_batch_size=micro)
    with pytest.raises(ConfigError) as raised:
        plan_updates(settings, 100, 1, processes)
    assert str(raised.value).endswith(f"Next: set {remedy}")

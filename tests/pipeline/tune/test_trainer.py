"""The parts of one training."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from cluster.artefacts.errors import ConfigError
from models.classifiers import SequenceClassifier
from models.initialization import init_weights
from pipeline.tune.learner import make_optimizer
from pipeline.tune.settings import TrainingConfig, TrainingOverrides
from pipeline.tune.updates import learning_rate, plan_updates
from tests.pipeline.tune.conftest import MODEL


def test_rate_rises_linearly_then_falls_to_just_above_zero():
    settings = TrainingConfig(lr=1.0, warmup_fraction=0.2)
    rates = [learning_rate(update, 10, settings) for update in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_single_update_runs_at_the_full_rate():
    assert learning_rate(0, 1, TrainingConfig(lr=1.0)) == 1.0


def test_weight_decay_spares_biases_and_norms():
    model, settings = SequenceClassifier(MODEL, 2), TrainingConfig(weight_decay=0.1)
    decayed, spared = make_optimizer(model, settings.optimizer_with_rates).param_groups
    assert decayed["weight_decay"] == 0.1
    assert spared["weight_decay"] == 0.0
    assert {p.dim() for p in decayed["params"]} == {2}
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_optimizer_is_adamw_of_its_authors_unless_a_setting_says_otherwise():
    (group,) = make_optimizer(nn.Linear(2, 2, bias=False), TrainingConfig().optimizer_with_rates).param_groups
    assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)
    shared = TrainingConfig.model_validate({"optimizer": {"eps": 1e-6, "clip": None}, "lr": 1e-4})
    used = shared.optimizer_with_rates
    (group,) = make_optimizer(nn.Linear(2, 2, bias=False), used).param_groups
    assert (used.lr, used.clip, group["betas"], group["eps"]) == (1e-4, None, (0.9, 0.999), 1e-6)
    own = TrainingOverrides.model_validate({"optimizer": {"kind": "muon", "clip": None}}).applied_to(shared)
    assert (own.optimizer.kind, own.optimizer.clip, own.lr) == ("muon", None, 1e-4)
    with pytest.raises(ValidationError, match=r"optimizer\.adamw\.lr"):
        TrainingConfig.model_validate({"optimizer": {"lr": 1e-4}})


def test_new_head_depends_on_the_seed_only():
    first, second = SequenceClassifier(MODEL, 2), SequenceClassifier(MODEL, 2)
    init_weights(first, 1)
    init_weights(second, 1)
    torch.testing.assert_close(first.head.state_dict(), second.head.state_dict(), rtol=0, atol=0)


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

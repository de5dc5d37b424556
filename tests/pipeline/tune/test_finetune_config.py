"""Settings of a fine-tuning run: what they mean for its updates, and which are refused, also by their launchers."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from torch import nn

from cluster.artefacts.errors import ConfigError, MismatchError
from models.config import ElmoConfig
from pipeline.config.loading import validate
from pipeline.tasks import TASKS
from pipeline.tasks.forms import ClassificationTaskConfig
from pipeline.tasks.settings import TrainingConfig, optimizer_with_rates
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.forms.classification import CLASSIFIERS
from pipeline.tune.learner import check_launch
from pipeline.tune.run import finetune
from pipeline.tune.trainer import UpdatePlan, plan_updates
from pipeline.tune.trials import PUBLISHED, example_order, sample_examples
from tests.pipeline.tune.conftest import MODEL
from tests.pipeline.tune.samples import SIDES, UNREAD

REVIEWS = {"kind": "sst2", "path": "unread"}
DECODER = dataclasses.replace(MODEL, network="decoder", norm="pre", embedding_norm=False)
ENCODER_DECODER = dataclasses.replace(MODEL, network="encoder_decoder")
LORA = {"kind": "lora", "rank": 2}


def test_task_overrides_only_the_training_settings_it_names():
    tasks = {"reviews": REVIEWS | {"training": {"lr": 1e-3}}}
    config = validate(FinetuneConfig, {"tasks": tasks, "training": {"epochs": 7}}, "here")
    assert (config.training_of("reviews").lr, config.training_of("reviews").epochs) == (1e-3, 7)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": [-1]}, "seeds"),
        ({"tasks": {"a/b": REVIEWS}}, "'a/b'"),
        ({"tasks": {"a": {"kind": "mrcp", "path": "x"}}}, "mean mrpc"),
        ({"tasks": {"a": REVIEWS | {"training": {"epoch": 3}}}}, "mean epochs"),
        ({"tasks": {"a": {"kind": "xsum", **UNREAD, "max_target_length": 8}}}, "min_target_length"),
        ({"tasks": {"a": {"kind": "translation", **SIDES, "target_language": "en_XX"}}}, "needs language"),
        ({"training": {"features": {}, "peft": LORA}}, "features.*peft"),
        ({"training": {"optimizer": {"lr": 1e-4}}}, r"training\.optimizer\.lr"),
        ({"zero": {"stage": 2, "offload_parameters": {}}}, r"offload_parameters .*zero\.stage 3"),
        ({"zero": {"stage": 0, "offload_optimizer": {}}}, r"offload_optimizer .*zero\.stage 1"),
        ({"zero": {"stage": 1}, "precision": "fp16"}, "fp16 .*zero"),
        ({"zero": {"stage": 3}, "training": {"peft": LORA}}, r"training\.peft .*reviews.*zero\.stage 3"),
    ],
)
def test_unusable_values_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        validate(FinetuneConfig, {"tasks": {"reviews": REVIEWS}} | changes, "here")


@pytest.mark.parametrize(
    ("task", "network", "training", "remedy"),
    [
        ({"kind": "squad", **UNREAD}, ElmoConfig(vocab_size=32), {}, r"checkpoint of an encoder \(BERT"),
        # Its first token has read nothing.
        ({"kind": "squad2", **UNREAD}, DECODER, {}, "or an encoder-decoder"),
        ({"kind": "conll_ner", **UNREAD}, ENCODER_DECODER, {}, "checkpoint of an encoder"),
        ({"kind": "xsum", **UNREAD}, MODEL, {}, r"an encoder-decoder \(BART"),
        (REVIEWS, MODEL, {"max_length": 64}, r"training\.max_length=32"),
        ({"kind": "squad", **UNREAD}, MODEL, {"max_length": 32}, r"tasks\.own\.max_query_length"),
        ({"kind": "xsum", **UNREAD, "max_target_length": 32}, ENCODER_DECODER, {}, "max_target_length=31"),
        ({"kind": "squad", **UNREAD, "max_query_length": 4}, MODEL, {"features": {}}, "features out"),
        (REVIEWS, dataclasses.replace(MODEL, vocab_size=8), {}, "tokenizer"),
    ],
)
def test_task_that_does_not_fit_the_network_is_refused_before_files_are_read(
    make_config, checkpoint, task, network, training, remedy
):
    config = make_config(tasks={"own": task}, training={"max_length": 16} | training)
    with pytest.raises(MismatchError, match=rf"Next: .*{remedy}"):
        finetune(config, dataclasses.replace(checkpoint, model=network))
    assert not config.out.exists()


def test_every_kind_of_network_that_may_classify_can():
    assert set(CLASSIFIERS) == set(ClassificationTaskConfig.carriers)
    assert {kind for task in TASKS.values() for kind in task.carriers} <= set(PUBLISHED)


def test_order_is_a_pure_function_of_seed_and_epoch():
    orders = [example_order(*key, 50).tolist() for key in ((1, 0), (1, 0), (1, 1), (2, 0))]
    assert orders[0] == orders[1]
    assert len({*map(tuple, orders)}) == 3
    assert all(sorted(order) == list(range(50)) for order in orders)


@pytest.mark.parametrize(("examples", "batch", "micro"), [(10, 4, 2), (10, 4, 3), (7, 8, 8), (1, 4, 1)])
def test_every_example_is_in_one_micro_batch_of_every_epoch(examples, batch, micro):
    plan = UpdatePlan(TrainingConfig(epochs=2, batch_size=batch), examples, micro, seed=1)
    batches = plan.epoch_batches(1)
    assert 2 * len(batches) == plan.num_updates
    pieces = [piece for rows in batches for piece in plan.micro_batches(rows)]
    assert sorted(np.concatenate(pieces)) == list(range(examples))
    assert max(map(len, pieces)) <= micro


def test_limited_training_examples_are_a_fixed_sample():
    assert sample_examples(5, None).tolist() == sample_examples(5, 9).tolist() == [0, 1, 2, 3, 4]
    chosen = sample_examples(1000, 10).tolist()
    assert len(set(chosen)) == 10
    assert chosen == sample_examples(1000, 10).tolist() == sorted(chosen)
    assert set(sample_examples(1000, 5)) <= set(chosen)


def test_rate_rises_linearly_then_falls_to_just_above_zero():
    settings = TrainingConfig(lr=1.0, warmup_fraction=0.2, epochs=1, batch_size=1)
    rates = [UpdatePlan(settings, 10, 1, seed=1).learning_rate(update) for update in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert UpdatePlan(settings, 1, 1, seed=1).learning_rate(0) == 1.0


def test_optimizer_is_adamw_of_its_authors_unless_a_setting_says_otherwise():
    (group,) = optimizer_with_rates(TrainingConfig()).make(nn.Linear(2, 2, bias=False)).param_groups
    assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)
    shared = TrainingConfig.model_validate({"optimizer": {"eps": 1e-6, "clip": None}, "lr": 1e-4})
    used = optimizer_with_rates(shared)
    (group,) = used.make(nn.Linear(2, 2, bias=False)).param_groups
    assert (used.lr, used.clip, group["betas"], group["eps"]) == (1e-4, None, (0.9, 0.999), 1e-6)
    task = REVIEWS | {"training": {"optimizer": {"kind": "muon", "clip": None}}}
    own = FinetuneConfig.model_validate({"tasks": {"own": task}, "training": shared}).training_of("own")
    assert (own.optimizer.kind, own.optimizer.clip, own.lr) == ("muon", None, 1e-4)


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


# By name of a launch its options, the configuration's precision, and what a refusal says to do.
LAUNCHES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "one": ("--cpu --num_processes 1", "fp32", ()),
    "two": ("--multi_gpu --num_processes 2", "fp32", ()),
    "bf16": ("--multi_gpu --num_processes 2 --mixed_precision bf16", "bf16", ()),
    "one process": ("--cpu --num_processes 2", "fp32", ("--multi_gpu --num_processes N",)),
    "all differences at once": (
        "--cpu --num_processes 2 --mixed_precision bf16",
        "fp32",
        ("one process", "add precision=bf16"),
    ),
    "sharding": ("--use_fsdp --num_processes 2", "fp32", ("zero.stage=2",)),
}
LEFT = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
"""What a launch by another test may have left in the environment."""
LAUNCHER = """
import json, os, sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="accelerate")
main = command.load()
import torch.distributed.run
for options in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        sys.argv = ["accelerate", "launch", *options]
        main()
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"accelerate launch {' '.join(options)} failed")
"""
"""Launches one after another, by forks of a process that has imported what each of them would import for seconds."""
PRINTED = """
import json, os, sys
from pathlib import Path
if os.environ.get("RANK", "0") == "0":
    Path(sys.argv[1]).write_text(json.dumps(dict(os.environ)))
"""


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By name of a launch, the environment that `accelerate launch` gives its first process."""
    directory = tmp_path_factory.mktemp("launched")
    script = directory / "script.py"
    script.write_text(PRINTED)
    # Port 0: torchrun takes a free one.
    always = ("--num_machines", "1", "--dynamo_backend", "no", "--main_process_port", "0")
    launches = [
        [*always, *options.split(), str(script), str(directory / name)]
        for name, (options, _, _) in LAUNCHES.items()
    ]
    # torchrun leaves a directory of logs behind.
    environment = {name: value for name, value in os.environ.items() if name not in LEFT}
    environment["TMPDIR"] = str(directory)
    subprocess.run([sys.executable, "-c", LAUNCHER, json.dumps(launches)], env=environment, check=True)
    return {name: json.loads((directory / name).read_bytes()) for name in LAUNCHES}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launch_is_accepted_where_it_fits_and_else_answered_with_what_to_do(make_config, variables, name):
    _, precision, answers = LAUNCHES[name]
    with pytest.raises(ConfigError) if answers else nullcontext() as refused:
        check_launch(make_config(precision=precision), variables[name])
    told = refused.value.next_step if refused else ""
    assert all(answer in told for answer in answers)


def test_accumulation_by_the_launcher_is_refused_because_it_would_divide_losses_again(make_config):
    with pytest.raises(ConfigError, match="gradient_accumulation_steps") as refused:
        check_launch(make_config(), {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"})
    assert "training.micro_batch_size" in refused.value.next_step

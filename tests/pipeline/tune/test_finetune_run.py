"""A whole fine-tuning run, from Python and from the command line, and its settings: what they mean for updates, and
which are refused, also by launchers."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
from torch import nn

from cluster.artefacts.errors import ClozeError, ConfigError, MismatchError, MissingInputError
from cluster.artefacts.manifest import read_manifest
from models.config import ElmoConfig
from pipeline.config.loading import validate
from pipeline.tasks.settings import TrainingConfig, optimizer_with_rates
from pipeline.tune import runner
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.learner import check_launch
from pipeline.tune.preview import preview
from pipeline.tune.run import finetune
from pipeline.tune.scores import read_scores
from pipeline.tune.trainer import UpdatePlan, plan_updates
from pipeline.tune.trials import example_order, sample_examples
from tests.pipeline.command import cloze, invoke
from tests.pipeline.test_publishing import IS_INSTALLED, calls, stand_in
from tests.pipeline.tune.conftest import (
    DECODER,
    ENCODER_DECODER,
    MODEL,
    SIDES,
    SIZES,
    TRAINING,
    UNREAD,
    write_tokenizer,
)


@pytest.fixture
def trained(monkeypatch) -> list[int]:
    """The seeds that are trained."""
    seeds: list[int] = []
    original = runner.train

    def train(accelerator, model, task, settings, seed, state_file, **others):
        seeds.append(seed)
        return original(accelerator, model, task, settings, seed, state_file, **others)

    monkeypatch.setattr(runner, "train", train)
    return seeds


def test_separable_task_is_learnt_scored_tracked_and_committed(tune, recorder):
    tuned = tune(compare_random=True, training=TRAINING | {"epochs": 8}, seeds=[1, 2])
    assert [(s.initial, s.reference, s.seed) for s in tuned.scores] == [
        (*start, seed) for start in (("pretrained", "tiny@5"), ("random", None)) for seed in (1, 2)
    ]
    assert all(score.value > 0.95 for score in tuned.scores)
    assert {(score.num_train_examples, score.num_evaluation_examples) for score in tuned.scores} == {(64, 45)}
    assert tuned.scores == read_scores(tuned.directory)
    # Metrics lie under the task, and are tied to the checkpoint.
    pretrained, _, random, _ = recorder.runs
    assert pretrained.name == "small/tiny@5/reviews-pretrained-1"
    assert (pretrained.tags["cloze.reference"], random.tags["cloze.reference"]) == ("tiny@5", "")
    assert ({"reviews/accuracy": tuned.scores[0].value}, 64, "m-1") in pretrained.metrics
    assert {model_id for _, _, model_id in random.metrics} == {None}


def test_artefact_names_its_inputs_and_its_predictions_give_the_reported_accuracy(tune, checkpoint):
    tuned = tune(training=TRAINING | {"epochs": 1, "lr": 1e-3})
    manifest = read_manifest(tuned.directory)
    assert [(e.kind, e.uri.rsplit("/", 1)[-1]) for e in manifest.inputs] == [
        ("checkpoint", "tiny@5"),
        ("source-file", "tokenizer.json"),
        ("source-file", "train.tsv"),
        ("source-file", "dev.tsv"),
    ]
    assert manifest.inputs[0].fingerprint == checkpoint.fingerprint
    assert [entry.path for entry in manifest.files] == [
        "losses-reviews-pretrained-1.json",
        "predictions-reviews-pretrained-1.jsonl",
        "scores.json",
    ]
    assert str(tuned.config.out) not in str(manifest.config)
    lines = tuned.lines()
    assert len({line["id"] for line in lines}) == 45
    right = sum(line["label"] == line["prediction"] for line in lines)
    assert right / 45 == tuned.scores[0].metrics["accuracy"]


def test_same_seed_gives_identical_bytes_whatever_the_global_generators_and_another_seed_does_not(
    tune, tmp_path
):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one = tune(out=tmp_path / "a", seeds=[1, 2])
    assert torch.rand(1) == expected
    assert one.fingerprint == tune(out=tmp_path / "b", seeds=[1, 2]).fingerprint
    assert one.lines("reviews-pretrained-1") != one.lines("reviews-pretrained-2")


def test_finished_trainings_are_never_repeated_and_damage_costs_only_its_own(tune, trained):
    first = tune(seeds=[1, 2])
    before = read_manifest(first.directory)
    assert tune(seeds=[1, 2]).scores == first.scores
    (first.directory / "manifest.json").write_bytes(b"{")
    assert tune(seeds=[1, 2]).fingerprint == before.fingerprint
    before = read_manifest(first.directory)
    assert trained == [1, 2]
    (first.directory / "predictions-reviews-pretrained-2.jsonl").write_bytes(b"damaged")
    tune(seeds=[1, 2])
    assert trained == [1, 2, 2]
    assert read_manifest(first.directory) == before
    kept = first.directory / "quarantine" / "predictions-reviews-pretrained-2.jsonl"
    assert kept.read_bytes() == b"damaged"
    # Other settings are refused, and replacing keeps unchanged trainings.
    with pytest.raises(ConfigError, match="seeds was"):
        tune(seeds=[1, 2, 3])
    assert [score.seed for score in tune(seeds=[1, 2, 3], replace=True).scores] == [1, 2, 3]
    assert trained == [1, 2, 2, 3]


def test_neither_checkpoint_nor_scratch_is_refused(make_config):
    with pytest.raises(ConfigError) as refused:
        finetune(make_config(), None)
    assert "--from RUN" in refused.value.next_step


def test_diverging_training_is_reported_and_its_run_marked_failed(tune, recorder):
    with pytest.raises(ClozeError, match="not finite"):
        tune(training=TRAINING | {"lr": 1e38})
    assert recorder.runs[0].status == "FAILED"


def test_each_training_is_a_run_in_wandb_with_the_id_that_it_has_in_mlflow(
    make_config, checkpoint, tmp_path, monkeypatch
):
    stand_in(tmp_path, monkeypatch)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = make_config(wandb={"offline": True}, log_every_updates=8)
    scores = finetune(config, dataclasses.replace(checkpoint, model_id=None))
    begun = [(options["name"], options["id"]) for (options,) in calls(config.runs_dir, "init")]
    names = [f"small/tiny@5/reviews-pretrained-{seed}" for seed in (1, 2)]
    tracked = read_manifest(config.out / "small" / "tiny@5").stats["tracked_runs"].values()
    assert begun == list(zip(names, tracked, strict=True))
    logged = [row for (row,) in calls(config.runs_dir, "log")]
    half = len(logged) // 2
    for rows, score in zip((logged[:half], logged[half:]), scores, strict=True):
        assert [row["step"] for row in rows if "reviews/loss" in row] == [8, 16, 24]
        assert rows[-1] == {"step": 24, "reviews/accuracy": score.metrics["accuracy"]}
    assert calls(config.runs_dir, "finish") == [[0], [0]]


@pytest.mark.skipif(IS_INSTALLED, reason="the client is installed")
def test_a_missing_client_is_told_before_tasks_are_read(make_config, checkpoint, recorder):
    with pytest.raises(MissingInputError, match="client"):
        finetune(make_config(wandb={}, tasks={"x": {"kind": "sst2", "path": "nowhere"}}), checkpoint)
    assert not recorder.runs


def test_preview_counts_examples_tokens_updates_and_parameters_and_writes_nothing(
    make_config, checkpoint, tmp_path
):
    before = set(tmp_path.rglob("*"))
    found = preview(make_config(search={"lr": [1e-3, 5e-3]}), checkpoint)
    (task,) = found["tasks"]
    counts = {
        "train_examples": 64,
        "evaluation_examples": 45,
        "test_examples": 0,
        "trainings": 4,
        "updates": 24,
    }
    # `<s> WORDS good film </s>` with one to five words.
    counts |= {"tokens": sum(4 + 1 + n % 5 for n in range(64)), "full_share": 0.0}
    named = {"task": "reviews", "kind": "sst2", "trained_parameters": found["parameters"]}
    assert task.items() >= (counts | named).items()
    assert found["reference"] == "tiny@5"
    assert found["seconds"] > 0
    # Some texts are cut, and a method trains less.
    training = {"epochs": 1, "batch_size": 8, "max_length": 8, "peft": {"kind": "bitfit"}}
    found = preview(make_config(training=training), checkpoint)
    assert 0.3 < found["tasks"][0]["full_share"] < 0.5
    assert 0 < found["tasks"][0]["trained_parameters"] < found["parameters"] / 4
    # It refuses what the run would refuse.
    with pytest.raises(MismatchError, match=r"training\.max_length"):
        preview(make_config(training={"max_length": 64}), checkpoint)
    with pytest.raises(MissingInputError, match=r"train\.tsv"):
        preview(make_config(tasks={"reviews": {"kind": "sst2", "path": tmp_path / "none"}}), checkpoint)
    assert set(tmp_path.rglob("*")) == before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The directory that commands are typed in, with rows and a tokenizer."""
    labelled = [("bad", "no"), ("good", "yes")] * 20
    rows = "".join(f"{word} film {n},very {word},{label}\n" for n, (word, label) in enumerate(labelled))
    (tmp_path / "pairs.csv").write_text(
        f'premise,hypothesis,gold\n"a good film,\nreally",very good,yes\n{rows}'
    )
    (tmp_path / "own.jsonl").write_text('{"ask": "say", "answer": "yes"}\n' * 20)
    (tmp_path / "some.yaml").write_text("name: some\n")
    write_tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def described(kind: str, file: str, columns: str, network: str = "encoder") -> list[str]:
    """The command with options and settings of a task on own rows, from random weights."""
    scratch = f"scratch={{model: {json.dumps(SIZES | {'network': network})}, tokenizer: tokenizer.json}}"
    task = ["--task", kind, "--train", file, "--columns", columns, "--from", "random"]
    return ["finetune", *task, scratch, "training.max_length=32", "seeds=[1]", "--json"]


LABELS = ("rows_classification", "pairs.csv", "text=premise,text_b=hypothesis,label=gold")
RESPONSES = ("instructions", "own.jsonl", "prompt=ask,response=answer", "decoder")


def test_own_rows_are_trained_on_without_a_file_of_settings_and_get_a_page(folder):
    answer = json.loads(cloze(*described(*LABELS), "training.epochs=1", "--html", "page.html"))
    (score,) = answer["scores"]
    assert answer["directory"] == "finetuned/rows_classification/random"
    assert score["num_train_examples"] + score["num_evaluation_examples"] == 41
    assert "<html" in (folder / "page.html").read_text()


@pytest.mark.parametrize(("task", "examples"), [(LABELS, 41), (RESPONSES, 20)], ids=["labels", "responses"])
def test_dry_run_of_own_rows_starts_nothing(folder, task, examples):
    before = set(folder.rglob("*"))
    (found,) = json.loads(cloze(*described(*task), "--dry-run"))["tasks"]
    assert (found["kind"], found["trainings"]) == (task[0], 1)
    assert found["train_examples"] + found["evaluation_examples"] == examples
    # Conversations are cut or packed, and told of.
    assert bool(found["notes"]) == (task == RESPONSES)
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ("neither a configuration nor a task", "Next: ")),
        (["--task", "rows_classification", "--columns", "text"], ("--columns text", "Next: ")),
        (["some.yaml", "--task", "sst2"], ("some.yaml", "--task", "Next: ")),
        (["--task", "sst2"], ("tasks.sst2.path",)),
    ],
)
def test_options_that_do_not_fit_are_refused_with_a_way_out(folder, arguments, said):
    done = invoke("finetune", *arguments, "--from", "random")
    assert isinstance(done.exception, ConfigError)
    assert all(each in str(done.exception) for each in said)


REVIEWS = {"kind": "sst2", "path": "unread"}
LORA = {"kind": "lora", "rank": 2}


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


def test_order_is_a_pure_function_of_seed_and_epoch():
    orders = [example_order(*key, 50).tolist() for key in ((1, 0), (1, 0), (1, 1), (2, 0))]
    assert orders[0] == orders[1]
    assert len({*map(tuple, orders)}) == 3


@pytest.mark.parametrize(("examples", "batch", "micro"), [(10, 4, 2), (10, 4, 3), (7, 8, 8), (1, 4, 1)])
def test_every_example_is_in_one_micro_batch_of_every_epoch(examples, batch, micro):
    plan = UpdatePlan(TrainingConfig(epochs=2, batch_size=batch), examples, micro, seed=1)
    batches = plan.epoch_batches(1)
    assert 2 * len(batches) == plan.num_updates
    pieces = [piece for rows in batches for piece in plan.micro_batches(rows)]
    assert sorted(np.concatenate(pieces)) == list(range(examples))
    assert max(map(len, pieces)) <= micro


def test_rate_rises_linearly_then_falls_to_just_above_zero():
    settings = TrainingConfig(lr=1.0, warmup_fraction=0.2, epochs=1, batch_size=1)
    rates = [UpdatePlan(settings, 10, 1, seed=1).learning_rate(update) for update in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert UpdatePlan(settings, 1, 1, seed=1).learning_rate(0) == 1.0


def test_limited_training_examples_are_a_fixed_sample():
    assert sample_examples(5, None).tolist() == sample_examples(5, 9).tolist() == [0, 1, 2, 3, 4]
    chosen = sample_examples(1000, 10).tolist()
    assert len(set(chosen)) == 10
    assert chosen == sample_examples(1000, 10).tolist() == sorted(chosen)
    assert set(sample_examples(1000, 5)) <= set(chosen)


def test_optimizer_is_adamw_of_its_authors_unless_the_run_or_the_task_says_otherwise():
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


@pytest.mark.parametrize(
    ("launch", "further", "precision", "answers"),
    [
        ("--cpu --num_processes 1", {}, "fp32", ()),
        ("--multi_gpu --num_processes 2", {}, "fp32", ()),
        ("--multi_gpu --num_processes 2 --mixed_precision bf16", {}, "bf16", ()),
        ("--cpu --num_processes 2", {}, "fp32", ("--multi_gpu --num_processes N",)),
        ("--cpu --num_processes 2 --mixed_precision bf16", {}, "fp32", ("--multi_gpu", "precision=bf16")),
        ("--use_fsdp --num_processes 2", {}, "fp32", ("zero.stage=2",)),
        # It would divide losses again.
        (
            "--cpu --num_processes 1",
            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"},
            "fp32",
            ("micro_batch_size",),
        ),
    ],
)
def test_launch_is_accepted_where_it_fits_and_else_answered_with_what_to_do(
    make_config, monkeypatch, launch, further, precision, answers
):
    # Another test may have left them.
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    always = "--num_machines 1 --num_cpu_threads_per_process 1 --main_process_port 0 --dynamo_backend no"
    options = launch_command_parser().parse_args(
        [*f"{always} --mixed_precision no {launch}".split(), "script"]
    )
    several = options.multi_gpu or options.use_fsdp
    found = prepare_multi_gpu_env(options) if several else prepare_simple_launcher_cmd_env(options)[1]
    with pytest.raises(ConfigError) if answers else nullcontext() as refused:
        check_launch(make_config(precision=precision), found | further)
    assert not refused or all(answer in refused.value.next_step for answer in answers)

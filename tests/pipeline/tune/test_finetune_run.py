"""A whole fine-tuning run, from Python and from the command line: learning, determinism, continuing, repairing,
refusing; and its dry run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from cluster.artefacts.errors import ClozeError, ConfigError, MismatchError, MissingInputError
from cluster.artefacts.manifest import read_manifest
from pipeline.tune import runner
from pipeline.tune.preview import preview
from pipeline.tune.run import finetune
from pipeline.tune.scores import read_scores
from tests.pipeline.command import invoke
from tests.pipeline.test_wandb import IS_INSTALLED, calls, stand_in
from tests.pipeline.tune.conftest import SIZES, TRAINING, scratch_in, write_tokenizer


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
    starts = [("pretrained", "tiny@5"), ("random", None)]
    assert [(s.initial, s.reference, s.seed) for s in tuned.scores] == [
        (*start, seed) for start in starts for seed in (1, 2)
    ]
    assert all(score.value > 0.95 for score in tuned.scores)
    assert all((s.num_train_examples, s.num_evaluation_examples) == (64, 45) for s in tuned.scores)
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


def test_network_without_a_checkpoint_comes_from_scratch(tune, make_config, tokenizer_path):
    tuned = tune(None, scratch=scratch_in(tokenizer_path.parent))
    assert [(score.initial, score.reference) for score in tuned.scores] == [("random", None)]
    assert tuned.directory.name == "random"
    with pytest.raises(ConfigError, match="--from RUN"):
        finetune(make_config(), None)


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
    logged = [row for row, _ in calls(config.runs_dir, "log")]
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
    assert (found["reference"], task["task"], task["kind"]) == ("tiny@5", "reviews", "sst2")
    assert (task["train_examples"], task["evaluation_examples"], task["test_examples"]) == (64, 45, 0)
    # `<s> WORDS good film </s>` with one to five words.
    assert task["tokens"] == sum(4 + 1 + n % 5 for n in range(64))
    assert (task["trainings"], task["updates"], task["full_share"]) == (4, 24, 0.0)
    assert task["trained_parameters"] == found["parameters"]
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


PAIRS = 'premise,hypothesis,gold\n"a good film,\nreally",very good,yes\n' + "".join(
    f"{word} film {n},very {word},{label}\n"
    for n, (word, label) in enumerate([("bad", "no"), ("good", "yes")] * 20)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The directory that commands are typed in, with rows and a tokenizer."""
    (tmp_path / "pairs.csv").write_text(PAIRS, encoding="utf-8")
    asked = [{"ask": f"say {number}", "answer": "yes"} for number in range(20)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (tmp_path / "some.yaml").write_text("name: some\n")
    write_tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def described(kind: str, file: str, columns: str, network: str = "encoder") -> list[str]:
    """The command with options and settings of a task on own rows, from random weights."""
    scratch = f"scratch={{model: {json.dumps(SIZES | {'network': network})}, tokenizer: tokenizer.json}}"
    task = ["--task", kind, "--train", file, "--columns", columns, "--from", "random"]
    return ["finetune", *task, scratch, "training.max_length=32", "seeds=[1]"]


LABELS = ("rows_classification", "pairs.csv", "text=premise,text_b=hypothesis,label=gold")
RESPONSES = ("instructions", "own.jsonl", "prompt=ask,response=answer", "decoder")


def test_own_rows_are_trained_on_without_a_file_of_settings_and_get_a_page(folder):
    done = invoke(*described(*LABELS), "training.epochs=1", "--html", "page.html", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    (score,) = answer["scores"]
    assert answer["directory"] == "finetuned/rows_classification/random"
    assert score["num_train_examples"] + score["num_evaluation_examples"] == 41
    assert "<html" in (folder / "page.html").read_text()


@pytest.mark.parametrize(("task", "examples"), [(LABELS, 41), (RESPONSES, 20)], ids=["labels", "responses"])
def test_dry_run_of_own_rows_starts_nothing(folder, task, examples):
    before = set(folder.rglob("*"))
    done = invoke(*described(*task), "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["tasks"]
    assert (found["kind"], found["trainings"]) == (task[0], 1)
    assert found["train_examples"] + found["evaluation_examples"] == examples
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ("neither a configuration nor a task", "Next: ")),
        (["--task", "rows_classification", "--columns", "text"], ("--columns text cannot be read", "Next: ")),
        (["some.yaml", "--task", "sst2"], ("some.yaml describes the tasks, and so do --task", "Next: ")),
        (["--task", "sst2"], ("tasks.sst2.path",)),
    ],
)
def test_options_that_do_not_fit_are_refused_with_a_way_out(folder, arguments, said):
    done = invoke("finetune", *arguments, "--from", "random")
    assert isinstance(done.exception, ConfigError)
    assert all(each in str(done.exception) for each in said)

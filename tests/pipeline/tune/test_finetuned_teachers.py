"""Distillation: the loss against its formula, teachers of every kind, comparison, lineage, and resumed trainings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from cluster.artefacts.errors import MismatchError
from cluster.artefacts.manifest import read_manifest
from models.distillation import hidden_distance
from models.features import hidden_states
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from pipeline.commands.verbs import app
from pipeline.inspect.lineage import trace
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.distillation import DistilledTask
from pipeline.tune.export import export
from pipeline.tune.forms import FORMS
from pipeline.tune.forms.base import TaskContext
from pipeline.tune.run import finetune
from pipeline.tune.settings import DistillSettings, TrainingConfig
from pipeline.tune.task import TaskData
from pipeline.tune.tasks.forms import Answer, Example, Question, TaggedSentence
from pipeline.tune.tasks.question_answering import SquadConfig
from pipeline.tune.tasks.rows import RowsClassificationConfig, RowsRegressionConfig
from pipeline.tune.tasks.tagging import ConllNerConfig
from pipeline.tune.teacher import Teacher, load_teacher, resolve_teacher
from pipeline.tune.tokenizer import TextTokenizer
from pipeline.tune.trials import plan_trials, scores_directory
from tests.pipeline.tune.conftest import MODEL, Recorder, make_checkpoint, write_sst2, write_tokenizer

STUDENT = dataclasses.replace(MODEL, dropout=0.0, attention_dropout=0.0)
TEACHER = dataclasses.replace(STUDENT, num_layers=2, intermediate_size=96)
TRAINING = {"epochs": 3, "batch_size": 8, "lr": 5e-3, "max_length": 16}


@dataclasses.dataclass
class Taught:
    """A fine-tuned teacher, and what its student starts from."""

    folder: Path
    sst2: Path
    scores: Path
    student: Any


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> Taught:
    folder = tmp_path_factory.mktemp("distilled")
    sst2, tokenizer = write_sst2(folder / "SST-2", 64, 45), write_tokenizer(folder / "tokenizer.json")
    start = make_checkpoint(folder / "large", tokenizer, network=MaskedLanguageModel(TEACHER))
    config = configured(folder, sst2, name="teacher")
    finetune(config, start, track=unlogged())
    student = make_checkpoint(folder / "small", tokenizer, "d" * 32, network=MaskedLanguageModel(STUDENT))
    return Taught(folder, sst2, scores_directory(config, start), student)


def configured(folder: Path, sst2: Path, name: str = "student", distill: dict | None = None, **changes: Any):
    plain = {
        "name": name,
        "out": folder / "finetuned",
        "runs_dir": folder / "runs",
        "tasks": {"reviews": {"kind": "sst2", "path": sst2}},
        "training": TRAINING | ({"distill": distill} if distill else {}),
        "seeds": [1],
        "num_threads": 1,
        "save_models": True,
    }
    return FinetuneConfig.model_validate(plain | changes)


def unlogged() -> Any:
    """Takes the place of MLflow."""
    return Recorder()


def context_of(form: str, tokenizer: TextTokenizer) -> TaskContext:
    """A context of two rows."""
    config, labels, data = {
        "classification": (
            RowsClassificationConfig(train=Path("unread")),
            ("bad", "good"),
            (Example("a", "the good film", None, 1), Example("b", "bad plot and film", None, 0)),
        ),
        "regression": (
            RowsRegressionConfig(train=Path("unread")),
            (),
            (Example("a", "the good film", None, 0.5), Example("b", "bad plot and film", None, -2.0)),
        ),
        "tags": (
            ConllNerConfig(train=Path("unread"), evaluation=Path("unread")),
            ("B-X", "O"),
            (
                TaggedSentence("a", ("the", "good", "film"), ("O", "B-X", "O")),
                TaggedSentence("b", ("one",), ("O",)),
            ),
        ),
        "spans": (
            SquadConfig(train=Path("unread"), evaluation=Path("unread"), max_query_length=4),
            (),
            (
                Question("a", "the plot", "the good film was bad", (Answer("good film", 4),)),
                Question("b", "two", "one two", (Answer("two", 4),)),
            ),
        ),
    }[form]
    settings = TrainingConfig(
        max_length=16, distill=DistillSettings(teacher="t", temperature=3.0, soft_share=0.25)
    )
    return TaskContext(config, TaskData(data, data, labels, ()), settings, STUDENT, tokenizer)


def form_of(form: str):
    return FORMS["classification" if form == "regression" else form]


def trained(task, seed: int):
    model = task.build()
    init_weights(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return model.eval()


def distilled_task(form: str, tokenizer_path: Path, folder: Path, columns=(), **settings) -> DistilledTask:
    context = context_of(form, TextTokenizer(tokenizer_path))
    assert context.settings.distill is not None
    distill = context.settings.distill.model_copy(update=settings)
    context = dataclasses.replace(context, settings=context.settings.model_copy(update={"distill": distill}))
    task = form_of(form)(dataclasses.replace(context, network=TEACHER))
    pretrained = make_checkpoint(folder / "teacher", tokenizer_path, network=trained(task, 11))
    pretrained = dataclasses.replace(pretrained, model=TEACHER)
    return DistilledTask.prepare(form_of(form), context, Teacher(pretrained, columns), torch.device("cpu"))


def outputs_of(task, model, batch, form):
    """Distributions [n, classes], what each counts, and right answers, from the networks' logits."""
    logits = model(**batch.inputs)
    if form == "spans":
        present = batch.inputs["attention_mask"]
        return [
            (logits[row, present[row], side][None], 0.5, batch.targets["answer"][row, side][None])
            for row in range(2)
            for side in range(2)
        ]
    if form == "tags":
        places = batch.targets["positions"]
        return [
            (logits[row, places[row, word]][None], 1.0, batch.targets["labels"][row, word][None])
            for row in range(2)
            for word in range(places.shape[1])
            if places[row, word] >= 0
        ]
    return [(logits, 1.0, batch.targets["labels"])]


@pytest.mark.parametrize("form", ["classification", "tags", "spans"])
def test_loss_is_the_divergence_at_a_temperature_beside_the_loss_of_labels(form, tokenizer_path, tmp_path):
    task = distilled_task(form, tokenizer_path, tmp_path)
    student = trained(task, 5)
    batch = task.batch(task.train, np.arange(2))
    expected = torch.zeros(())
    mine, wanted = (outputs_of(task, model, batch, form) for model in (student, task.teacher))
    for (logits, weight, right), (teacher, _, _) in zip(mine, wanted, strict=True):
        soft = F.kl_div((logits / 3).log_softmax(-1), (teacher / 3).softmax(-1), reduction="sum") * 3**2
        hard = F.cross_entropy(logits, right, reduction="sum")
        expected = expected + weight * (0.25 * soft + 0.75 * hard)
    loss = task.loss(student, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    loss.backward()
    assert all(parameter.grad is None for parameter in task.teacher.parameters())


def test_numbers_are_learned_from_the_teacher_by_their_squared_distance(tokenizer_path, tmp_path):
    task = distilled_task("regression", tokenizer_path, tmp_path)
    student, batch = trained(task, 5), task.batch(task.train, np.arange(2))
    mine, wanted = (model(**batch.inputs)[:, 0] for model in (student, task.teacher))
    right = batch.targets["labels"]
    expected = 0.25 * (mine - wanted).square().sum() + 0.75 * (mine - right).square().sum()
    torch.testing.assert_close(task.loss(student, batch), expected)


def test_hidden_states_are_compared_by_layer_and_by_direction(tokenizer_path, tmp_path):
    task = distilled_task("classification", tokenizer_path, tmp_path, hidden_weight=2.0, soft_share=0.0)
    student, batch = trained(task, 5), task.batch(task.train, np.arange(2))
    plain = dataclasses.replace(task, settings=task.settings.model_copy(update={"hidden_weight": 0.0}))
    mine, theirs = (hidden_states(model, **batch.inputs) for model in (student, task.teacher))
    present = batch.inputs["attention_mask"]
    # The student's embeddings and only layer, the teacher's embeddings and second layer.
    cosines = [
        F.cosine_similarity(mine[a][present], theirs[b][present], dim=-1).mean() for a, b in ((0, 0), (1, 2))
    ]
    expected = plain.loss(student, batch) + 2.0 * (1 - sum(cosines) / 2) * 2
    torch.testing.assert_close(task.loss(student, batch), expected)
    same = hidden_distance([*mine], [*mine], present)
    torch.testing.assert_close(same, torch.zeros(()), atol=1e-6, rtol=0)
    wide = dataclasses.replace(TEACHER, hidden_size=64)
    context = context_of("classification", TextTokenizer(tokenizer_path))
    distill = DistillSettings(teacher="t", hidden_weight=1.0)
    context = dataclasses.replace(context, settings=TrainingConfig(max_length=16, distill=distill))
    teacher = Teacher(
        dataclasses.replace(make_checkpoint(tmp_path / "w", tokenizer_path), model=wide), (0, 1)
    )
    with pytest.raises(MismatchError, match="they are 32 and 64 wide"):
        DistilledTask.prepare(FORMS["classification"], context, teacher, torch.device("cpu"))


def test_teacher_with_another_order_of_labels_answers_in_the_order_of_the_task(tokenizer_path, tmp_path):
    plain = distilled_task("classification", tokenizer_path, tmp_path)
    (tmp_path / "teacher").rename(tmp_path / "kept")
    turned = distilled_task("classification", tokenizer_path, tmp_path, columns=(1, 0))
    batch = plain.batch(plain.train, np.arange(2))
    torch.testing.assert_close(turned.teacher(**batch.inputs), plain.teacher(**batch.inputs)[:, [1, 0]])


def test_student_is_trained_compared_and_traced_to_its_teacher(taught):
    config = configured(taught.folder, taught.sst2, distill={"teacher": str(taught.scores)})
    (score,) = finetune(config, taught.student, track=unlogged())
    directory = scores_directory(config, taught.student)
    sizes = score.distillation
    assert sizes is not None
    assert sizes.student_parameters < sizes.teacher_parameters
    assert sizes.student_bytes == 4 * sizes.student_parameters
    manifest = read_manifest(directory)
    teacher = orjson.loads((taught.scores / "scores.json").read_bytes())["scores"][0]
    assert score.baselines["teacher"] == pytest.approx(teacher["metrics"])
    assert read_manifest(taught.scores).fingerprint in {entry.fingerprint for entry in manifest.inputs}
    speeds = manifest.stats["examples_per_second"]["reviews-pretrained-1"]
    assert min(speeds["teacher"], speeds["student"]) > 0
    nodes = {node.uri: node.kind for node in trace(str(directory), taught.folder / "runs").inputs}
    assert nodes[str(taught.scores)] == "scores"
    shown = CliRunner().invoke(app, ["finetune", "show", str(directory), "--errors", "0"])
    assert shown.exit_code == 0
    assert "teachers and students" in shown.stdout
    # The same command again finds everything done.
    assert finetune(config, taught.student, track=unlogged()) == [score]


def test_training_that_asks_its_teacher_nothing_is_the_one_without_a_teacher(taught):
    silent = configured(
        taught.folder, taught.sst2, "silent", distill={"teacher": str(taught.scores), "soft_share": 0.0}
    )
    alone = configured(taught.folder, taught.sst2, "alone")
    contents = []
    for config in (silent, alone):
        finetune(config, taught.student, track=unlogged())
        directory = scores_directory(config, taught.student)
        contents.append((directory / "model-reviews-pretrained-1.safetensors").read_bytes())
    assert contents[0] == contents[1]


class Killed(BaseException):
    pass


class Stopping(Recorder):
    """Ends the training, like a kill, after an update; only once."""

    stopped = False

    def __call__(self, *arguments, **named):
        run = super().__call__(*arguments, **named)
        log = run.log_metrics

        def stop(metrics, step, model_id=None):
            log(metrics, step, model_id)
            if step >= 14 and not self.stopped:
                self.stopped = True
                raise Killed

        run.log_metrics = stop
        return run


def test_killed_training_with_a_teacher_is_bit_identical_to_an_uninterrupted_one(taught):
    fingerprints = []
    for name in ("killed", "whole"):
        config = configured(
            taught.folder,
            taught.sst2,
            "same",
            distill={"teacher": str(taught.scores), "hidden_weight": 0.5},
            out=taught.folder / name,
            save_every_s=0,
            log_every_updates=1,
        )
        tracker: Any = Stopping()
        tracker.stopped = name == "whole"
        if name == "killed":
            with pytest.raises(Killed):
                finetune(config, taught.student, track=tracker)
            assert list((taught.folder / name).rglob("in-progress/*.safetensors"))
        finetune(config, taught.student, track=tracker)
        fingerprints.append(read_manifest(scores_directory(config, taught.student)).fingerprint)
    assert fingerprints[0] == fingerprints[1]


def test_export_for_transformers_is_a_teacher_and_its_place_changes_no_identity(taught):
    keys = []
    for name in ("hf", "moved"):
        export(str(taught.scores), taught.folder / name, runs_dir=taught.folder / "runs")
        config = configured(taught.folder, taught.sst2, distill={"teacher": str(taught.folder / name)})
        trials = plan_trials(config, taught.student)
        keys.append((trials.key, trials.identity(trials.all[0])))
    assert keys[0] == keys[1]
    (taught.folder / "moved/manifest.json").unlink()
    config_file = taught.folder / "moved/config.json"
    found = json.loads(config_file.read_text())
    assert len(found["id2label"]) == 2
    for names, columns in (
        (("LABEL_0", "LABEL_1"), (0, 1)),
        (tuple(found["id2label"].values())[::-1], (1, 0)),
    ):
        found["id2label"] = {str(number): name.upper() for number, name in enumerate(names)}
        config_file.write_text(json.dumps(found))
        trials = plan_trials(config, taught.student)
        assert trials.teachers["reviews"].columns == columns
    assert trials.key != keys[0][0] or columns == (1, 0)


def test_network_that_cannot_teach_is_refused_by_name(taught, tmp_path, tokenizer_path):
    def resolve(reference, labels=("negative", "positive")):
        return resolve_teacher("reviews", str(reference), taught.folder / "runs", labels)

    with pytest.raises(MismatchError, match=r"knows the labels .*, but the task reviews has x, y, z"):
        resolve(taught.scores, ("x", "y", "z"))
    with pytest.raises(MismatchError, match="random stands for random weights"):
        resolve("random")
    task = form_of("tags")(context_of("tags", TextTokenizer(tokenizer_path)))
    found = resolve(taught.scores, ())
    with pytest.raises(MismatchError, match=r"the teacher .* does not fit the network: missing scores\.bias"):
        load_teacher(found, task, torch.device("cpu"))
    path = tmp_path / "rows.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n' * 20)
    tasks = {"pairs": {"kind": "rows_generation", "train": path}}
    gpt = CausalLanguageModel(dataclasses.replace(MODEL, network="decoder"))
    decoder = make_checkpoint(tmp_path / "gpt", tokenizer_path, network=gpt)
    config = configured(tmp_path, taught.sst2, distill={"teacher": str(taught.scores)}, tasks=tasks)
    with pytest.raises(MismatchError, match="cannot have a teacher"):
        plan_trials(config, decoder)

"""Distillation: the loss against its formula, teachers of every kind, comparison and lineage."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from cluster.artefacts.errors import MismatchError
from cluster.artefacts.manifest import Manifest, read_manifest
from models.distillation import hidden_distance
from models.features import hidden_states
from models.language_models import MaskedLanguageModel
from pipeline.inspect.lineage import trace
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.distillation import DistilledTask, Teacher, load_teacher, resolve_teacher
from pipeline.tune.export import export
from pipeline.tune.forms import FORMS
from pipeline.tune.run import finetune
from pipeline.tune.scores import read_scores
from pipeline.tune.trials import Trials, plan_trials, scores_directory
from tests.pipeline.command import invoke
from tests.pipeline.tune.conftest import (
    MODEL,
    TRAINING,
    Recorder,
    config_in,
    enlarged,
    make_checkpoint,
    prepared_rows,
    two_rows,
    write_sst2,
    write_tokenizer,
)

pytestmark = pytest.mark.usefixtures("recorder")
STUDENT = dataclasses.replace(MODEL, dropout=0.0, attention_dropout=0.0)
TEACHER = dataclasses.replace(STUDENT, num_layers=2, intermediate_size=96)


@dataclasses.dataclass
class Taught:
    """A fine-tuned teacher, and what its student starts from."""

    folder: Path
    scores: Path
    student: Any

    def config(self, name: str, teacher: object = None, distill: Any = (), **changes: Any) -> FinetuneConfig:
        """A training with the teacher, or another one."""
        asked = {"distill": {"teacher": str(teacher or self.scores), **dict(distill)}}
        training = {"training": TRAINING | asked, "save_models": True, "seeds": [1]}
        return config_in(self.folder, name=name, **training | changes)

    def plan(self, teacher: object) -> Trials:
        return plan_trials(self.config("student", teacher), self.student)

    def train(self, config: FinetuneConfig) -> tuple[Path, Manifest]:
        finetune(config, self.student)
        directory = scores_directory(config, self.student)
        return directory, read_manifest(directory)

    def export(self, folder: Path) -> Path:
        export(str(self.scores), folder, runs_dir=self.folder / "runs")
        return folder


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> Taught:
    folder = tmp_path_factory.mktemp("distilled")
    write_sst2(folder / "SST-2", 64, 45)
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    start = make_checkpoint(folder / "large", tokenizer, network=MaskedLanguageModel(TEACHER))
    config = config_in(folder, name="teacher", seeds=[1], save_models=True)
    with Recorder():
        finetune(config, start)
    student = make_checkpoint(folder / "small", tokenizer, "d" * 32, network=MaskedLanguageModel(STUDENT))
    return Taught(folder, scores_directory(config, start), student)


def distilled_task(
    form: str, tokenizer: TextTokenizer, folder: Path, columns=(), **settings
) -> tuple[DistilledTask, Any, Any]:
    """The task of two rows with a teacher of random weights, a student, and the batch of both rows."""
    distill = {"teacher": "t", "temperature": 3.0, "soft_share": 0.25} | settings
    context = two_rows(form, tokenizer, STUDENT, distill=distill)
    teacher = enlarged(prepared_rows(form, tokenizer, TEACHER).build(), seed=11)
    saved = make_checkpoint(folder / "teacher", tokenizer.path)
    save_file(teacher.state_dict(), saved.directory / "model.safetensors")
    found = Teacher(dataclasses.replace(saved, model=TEACHER), columns)
    task = DistilledTask(FORMS[context.config.form], context, found, torch.device("cpu"))
    return task, enlarged(task.build(), seed=5), task.batch(task.train, np.arange(2))


def outputs_of(model, batch, form):
    """Distributions [n, classes], what each counts, and right answers, from the networks' logits."""
    logits, targets = model(**batch.inputs), batch.targets
    if form == "spans":
        present = batch.inputs["attention_mask"]
        sides = [(row, side) for row in range(2) for side in range(2)]
        return [(logits[row, present[row], side], 0.5, targets["answer"][row, side]) for row, side in sides]
    if form == "tags":
        words = [*zip(*np.nonzero(targets["positions"].numpy() >= 0), strict=True)]
        places = targets["positions"]
        return [(logits[row, places[row, word]], 1.0, targets["labels"][row, word]) for row, word in words]
    return zip(logits, (1.0, 1.0), targets["labels"], strict=True)


@pytest.mark.parametrize("form", ["classification", "tags", "spans"])
def test_loss_is_the_divergence_at_a_temperature_beside_the_loss_of_labels(form, tokenizer, tmp_path):
    task, student, batch = distilled_task(form, tokenizer, tmp_path)
    expected = torch.zeros(())
    mine, wanted = (outputs_of(model, batch, form) for model in (student, task.teacher))
    for (logits, weight, right), (teacher, _, _) in zip(mine, wanted, strict=True):
        soft = F.kl_div((logits / 3).log_softmax(-1), (teacher / 3).softmax(-1), reduction="sum") * 3**2
        hard = F.cross_entropy(logits, right, reduction="sum")
        expected = expected + weight * (0.25 * soft + 0.75 * hard)
    loss = task.loss(student, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    loss.backward()
    assert all(parameter.grad is None for parameter in task.teacher.parameters())


def test_numbers_are_learned_from_the_teacher_by_their_squared_distance(tokenizer, tmp_path):
    task, student, batch = distilled_task("regression", tokenizer, tmp_path)
    mine, wanted = (model(**batch.inputs)[:, 0] for model in (student, task.teacher))
    right = batch.targets["labels"]
    expected = 0.25 * (mine - wanted).square().sum() + 0.75 * (mine - right).square().sum()
    torch.testing.assert_close(task.loss(student, batch), expected)


def test_hidden_states_are_compared_by_layer_and_by_direction(tokenizer, tmp_path):
    weights = {"hidden_weight": 2.0, "soft_share": 0.0}
    task, student, batch = distilled_task("classification", tokenizer, tmp_path, **weights)
    mine, theirs = (hidden_states(model, **batch.inputs) for model in (student, task.teacher))
    present = batch.inputs["attention_mask"]
    # The student's embeddings and only layer, the teacher's embeddings and second layer.
    cosines = [
        F.cosine_similarity(mine[a][present], theirs[b][present], dim=-1).mean() for a, b in ((0, 0), (1, 2))
    ]
    found = task.loss(student, batch)
    task.settings = task.settings.model_copy(update={"hidden_weight": 0.0})
    torch.testing.assert_close(found, task.loss(student, batch) + 2.0 * (1 - sum(cosines) / 2) * 2)
    same = hidden_distance([*mine], [*mine], present)
    torch.testing.assert_close(same, torch.zeros(()), atol=1e-6, rtol=0)


def test_teacher_of_another_width_is_refused_for_hidden_states(tokenizer, tmp_path):
    context = two_rows("classification", tokenizer, distill={"teacher": "t", "hidden_weight": 1.0})
    saved = make_checkpoint(tmp_path / "wide", tokenizer.path)
    wide = dataclasses.replace(saved, model=dataclasses.replace(TEACHER, hidden_size=64))
    with pytest.raises(MismatchError, match="32 and 64 wide"):
        DistilledTask(FORMS["classification"], context, Teacher(wide, (0, 1)), torch.device("cpu"))


def test_teacher_with_another_order_of_labels_answers_in_the_order_of_the_task(tokenizer, tmp_path):
    found = []
    for columns in ((), (1, 0)):
        (tmp_path / str(columns)).mkdir()
        task, _, batch = distilled_task("classification", tokenizer, tmp_path / str(columns), columns)
        found.append(task.teacher(**batch.inputs))
    torch.testing.assert_close(found[1], found[0][:, [1, 0]])


def test_student_is_trained_compared_and_traced_to_its_teacher(taught):
    config = taught.config("student")
    directory, manifest = taught.train(config)
    (score,) = read_scores(directory)
    sizes = score.distillation
    assert sizes is not None
    assert sizes.student_parameters < sizes.teacher_parameters
    assert sizes.student_bytes == 4 * sizes.student_parameters
    assert score.baselines["teacher"] == pytest.approx(read_scores(taught.scores)[0].metrics)
    assert read_manifest(taught.scores).fingerprint in {entry.fingerprint for entry in manifest.inputs}
    speeds = manifest.stats["examples_per_second"]["reviews-pretrained-1"]
    assert min(speeds["teacher"], speeds["student"]) > 0
    nodes = {node.uri: node.kind for node in trace(str(directory), taught.folder / "runs").inputs}
    assert nodes[str(taught.scores)] == "scores"
    assert "teachers and students" in invoke("finetune", "show", directory, "--errors", "0").stdout
    # The same command again finds everything done.
    assert finetune(config, taught.student) == [score]


def test_training_that_asks_its_teacher_nothing_is_the_one_without_a_teacher(taught):
    configs = taught.config("silent", distill={"soft_share": 0.0}), taught.config("alone", training=TRAINING)
    one, two = (taught.train(config)[0] / "model-reviews-pretrained-1.safetensors" for config in configs)
    assert one.read_bytes() == two.read_bytes()


def test_export_for_transformers_is_a_teacher_and_its_place_changes_no_identity(taught):
    plans = [taught.plan(taught.export(taught.folder / name)) for name in ("hf", "moved")]
    one, two = ((trials.key, trials.identity(trials.all[0])) for trials in plans)
    assert one == two


@pytest.mark.parametrize(
    ("names", "columns"), [(("LABEL_0", "LABEL_1"), (0, 1)), (("POSITIVE", "NEGATIVE"), (1, 0))]
)
def test_labels_of_a_network_from_elsewhere_are_put_in_the_order_of_the_task(
    taught, tmp_path, names, columns
):
    elsewhere = taught.export(tmp_path / "hf")
    (elsewhere / "manifest.json").unlink()
    file = elsewhere / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"id2label": dict(enumerate(names))}))
    assert taught.plan(elsewhere).teachers["reviews"].columns == columns


def test_network_that_cannot_teach_is_refused_by_name(taught, tmp_path, tokenizer):
    def resolve(reference, labels=("negative", "positive")):
        return resolve_teacher("reviews", str(reference), taught.folder / "runs", labels)

    with pytest.raises(MismatchError, match="x, y, z"):
        resolve(taught.scores, ("x", "y", "z"))
    with pytest.raises(MismatchError, match="random weights"):
        resolve("random")
    with pytest.raises(MismatchError, match=r"scores\.bias"):
        load_teacher(resolve(taught.scores, ()), prepared_rows("tags", tokenizer), torch.device("cpu"))
    (tmp_path / "rows.jsonl").write_text('{"source": "a", "target": "b"}\n' * 20)
    tasks = {"pairs": {"kind": "rows_generation", "train": tmp_path / "rows.jsonl"}}
    decoder = dataclasses.replace(taught.student, model=dataclasses.replace(MODEL, network="decoder"))
    with pytest.raises(MismatchError, match=r"pairs.* teacher"):
        plan_trials(taught.config("pairs", tasks=tasks), decoder)

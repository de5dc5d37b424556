"""Fine-tuned networks are read back from their scores, by name, and are the start of the next task, also from an object
store; and the whole road to them from pre-training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from cluster.artefacts.errors import (
    ConfigError,
    CorruptArtefactError,
    ExportError,
    MissingInputError,
    ReferenceNotFoundError,
)
from models.classifiers import SequenceClassifier
from pipeline.checkpoint.references import PretrainedModel, resolve_model, with_logged_model
from pipeline.config.loading import load_config
from pipeline.inspect.lineage import trace
from pipeline.pretrain.launch import create_run
from pipeline.run.config import PretrainConfig
from pipeline.run.lifecycle import replay
from pipeline.run.tracking import connect
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.distillation import resolve_teacher
from pipeline.tune.export import export, load_finetuned
from pipeline.tune.finetuned import resolve_start, split_scores
from pipeline.tune.networks import initial_network
from pipeline.tune.run import finetune
from pipeline.tune.summary import list_scores
from pipeline.tune.trials import plan_trials, scores_directory
from tests.object_store import behind_proxy
from tests.pipeline.command import invoke
from tests.pipeline.ranks import train
from tests.pipeline.real_text import write_text_store
from tests.pipeline.tasks.excerpts import EXCERPTS, objects
from tests.pipeline.tune.conftest import MODEL, prepare, write_sst2

URI = "s3://bucket/finetuned"


def start_at(reference: str, runs_dir: Path) -> PretrainedModel:
    found = resolve_start(reference, runs_dir)
    assert found is not None
    return found


def test_kept_network_comes_back_with_labels_and_tokenizer_and_is_repaired_without_training(tune, recorder):
    tuned = tune(save_models=True)
    found = load_finetuned(tuned.directory)
    assert (found.config, found.head) == (MODEL, "sequence_classification")
    assert found.labels == ("negative", "positive")
    assert found.state_dict.keys() == SequenceClassifier(MODEL, 2).state_dict().keys()
    tokenizer = tuned.directory / "tokenizer.json"
    assert found.tokenizer_json == tokenizer.read_text()
    # Damage is noticed, and repaired without training.
    tokenizer.write_text("{}")
    with pytest.raises(CorruptArtefactError, match=r"tokenizer\.json"):
        load_finetuned(tuned.directory)
    tune(save_models=True)
    assert len(recorder.runs) == 1
    assert load_finetuned(tuned.directory).labels == ("negative", "positive")


def test_one_of_several_trainings_must_be_named_and_is_a_start_of_its_own(tune, make_config, tmp_path):
    tuned = tune(save_models=True, seeds=[1, 2], training={"epochs": 1, "batch_size": 32, "max_length": 16})
    directory = tuned.directory
    with pytest.raises(ReferenceNotFoundError) as refused:
        load_finetuned(directory)
    with pytest.raises(ReferenceNotFoundError, match="reviews-random-9"):
        load_finetuned(directory, "reviews-random-9")
    found = load_finetuned(directory, "reviews-pretrained-2")
    saved = load_file(directory / "model-reviews-pretrained-2.safetensors")
    assert found.trial == "reviews-pretrained-2"
    assert all(torch.equal(tensor, saved[name]) for name, tensor in found.state_dict.items())
    # The name in the error's remedy is a reference as it stands, though the directory's own name holds an @.
    named = f"{directory}@reviews-pretrained-1"
    assert named in refused.value.next_step
    assert split_scores(named) == (directory, "reviews-pretrained-1")
    assert split_scores(str(directory)) == (directory, None)
    exported = export(named, directory.parent / "exported", runs_dir=tuned.config.runs_dir)
    assert load_file(exported.directory / "model.safetensors")
    starts = [start_at(f"{directory}@reviews-pretrained-{seed}", tmp_path) for seed in (1, 2)]
    config = make_config(name="next")
    assert len({plan_trials(config, start).key for start in starts}) == 2
    assert len({scores_directory(config, start) for start in starts}) == 2


def test_training_goes_on_from_a_fine_tuned_network_and_its_lineage_leads_back(
    tune, make_config, tokenizer, tmp_path
):
    tuned = tune(seeds=[1, 2], save_models=True)
    start = start_at(f"{tuned.directory}@reviews-pretrained-2", tmp_path)
    task = prepare(make_config().tasks["reviews"], tokenizer)
    own = initial_network(task, 3, start.state_dict()).state_dict()
    kept = load_file(tuned.directory / "model-reviews-pretrained-2.safetensors")
    encoder = [name for name in own if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(own[name], kept[name]) for name in encoder)
    following = tune(start, name="next", seeds=[3])
    assert following.scores[0].reference == f"{tuned.directory}@reviews-pretrained-2"
    (listed,) = list_scores(following.directory)
    assert listed.reference == following.scores[0].reference
    leads_to = trace(str(following.directory), tmp_path).inputs[0]
    assert (leads_to.kind, leads_to.uri, leads_to.problem) == ("scores", str(tuned.directory), "")


def test_scores_without_models_are_no_start_and_random_is_no_checkpoint(tune, tmp_path):
    with pytest.raises(ReferenceNotFoundError, match="save_models=true --replace"):
        resolve_start(str(tune().directory), tmp_path)
    assert resolve_start("random", tmp_path) is None


@pytest.fixture
def cache(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_published_scores_are_read_where_no_directory_is_left(tune, make_config, tmp_path, server, cache):
    tuned = tune(seeds=[1, 2], save_models=True, publish=URI)
    place = f"{URI}/small/tiny@5"
    here = start_at(f"{tuned.directory}@reviews-pretrained-2", tmp_path)
    expected = here.state_dict()
    with behind_proxy(server) as proxy:
        assert tune(seeds=[1, 2], save_models=True, publish=URI).scores == tuned.scores
        assert {one.method for one in proxy.requests} <= {"GET", "HEAD"}
    shutil.rmtree(tuned.config.out)

    listed = json.loads(invoke("finetune", "list", URI, "--json").stdout)
    assert [(one["name"], one["directory"], one["reference"]) for one in listed] == [
        ("small/tiny@5", place, "tiny@5")
    ]
    assert not list(cache.rglob("*.safetensors"))
    shown = json.loads(invoke("finetune", "show", f"{place}@reviews-pretrained-2", "--json").stdout)
    assert (shown["directory"], shown["trial"]) == (place, "reviews-pretrained-2")
    assert shown["scores"] == [score.model_dump(mode="json") for score in tuned.scores]

    start = start_at(f"{place}@reviews-pretrained-2", tmp_path)
    assert (start.fingerprint, start.reference) == (here.fingerprint, f"{place}@reviews-pretrained-2")
    tensors = start.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in expected.items())
    inputs = plan_trials(make_config(name="next"), start).inputs
    assert (inputs[0].kind, inputs[0].uri) == ("scores", place)
    remote = {entry.uri for entry in inputs if entry.uri.startswith("s3://")}
    assert remote == {place, f"{place}/tokenizer.json"}
    teacher = resolve_teacher("next", start.reference, tmp_path, ("positive", "negative"))
    assert teacher.columns == (1, 0)
    node = trace(place, tmp_path)
    assert (node.kind, node.uri, node.problem) == ("scores", place, "")


@pytest.mark.usefixtures("cache")
def test_published_scores_are_replaced_only_when_told_and_missing_ones_are_named(tune):
    target = f"{URI}-of-others"
    shutil.rmtree(tune(publish=target).config.out)
    with pytest.raises(ConfigError):
        tune(seeds=[2], publish=target)
    assert len(tune(seeds=[2], publish=target, replace=True).scores) == 1
    done = invoke("finetune", "show", f"{URI}/nothing")
    assert isinstance(done.exception, MissingInputError)
    assert f"{URI}/nothing" in str(done.exception)


CONFIGS = Path(__file__).parents[3] / "configs"


def squad(place: Path) -> tuple[str, ...]:
    path = place / "squad.json"
    path.write_text(EXCERPTS["squad"].text("train"))
    return (f"tasks.squad.train={path}", f"tasks.squad.evaluation={path}", "tasks.squad.max_query_length=24")


def xsum(place: Path) -> tuple[str, ...]:
    (story,) = EXCERPTS["cnn_dailymail"].train
    rows = [{"id": n, "document": f"{n}. {story.source}", "summary": story.target} for n in range(12)]
    path = place / "xsum.jsonl"
    path.write_text(objects(*rows))
    return (f"tasks.xsum.evaluation={path}", "tasks.xsum.max_target_length=24", "tasks.xsum.num_beams=2")


def sst2(place: Path) -> tuple[str, ...]:
    write_sst2(place / "SST-2", 16, 8)
    return (f"tasks.sst2.path={place / 'SST-2'}",)


@pytest.mark.parametrize(
    ("pretrained", "finetuned", "sample", "read_by"),
    [
        pytest.param("roberta-tiny", "squad", squad, "AutoModelForQuestionAnswering", id="encoder"),
        pytest.param("bart-tiny", "xsum", xsum, "AutoModelForSeq2SeqLM", id="encoder-decoder"),
        pytest.param("gpt-tiny", "sst2-decoder", sst2, "AutoModelForSequenceClassification", id="decoder"),
        # `transformers` has no class for it, and the export is refused.
        pytest.param("elmo-tiny", "sst2-elmo", sst2, None, id="elmo"),
    ],
)
def test_tracked_checkpoint_is_finetuned_scored_exported_and_read_back(
    pretrained, finetuned, sample, read_by, tmp_path
):
    runs = tmp_path / "runs"
    store = write_text_store(tmp_path / "tokens", "tiny-words" if pretrained == "elmo-tiny" else "tiny")
    changes = [f"data.stores=[{{path: {store}}}]", f"runs_dir={runs}", "cluster.workers=1", "steps=3"]
    changes += ["checkpoint.every_steps=3", "evaluation.samples=8", "schedule.warmup_steps=1"]
    run = create_run(load_config(PretrainConfig, CONFIGS / f"pretrain/{pretrained}.yaml", changes))
    train(run, 1)
    assert replay(run)

    start = resolve_model(f"models:/{run.info.name}@latest", runs)
    settings = [*sample(tmp_path), f"out={tmp_path / 'scores'}", f"runs_dir={runs}", "seeds=[1]"]
    settings += ["training.max_length=48", "training.batch_size=8", "training.epochs=1"]
    config = load_config(FinetuneConfig, CONFIGS / f"finetune/{finetuned}.yaml", settings)
    assert all(score.metrics for score in finetune(config, start))
    model_id = with_logged_model(start, runs).model_id
    assert model_id is not None
    logged = connect(run.info.tracking_uri).get_logged_model(model_id)
    assert {metric.key.partition("/")[0] for metric in logged.metrics or ()} >= set(config.tasks)
    scores, out = str(scores_directory(config, start)), tmp_path / "out"
    if read_by is None:
        with pytest.raises(ExportError):
            export(scores, out, runs_dir=runs)
        return
    made = export(scores, out, runs_dir=runs)
    assert made.auto_class == read_by
    assert made.difference is not None
    assert made.difference < 1e-4
    getattr(transformers, read_by).from_pretrained(out)

"""Each kind of network on the whole road: pre-trained, tracked, fine-tuned, scored, exported, read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from cluster.artefacts.errors import ExportError
from pipeline.checkpoint.references import resolve_model, with_logged_model
from pipeline.config.loading import load_config
from pipeline.pretrain.launch import create_run
from pipeline.run.config import PretrainConfig
from pipeline.run.lifecycle import replay
from pipeline.run.tracking import connect
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.export import export
from pipeline.tune.run import finetune
from pipeline.tune.trials import scores_directory
from tests.pipeline.ranks import train
from tests.pipeline.real_text import write_text_store
from tests.pipeline.tasks.excerpts import EXCERPTS, objects
from tests.pipeline.tune.conftest import write_sst2

CONFIGS = Path(__file__).parents[3] / "configs"


def squad(place: Path) -> tuple[str, ...]:
    squad = json.loads(EXCERPTS["squad"].text("train"))
    (asked,) = squad["data"][0]["paragraphs"]
    paragraphs = [asked | {"qas": [asked["qas"][0] | {"id": str(number)}]} for number in range(8)]
    path = place / "squad.json"
    path.write_text(json.dumps(squad | {"data": [{"title": "T", "paragraphs": paragraphs}]}))
    return (f"tasks.squad.train={path}", f"tasks.squad.evaluation={path}", "tasks.squad.max_query_length=24")


def xsum(place: Path) -> tuple[str, ...]:
    (story,) = EXCERPTS["cnn_dailymail"].train
    rows = [
        {"id": number, "document": f"{number}. {story.source}", "summary": story.target}
        for number in range(12)
    ]
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
    pretrained: str,
    finetuned: str,
    sample: Callable[[Path], tuple[str, ...]],
    read_by: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    runs = tmp_path / "runs"
    store = write_text_store(tmp_path / "tokens", "tiny-words" if pretrained == "elmo-tiny" else "tiny")
    changes = [f"data.stores=[{{path: {store}}}]", f"runs_dir={runs}", "cluster.workers=1", "steps=3"]
    few = ["checkpoint.every_steps=3", "evaluation.samples=8", "schedule.warmup_steps=1"]
    run = create_run(load_config(PretrainConfig, CONFIGS / f"pretrain/{pretrained}.yaml", [*changes, *few]))
    train(run, 1)
    assert replay(run)

    start = resolve_model(f"models:/{run.info.name}@latest", runs)
    settings = [*sample(tmp_path), f"out={tmp_path / 'scores'}", f"runs_dir={runs}"]
    settings += ["training.max_length=48", "training.batch_size=8", "training.epochs=1", "seeds=[1]"]
    config = load_config(FinetuneConfig, CONFIGS / f"finetune/{finetuned}.yaml", settings)
    scores = finetune(config, start)

    model_id = with_logged_model(start, runs).model_id
    assert model_id is not None
    logged = connect(run.info.tracking_uri).get_logged_model(model_id)
    assert {metric.key.partition("/")[0] for metric in logged.metrics or ()} >= set(config.tasks)
    assert all(score.metrics for score in scores)
    directory = scores_directory(config, start)
    if read_by is None:
        with pytest.raises(ExportError):
            export(str(directory), tmp_path / "out", runs_dir=runs)
        return
    made = export(str(directory), tmp_path / "out", runs_dir=runs)
    assert made.auto_class == read_by
    assert made.difference is not None
    assert made.difference < 1e-4
    getattr(transformers, read_by).from_pretrained(tmp_path / "out")

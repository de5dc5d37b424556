"""Scores in an object store: listed, shown and started from there as from a directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.inspect.lineage import trace
from pipeline.tune.finetuned import resolve_start
from pipeline.tune.run import finetune
from pipeline.tune.trials import plan_trials, scores_directory
from tests.object_store import behind_proxy
from tests.pipeline.command import invoke

URI = "s3://bucket/finetuned"


@pytest.fixture(autouse=True)
def cache(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_scores_that_were_published_are_read_where_no_directory_is_left(
    make_config, checkpoint, recorder, tmp_path, server, cache
):
    config = make_config(seeds=[1, 2], save_models=True, publish=URI)
    scores = finetune(config, checkpoint)
    directory = scores_directory(config, checkpoint)
    place = f"{URI}/small/tiny@5"
    here = resolve_start(f"{directory}@reviews-pretrained-2", tmp_path)
    assert here is not None
    expected = here.state_dict()
    with behind_proxy(server) as proxy:
        assert finetune(config, checkpoint) == scores
        assert {one.method for one in proxy.requests} <= {"GET", "HEAD"}
    shutil.rmtree(config.out)

    listed = json.loads(invoke("finetune", "list", URI, "--json").stdout)
    assert [(one["name"], one["directory"], one["reference"]) for one in listed] == [
        ("small/tiny@5", place, "tiny@5")
    ]
    assert not list(cache.rglob("*.safetensors"))
    done = invoke("finetune", "show", f"{place}@reviews-pretrained-2", "--json")
    shown = json.loads(done.stdout)
    assert (shown["directory"], shown["trial"]) == (place, "reviews-pretrained-2")
    assert shown["scores"] == [score.model_dump(mode="json") for score in scores]

    start = resolve_start(f"{place}@reviews-pretrained-2", tmp_path)
    assert start is not None
    assert (start.fingerprint, start.reference) == (here.fingerprint, f"{place}@reviews-pretrained-2")
    tensors = start.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in expected.items())
    trials = plan_trials(make_config(name="next"), start)
    assert (trials.inputs[0].kind, trials.inputs[0].uri) == ("scores", place)
    assert {entry.uri for entry in trials.inputs if entry.uri.startswith("s3://")} == {
        place,
        f"{place}/tokenizer.json",
    }
    node = trace(place, tmp_path)
    assert (node.kind, node.uri, node.problem) == ("scores", place, "")


def test_publishing_never_replaces_other_scores_without_being_told(make_config, checkpoint, recorder):
    target = f"{URI}-of-others"
    finetune(make_config(seeds=[1], publish=target), checkpoint)
    shutil.rmtree(make_config().out)
    other = make_config(seeds=[2], publish=target)
    with pytest.raises(ConfigError):
        finetune(other, checkpoint)
    assert len(finetune(other, checkpoint, replace=True)) == 1


def test_place_without_scores_is_named(tmp_path):
    done = invoke("finetune", "show", f"{URI}/nothing")
    assert isinstance(done.exception, MissingInputError)
    assert f"{URI}/nothing" in str(done.exception)

"""A network that was fine-tuned on one task is the start of the next."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.errors import ReferenceNotFoundError
from pipeline.inspect.lineage import trace
from pipeline.tune.processes import make_accelerator
from pipeline.tune.reference import resolve_start
from pipeline.tune.run import finetune
from pipeline.tune.starting import initial_network
from pipeline.tune.trials import TrialRunner
from pipeline.tune.workload import make_workload, scores_directory


def test_training_goes_on_from_a_fine_tuned_network_and_its_lineage_leads_back(
    make_config, checkpoint, recorder, tmp_path
):
    first = make_config(seeds=[1, 2], save_models=True)
    finetune(first, checkpoint, track=recorder)
    directory = scores_directory(first, checkpoint)
    start = resolve_start(f"{directory}@reviews-pretrained-2", tmp_path)
    assert start is not None
    next_config = make_config(name="next", seeds=[3])
    workload = make_workload(next_config, start)
    runner = TrialRunner(make_accelerator(next_config), workload, tmp_path, recorder)
    model = initial_network(runner.task("reviews"), 3, start.state_dict())
    tuned = load_file(directory / "model-reviews-pretrained-2.safetensors")
    own = model.state_dict()
    encoder = [name for name in own if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(own[name], tuned[name]) for name in encoder)
    (score,) = finetune(next_config, start, track=recorder)
    assert score.reference == f"{directory}@reviews-pretrained-2"
    node = trace(str(scores_directory(next_config, start)), tmp_path)
    assert (node.inputs[0].kind, node.inputs[0].uri) == ("scores", str(directory))
    assert node.inputs[0].problem == ""


def test_two_trainings_of_the_same_scores_are_two_starts(make_config, checkpoint, recorder, tmp_path):
    first = make_config(seeds=[1, 2], save_models=True)
    finetune(first, checkpoint, track=recorder)
    directory = scores_directory(first, checkpoint)
    starts = [resolve_start(f"{directory}@reviews-pretrained-{seed}", tmp_path) for seed in (1, 2)]
    keys = {make_workload(make_config(name="next"), start).key for start in starts}
    places = {scores_directory(make_config(name="next"), start) for start in starts}
    assert len(keys) == len(places) == 2


def test_scores_without_models_or_with_several_trainings_say_what_to_type(
    make_config, checkpoint, recorder, tmp_path
):
    config = make_config(seeds=[1], name="without")
    finetune(config, checkpoint, track=recorder)
    with pytest.raises(ReferenceNotFoundError, match="save_models=true"):
        resolve_start(str(scores_directory(config, checkpoint)), tmp_path)
    config = make_config(seeds=[1, 2], name="several", save_models=True)
    finetune(config, checkpoint, track=recorder)
    with pytest.raises(ReferenceNotFoundError, match=r"more than one training.*\n.*reviews-pretrained-1"):
        resolve_start(str(scores_directory(config, checkpoint)), tmp_path)


def test_random_stands_for_no_checkpoint(tmp_path):
    assert resolve_start("random", tmp_path) is None

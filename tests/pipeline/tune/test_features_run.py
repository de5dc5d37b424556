"""Fine-tuning of a linear layer on frozen features."""

from __future__ import annotations

import pytest
import torch

from cluster.artefacts.errors import ExportError, MismatchError
from pipeline.tune.export import export
from pipeline.tune.finetuned import resolve_start
from pipeline.tune.networks import initial_network
from pipeline.tune.trials import plan_trials
from tests.pipeline.tune.conftest import prepare

TRAINING = {"epochs": 4, "batch_size": 8, "lr": 5e-2, "max_length": 16}
CONLLU = "\n".join(
    f"1\t{noun}\t_\tNOUN\t_\t_\t0\t_\t_\t_\n2\t{verb}\t_\tVERB\t_\t_\t0\t_\t_\t_\n"
    for noun in ("film", "plot")
    for verb in ("was", "and", "very")
)


@pytest.mark.parametrize("features", [{}, {"combine": "scalar_mix"}, {"combine": "layer", "layer": 0}])
def test_only_the_layer_on_top_is_trained_and_learns(features, tune, make_config, checkpoint, tokenizer):
    config = make_config()
    task = prepare(config.tasks["reviews"], tokenizer, features=features)
    model = initial_network(task, 1, checkpoint.state_dict())
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[0] for name in trained} <= {"scores", "features"}
    assert not any(name.startswith("features.encoder.") for name in trained)
    theirs = checkpoint.state_dict()
    kept = model.state_dict()["features.encoder.embeddings.tokens.weight"]
    torch.testing.assert_close(kept, theirs["encoder.embeddings.tokens.weight"], rtol=0, atol=0)
    assert tune(training=TRAINING | {"features": features}).scores[0].value > 0.65


def test_words_are_tagged_by_their_features(tune, tmp_path):
    (tmp_path / "pos.conllu").write_text(CONLLU, encoding="utf-8")
    task = {"kind": "conllu_pos", "train": tmp_path / "pos.conllu", "evaluation": tmp_path / "pos.conllu"}
    tuned = tune(tasks={"pos": task}, training=TRAINING | {"epochs": 20, "features": {}})
    assert tuned.scores[0].value == 1.0


def test_layer_on_features_is_neither_exported_nor_a_start(tune, tmp_path):
    directory = str(tune(save_models=True, training=TRAINING | {"epochs": 1, "features": {}}).directory)
    with pytest.raises(ExportError, match="frozen features"):
        export(directory, tmp_path / "exported", runs_dir=tmp_path)
    with pytest.raises(ExportError, match="frozen features"):
        resolve_start(directory, tmp_path)


def test_features_for_spans_are_refused(make_config, checkpoint):
    squad = {"kind": "squad", "train": "unread", "evaluation": "unread"}
    config = make_config(tasks={"squad": squad}, training=TRAINING | {"features": {}})
    with pytest.raises(MismatchError, match="frozen features"):
        plan_trials(config, checkpoint)

"""Fine-tuned networks are read back from their scores, by name, and are the start of the next task."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.errors import CorruptArtefactError, ReferenceNotFoundError
from models.classifiers import SequenceClassifier
from pipeline.inspect.lineage import trace
from pipeline.tasks.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.encoding import encode_examples
from pipeline.tune.export import export, load_finetuned
from pipeline.tune.finetuned import resolve_start, split_scores
from pipeline.tune.networks import initial_network
from pipeline.tune.trials import plan_trials, scores_directory
from tests.pipeline.tune.conftest import MODEL, prepare


def test_kept_network_comes_back_with_labels_and_tokenizer_and_gives_its_predictions(tune, recorder):
    tuned = tune(save_models=True)
    found = load_finetuned(tuned.directory)
    assert (found.config, found.head) == (MODEL, "sequence_classification")
    assert found.labels == ("negative", "positive")
    model = SequenceClassifier(MODEL, len(found.labels)).eval()
    model.load_state_dict(dict(found.state_dict))
    tokenizer = TextTokenizer(tuned.directory / "tokenizer.json")
    assert found.tokenizer_json == tokenizer.path.read_text()
    examples = tuned.config.tasks["reviews"].load().evaluation[:1]
    encoded = encode_examples(tokenizer, sequence_format(MODEL, tokenizer), examples, 16)
    with torch.no_grad():
        logits = model(torch.from_numpy(encoded.input_ids[0])[None])[0]
    torch.testing.assert_close(logits, torch.tensor(tuned.lines()[0]["logits"]))
    # Damage is noticed, and repaired without training.
    tokenizer.path.write_text("{}")
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
    starts = [resolve_start(f"{directory}@reviews-pretrained-{seed}", tmp_path) for seed in (1, 2)]
    config = make_config(name="next")
    assert len({plan_trials(config, start).key for start in starts}) == 2
    assert len({scores_directory(config, start) for start in starts}) == 2


def test_training_goes_on_from_a_fine_tuned_network_and_its_lineage_leads_back(
    tune, make_config, tokenizer, tmp_path
):
    tuned = tune(seeds=[1, 2], save_models=True)
    start = resolve_start(f"{tuned.directory}@reviews-pretrained-2", tmp_path)
    assert start is not None
    config = make_config(name="next", seeds=[3])
    task = prepare(config.tasks["reviews"], tokenizer)
    own = initial_network(task, 3, start.state_dict()).state_dict()
    kept = load_file(tuned.directory / "model-reviews-pretrained-2.safetensors")
    encoder = [name for name in own if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(own[name], kept[name]) for name in encoder)
    following = tune(start, name="next", seeds=[3])
    assert following.scores[0].reference == f"{tuned.directory}@reviews-pretrained-2"
    node = trace(str(following.directory), tmp_path)
    assert (node.inputs[0].kind, node.inputs[0].uri) == ("scores", str(tuned.directory))
    assert node.inputs[0].problem == ""


def test_scores_without_models_are_no_start_and_random_is_no_checkpoint(tune, tmp_path):
    with pytest.raises(ReferenceNotFoundError, match="save_models=true --replace"):
        resolve_start(str(tune().directory), tmp_path)
    assert resolve_start("random", tmp_path) is None

"""Fine-tuned networks are read back from their scores."""

from __future__ import annotations

import orjson
import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.errors import CorruptArtefactError, ReferenceNotFoundError
from models.classifiers import SequenceClassifier
from pipeline.tune.encoding import encode_examples
from pipeline.tune.export import export, load_finetuned
from pipeline.tune.run import finetune
from pipeline.tune.scores import split_scores
from pipeline.tune.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.workload import scores_directory
from tests.pipeline.tune.conftest import MODEL


def test_kept_network_comes_back_with_labels_and_tokenizer_and_gives_its_predictions(
    make_config, checkpoint, recorder
):
    config = make_config(seeds=[1], save_models=True)
    finetune(config, checkpoint, track=recorder)
    directory = scores_directory(config, checkpoint)
    found = load_finetuned(directory)
    assert (found.config, found.head, found.labels) == (
        MODEL,
        "sequence_classification",
        ("negative", "positive"),
    )
    model = SequenceClassifier(MODEL, len(found.labels)).eval()
    model.load_state_dict(dict(found.state_dict))
    tokenizer = TextTokenizer(directory / "tokenizer.json")
    assert found.tokenizer_json == tokenizer.path.read_text()
    examples = config.tasks["reviews"].load().evaluation[:1]
    encoded = encode_examples(tokenizer, sequence_format(MODEL, tokenizer), examples, 16)
    with torch.no_grad():
        logits = model(torch.from_numpy(encoded.input_ids[0])[None])[0]
    line = (directory / "predictions-reviews-pretrained-1.jsonl").read_bytes().splitlines()[0]
    torch.testing.assert_close(logits, torch.tensor(orjson.loads(line)["logits"]))


def test_one_of_several_trainings_must_be_named(make_config, checkpoint, recorder):
    config = make_config(
        save_models=True, training={"epochs": 1, "batch_size": 32, "lr": 1e-3, "max_length": 16}
    )
    finetune(config, checkpoint, track=recorder)
    directory = scores_directory(config, checkpoint)
    with pytest.raises(
        ReferenceNotFoundError, match="more than one training; there are reviews-pretrained-1, rev"
    ) as refused:
        load_finetuned(directory)
    with pytest.raises(ReferenceNotFoundError, match="no training reviews-random-9"):
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
    exported = export(named, directory.parent / "exported", runs_dir=config.runs_dir)
    assert load_file(exported.directory / "model.safetensors")


def test_scores_without_models_say_how_to_keep_them(make_config, checkpoint, recorder):
    config = make_config(seeds=[1])
    finetune(config, checkpoint, track=recorder)
    with pytest.raises(ReferenceNotFoundError, match=r"not kept.\n.*save_models=true --replace"):
        load_finetuned(scores_directory(config, checkpoint))


def test_damaged_tokenizer_is_noticed_and_repaired_without_training(make_config, checkpoint, recorder):
    config = make_config(seeds=[1], save_models=True)
    finetune(config, checkpoint, track=recorder)
    directory = scores_directory(config, checkpoint)
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptArtefactError, match=r"tokenizer\.json"):
        load_finetuned(directory)
    finetune(config, checkpoint, track=recorder)
    assert len(recorder.runs) == 1
    assert load_finetuned(directory).labels == ("negative", "positive")

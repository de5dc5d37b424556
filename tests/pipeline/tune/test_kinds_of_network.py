"""What is trained of a network and what it starts from: checkpoints of every kind, ELMo below a classifier, frozen
features, and parameter-efficient methods."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cluster.artefacts.errors import ConfigError, ExportError, MismatchError
from data_prep.tokenizers.word_lexicon import assemble
from models.classifiers import ChoiceClassifier, SequenceClassifier
from models.electra import Electra
from models.elmo.language_model import ElmoLanguageModel
from models.elmo.representations import ElmoClassifier
from models.hf.directory import save_hf_directory
from models.hf.family import TokenIds
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from pipeline.checkpoint.references import resolve_model
from pipeline.tasks.forms import Example
from pipeline.tasks.glue import Sst2Config
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.export import export, load_finetuned
from pipeline.tune.finetuned import resolve_start
from pipeline.tune.forms.base import NetworkPart
from pipeline.tune.forms.classification import CLASSIFIERS
from pipeline.tune.networks import take_parts
from pipeline.tune.trials import plan_trials
from tests.pipeline.tune.conftest import ELMO, MODEL, WORDS, enlarged, make_checkpoint, prepare

ENCODER_PARTS = CLASSIFIERS["encoder"].parts
IDS = TokenIds(pad=1, bos=0, eos=2)


def classifier(config=MODEL) -> SequenceClassifier:
    found = SequenceClassifier(config, 2)
    init_weights(found, 1)
    return found


@pytest.fixture
def lexicon(tmp_path: Path) -> Path:
    """A word lexicon that has some of the task's words and must spell the others."""
    path = tmp_path / "lexicon.json"
    path.write_text(assemble([word for word in WORDS if len(word) > 1 and word != "good"]).to_str())
    return path


def test_elmo_is_frozen_below_its_classifier_and_not_exported(tune, tmp_path, lexicon):
    checkpoint = make_checkpoint(tmp_path / "elmo", lexicon, network=ElmoLanguageModel(ELMO))
    tuned = tune(checkpoint, save_models=True)
    with pytest.raises(ExportError, match="ELMo"):
        export(str(tuned.directory), tmp_path / "export", runs_dir=tmp_path / "runs")
    saved = load_file(tuned.directory / "model-reviews-pretrained-1.safetensors")
    before = checkpoint.state_dict()
    frozen = [name for name in saved if name.startswith("encoder.")]
    assert frozen
    assert all(torch.equal(saved[name], before[name]) for name in frozen)
    assert set(saved) == set(ElmoClassifier(ELMO, 2).state_dict())
    assert saved["mix.scores"].abs().max() > 0


@torch.no_grad()
def test_penalty_of_the_mixture_counts_once_per_update(lexicon):
    rows = tuple(Example(str(n), "bad film", None, n % 2) for n in range(3))
    task = prepare(Sst2Config(path=Path()), TextTokenizer(lexicon), rows, ("no", "yes"), ELMO)
    model = ElmoClassifier(ELMO, 2, l2=0.5).eval()
    init_weights(model, 1)
    batches = [task.batch(task.train, np.array(rows)) for rows in ([0, 1], [2])]
    losses = []
    # The same for all layers: what is computed does not change, the squared length does.
    for scores in (0.0, 2.0):
        model.mix.scores.fill_(scores)
        losses.append(sum(float(task.loss(model, batch)) for batch in batches))
    assert (losses[1] - losses[0]) / 3 == pytest.approx(0.5 * 3 * 2.0**2, rel=1e-5)


def test_elmo_without_a_word_lexicon_is_refused(tune, tmp_path, tokenizer_path):
    checkpoint = make_checkpoint(tmp_path / "elmo", tokenizer_path, network=ElmoLanguageModel(ELMO))
    with pytest.raises(MismatchError, match="lexicon"):
        tune(checkpoint)


def test_bert_classifies_from_what_the_prediction_of_pairs_pooled():
    pretrained, model = MaskedLanguageModel(MODEL, pair="nsp"), classifier()
    init_weights(pretrained, 3)
    take_parts(model, ENCODER_PARTS, pretrained.state_dict())
    assert torch.equal(model.head.dense.weight, pretrained.state_dict()["pair_head.pooler.weight"])
    output = model.head.output.weight.clone()
    take_parts(model, ENCODER_PARTS, MaskedLanguageModel(MODEL).state_dict())
    assert torch.equal(model.head.output.weight, output)


@pytest.mark.parametrize(("made", "named"), [("BertModel",) * 2, ("BertForPreTraining", "BertForMaskedLM")])
def test_classifier_starts_from_the_pooler_of_a_published_bert_whatever_its_class(
    made, named, tokenizer_path, tmp_path
):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    published = getattr(transformers, made)(transformers.BertConfig(vocab_size=32, **sizes))
    published.save_pretrained(tmp_path / "bert")
    file = tmp_path / "bert/config.json"
    file.write_text(file.read_text().replace(made, named))
    (tmp_path / "bert/tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    start = resolve_model(str(tmp_path / "bert"), tmp_path)
    model = classifier(start.model)
    take_parts(model, ENCODER_PARTS, start.state_dict())
    pooler = getattr(published, "bert", published).pooler.dense
    torch.testing.assert_close(model.head.dense.state_dict(), pooler.state_dict(), rtol=0, atol=0)
    assert not any("pooler" in name for name in start.left_out)
    export(str(tmp_path / "bert"), tmp_path / "out", runs_dir=tmp_path)


@pytest.mark.parametrize(
    ("network", "drops"), [(SequenceClassifier, (False, True)), (ChoiceClassifier, (False, False))]
)
def test_poolers_input_is_dropped_out_only_where_transformers_does(network, drops):
    bert = dataclasses.replace(MODEL, num_segments=2, dropout=0.5)
    for config, is_dropped in zip((bert, dataclasses.replace(bert, num_segments=0)), drops, strict=True):
        head = network(config, *([2] if network is SequenceClassifier else [])).head.train()
        seen = []
        head.dense.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        head(torch.ones(4, 32))
        assert bool((seen[0] == 0).any()) == is_dropped


def test_classifier_of_an_electra_starts_from_its_discriminator():
    electra, model = Electra(MODEL, dataclasses.replace(MODEL, intermediate_size=32)), classifier()
    init_weights(electra, 3)
    take_parts(model, ENCODER_PARTS, electra.state_dict())
    for name, tensor in electra.discriminator.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)


def test_checkpoint_of_another_size_or_with_broken_weights_is_refused_by_tensor(checkpoint):
    parts = (NetworkPart("encoder."),)
    with pytest.raises(MismatchError, match=r"encoder\.embeddings"):
        take_parts(classifier(), parts, {})
    state = checkpoint.state_dict()
    state["encoder.embeddings.tokens.weight"][3, 4] = float("nan")
    save_file(state, checkpoint.directory / "model.safetensors")
    with pytest.raises(MismatchError, match=r"encoder\.embeddings\.tokens\.weight"):
        take_parts(classifier(), parts, checkpoint.state_dict())


ON_FEATURES = {"epochs": 4, "batch_size": 8, "lr": 5e-2, "max_length": 16}
CONLLU = "\n".join(
    f"1\t{noun}\t_\tNOUN\t_\t_\t0\t_\t_\t_\n2\t{verb}\t_\tVERB\t_\t_\t0\t_\t_\t_\n"
    for noun in ("film", "plot")
    for verb in ("was", "and", "very")
)


@pytest.mark.parametrize("features", [{}, {"combine": "scalar_mix"}, {"combine": "layer", "layer": 0}])
def test_only_the_layer_on_features_is_trained_and_learns(features, tune, checkpoint):
    tuned = tune(training=ON_FEATURES | {"features": features}, save_models=True)
    assert tuned.scores[0].value > 0.65
    saved = load_file(tuned.directory / "model-reviews-pretrained-1.safetensors")
    frozen = {f"features.{name}": tensor for name, tensor in checkpoint.state_dict().items()}
    assert (shared := saved.keys() & frozen.keys())
    assert all(torch.equal(saved[name], frozen[name]) for name in shared)


def test_words_are_tagged_by_their_features(tune, tmp_path):
    (tmp_path / "pos.conllu").write_text(CONLLU, encoding="utf-8")
    task = {"kind": "conllu_pos", "train": tmp_path / "pos.conllu", "evaluation": tmp_path / "pos.conllu"}
    tuned = tune(tasks={"pos": task}, training=ON_FEATURES | {"epochs": 20, "features": {}})
    assert tuned.scores[0].value == 1.0


def test_layer_on_features_is_neither_exported_nor_a_start(tune, tmp_path):
    tuned = tune(save_models=True, training=ON_FEATURES | {"epochs": 1, "features": {}})
    with pytest.raises(ExportError, match="frozen features"):
        export(str(tuned.directory), tmp_path / "exported", runs_dir=tmp_path)
    with pytest.raises(ExportError, match="frozen features"):
        resolve_start(str(tuned.directory), tmp_path)


METHODS = {
    "lora": {"kind": "lora", "rank": 4},
    "houlsby": {"kind": "adapters", "size": 8},
    "pfeiffer": {"kind": "adapters", "size": 8, "placement": "pfeiffer"},
    "parallel": {"kind": "adapters", "size": 8, "placement": "parallel"},
    "prefix": {"kind": "prefix", "length": 4},
    "bitfit": {"kind": "bitfit"},
    "mam": {"kind": "mam", "prefix_length": 4, "size": 8},
}


def by(method: str, epochs: int = 1) -> dict:
    return {"epochs": epochs, "batch_size": 8, "lr": 2e-2, "max_length": 16, "peft": METHODS[method]}


@pytest.fixture
def roberta(tmp_path, tokenizer_path):
    """A Hugging Face directory of a small RoBERTa with random weights."""
    model = enlarged(MaskedLanguageModel(MODEL), 12)
    save_hf_directory(tmp_path / "roberta", model.state_dict(), MODEL, IDS, head="masked_lm")
    (tmp_path / "roberta/tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    return resolve_model(str(tmp_path / "roberta"), tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_keeps_a_small_file_over_one_base(method, tune, roberta):
    tuned = tune(roberta, save_models=True, training=by(method, epochs=6))
    (score,) = tuned.scores
    assert score.value > 0.65
    assert score.trained_share is not None
    assert 0 < score.trained_share < 0.6
    weights = tuned.directory / "model-reviews-pretrained-1.safetensors"
    kept = load_file(weights)
    whole = sum(tensor.numel() for tensor in roberta.state_dict().values())
    assert sum(tensor.numel() for tensor in kept.values()) < whole / 2
    assert not any(name.startswith("encoder.embeddings.tokens") for name in kept)
    with safe_open(weights, "pt") as file:
        assert len(file.metadata()) == 1, "safetensors writes several keys in another order each time"


def test_what_no_plain_network_holds_or_lies_over_another_checkpoint_is_not_exported(tune, roberta, tmp_path):
    adapters = str(tune(roberta, save_models=True, training=by("houlsby")).directory)
    with pytest.raises(ExportError, match="adapters"):
        export(adapters, tmp_path / "a", runs_dir=tmp_path)
    with pytest.raises(ExportError, match=r"lora.*prefix"):
        export(adapters, tmp_path / "b", runs_dir=tmp_path, peft=True)
    with pytest.raises(MismatchError, match="cloze export"):
        resolve_start(adapters, tmp_path)
    lora = tune(roberta, name="lora", save_models=True, training=by("lora")).directory
    model = MaskedLanguageModel(MODEL)
    init_weights(model, seed=8)
    save_hf_directory(roberta.directory, model.state_dict(), MODEL, IDS, head="masked_lm")
    with pytest.raises(MismatchError, match="not the checkpoint"):
        load_finetuned(lora, runs_dir=tmp_path)


def test_methods_are_refused_where_nothing_would_be_kept_or_changed(tune, make_config, roberta):
    with pytest.raises(ConfigError, match="compare_random=false"):
        plan_trials(make_config(save_models=True, compare_random=True, training=by("lora")), roberta)
    model = dataclasses.asdict(dataclasses.replace(MODEL, biases=False))
    scratch = {"model": model, "tokenizer": roberta.tokenizer_path}
    with pytest.raises(MismatchError, match=r"training\.peft"):
        tune(None, scratch=scratch, training=by("bitfit"))

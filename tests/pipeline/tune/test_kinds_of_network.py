"""SST-2 with a decoder and with ELMo, BERT's pooled token, and checkpoints that do not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from cluster.artefacts.errors import ExportError, MismatchError
from data_prep.tokenizers.word_lexicon import assemble
from models.classifiers import ChoiceClassifier, SequenceClassifier
from models.config import ElmoConfig, TransformerConfig
from models.electra import Electra
from models.elmo.language_model import ElmoLanguageModel
from models.elmo.representations import ElmoClassifier
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.checkpoint.references import resolve_model
from pipeline.tune.encoding import encode_examples
from pipeline.tune.export import export
from pipeline.tune.forms.base import Part, TaskContext
from pipeline.tune.forms.classification import (
    CLASSIFIERS,
    ClassificationTask,
    token_reader,
    word_reader,
)
from pipeline.tune.networks import take_parts
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.task import TaskData
from pipeline.tune.tasks import TASKS
from pipeline.tune.tasks.forms import ClassificationTaskConfig, Example
from pipeline.tune.tasks.glue import Sst2Config
from pipeline.tune.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.trials import PUBLISHED
from tests.pipeline.tune.conftest import MODEL, WORDS, make_checkpoint
from tests.pipeline.tune.samples import byte_level, sst2_sample

GPT = TransformerConfig(
    network="decoder",
    norm="pre",
    embedding_norm=False,
    vocab_size=32,
    num_layers=1,
    hidden_size=32,
    num_heads=2,
    intermediate_size=64,
    max_positions=32,
)
BART = dataclasses.replace(MODEL, network="encoder_decoder")
ELMO = ElmoConfig(
    vocab_size=600,
    max_characters=12,
    character_size=8,
    filters=((1, 8), (2, 16), (3, 24)),
    num_highway_layers=1,
    projection_size=16,
    cell_size=32,
)


@pytest.fixture
def lexicon(tmp_path: Path) -> Path:
    """A word lexicon that has some of the task's words and must spell the others."""
    path = tmp_path / "lexicon.json"
    path.write_text(assemble([word for word in WORDS if len(word) > 1 and word != "good"]).to_str())
    return path


@pytest.mark.parametrize(
    "network",
    [
        CausalLanguageModel(GPT),
        SequenceToSequence(BART),
        SequenceToSequence(dataclasses.replace(BART, positions="relative_bias")),
    ],
    ids=["decoder", "encoder-decoder", "relative positions"],
)
def test_last_token_of_a_decoder_learns_to_classify(tune, tmp_path, tokenizer_path, network):
    start = make_checkpoint(tmp_path / "start", tokenizer_path, network=network)
    tuned = tune(start, training={"epochs": 8, "batch_size": 8, "lr": 5e-3, "max_length": 16})
    assert tuned.scores[0].value > 0.95


def test_decoder_of_t5_starts_with_padding(tokenizer_path):
    tokenizer = TextTokenizer(tokenizer_path)
    t5 = dataclasses.replace(MODEL, network="encoder_decoder", positions="relative_bias")
    examples = [Example("1", "good film", "bad", 0)]
    encoded = encode_examples(tokenizer, sequence_format(t5, tokenizer), examples, 16)
    inputs = token_reader(t5, tokenizer)(encoded, np.array([0]))
    assert inputs["input_ids"].tolist() == [[4, 6, 2, 5, 2]]
    assert inputs["decoder_input_ids"].tolist() == [[1, 4, 6, 2, 5]]


def test_decoder_reads_what_stands_before_the_padding():
    model = SequenceClassifier(GPT, 3).eval()
    init_weights(model, 1)
    ids = torch.tensor([[0, 5, 6, 2], [0, 7, 2, 1]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    with torch.no_grad():
        found = model(ids, mask)
        torch.testing.assert_close(found[0], model(ids[:1])[0])
        torch.testing.assert_close(found[1], model(ids[1:, :3])[0])
        assert not torch.allclose(found[1], model(ids[1:])[0])


def test_real_phrases_are_learnt_by_heart_with_a_decoder(corpora, tune, tmp_path):
    tokenizer = byte_level(corpora, tmp_path / "gpt2.json")
    network = CausalLanguageModel(dataclasses.replace(GPT, vocab_size=50260, max_positions=64, dropout=0.0))
    checkpoint = make_checkpoint(tmp_path / "gpt", tokenizer, network=network)
    folder = sst2_sample(corpora, tmp_path / "real", 24, 8)
    training = {"epochs": 15, "batch_size": 8, "lr": 5e-3, "max_length": 64, "scored": "last_epoch"}
    (score,) = tune(checkpoint, tasks={"sst2": {"kind": "sst2", "path": folder}}, training=training).scores
    assert (score.num_train_examples, score.num_evaluation_examples) == (24, 8)
    assert score.epochs[-1].loss < 0.1


def test_elmo_learns_above_a_frozen_language_model(tune, tmp_path, lexicon):
    checkpoint = make_checkpoint(tmp_path / "elmo", lexicon, network=ElmoLanguageModel(ELMO))
    training = {"epochs": 6, "batch_size": 8, "lr": 3e-3, "max_length": 64}
    training |= {"optimizer": {"betas": [0.9, 0.98], "eps": 1e-6}}
    tuned = tune(checkpoint, training=training, save_models=True)
    assert tuned.scores[0].value > 0.95
    with pytest.raises(ExportError, match="a classifier on top of an ELMo"):
        export(str(tuned.directory), tmp_path / "export", runs_dir=tmp_path / "runs")
    saved = load_file(tuned.directory / "model-reviews-pretrained-1.safetensors")
    before = checkpoint.state_dict()
    frozen = [name for name in saved if name.startswith("encoder.")]
    assert frozen
    assert all(torch.equal(saved[name], before[name]) for name in frozen)
    assert set(saved) == set(ElmoClassifier(ELMO, 2).state_dict())
    assert saved["mix.scores"].abs().max() > 0


def test_elmo_reads_words_and_not_their_spelling(make_config, tmp_path, lexicon):
    tokenizer = TextTokenizer(lexicon)
    examples = [Example("1", "good film", None, 0), Example("2", "bad", None, 1), Example("3", "", None, 1)]
    encoded = encode_examples(tokenizer, sequence_format(ELMO, tokenizer), examples, 64)
    inputs = word_reader(ELMO, tokenizer)(encoded, np.array([0, 1, 2]))
    # Two words, one word and none, each sentence with its begin and its end.
    assert inputs["cu_seqlens"].tolist() == [0, 4, 7, 9]


def test_penalty_of_the_mixture_counts_once_per_update(lexicon):
    tokenizer = TextTokenizer(lexicon)
    examples = tuple(Example(str(n), "bad film", None, n % 2) for n in range(3))
    data = TaskData(examples, examples, ("no", "yes"), ())
    task = ClassificationTask(TaskContext(Sst2Config(path=Path()), data, TrainingConfig(), ELMO, tokenizer))
    model = ElmoClassifier(ELMO, 2, l2=0.5).eval()
    init_weights(model, 1)
    with torch.no_grad():
        model.mix.scores.fill_(0.0)
        batches = [task.batch(task.train, np.array(rows)) for rows in ([0, 1], [2])]
        before = [float(task.loss(model, batch)) for batch in batches]
        # The same for all layers: what is computed does not change, the squared length does.
        model.mix.scores.fill_(2.0)
        after = [float(task.loss(model, batch)) for batch in batches]
    per_example = (sum(after) - sum(before)) / 3
    assert per_example == pytest.approx(0.5 * 3 * 2.0**2, rel=1e-5)


def test_elmo_without_a_word_lexicon_is_refused(tune, tmp_path, tokenizer_path):
    checkpoint = make_checkpoint(tmp_path / "elmo", tokenizer_path, network=ElmoLanguageModel(ELMO))
    with pytest.raises(MismatchError, match=r"ELMo reads words, but the tokenizer .* is no word lexicon"):
        tune(checkpoint)


def test_bert_classifies_from_what_the_prediction_of_pairs_pooled(tokenizer_path, tmp_path):
    pretrained = MaskedLanguageModel(MODEL, pair="nsp")
    init_weights(pretrained, 3)
    model = SequenceClassifier(MODEL, 2)
    init_weights(model, 1)
    take_parts(model, CLASSIFIERS["encoder"].scorer.parts, pretrained.state_dict())
    assert torch.equal(model.head.dense.weight, pretrained.state_dict()["pair_head.pooler.weight"])
    output = model.head.output.weight.clone()
    take_parts(model, CLASSIFIERS["encoder"].scorer.parts, MaskedLanguageModel(MODEL).state_dict())
    assert torch.equal(model.head.output.weight, output)


@pytest.mark.parametrize(("made", "named"), [("BertModel",) * 2, ("BertForPreTraining", "BertForMaskedLM")])
def test_classifier_starts_from_the_pooler_of_a_published_bert_whatever_its_class(
    made, named, tokenizer_path, tmp_path
):
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    published = getattr(transformers, made)(config)
    published.save_pretrained(tmp_path / "bert")
    file = tmp_path / "bert/config.json"
    file.write_text(file.read_text().replace(made, named))
    (tmp_path / "bert/tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    start = resolve_model(str(tmp_path / "bert"), tmp_path)
    model = SequenceClassifier(start.model, 2)  # pyright: ignore[reportArgumentType]
    init_weights(model, 1)
    take_parts(model, CLASSIFIERS["encoder"].scorer.parts, start.state_dict())
    pooler = getattr(published, "bert", published).pooler.dense
    assert torch.equal(model.head.dense.weight, pooler.weight)
    assert torch.equal(model.head.dense.bias, pooler.bias)
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
    electra = Electra(MODEL, dataclasses.replace(MODEL, intermediate_size=32))
    init_weights(electra, 3)
    model = SequenceClassifier(MODEL, 2)
    take_parts(model, CLASSIFIERS["encoder"].scorer.parts, electra.state_dict())
    for name, tensor in electra.discriminator.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)


def test_checkpoint_of_another_size_or_with_broken_weights_is_refused_by_tensor(make_config, checkpoint):
    model = SequenceClassifier(MODEL, 2)
    with pytest.raises(MismatchError, match=r"missing encoder\.embeddings"):
        take_parts(model, (Part("encoder."),), {})
    state = checkpoint.state_dict()
    state["encoder.embeddings.tokens.weight"][3, 4] = float("nan")
    save_file(state, checkpoint.directory / "model.safetensors")
    with pytest.raises(MismatchError, match=r"that are not finite: encoder\.embeddings\.tokens\.weight"):
        take_parts(model, (Part("encoder."),), checkpoint.state_dict())


def test_every_kind_of_network_that_may_classify_can():
    assert set(CLASSIFIERS) == set(ClassificationTaskConfig.carriers)
    assert {kind for task in TASKS.values() for kind in task.carriers} <= set(PUBLISHED)

"""What classifiers take from checkpoints of every kind, ELMo below a classifier, and checkpoints that do not fit."""

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
from models.electra import Electra
from models.elmo.language_model import ElmoLanguageModel
from models.elmo.representations import ElmoClassifier
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from pipeline.checkpoint.references import resolve_model
from pipeline.tasks.forms import Example
from pipeline.tasks.glue import Sst2Config
from pipeline.tasks.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.encoding import encode_examples
from pipeline.tune.export import export
from pipeline.tune.forms.base import NetworkPart
from pipeline.tune.forms.classification import CLASSIFIERS, word_reader
from pipeline.tune.networks import take_parts
from tests.pipeline.tune.conftest import MODEL, WORDS, make_checkpoint, prepare
from tests.pipeline.tune.samples import ELMO


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


def test_elmo_reads_words_and_not_their_spelling(lexicon):
    tokenizer = TextTokenizer(lexicon)
    examples = [Example(text, text, None, 0) for text in ("good film", "bad", "")]
    encoded = encode_examples(tokenizer, sequence_format(ELMO, tokenizer), examples, 64)
    inputs = word_reader(ELMO, tokenizer)(encoded, np.array([0, 1, 2]))
    # Two words, one word and none, each sentence with its begin and its end.
    assert inputs["cu_seqlens"].tolist() == [0, 4, 7, 9]


def test_penalty_of_the_mixture_counts_once_per_update(lexicon):
    rows = tuple(Example(str(n), "bad film", None, n % 2) for n in range(3))
    task = prepare(Sst2Config(path=Path()), TextTokenizer(lexicon), rows, ("no", "yes"), ELMO)
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
    with pytest.raises(MismatchError, match="lexicon"):
        tune(checkpoint)


def test_bert_classifies_from_what_the_prediction_of_pairs_pooled():
    pretrained = MaskedLanguageModel(MODEL, pair="nsp")
    init_weights(pretrained, 3)
    model = SequenceClassifier(MODEL, 2)
    init_weights(model, 1)
    take_parts(model, CLASSIFIERS["encoder"].parts, pretrained.state_dict())
    assert torch.equal(model.head.dense.weight, pretrained.state_dict()["pair_head.pooler.weight"])
    output = model.head.output.weight.clone()
    take_parts(model, CLASSIFIERS["encoder"].parts, MaskedLanguageModel(MODEL).state_dict())
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
    take_parts(model, CLASSIFIERS["encoder"].parts, start.state_dict())
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
    take_parts(model, CLASSIFIERS["encoder"].parts, electra.state_dict())
    for name, tensor in electra.discriminator.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)


def test_checkpoint_of_another_size_or_with_broken_weights_is_refused_by_tensor(checkpoint):
    model = SequenceClassifier(MODEL, 2)
    with pytest.raises(MismatchError, match=r"encoder\.embeddings"):
        take_parts(model, (NetworkPart("encoder."),), {})
    state = checkpoint.state_dict()
    state["encoder.embeddings.tokens.weight"][3, 4] = float("nan")
    save_file(state, checkpoint.directory / "model.safetensors")
    with pytest.raises(MismatchError, match=r"encoder\.embeddings\.tokens\.weight"):
        take_parts(model, (NetworkPart("encoder."),), checkpoint.state_dict())

"""Every kind of network leaves a checkpoint as a directory that others read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import TypeAdapter
from safetensors.torch import load_file, save
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForMaskedLM, AutoTokenizer

from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import InputEntry, read_manifest
from models.config import ElmoConfig, TransformerConfig
from models.generation.config import GenerationConfig
from models.initialization import init_weights
from pipeline.ask.prompting.networks import load_language_model
from pipeline.ask.prompting.writing import write
from pipeline.checkpoint.checkpoint import MODEL_FILE
from pipeline.checkpoint.store import CheckpointStore
from pipeline.inspect.lineage import trace
from pipeline.objectives import ObjectiveChoice
from pipeline.tune.export import export
from tests.pipeline.small_checkpoints import state_at, write_files
from tests.published_networks import PRESETS

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SIZES = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": 32}


def small(preset: str) -> TransformerConfig:
    return replace(PRESETS[preset], **SIZES, vocab_size=60)


ELMO = ElmoConfig(vocab_size=60, filters=((1, 8), (2, 8)), projection_size=16, cell_size=24)
SYSTEMS: dict[str, tuple[dict[str, str], TransformerConfig | ElmoConfig, str]] = {
    "BERT": ({"kind": "mlm", "pairs": "nsp"}, small("bert-base"), "AutoModelForPreTraining"),
    "RoBERTa": ({"kind": "mlm"}, small("roberta-base"), "AutoModelForMaskedLM"),
    "SpanBERT": ({"kind": "span"}, small("spanbert-base"), "AutoModelForMaskedLM"),
    "ELECTRA": ({"kind": "rtd"}, small("electra-base"), "AutoModelForPreTraining"),
    "ModernBERT": ({"kind": "mlm"}, small("modernbert-base"), "AutoModelForMaskedLM"),
    "GPT-2": ({"kind": "clm"}, small("gpt2"), "AutoModelForCausalLM"),
    "BART": ({"kind": "bart_denoising"}, small("bart-base"), "AutoModelForSeq2SeqLM"),
    "mBART": ({"kind": "bart_denoising"}, small("mbart-25"), "AutoModelForSeq2SeqLM"),
    "T5": ({"kind": "t5_span_corruption"}, small("t5-base"), "AutoModelForSeq2SeqLM"),
    "ELMo": ({"kind": "bilm"}, ELMO, "models.elmo.export.load_elmo"),
}
"""Settings of the objective, the network, and the class that reads the export."""
LEFT_OUT = {"ELECTRA": "generator is left out", "SpanBERT": "span boundaries"}


def tokenizer_json() -> str:
    words = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), 60))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer.to_str()


def commit_checkpoint(name: str, runs_dir: Path) -> str:
    """Commit the checkpoint of a run that has learned nothing."""
    objective, config, _ = SYSTEMS[name]
    settings: Any = TypeAdapter(ObjectiveChoice).validate_python(objective)
    network = settings.build_model(config, {})
    init_weights(network, 1)
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.add_(0.1 * noise)
    store = CheckpointStore(runs_dir / "run" / "checkpoints")
    weights = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    write_files(
        store,
        state_at(5, identity={"objective": settings.model_dump(mode="json")}, run_id="0" * 32),
        {MODEL_FILE: save(weights)},
        network=config,
        tokenizer_json=tokenizer_json(),
        inputs=[InputEntry(kind="tokens", uri="tokens", fingerprint="t")],
    )
    return store.place(5)


@pytest.mark.parametrize("name", SYSTEMS)
def test_checkpoint_becomes_a_directory_that_computes_the_same(name: str, tmp_path: Path):
    checkpoint = commit_checkpoint(name, tmp_path / "runs")
    made = export(checkpoint, tmp_path / "out", runs_dir=tmp_path / "runs")
    assert made.difference is not None
    assert made.difference < 1e-4
    assert made.auto_class == SYSTEMS[name][2]
    assert LEFT_OUT.get(name, "") in " ".join(made.notes)
    (entry,) = read_manifest(tmp_path / "out").inputs
    assert entry.fingerprint == read_manifest(Path(checkpoint)).fingerprint
    tree = trace(str(tmp_path / "out"), tmp_path / "runs")
    assert [tree.kind, tree.inputs[0].kind] == ["export", "checkpoint"]


def test_generator_of_electra_is_a_masked_language_model(tmp_path: Path):
    checkpoint = commit_checkpoint("ELECTRA", tmp_path / "runs")
    made = export(checkpoint, tmp_path / "generator", runs_dir=tmp_path / "runs", part="generator")
    assert (made.family, made.auto_class) == ("ELECTRA", "AutoModelForMaskedLM")
    assert made.difference is not None
    assert made.difference < 1e-4
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "generator")
    tokens = load_file(Path(checkpoint) / MODEL_FILE)["discriminator.encoder.embeddings.tokens.weight"]
    assert torch.equal(theirs.get_input_embeddings().weight, tokens)


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path):
    checkpoint = commit_checkpoint("RoBERTa", tmp_path / "runs")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    export(checkpoint, tmp_path / "out", runs_dir=tmp_path)
    for taken in ("mine", "out"):
        with pytest.raises(StorageError):
            export(checkpoint, tmp_path / taken, runs_dir=tmp_path)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_an_export_is_a_model_that_any_verb_takes(tmp_path: Path):
    export(commit_checkpoint("ELECTRA", tmp_path / "runs"), tmp_path / "first", runs_dir=tmp_path)
    again = export(str(tmp_path / "first"), tmp_path / "second", runs_dir=tmp_path)
    assert (again.family, again.auto_class) == ("ELECTRA", "AutoModelForPreTraining")
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second


@pytest.mark.parametrize("name", ["GPT-2", "T5"])
def test_texts_are_read_and_gone_on_with_as_cloze_does(name: str, tmp_path: Path):
    checkpoint = commit_checkpoint(name, tmp_path / "runs")
    export(checkpoint, tmp_path / "out", runs_dir=tmp_path)
    network = load_language_model(checkpoint, tmp_path)
    texts = ["w7 w8 w9 w10", "w11"]
    search = GenerationConfig(max_new_tokens=6)
    wanted = [write(network, text, search)[0].text.strip() for text in texts]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    theirs = getattr(transformers, SYSTEMS[name][2]).from_pretrained(tmp_path / "out")
    written = theirs.generate(**inputs, max_new_tokens=6, do_sample=False)
    if name == "GPT-2":
        written = written[:, inputs["input_ids"].shape[1] :]
    assert tokenizer.batch_decode(written, skip_special_tokens=True) == wanted

"""An exported ELMo gives the same after reloading, needs little to be read, and is refused when it is damaged."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_prep.tokenizers import WordLexicon
from models.elmo.encoder import read_sentences
from models.elmo.export import Elmo, load_elmo, save_elmo
from models.elmo.language_model import ElmoLanguageModel
from models.initialization import init_weights
from tests.models.materials import tiny_elmo

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "models" / "elmo" / "README.md"
LEXICON = WordLexicon(vocab_size=1024).train(["The river bank was muddy.", "She robbed a bank"])[0]
CONFIG = tiny_elmo(vocab_size=600)
SENTENCES = [["The", "river", "bank"], ["Unbekanntes", "ganz", "langes", "Wort"]]


@pytest.fixture
def model() -> ElmoLanguageModel:
    model = ElmoLanguageModel(CONFIG)
    init_weights(model, 4)
    return model.eval()


@pytest.fixture
def exported(model: ElmoLanguageModel, tmp_path: Path) -> Path:
    save_elmo(tmp_path / "elmo", model, LEXICON)
    return tmp_path / "elmo"


def test_reloaded_network_gives_equal_layers_and_losses(model: ElmoLanguageModel, exported: Path):
    elmo = load_elmo(exported)
    assert elmo.config == CONFIG
    assert elmo.tokenizer_json == LEXICON
    inputs = read_sentences(SENTENCES, CONFIG.max_characters)
    layers, present = elmo.layers(SENTENCES)
    assert layers.shape == (3, 2, 4, 12)
    assert present.tolist() == [[True, True, True, False], [True] * 4]
    expected = model.encoder(*inputs)
    assert torch.equal(layers[:, 0, :3], expected[:, 1:4])
    assert torch.equal(layers[:, 1], expected[:, 6:10])
    ids = {"word_ids": torch.arange(len(inputs.words)), "predicted_positions": torch.tensor([0, 1, 2, 5, 6])}
    ours, theirs = (network(**inputs._asdict(), **ids)[0] for network in (model, elmo.model))
    assert torch.equal(ours["forward"], theirs["forward"])
    assert torch.equal(ours["backward"], theirs["backward"])


def test_text_is_split_as_in_training(exported: Path):
    words = ["The", "river", "'", "s", "naïve", "bank", "."]
    assert load_elmo(exported).split("The river's naïve  bank.") == words


def test_loading_needs_neither_the_trainer_nor_its_libraries(exported: Path):
    program = (
        "import sys; from models.elmo.export import load_elmo\n"
        f"print(load_elmo({str(exported)!r}).layers([['a', 'b']]).layers.shape)\n"
        "heavy = {'ray', 'deepspeed', 'mlflow', 'transformers', 'datasets', 'pydantic', 'pipeline', 'data_prep'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split("\n")[:2] == ["torch.Size([3, 1, 2, 12])", "[]"]


@pytest.mark.parametrize(
    "block", re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)
def test_page_can_be_followed(block: str, exported: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(exported.parent)
    names: dict = {}
    exec(block.replace('"DIR"', repr(exported.name)), names)
    assert isinstance(names["elmo"], Elmo)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_and_missing_files_are_named(name: str, exported: Path):
    whole = (exported / name).read_bytes()
    (exported / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=name):
        load_elmo(exported)
    (exported / name).unlink()
    with pytest.raises(ValueError, match=name):
        load_elmo(exported)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encoder.tokens.projection.weight", torch.full((6, 13), torch.nan)),
        ("softmax.bias", torch.full((600,), torch.inf)),
        ("encoder.forward_layers.1.gate_bias", None),
        ("encoder.extra", torch.zeros(1)),
        ("softmax.bias", torch.zeros(599)),
    ],
)
def test_wrong_tensors_are_refused_by_name(name: str, value: torch.Tensor | None, exported: Path):
    tensors = load_file(exported / "model.safetensors") | {name: value}
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    save_file(kept, exported / "model.safetensors")
    with pytest.raises(ValueError, match=name):
        load_elmo(exported)


def test_network_with_weights_that_are_no_numbers_is_not_exported(model: ElmoLanguageModel, tmp_path: Path):
    with torch.no_grad():
        model.softmax.bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"softmax\.bias"):
        save_elmo(tmp_path / "elmo", model, LEXICON)
    assert not (tmp_path / "elmo").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type"),
        ({"num_heads": 4}, "num_heads"),
        ({"filters": 3}, "filters"),
        ({"cell_size": 0}, "cell_size"),
        ({"vocab_size": 30}, "518 .* 30"),
    ],
)
def test_wrong_configuration_is_refused_with_its_key(change: dict, message: str, exported: Path):
    path = exported / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        load_elmo(exported)

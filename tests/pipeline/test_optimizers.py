"""The optimizers of pre-training, their groups and their state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from cluster.artefacts.errors import ConfigError
from models.config import TransformerConfig
from models.elmo.config import ElmoConfig
from models.elmo.language_model import ElmoLanguageModel
from models.language_models import MaskedLanguageModel, SequenceToSequence
from models.weights import decay_groups, layer_scales
from pipeline import optimizers
from pipeline.engine.deepspeed.configuration import deepspeed_config, require_hardware
from pipeline.engine.deepspeed.masters import extents_of
from pipeline.engine.interface import EngineSettings
from pipeline.optimizers import OPTIMIZERS
from tests.pipeline.ranks import make_config
from tests.pipeline.test_optimizer_formulas import settings_of

SHAPE = TransformerConfig(
    vocab_size=50, num_layers=2, hidden_size=8, num_heads=2, intermediate_size=16, max_positions=16
)


def test_adamw_is_torchs_fused_one() -> None:
    made = settings_of().make(nn.Linear(2, 2))
    assert type(made) is torch.optim.AdamW
    assert all(group["fused"] for group in made.param_groups)


def test_settings_of_another_optimizer_are_refused(tmp_path: Path) -> None:
    for kind, key in (("lamb", "bias_correction=false"), ("adamw", "initial_accumulator=1")):
        with pytest.raises(ConfigError, match=key.partition("=")[0]):
            make_config(tmp_path, tmp_path, f"optimizer.kind={kind}", "zero.stage=0", f"optimizer.{key}")


def test_every_parameter_is_in_one_group_and_only_matrices_decay() -> None:
    model = MaskedLanguageModel(SHAPE)
    groups = decay_groups(model, 0.1, layer_decay=0.8)
    found = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(found) == sorted(map(id, model.parameters()))
    for group in groups:
        assert {parameter.dim() > 1 for parameter in group["params"]} == {group["weight_decay"] > 0}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_is_as_large_as_plans_say_and_has_the_names_that_checkpoints_know(kind: str) -> None:
    settings, model = settings_of(kind=kind), MaskedLanguageModel(SHAPE)
    made = settings.make(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step()
    tensors = [
        (key, value)
        for state in made.state.values()
        for key, value in state.items()
        if torch.is_tensor(value) and value.dim()
    ]
    shapes = [(name, tuple(one.shape)) for name, one in model.named_parameters()]
    elements = sum(one.numel() for one in model.parameters())
    assert sum(value.nbytes for _, value in tensors) == settings.state_bytes(elements, shapes)
    assert {key for key, _ in tensors} == {*settings.STATE, *settings.WHOLE_STATE}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_sharding_is_refused_to_optimizers_that_need_whole_tensors(tmp_path: Path, kind: str) -> None:
    optimizer, chosen = OPTIMIZERS[kind], f"optimizer.kind={kind}"
    if optimizer.NEEDS_WHOLE:
        with pytest.raises(ConfigError, match="needs zero\\.stage 0, not 2: shards do not"):
            make_config(tmp_path, tmp_path, chosen, "zero.stage=2", "zero.offload_optimizer.device=cpu")
    else:
        make_config(tmp_path, tmp_path, chosen, "zero.stage=2", "zero.offload_optimizer.device=cpu")


@pytest.mark.parametrize("kind", ["adafactor", "stable_adamw", "muon"])
def test_an_optimizer_is_one_file_and_one_line(kind: str) -> None:
    """Beside its own file only the registry knows it: an import, and a name in `OPTIMIZERS`. DeepSpeed has a Muon too,
    which is none of ours."""
    package = Path(optimizers.__file__).parents[1]
    # Not the name of a paper's method in a sentence: `Adafactor's`.
    word = re.compile(rf"\b({kind}|{OPTIMIZERS[kind].__name__})\b(?!')")
    found = {path: word.findall(path.read_text()) for path in package.rglob("*.py")}
    own = package / "optimizers" / f"{kind}.py"
    others = {path: len(words) for path, words in found.items() if words and path != own}
    knowing = {path: count for path, count in others.items() if "deepspeed" not in path.parts}
    assert knowing == {package / "optimizers" / "__init__.py": 3}


def test_muon_takes_the_matrices_of_layers_and_leaves_embeddings_heads_and_vectors_to_adamw() -> None:
    model = MaskedLanguageModel(SHAPE)
    groups = settings_of(kind="muon", adamw_lr=1e-4).groups(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    hidden = {names[one] for group in groups if group["hidden"] for one in group["params"]}
    assert hidden == {name for name, one in model.named_parameters() if ".layers." in name and one.dim() == 2}
    assert {names[one] for group in groups for one in group["params"]} == set(names.values())
    assert {(group["hidden"], round(group["lr_scale"], 9)) for group in groups} == {(True, 1.0), (False, 0.1)}


def test_layers_learn_slower_the_lower_they_are() -> None:
    scales = layer_scales(MaskedLanguageModel(SHAPE), 0.5)
    assert scales["encoder.embeddings.tokens.weight"] == 0.5**3
    assert scales["encoder.transformer.layers.0.feed_forward.up.weight"] == 0.5**2
    assert scales["encoder.transformer.layers.1.attention_norm.bias"] == 0.5
    assert scales["head.dense.weight"] == 1.0


def test_a_decoder_stands_on_its_encoder() -> None:
    shape = TransformerConfig(
        network="encoder_decoder",
        vocab_size=50,
        num_layers=2,
        hidden_size=8,
        num_heads=2,
        intermediate_size=16,
        max_positions=16,
    )
    scales = layer_scales(SequenceToSequence(shape), 0.5)
    order = ["encoder.transformer.layers.0", "encoder.transformer.layers.1"]
    order += ["decoder.transformer.layers.0", "decoder.transformer.layers.1"]
    assert [scales[f"{name}.attention.qkv.weight"] for name in order] == [0.5**4, 0.5**3, 0.5**2, 0.5]
    assert scales["encoder.embeddings.tokens.weight"] == 0.5**5


def test_elmos_directions_learn_side_by_side() -> None:
    shape = ElmoConfig(vocab_size=20, projection_size=8, cell_size=8)
    scales = layer_scales(ElmoLanguageModel(shape), 0.5)
    assert scales["encoder.tokens.projection.weight"] == 0.5**3
    for direction in ("forward", "backward"):
        assert scales[f"encoder.{direction}_layers.0.input_weight"] == 0.5**2
        assert scales[f"encoder.{direction}_layers.1.input_weight"] == 0.5
    assert scales["softmax.weight"] == 1.0


def test_groups_know_their_parameters_by_name_and_size() -> None:
    model = MaskedLanguageModel(SHAPE)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    optimizer = settings_of().make(model)
    for group in optimizer.param_groups:
        assert [sizes[name] for name, _ in group["sizes"]] == [size for _, size in group["sizes"]]
        assert len(group["sizes"]) == len(group["params"])
        assert group["lr_scale"] == 1.0


def test_fp16_on_cpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="CUDA") as caught:
        require_hardware(EngineSettings.of(make_config(tmp_path, tmp_path, "precision=fp16")))
    assert "bf16" in caught.value.next_step


def test_buckets_are_as_large_as_the_settings_say(tmp_path: Path) -> None:
    config = make_config(tmp_path, tmp_path, "zero.reduce_bucket_elements=1000")
    assert deepspeed_config(EngineSettings.of(config), 2)["zero_optimization"]["reduce_bucket_size"] == 1000


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_the_extents_of_all_ranks_are_every_parameter_once(stage: int, world_size: int) -> None:
    sizes = [("a", 11), ("b", 1), ("c", 64), ("d", 5)]
    covered: dict[str, list[int]] = {name: [] for name, _ in sizes}
    for rank in range(world_size):
        end = 0
        for extent in extents_of(sizes, stage, world_size, rank):
            assert extent.offset >= end
            end = extent.offset + extent.size
            covered[extent.name] += range(extent.start, extent.start + extent.size)
    assert covered == {name: list(range(size)) for name, size in sizes}

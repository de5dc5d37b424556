"""Every YAML that is shipped loads and plans; mistakes are explained; the reference of settings is complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from omegaconf import OmegaConf

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.templates import TEMPLATES
from cluster.templates.base import render
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import DecontaminationConfig
from data_prep.filters import FilterChain
from data_prep.plan import plan_preparation
from pipeline.ask.config import ProbeConfig, PromptConfig
from pipeline.ask.prompting.prompter import Template
from pipeline.commands.train import describe
from pipeline.config.loading import load_config, load_template, to_yaml, validate
from pipeline.config.reference import KINDS, json_schema, reference
from pipeline.objectives.rtd import ReplacedTokenDetection
from pipeline.road.ladder.config import LadderConfig
from pipeline.road.stages import RoadConfig
from pipeline.run.config import PretrainConfig
from pipeline.tune.config import FinetuneConfig
from tests.pipeline.command import cloze
from tests.pipeline.test_plan import teaching

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(path for path in CONFIGS.rglob("*") if path.is_file())
PRACTICE = CONFIGS / "demo" / "practice-pretrain.yaml"
REST_OF_A_RUN = """
name: rest
data: {stores: [{path: tokens}]}
model: {}
batch: {sequence_length: 16, samples: 64, micro_batch_size: 4}
steps: 10
optimizer: {lr: 1e-3}
"""
"""What a fragment lacks to be a run, besides an objective for its network."""
OBJECTIVE_OF = {"encoder": "mlm", "decoder": "clm", "encoder_decoder": "bart_denoising", "elmo": "bilm"}


def loads(kind: Any) -> Callable[[Path, Path], Any]:
    return lambda path, directory: load_config(kind, path)


def check_data(path: Path, directory: Path, **changes: Any) -> None:
    config = load_config(PreparationConfig, path).model_copy(update=changes)
    for source in config.sources:
        for pattern in getattr(source, "paths", ()):
            make_file_for(pattern, directory)
    plan = plan_preparation(config)
    assert plan["shards"] > 0
    assert set(plan["stages"].values()) == {"absent"}


def check_pretrain(path: Path, directory: Path) -> None:
    overrides = ["model.vocab_size=1000"]
    if load_config(PretrainConfig, path).objective.kind == "distill":
        overrides = teaching(directory / "teacher")
    plan = describe(load_config(PretrainConfig, path, overrides), path)
    assert "(cloze data prepare " in plan["stores to prepare first"]
    assert plan["gradient accumulation"] >= 1
    assert plan["parameters"] > 0


def check_prompt(path: Path, directory: Path) -> None:
    config = load_config(PromptConfig, path)
    assert all(Template(text).text for text in config.templates)


def check_fragment(path: Path, directory: Path) -> None:
    """A fragment sets one group of a run, named like the fragment's folder, and fits a minimal rest."""
    (key,) = OmegaConf.to_container(OmegaConf.load(path))
    assert key == {"models": "model", "cluster": "cluster"}[path.parent.name]
    network = OmegaConf.load(path).get("model", {}).get("network", "encoder")
    (directory / "rest.yaml").write_text(REST_OF_A_RUN + f"objective: {{kind: {OBJECTIVE_OF[network]}}}\n")
    (directory / "run.yaml").write_text(f"base: [rest.yaml, {path}]\n")
    # Some are larger than this machine.
    elsewhere = ["model.vocab_size=1000", "cluster.address=ray://elsewhere:10001"]
    describe(load_config(PretrainConfig, directory / "run.yaml", elsewhere))


def check_road(path: Path, directory: Path) -> None:
    """The configurations of all stages load with the road's settings."""
    road = load_config(RoadConfig, path)
    stages = [(PreparationConfig, stage) for stage in road.data]
    stages += [(PretrainConfig, road.pretrain), *((FinetuneConfig, stage) for stage in road.finetune)]
    for kind, stage in stages:
        assert load_config(kind, stage.config, stage.overrides).name


def check_cluster(path: Path, directory: Path) -> None:
    """The settings of a cluster to be rendered, or a fragment of a run."""
    if path.stem in TEMPLATES:
        assert render(load_template(path.stem))["NEXT.md"]
    else:
        check_fragment(path, directory)


def check_filters(path: Path, directory: Path) -> None:
    """A list of filters fits any preparation, and every filter of it can be made."""
    data = CONFIGS / "demo" / "practice-data.yaml"
    (directory / "run.yaml").write_text(f"base: [{data}, {path}]\n")
    config = load_config(PreparationConfig, directory / "run.yaml")
    assert config.filters
    FilterChain(config.filters)


def check_ladder(path: Path, directory: Path) -> None:
    """The files that it names are shipped beside it; its tasks are in the fine-tuning configuration."""
    config = load_config(LadderConfig, path)
    named = [*config.data, config.finetune, *(arm.pretrain for arm in config.arms.values())]
    assert all((path.parent / file).is_file() for file in named)
    tasks = load_config(FinetuneConfig, path.parent / config.finetune).tasks
    assert {task for each in config.comparisons.values() for task in each.tasks} <= set(tasks)
    assert set(config.ceilings) <= set(tasks)


CHECKS: dict[str, Callable[[Path, Path], None]] = {
    "data": check_data,
    "pretrain": check_pretrain,
    "finetune": loads(FinetuneConfig),
    "prompt": check_prompt,
    "road": check_road,
    "probe": loads(ProbeConfig),
    "models": check_fragment,
    "cluster": check_cluster,
    "filters": check_filters,
    "ladder": check_ladder,
    # Files of evaluation sets are not here.
    "ladder/data": partial(check_data, decontaminate=DecontaminationConfig()),
    "ladder/pretrain": check_pretrain,
    "ladder/finetune": loads(FinetuneConfig),
}
"""How the files of each folder are checked; in `demo/`, by the last word of their names."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIGS).as_posix())
def test_shipped_configuration_loads_and_plans(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLOZE_DATA", str(tmp_path / "corpora"))
    monkeypatch.chdir(tmp_path)
    assert path.suffix == ".yaml"
    folder = path.parent.relative_to(CONFIGS).as_posix()
    kind = path.stem.rpartition("-")[2] if folder == "demo" else folder
    assert kind in CHECKS, f"nothing here knows how to load {path}"
    CHECKS[kind](path, tmp_path)


WRONG: dict[str, tuple[str, ...]] = {
    "optimizer.wieght_decay=0.1": ("optimizer.wieght_decay = 0.1: unknown key; did you mean weight_decay?",),
    "schedule.kind=cosin": ("did you mean cosine?",),
    "optimizer.lrr=1; steps=many; data.held_out=2; zero.stage=7": (
        "4 problems",
        "optimizer.lrr",
        "steps = 'many': Input should be a valid integer",
        "data.held_out = 2",
        "zero.stage = 7",
    ),
    "schedule.warmup_steps=100000": ("schedule.warmup_steps = 100000: must be below steps",),
    "batch.samples=20; cluster.workers=3; batch.micro_batch_size=4": (
        "batch.micro_batch_size 4 x cluster.workers 3 = 12; the nearest are 12 and 24",
    ),
    "batch.sequence_length=65": ("exceeds model.max_positions",),
    "steps": ("an override is written key=value",),
    " =3": ("an override is written key=value",),
}
"""By overrides of the practice run, what its user reads."""


@pytest.mark.parametrize("overrides", WRONG)
def test_wrong_settings_are_answered_with_key_value_and_what_is_allowed(overrides: str):
    with pytest.raises(ConfigError) as caught:
        load_config(PretrainConfig, PRACTICE, overrides.split("; "))
    assert [told for told in WRONG[overrides] if told not in str(caught.value)] == []


def test_scientific_notation_is_a_number_in_files_and_overrides(tmp_path: Path):
    (tmp_path / "run.yaml").write_text(f"base: {PRACTICE}\noptimizer: {{lr: 1e-4}}\n")
    config = load_config(PretrainConfig, tmp_path / "run.yaml", ["optimizer.eps=1e-7"])
    assert (config.optimizer.lr, config.optimizer.eps) == (1e-4, 1e-7)


def test_another_kind_replaces_the_settings_of_the_one_before_and_the_same_keeps_them(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(
        to_yaml(load_config(PretrainConfig, PRACTICE, ["objective.rate=0.2"]))
    )
    (tmp_path / "child.yaml").write_text("base: config.yaml\nobjective: {kind: rtd}\n")
    for name, overrides in (("config", ["objective.kind=rtd"]), ("child", [])):
        config = load_config(PretrainConfig, tmp_path / f"{name}.yaml", overrides)
        assert config.objective == ReplacedTokenDetection()
    same = load_config(PretrainConfig, tmp_path / "config.yaml", ["objective={kind: mlm, mask_share: 0.7}"])
    wanted = ["objective.rate=0.2", "objective.mask_share=0.7"]
    assert same.objective == load_config(PretrainConfig, PRACTICE, wanted).objective


def test_missing_base_names_the_file_that_wants_it(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("base: absent.yaml\nname: x\n")
    with pytest.raises(MissingInputError, match=r"absent\.yaml .*run\.yaml"):
        load_config(PretrainConfig, tmp_path / "run.yaml")


def test_unset_environment_variable_is_named_with_the_command_that_sets_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CLOZE_DATA", raising=False)
    with pytest.raises(ConfigError, match="CLOZE_DATA") as caught:
        load_config(PreparationConfig, CONFIGS / "data" / "wikipedia-books.yaml")
    assert "export CLOZE_DATA=" in caught.value.next_step


@pytest.mark.parametrize(
    ("text", "problem", "told"),
    [
        ("a: [1,", "YAML", "correct"),
        ("- 1\n", "`key: value`", ""),
        ("base: other.yaml\n", "itself", ""),
        ("base: 5\n", "`base`", ""),
        ("base: [gpt-tiny, [gpt-tiny]]\n", "`base`", ""),
        ("base: ${oc.env:NO_SUCH_VARIABLE}/a.yaml\n", "NO_SUCH_VARIABLE", "export"),
        (None, "is a directory", ""),
    ],
)
def test_file_that_is_no_configuration_is_answered_with_what_to_correct(
    tmp_path: Path, text: str | None, problem: str, told: str
):
    (tmp_path / "run.yaml").write_text(text or "")
    (tmp_path / "other.yaml").write_text("base: run.yaml\n")
    with pytest.raises(ConfigError if text else MissingInputError, match=problem) as caught:
        load_config(PretrainConfig, tmp_path / "run.yaml" if text else tmp_path)
    assert told in caught.value.next_step


def make_file_for(pattern: str, directory: Path) -> None:
    """An empty file that a pattern matches, below the directory that stands for CLOZE_DATA."""
    path = Path(re.sub(r"\[(.)-.\]", r"\1", pattern.replace("**", "folder").replace("*", "part-1")))
    assert path.is_relative_to(directory), f"{pattern} does not start from CLOZE_DATA"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_wrong_item_does_not_make_its_list_too_short():
    plain = {"name": "x", "out": "x", "sources": [{"kind": "json_lines", "nam": "a", "paths": ["x"]}]}
    with pytest.raises(ConfigError) as raised:
        validate(PreparationConfig, plain, "test")
    assert [problem.key for problem in raised.value.problems] == ["sources.0.name", "sources.0.nam"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_has_a_type_and_a_meaning(kind: str):
    bare = [
        f"{section.key}.{each.name}"
        for section in reference(kind)
        for each in section.settings
        if not each.meaning or "anything" in each.type
    ]
    assert bare == [], "a docstring is missing"
    assert all(section.meaning for section in reference(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_printed_and_its_schema_too(kind: str):
    printed = cloze("schema", kind)
    for section in reference(kind):
        assert f"{kind}.{section.key}".rstrip(".") in printed
        # Long names are folded over lines.
        assert all(each.name[:10] in printed for each in section.settings)
    schema = cloze("schema", kind, "--json-schema")
    assert orjson.loads(schema) == json_schema(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_shipped_files_fit_the_schema_for_editors(kind: str):
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in sorted((CONFIGS / kind).glob("*.yaml")):
        plain = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        assert [error.message for error in validator.iter_errors(plain)] == [], path


def test_the_schema_refuses_what_loading_refuses():
    validator = jsonschema.Draft202012Validator(json_schema("data"))
    source = {"kind": "json_lines", "name": "a", "paths": ["a"]}
    assert validator.is_valid({"sources": [source], "dedup": "full", "decontaminate": ["glue"]})
    for wrong in (
        {"sources": [source | {"nmae": "b"}]},
        {"dedup": "fully"},
        {"shard_bytes": 0},
        {"nmae": "x"},
    ):
        assert not validator.is_valid(wrong), wrong
    prompts = jsonschema.Draft202012Validator(json_schema("prompt"))
    assert prompts.is_valid({"task": {"kind": "sst2", "path": "."}})
    assert not prompts.is_valid({"task": {"kind": "stsb", "path": "."}}), "a number is no label to ask for"


def test_a_part_of_a_kind_is_printed_and_a_misspelt_one_is_answered_with_the_nearest():
    printed = cloze("schema", "data.filters.language")
    assert "min_probability" in printed
    assert "data.filters.pii" not in printed
    for shared in ("finetune.tasks.cb", "finetune.tasks.cola.training", "prompt.task.mrpc"):
        assert shared.rpartition(".")[2] in cloze("schema", shared)
    for wrong, near in (
        ("date", "did you mean data?"),
        ("data.filters.langage", "did you mean data.filters.language?"),
        ("finetune.tasks.mrcp", "did you mean finetune.tasks.mrpc?"),
    ):
        with pytest.raises(ConfigError) as caught:
            cloze("schema", wrong)
        assert near in caught.value.next_step

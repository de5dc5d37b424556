"""The reference of settings is complete, is printed whole, and fits the files that are shipped."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import orjson
import pytest
from omegaconf import OmegaConf

from cluster.artefacts.errors import ConfigError
from pipeline.config.reference import KINDS, json_schema, reference
from tests.pipeline.command import cloze

ROOT = Path(__file__).parents[1]


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
    for path in sorted((ROOT / "configs" / kind).glob("*.yaml")):
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

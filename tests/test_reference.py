"""The reference of settings is complete, can be written as pages, and fits the files that are shipped."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import orjson
import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from cluster.artefacts.errors import ConfigError
from pipeline.commands.verbs import app
from pipeline.config.reference import KINDS, json_schema, reference

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


def test_every_setting_is_on_the_written_page_and_in_the_written_schema(tmp_path: Path):
    CliRunner().invoke(app, ["schema", "--write", str(tmp_path)], catch_exceptions=False)
    for kind in KINDS:
        page = (tmp_path / f"{kind}.md").read_text(encoding="utf-8")
        for section in reference(kind):
            assert f"## `{section.key}`" in page or not section.key
            assert all(f"| `{each.name}` |" in page for each in section.settings)
        assert orjson.loads((tmp_path / f"{kind}.schema.json").read_bytes()) == json_schema(kind)


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


def test_a_part_of_a_kind_is_printed_and_a_misspelt_one_is_answered_with_the_nearest():
    printed = CliRunner().invoke(app, ["schema", "data.filters.language"], catch_exceptions=False).stdout
    assert "data.filters.language" in printed
    assert "min_probability" in printed
    assert "data.filters.pii" not in printed
    schema = orjson.loads(CliRunner().invoke(app, ["schema", "finetune", "--json-schema"]).stdout)
    assert "tasks" in schema["properties"]
    for wrong, near in (
        ("date", "did you mean data?"),
        ("data.filters.langage", "did you mean data.filters.language?"),
    ):
        with pytest.raises(ConfigError) as caught:
            CliRunner().invoke(app, ["schema", wrong], catch_exceptions=False)
        assert near in caught.value.next_step

"""A URI is supported or refused by name; it never becomes a directory called `s3:`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import TypeAdapter, ValidationError

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.places import PlaceSetting, Uri, UriSetting, as_place, folded_uri, is_below
from data_prep.config import PreparationConfig
from pipeline.commands.verbs import app
from pipeline.config.loading import load_config
from pipeline.run.config import PretrainConfig
from pipeline.tune.config import FinetuneConfig
from tests.pipeline.command import invoke

URI = "s3://bucket/place"


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        (PreparationConfig, "tiny", "out"),
        (PreparationConfig, "tiny", "takedown"),
        (PreparationConfig, "tiny", "decontaminate.data"),
        (PretrainConfig, "gpt-tiny", "runs_dir"),
        (FinetuneConfig, "rows", "out"),
        (FinetuneConfig, "rows", "runs_dir"),
        (FinetuneConfig, "rows", "tasks.reviews.train"),
    ],
)
def test_setting_that_must_be_a_path_refuses_a_uri_by_name(kind: Any, name: str, key: str):
    with pytest.raises(ConfigError) as caught:
        load_config(kind, Path(name), [f"{key}={URI}"])
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == (key, URI)
    assert ("`publish`" in problem.message) == (key == "out")


def test_settings_that_take_a_uri_keep_it():
    assert load_config(PreparationConfig, Path("tiny"), [f"publish={URI}/"]).publish == URI
    stores = [f"data.stores=[{{path: {URI}/tokens}}]"]
    assert load_config(PretrainConfig, Path("gpt-tiny"), stores).data.stores[0].path == f"{URI}/tokens"
    with pytest.raises(ConfigError, match="s3://bucket/corpus"):
        load_config(FinetuneConfig, Path("rows"), ["publish=some/directory"])


def commands(command: Any) -> Iterator[Any]:
    for one in getattr(command, "commands", {}).values():
        yield from commands(one)
    if not hasattr(command, "commands"):
        yield command


def test_every_verb_refuses_uris_for_paths():
    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 40
    assert [one.name for one in found if not hasattr(one.callback, "__wrapped__")] == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["data", "rejects", URI], "store"),
        (["sign", "tokens", URI], "places"),
        (["runs", "--runs-dir", URI], "runs-dir"),
        (["finetune", "submission", "scores", "--out", f"{URI}/x.zip"], "out"),
        (["push", URI, URI], "directory"),
        (["pull", URI, URI], "directory"),
    ],
)
def test_argument_that_must_be_a_path_refuses_a_uri_by_name(
    arguments: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    error = invoke(*arguments).exception
    assert isinstance(error, ConfigError)
    assert error.problem.startswith("s3://bucket/place")
    assert f"`{name}`" in error.problem
    assert list(tmp_path.iterdir()) == []


def test_places_are_told_apart_and_joined():
    assert as_place("data/tiny") == Path("data/tiny")
    assert as_place("file:///data/tiny") == Path("/data/tiny")
    assert as_place("s3://bucket/a/") == "s3://bucket/a"
    for place in (as_place("s3://b/a"), as_place("b/a")):
        assert str(place / "c").endswith("b/a/c")
        assert (place / "c").parent == place
        assert (place.name, type(place / "c")) == ("a", type(place))
    assert isinstance(as_place("s3://b/a"), Uri)
    assert folded_uri(Path("s3://bucket/a")) == "s3://bucket/a"
    assert folded_uri(Path("/data/s3:/a")) == folded_uri(Path("C:/a")) == ""
    setting = TypeAdapter(PlaceSetting)
    assert setting.validate_python(Path("a")) == setting.validate_python("a") == Path("a")
    assert setting.dump_python(setting.validate_python("s3://b/a"), mode="json") == "s3://b/a"
    with pytest.raises(ValidationError):
        TypeAdapter(UriSetting).validate_python("file:///data")


def test_nothing_outside_a_bucket_is_below_what_lies_in_it():
    assert Uri("s3://bucket/a/b").parent == "s3://bucket/a"
    assert Uri("s3://bucket/a").parent == Uri("s3://bucket").parent == "s3://bucket"
    assert is_below(Uri("s3://bucket/x"), [Uri("s3://bucket").parent])
    assert not is_below(Uri("s3://other/x"), [Uri("s3://bucket").parent])


def test_push_of_a_run_or_to_a_directory_is_refused(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    for place, error in ((URI, MissingInputError), ("some/directory", ConfigError)):
        assert isinstance(invoke("push", tmp_path, place).exception, error)

"""Configurations that come with cloze are found by name, and copies of them load as they do; all that a preparation
names is looked for before anything starts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.ask.config import PromptConfig
from pipeline.commands.ask import prompt_config
from pipeline.config.loading import load_config, load_plain
from pipeline.config.shipped import PARTS, SHIPPED, copy_shipped, find_beside, find_shipped, list_shipped
from pipeline.preparation import load_preparation
from pipeline.road.ladder.config import LadderConfig
from pipeline.run.config import PretrainConfig

NAMES = [one.name for one in list_shipped()]


@pytest.mark.parametrize(
    "given", ["demo-pretrain", "pretrain", "", ".", "..", "../pretrain/gpt-tiny", "/gpt-tiny", "*"]
)
def test_nothing_else_is_a_name(given: str):
    assert find_shipped(given) is None


def test_a_missing_file_is_answered_with_the_nearest_name_and_the_list(tmp_path: Path):
    with pytest.raises(MissingInputError) as caught:
        load_config(PretrainConfig, Path("gpt-tinny"))
    assert "did you mean gpt-tiny?" in caught.value.next_step
    assert "cloze configs list" in caught.value.next_step


@pytest.mark.parametrize("name", [name for name in NAMES if Path(name).parent != Path("ladder")])
def test_a_copy_loads_as_the_original(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLOZE_DATA", "/corpora")
    monkeypatch.chdir(tmp_path)
    copied = copy_shipped(name, tmp_path / "own")
    assert load_plain(PretrainConfig, copied) == load_plain(PretrainConfig, SHIPPED / f"{name}.yaml")


def test_a_copy_of_a_ladder_finds_all_that_the_original_names(tmp_path: Path):
    original = load_config(LadderConfig, SHIPPED / "ladder" / "small.yaml")
    copied = load_config(LadderConfig, copy_shipped("ladder/small", tmp_path))
    for file, own in [
        (original.finetune, copied.finetune),
        *zip(original.data, copied.data, strict=True),
        *((original.arms[name].pretrain, copied.arms[name].pretrain) for name in original.arms),
    ]:
        assert find_beside(tmp_path, own) == SHIPPED / "ladder" / file


def test_every_file_is_listed_with_a_line_about_it_and_a_short_name_means_one_file():
    files = {path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.rglob("*.yaml")}
    assert set(NAMES) == files
    assert [one.name for one in list_shipped() if not one.about] == []
    short = Counter(name.partition("/")[2] for name in NAMES if name.partition("/")[0] not in PARTS)
    assert [name for name, count in short.items() if count > 1] == []


@pytest.mark.parametrize(
    "given", ["gpt-tiny", "gpt-tiny.yaml", "pretrain/gpt-tiny", "configs/pretrain/gpt-tiny.yaml"]
)
def test_a_name_is_taken_in_place_of_a_file_unless_there_is_one(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOZE_DATA", "/corpora")
    found = load_config(PretrainConfig, Path(given), ["name=own"])
    assert (found.name, found.objective.kind) == ("own", "clm")
    Path("gpt-tiny").write_text("base: configs/pretrain/gpt-tiny.yaml\nname: own\n")
    assert load_config(PretrainConfig, Path("gpt-tiny")).name == "own"
    expected = load_config(PromptConfig, SHIPPED / "prompt" / "sst2.yaml")
    assert prompt_config("prompt/sst2", [], {}) == expected


def test_a_copy_replaces_no_file_unless_told(tmp_path: Path):
    copied = copy_shipped("gpt-tiny", tmp_path)
    copied.write_text("own: 1\n")
    with pytest.raises(ConfigError):
        copy_shipped("gpt-tiny", tmp_path)
    assert copied.read_text() == "own: 1\n"
    assert copy_shipped("gpt-tiny", tmp_path, replace=True).read_text() != "own: 1\n"
    with pytest.raises(ConfigError, match="is a file"):
        copy_shipped("gpt-tiny", copied)


PREPARATION = """
name: texts
out: {directory}/out
sources:
- {{kind: books_text, name: a, paths: [{directory}/absent/*.txt]}}
- {{kind: json_lines, name: b, paths: [{directory}/there.jsonl]}}
- {{kind: json_lines, name: c, paths: [{directory}/absent.jsonl]}}
filters: []
"""


def prepared(directory: Path, *overrides: str):
    (directory / "there.jsonl").touch()
    (directory / "data.yaml").write_text(PREPARATION.format(directory=directory))
    return load_preparation(directory / "data.yaml", overrides)


def test_files_filters_and_tasks_are_looked_for_beside_wrong_settings(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        prepared(
            tmp_path,
            "filters=[{kind: language, allowed: [all]}, {kind: length, minn: 3}]",
            "decontaminate=[glu]",
            "sources.2.langg=en",
        )
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["sources.2.langg", "filters.1.minn", "sources.0", "filters", "decontaminate.tasks.0"]


@pytest.mark.parametrize("lang", ["all", "qq"])
def test_a_filter_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path, lang: str):
    source = f"kind: json_lines, name: b, paths: [{tmp_path}/there.jsonl]"
    filters = f"filters: [{{kind: language, allowed: [{lang}]}}]"
    with pytest.raises(ConfigError, match=rf"\b{lang}\b"):
        prepared(tmp_path, f"sources=[{{{source}, {filters}}}]")


def test_all_files_that_are_not_there_are_named_at_once(tmp_path: Path):
    with pytest.raises(MissingInputError) as caught:
        prepared(tmp_path)
    assert caught.value.exit_code == 11
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == ["sources.0", "sources.2"]

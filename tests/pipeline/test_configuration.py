"""Configurations: `a.b=c` on the command line, files that come with cloze found by name, what is missing named before
anything starts, and everything wrong by its key. A URI is supported or refused by name; no directory is called `s3:`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cluster.artefacts.errors import ConfigError, CorruptArtefactError, MissingInputError
from cluster.artefacts.places import Uri, as_place, folded_uri, is_below
from data_prep.config import PreparationConfig
from pipeline.ask.config import PromptConfig
from pipeline.commands.ask import prompt_config
from pipeline.commands.verbs import app
from pipeline.config.loading import load_config, load_plain, to_yaml
from pipeline.config.shipped import PARTS, SHIPPED, copy_shipped, find_beside, find_shipped, list_shipped
from pipeline.preparation import load_preparation
from pipeline.road.ladder.config import LadderConfig
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory, RunInfo
from pipeline.tune.config import FinetuneConfig
from tests.pipeline.command import invoke

URI = "s3://bucket/place"
NAMES = [one.name for one in list_shipped()]
RUN = """
name: run
data: {stores: [{path: a, weight: 2}, {path: b}]}
model: {}
objective: {kind: mlm}
batch: {sequence_length: 16, samples: 64, micro_batch_size: 4}
steps: 10
optimizer: {lr: 1e-3}
"""
PREPARATION = """
name: texts
out: out
sources:
- {kind: books_text, name: a, paths: [absent/*.txt], encoding: latin-1}
- {kind: json_lines, name: b, paths: [there.jsonl]}
- {kind: json_lines, name: c, paths: [absent.jsonl]}
filters: []
"""


def run(directory: Path, *overrides: str) -> PretrainConfig:
    (directory / "run.yaml").write_text(RUN)
    return load_config(PretrainConfig, directory / "run.yaml", overrides)


@pytest.fixture
def preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in the current directory, where one of three files is that it names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").touch()
    (tmp_path / "data.yaml").write_text(PREPARATION)
    return tmp_path / "data.yaml"


@pytest.mark.parametrize("key", ["data.stores.0", "data.stores[0]"])
def test_an_element_of_a_list_is_changed_by_its_index_and_keeps_the_rest(tmp_path: Path, key: str):
    stores = run(tmp_path, f"{key}.path=/p", "data.stores.1.weight=3").data.stores
    assert [(str(store.path), store.weight) for store in stores] == [("/p", 2), ("b", 3)]


def test_an_element_that_becomes_another_kind_keeps_no_settings_of_the_former(preparation: Path):
    overrides = ["sources.0={kind: json_lines, name: d, paths: [d.jsonl]}"]
    sources = load_config(PreparationConfig, preparation, overrides).sources
    kinds = [(source.kind, source.name) for source in sources]
    assert kinds == [("json_lines", "d"), ("json_lines", "b"), ("json_lines", "c")]


@pytest.mark.parametrize(("former", "latter"), [("rte", "wnli"), ("boolq", "cb")])
def test_a_task_that_becomes_another_kind_of_its_class_keeps_no_settings(
    tmp_path: Path, former: str, latter: str
):
    file = tmp_path / "finetune.yaml"
    file.write_text(f"tasks: {{one: {{kind: {former}, path: /a, training: {{epochs: 3}}}}}}")
    with pytest.raises(ConfigError) as caught:
        load_config(FinetuneConfig, file, [f"tasks.one.kind={latter}"])
    assert [problem.key for problem in caught.value.problems] == ["tasks.one.path"]
    other = load_config(FinetuneConfig, file, [f"tasks.one={{kind: {latter}, path: /b}}"]).tasks["one"]
    assert (other.kind, other.training.epochs) == (latter, None)
    same = load_config(FinetuneConfig, file, [f"tasks.one.kind={former}"]).tasks["one"]
    assert same.training.epochs == 3


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("data.stores.2.path=/p", "data.stores.2: data.stores is a list of 2"),
        ("data.stores.first.path=/p", "data.stores.first: data.stores is a list of 2"),
        ("batch.phases.0.steps=3", "batch.phases"),
        ("data.stores=5", "data.stores = 5"),
        ("name.x=1", "name: "),
        ("optimizer=adam", "optimizer = 'adam'"),
        ("a..b=1", "a = {'': {'b': 1}}"),
        ("steps=${absent}", "'absent'"),
        ("steps=[1", "steps=[1"),
        ("steps={1: 2}", "steps: "),
        ("data.stores.0=3", "data.stores.0 = 3"),
    ],
)
def test_what_cannot_be_merged_is_exit_10_with_its_key(tmp_path: Path, override: str, key: str):
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, override)
    assert caught.value.exit_code == 10
    assert key in str(caught.value)


def test_settings_below_a_misspelt_kind_are_explained_with_it(tmp_path: Path, preparation: Path):
    objective = "objective={kind: mml, ratee: 0.2, rate: 7, pairs: nps}"
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, objective, "schedule.kind=cosin", "steps=x")
    found = {problem.key: problem.message for problem in caught.value.problems}
    of_objective = [f"objective.{name}" for name in ("kind", "rate", "pairs", "ratee")]
    assert list(found) == [*of_objective, "steps", "schedule.kind"]
    assert "did you mean rate?" in found["objective.ratee"]
    with pytest.raises(ConfigError) as caught:
        load_config(PreparationConfig, preparation, ["tokenizer={kind: xyz, vocab_sise: 9, alpha: 1}"])
    assert [problem.key for problem in caught.value.problems] == ["tokenizer.kind", "tokenizer.vocab_sise"]


def test_settings_that_a_run_stored_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", "s3cret")
    stored = RunDirectory(tmp_path)
    stored.config_file.write_text(RUN.replace("path: a,", "path: 'http://h/${oc.env:SECRET}',"))
    assert stored.config(["steps=${oc.decode:'12'}"]).data.stores[0].path == "http://h/${oc.env:SECRET}"
    stored.config_file.write_text(f"base: {tmp_path / 'other.yaml'}\n{RUN}")
    (tmp_path / "other.yaml").write_text("seed: 7\n")
    with pytest.raises(ConfigError):
        stored.config()
    stored.config_file.write_text(f"{RUN}seed: &one 1\nother: *one\n")
    with pytest.raises(CorruptArtefactError):
        stored.config()


@pytest.mark.parametrize("name", ["${oc.env:HOME}", r"\${a}", r"\\${b", "1e-4"])
def test_resolved_settings_are_written_and_read_as_they_are(tmp_path: Path, name: str):
    config = run(tmp_path).model_copy(update={"experiment": name})
    RunDirectory(tmp_path / "run").create(RunInfo(name="run", run_id="1", tracking_uri=""), config)
    assert RunDirectory(tmp_path / "run").config() == config
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load_config(PretrainConfig, tmp_path / "again.yaml") == config


@pytest.mark.parametrize(
    "given", ["demo-pretrain", "pretrain", "", ".", "..", "../pretrain/gpt-tiny", "/gpt-tiny", "*"]
)
def test_nothing_else_is_a_name_of_a_file_that_comes_with_cloze(given: str):
    assert find_shipped(given) is None


def test_a_missing_file_is_answered_with_the_nearest_name_and_the_list():
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
    for directory in (tmp_path, copied):
        with pytest.raises(ConfigError):
            copy_shipped("gpt-tiny", directory)
    assert copied.read_text() == "own: 1\n"
    assert copy_shipped("gpt-tiny", tmp_path, replace=True).read_text() != "own: 1\n"


def test_files_filters_and_tasks_are_looked_for_beside_wrong_settings(preparation: Path):
    filters = "filters=[{kind: language, allowed: [all]}, {kind: length, minn: 3}]"
    with pytest.raises(ConfigError) as caught:
        load_preparation(preparation, [filters, "decontaminate=[glu]", "sources.2.langg=en"])
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["sources.2.langg", "filters.1.minn", "sources.0", "filters", "decontaminate.tasks.0"]


@pytest.mark.parametrize("lang", ["all", "qq"])
def test_a_filter_that_cannot_be_made_is_refused_before_the_work(preparation: Path, lang: str):
    filters = f"filters: [{{kind: language, allowed: [{lang}]}}]"
    with pytest.raises(ConfigError, match=rf"\b{lang}\b"):
        load_preparation(
            preparation, [f"sources=[{{kind: json_lines, name: b, paths: [there.jsonl], {filters}}}]"]
        )


def test_all_files_that_are_not_there_are_named_at_once(preparation: Path):
    with pytest.raises(MissingInputError) as caught:
        load_preparation(preparation)
    assert caught.value.exit_code == 11
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == ["sources.0", "sources.2"]


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        (PreparationConfig, "tiny", ("out", "takedown", "decontaminate.data")),
        (PretrainConfig, "gpt-tiny", ("runs_dir",)),
        (FinetuneConfig, "rows", ("out", "runs_dir", "tasks.reviews.train")),
    ],
)
def test_settings_that_must_be_paths_refuse_uris_by_name(kind: Any, name: str, keys: tuple[str, ...]):
    with pytest.raises(ConfigError) as caught:
        load_config(kind, Path(name), [f"{key}={URI}" for key in keys])
    assert {(problem.key, problem.value) for problem in caught.value.problems} == {(key, URI) for key in keys}
    for_publish = [problem.key for problem in caught.value.problems if "`publish`" in problem.message]
    assert for_publish == [key for key in keys if key == "out"]


def test_settings_that_take_a_uri_keep_it():
    assert load_config(PreparationConfig, Path("tiny"), [f"publish={URI}/"]).publish == URI
    stores = [f"data.stores=[{{path: {URI}/tokens}}]"]
    assert load_config(PretrainConfig, Path("gpt-tiny"), stores).data.stores[0].path == f"{URI}/tokens"
    with pytest.raises(ConfigError, match="publish"):
        load_config(FinetuneConfig, Path("rows"), ["publish=some/directory"])


def test_every_verb_refuses_uris_for_paths():
    def commands(command: Any) -> Iterator[Any]:
        for one in getattr(command, "commands", {}).values():
            yield from commands(one)
        if not hasattr(command, "commands"):
            yield command

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


def test_places_are_told_apart_and_joined_and_nothing_outside_a_bucket_is_below_what_lies_in_it():
    assert as_place("file:///data/tiny") == Path("/data/tiny")
    for place in (as_place("s3://b/a/"), as_place("b/a")):
        assert str(place / "c").endswith("b/a/c")
        assert ((place / "c").parent, place.name, type(place / "c")) == (place, "a", type(place))
    places = ("s3://bucket/a", "/data/s3:/a", "C:/a")
    assert [folded_uri(Path(place)) for place in places] == ["s3://bucket/a", "", ""]
    assert Uri("s3://bucket/a/b").parent == "s3://bucket/a"
    assert Uri("s3://bucket/a").parent == Uri("s3://bucket").parent == "s3://bucket"
    assert is_below(Uri("s3://bucket/x"), [Uri("s3://bucket").parent])
    assert not is_below(Uri("s3://other/x"), [Uri("s3://bucket").parent])


def test_push_of_a_run_or_to_a_directory_is_refused(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    for place, error in ((URI, MissingInputError), ("some/directory", ConfigError)):
        assert isinstance(invoke("push", tmp_path, place).exception, error)

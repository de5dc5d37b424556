"""What a data configuration names is looked for before anything starts, all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.preparation import load_preparation

NAMES = """
name: texts
out: {directory}/out
sources:
- {{kind: books_text, name: a, paths: [{directory}/absent/*.txt]}}
- {{kind: json_lines, name: b, paths: [{directory}/there.jsonl]}}
- {{kind: json_lines, name: c, paths: [{directory}/absent.jsonl]}}
filters: []
"""


def load(directory: Path, *overrides: str):
    (directory / "there.jsonl").touch()
    (directory / "data.yaml").write_text(NAMES.format(directory=directory))
    return load_preparation(directory / "data.yaml", overrides)


def test_files_filters_and_tasks_are_looked_for_beside_wrong_settings(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        load(
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
        load(tmp_path, f"sources=[{{{source}, {filters}}}]")


def test_all_files_that_are_not_there_are_named_at_once(tmp_path: Path):
    with pytest.raises(MissingInputError) as caught:
        load(tmp_path)
    assert caught.value.exit_code == 11
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == ["sources.0", "sources.2"]

"""The sources as a set, and their files: found by patterns, named the same on every machine."""

import os
import zipfile
from typing import ClassVar

import fsspec
import pytest
from pydantic import TypeAdapter

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.places import open_file, size_and_version
from data_prep.sources import AnySource
from data_prep.sources.base import SourceConfig, SourceFile, expand_patterns
from data_prep.sources.books import TextFilesConfig


def touch(directory, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True, parents=True)
        (directory / name).touch()


def names_of(*patterns: str) -> list[str]:
    return [file.name for file in expand_patterns(patterns)]


def test_the_place_of_the_files_enters_no_identity():
    class Elsewhere(SourceConfig):
        uri: str
        places: ClassVar[frozenset[str]] = frozenset({"uri"})

        def read(self, part):
            yield from ()

    assert "uri" not in Elsewhere(kind="x", name="x", uri="s3://bucket").identity()
    for settings in ({"kind": "books_text", "paths": ["place"]}, {"kind": "hf_datasets", "path": "place"}):
        config = TypeAdapter(AnySource).validate_python({"name": "x", **settings})
        assert "place" not in str(config.identity())


def test_files_are_named_below_the_patterns_fixed_part_and_listed_once_by_their_first_name(tmp_path):
    touch(tmp_path, "AA/wiki_00", "AB/wiki_00", "other")
    patterns = [f"{tmp_path}/**/wiki_*", f"{tmp_path}/other", f"{tmp_path}/AA/wiki_00"]
    assert names_of(*patterns) == ["AA/wiki_00", "AB/wiki_00", "other"]
    found = expand_patterns([f"{tmp_path}/AA/*", f"{tmp_path}/**/*"])
    assert [file.name for file in found] == ["AB/wiki_00", "other", "wiki_00"]
    assert found[2:] == [SourceFile(f"{tmp_path}/AA/wiki_00", "wiki_00")]


def test_a_directory_stands_for_all_text_files_in_it(tmp_path):
    touch(tmp_path, "a.txt", "b/poem")
    files = TextFilesConfig(name="s", paths=(str(tmp_path),)).list_files()
    assert [file.name for file in files] == ["a.txt", "b/poem"]


@pytest.mark.parametrize("pattern", ["{}//in/*", "{}/./in/*", "{}/in/../in/*", "{}/*/../in/*"])
def test_names_do_not_depend_on_how_a_path_is_written(tmp_path, pattern):
    touch(tmp_path, "in/a")
    (file,) = expand_patterns([pattern.format(tmp_path)])
    assert file.name in ("a", "in/a")
    assert os.path.samefile(file.path, tmp_path / "in" / "a")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_is_listed_once_whatever_links_lead_to_it_and_hidden_ones_are_not(tmp_path, scheme):
    touch(tmp_path, "in/a", "in/b/a", "in/.git/a", "in/.a", "in/.ipynb_checkpoints/a")
    for number in range(3):
        (tmp_path / f"in/{number}").symlink_to(tmp_path / "in")
    (tmp_path / "in/0link").symlink_to(tmp_path / "in/a")
    for pattern in ("in/**/*", "in/**", "**/in/**/a"):
        names = names_of(f"{scheme}{tmp_path}/{pattern}")
        assert [name.removeprefix("in/") for name in names] == ["a", "b/a"]


def test_a_file_name_with_brackets_is_taken_as_it_is_and_a_directory_told_how_to_be_written(tmp_path):
    touch(tmp_path, "a [1].txt", "[2020]/a.txt")
    assert names_of(f"{tmp_path}/a [1].txt") == ["a [1].txt"]
    with pytest.raises(MissingInputError) as caught:
        names_of(f"{tmp_path}/[2020]/*.txt")
    assert "`[[]`" in caught.value.next_step
    assert names_of(f"{tmp_path}/[[]2020]/*.txt") == ["[2020]/a.txt"]


def test_two_files_of_one_name_are_refused(tmp_path):
    touch(tmp_path, "a/x", "b/x")
    with pytest.raises(ConfigError, match="named x"):
        names_of(f"{tmp_path}/a/x", f"{tmp_path}/b/x")


@pytest.mark.parametrize(
    "pattern", ["{}", "file://{}", "nosuchstore://bucket/*.txt", "memory://nothing/here/*.txt"]
)
def test_what_matches_or_can_be_listed_nowhere_is_a_missing_input_and_a_directory_said_to_be_one(
    tmp_path, pattern
):
    with pytest.raises(MissingInputError) as caught:
        names_of(pattern.format(tmp_path))
    assert ("directory" in caught.value.problem) == ("{}" in pattern)


def test_files_at_uris_and_behind_chains_of_them_are_listed_read_and_named_as_without_them(tmp_path):
    touch(tmp_path, "in/a.txt", "in/b/c.txt")
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for name in ("in/a.txt", "in/b/c.txt"):
            (tmp_path / name).write_text(name)
            archive.write(tmp_path / name, name)
    for name in ("a", "b/c", ".git/d", "b/.e"):
        with fsspec.open(f"memory://listed/in/{name}.txt", "wb") as file:
            file.write(f"in/{name}.txt".encode())  # type: ignore[reportAttributeAccessIssue]
    for pattern in (
        "memory://listed/in/**/*.txt",
        f"simplecache::file://{tmp_path}/in/**/*.txt",
        f"zip://in/**/*.txt::{tmp_path}/in.zip",
    ):
        found = expand_patterns([pattern])
        assert [file.name for file in found] == ["a.txt", "b/c.txt"]
        for file in found:
            with open_file(file.path) as stream:
                assert stream.read() == f"in/{file.name}".encode()
            assert size_and_version(file.path)[0] == len(file.name) + 3
    (file,) = expand_patterns([f"simplecache::file://{tmp_path}/in/a.txt"])
    assert file == SourceFile(f"simplecache::file://{tmp_path}/in/a.txt", "a.txt")

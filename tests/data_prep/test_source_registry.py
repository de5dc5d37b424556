"""The sources as a set: named explicitly, chosen by `kind`, files named the same on every machine."""

from typing import ClassVar

import pytest
from pydantic import TypeAdapter, ValidationError

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.sources import AnySource
from data_prep.sources.base import SourceConfig, expand_patterns
from data_prep.text import clean_text


def test_the_place_of_the_files_enters_no_identity():
    class Elsewhere(SourceConfig):
        uri: str
        places: ClassVar[frozenset[str]] = frozenset({"uri"})

        def read(self, part):
            yield from ()

    assert "uri" not in Elsewhere(kind="x", name="x", uri="s3://bucket").identity()
    for kind in ("books_text", "hf_datasets"):
        settings = {"hf_datasets": {"path": "place"}}.get(kind, {"paths": ["place"]})
        config = TypeAdapter(AnySource).validate_python({"kind": kind, "name": "x", **settings})
        assert "place" not in str(config.identity())


def test_unknown_kinds_and_settings_are_refused():
    for settings in ({"kind": "wikipedia"}, {"kind": "books_text", "path": "x"}):
        with pytest.raises(ValidationError):
            TypeAdapter(AnySource).validate_python({"name": "x", "paths": ["x"], **settings})


def test_files_are_named_below_the_patterns_fixed_part(tmp_path):
    for name in ("AA/wiki_00", "AB/wiki_00", "other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = expand_patterns([f"{tmp_path}/**/wiki_*", f"{tmp_path}/other", f"{tmp_path}/AA/wiki_00"])
    assert [file.name for file in files] == ["AA/wiki_00", "AB/wiki_00", "other"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_is_listed_once_whatever_links_lead_to_it_and_hidden_ones_are_not(tmp_path, scheme):
    for name in ("in/a", "in/b/a", "in/.git/a", "in/.a", "in/.ipynb_checkpoints/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    for number in range(3):
        (tmp_path / f"in/{number}").symlink_to(tmp_path / "in")
    (tmp_path / "in/0link").symlink_to(tmp_path / "in/a")
    for pattern in ("in/**/*", "in/**", "**/in/**/a"):
        files = expand_patterns([f"{scheme}{tmp_path}/{pattern}"])
        assert [file.name.removeprefix("in/") for file in files] == ["a", "b/a"]


def test_a_file_name_with_brackets_is_taken_as_it_is(tmp_path):
    (tmp_path / "a [1].txt").touch()
    assert [file.name for file in expand_patterns([f"{tmp_path}/a [1].txt"])] == ["a [1].txt"]


def test_two_files_of_one_name_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    with pytest.raises(ConfigError, match="both named x"):
        expand_patterns([f"{tmp_path}/a/x", f"{tmp_path}/b/x"])


def test_a_pattern_that_matches_nothing_is_a_missing_input(tmp_path):
    with pytest.raises(MissingInputError, match="It is a directory"):
        expand_patterns([str(tmp_path)])


def test_uris_are_listed_through_fsspec():
    import fsspec

    for name in ("a", "b/c", ".git/d", "b/.e"):
        with fsspec.open(f"memory://listed/{name}.txt", "wb") as file:
            file.write(b"x")
    assert [file.name for file in expand_patterns(["memory://listed/**/*.txt"])] == ["a.txt", "b/c.txt"]


def test_cleaning_is_idempotent_and_takes_linear_time():
    text = "a  \r\n\r\n\r\n\tb\x00\u2028c" + " " * 1_000_000 + "d\ud800"
    cleaned = clean_text(text)
    assert cleaned.startswith("a\n\n\tb\nc")
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize("uri", ["nosuchstore://bucket/*.txt", "memory://nothing/here/*.txt"])
def test_an_address_that_cannot_be_listed_is_a_missing_input(uri):
    with pytest.raises(MissingInputError, match=r"cannot be listed|No file matches"):
        expand_patterns([uri])


def test_a_directory_with_brackets_is_told_how_to_be_written(tmp_path):
    (tmp_path / "[2020]").mkdir()
    (tmp_path / "[2020]" / "a.txt").touch()
    with pytest.raises(MissingInputError) as caught:
        expand_patterns([f"{tmp_path}/[2020]/*.txt"])
    assert "`[[]`" in caught.value.next_step
    assert [file.path for file in expand_patterns([f"{tmp_path}/[[]2020]/*.txt"])]

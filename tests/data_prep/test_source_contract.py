"""What every source keeps to, whatever its format: files, names, parts, packing, cuts, damage and remote files."""

import bz2
import gzip
import lzma
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.places import open_file, size_and_version
from data_prep.document import Document
from data_prep.sources import AnySource, Gap, Skipped
from data_prep.sources.base import LeftOut, SourceConfig, SourceFile, expand_patterns
from data_prep.sources.books import TextFilesConfig
from tests.golden.documents import SETTINGS, write_inputs

FILES = {"hf_datasets": "saved/train.jsonl", "python_docs": "golden_docs/__init__.py"}
"""The file of sources that do not name it in `paths`."""
MULTISTREAM = "wikipedia_dump, multistream"
SPLIT = ("common_crawl", "json_lines", "parquet", "wikipedia_dump", "wikipedia_extracted", "wikipedia_html")
"""Sources whose plain files can be cut, besides the JSON lines and Parquet files of `hf_datasets`."""
PACKED = ("books_tei", "books_text", "text_files", *SPLIT[1:2], *SPLIT[3:])
"""Sources that read what any of the usual programs has compressed as a whole."""
PACKINGS = [bz2.compress, gzip.compress, lzma.compress, zstandard.compress]
LINES = {"hf_datasets": b"}", "json_lines": b"}", "wikipedia_html": b"}", "wikipedia_extracted": b"</doc>"}
"""Sources whose records are lines or end with one, and how; a cut between them leaves a whole file."""
STRUCTURED = ("books_epub", "books_tei", "parquet", "wikipedia_dump", *LINES)
"""Sources that know a file which is cut."""
RECORDS = {"wikipedia_dump": (b"<page>", b"</page>"), "wikipedia_extracted": (b"<doc ", b"</doc>")}
"""How records begin and end; those of other files that can be cut at any byte are JSON objects."""
ANY_KIND, ANY_SPLIT, ANY_PACKED, ANY_STRUCTURED = (
    pytest.mark.parametrize("kind", kinds) for kinds in (SETTINGS, (*SPLIT, MULTISTREAM), PACKED, STRUCTURED)
)
FIXTURE = [HealthCheck.function_scoped_fixture]


def multistream(data: bytes) -> bytes:
    """A dump packed as dumps.wikimedia.org packs `pages-articles-multistream`, with a stream for each page."""
    cuts = [0, *(found.start() for found in re.finditer(b"<page>|</mediawiki>", data)), len(data)]
    return b"".join(bz2.compress(data[start:end]) for start, end in pairwise(cuts))


class Sample:
    """A file of some kind, which a test may change, and its source."""

    def __init__(self, kind: str, inputs: Path, copy: Path) -> None:
        kind, _, packed = kind.partition(", ")
        self.config: SourceConfig = TypeAdapter(AnySource).validate_python(
            {"kind": kind, "name": kind, **SETTINGS[kind]}
        )
        name = FILES.get(kind) or SETTINGS[kind]["paths"][0]
        self.data = (inputs / name).read_bytes()
        if packed:
            self.data = multistream(self.data)
        self.file = SourceFile(str(copy), name)
        self.write(self.data)
        self.whole = self.read()[0]

    def write(self, data: bytes) -> None:
        Path(self.file.path).write_bytes(data)

    def read(self, bounds: tuple[int, ...] = ()) -> tuple[list[Document | Gap | Skipped], Counter[str]]:
        """Everything that the parts between the bounds give in order, and what they left out."""
        found, left_out = [], Counter[str]()
        for start, end in zip((0, *bounds), (*bounds, None), strict=True):
            for item in self.config.read(replace(self.file, start=start, end=end)):
                if isinstance(item, LeftOut):
                    left_out.update(item.counts)
                else:
                    found.append(item)
        return found, left_out

    def split(self, part_bytes: int) -> list[SourceFile]:
        return self.config.split_file(self.file, os.path.getsize(self.file.path), part_bytes)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs") / "inputs")


@pytest.fixture
def sample(kind: str, inputs: Path, tmp_path: Path) -> Sample:
    return Sample(kind, inputs, tmp_path / "copy")


@pytest.mark.parametrize("kind", [*SETTINGS, MULTISTREAM])
def test_a_file_gives_documents_that_name_it_and_their_bytes(sample: Sample):
    documents = [item for item in sample.whole if isinstance(item, Document)]
    assert documents
    assert not [item for item in sample.whole if isinstance(item, Gap)]
    for document in documents:
        assert (document.uri, document.source) == (sample.file.name, sample.config.name)
        start, end = document.meta["byte_start"], document.meta["byte_end"]
        assert 0 <= start < end
        if sample.config.kind in {*RECORDS, *LINES}:
            opening, closing = RECORDS.get(sample.config.kind, (b"{", b"}"))
            stream = sample.data[document.meta.get("stream_start", 0) :]
            if "stream_start" in document.meta:
                stream = bz2.BZ2Decompressor().decompress(stream)
            record = stream[start:end]
            assert (record[: len(opening)], record[-len(closing) :]) == (opening, closing)
            assert record.count(b"\n" + opening) == 0
            assert document.title.encode() in record
        elif sample.config.kind.startswith(("books", "text")):
            assert (start, end) == (0, len(sample.data))


@ANY_SPLIT
@given(data=st.data())
@settings(suppress_health_check=FIXTURE)
def test_parts_that_begin_at_any_byte_read_together_as_the_file_does(sample: Sample, data: st.DataObject):
    stored = bytearray(sample.data)
    # A Parquet file without a readable footer is never split.
    if sample.config.kind != "parquet":
        damage = data.draw(st.sampled_from(["none", "changed", "cut"]))
        if damage == "changed":
            stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
        elif damage == "cut":
            del stored[data.draw(st.integers(2, len(stored))) :]
    sample.write(stored)
    if sample.config.kind != "parquet" and not sample.config.is_divisible(sample.file):
        return  # Damage at its beginning has made it a file that is never split.
    # Where something begins, what belongs to both parts or to neither shows.
    starts = (found.start() for found in re.finditer(rb"(?<=\n)|BZh|\x1f\x8b\x08|<page>", stored))
    places = st.integers(1, len(stored)) | st.sampled_from([1, *filter(None, starts)])
    bounds = tuple(sorted(data.draw(st.sets(places, max_size=5))))
    assert sample.read(bounds) == sample.read()


@ANY_KIND
def test_a_file_is_split_evenly_where_its_format_allows_and_is_one_part_otherwise(sample: Sample):
    parts = sample.split(len(sample.data) // 3)
    # The Parquet file has one row group.
    is_split = sample.config.kind in {*SPLIT, "hf_datasets"} - {"parquet"}
    assert len(parts) == (3 if is_split else 1)
    assert parts[0].start == 0
    assert [part.end for part in parts] == [*(part.start for part in parts[1:]), None]


@ANY_PACKED
@pytest.mark.parametrize("pack", PACKINGS)
def test_a_compressed_file_reads_alike_and_is_one_part(sample: Sample, pack: Callable[[bytes], bytes]):
    plain = sample.read()
    sample.write(pack(sample.data))
    assert sample.read() == plain
    assert sample.split(10) == [sample.file]


@ANY_PACKED
@pytest.mark.parametrize("pack", PACKINGS)
@given(share=st.floats(0.2, 0.99))
@settings(suppress_health_check=FIXTURE, max_examples=settings.default.max_examples // 3)
def test_a_truncated_file_keeps_a_prefix_of_its_documents_and_is_one_reject(
    sample: Sample, pack: Callable[[bytes], bytes], share: float
):
    stored = pack(sample.data)
    sample.write(stored[: int(len(stored) * share)])
    *kept, last = sample.read()[0]
    assert isinstance(last, Gap)
    assert kept == sample.whole[: len(kept)]


@ANY_STRUCTURED
@given(data=st.data())
@settings(suppress_health_check=FIXTURE)
def test_a_file_cut_anywhere_keeps_a_prefix_and_is_one_reject(sample: Sample, data: st.DataObject):
    kind, stored = sample.config.kind, sample.data.rstrip()
    cut = stored[: data.draw(st.integers(0, len(stored) - 1))].rstrip()
    sample.write(cut)
    found = sample.read()[0]
    offsets = [item.byte_offset for item in found if isinstance(item, Gap)]
    kept = [item for item in found if not isinstance(item, Gap)]
    assert kept == sample.whole[: len(kept)]
    is_whole = kind in LINES and (not cut or (cut.endswith(LINES[kind]) and stored[len(cut)] == ord("\n")))
    assert len(offsets) == (0 if is_whole else 1)
    assert all(0 <= offset <= len(cut) for offset in offsets)


@ANY_KIND
@given(data=st.data())
@settings(suppress_health_check=FIXTURE)
def test_a_file_that_is_cut_or_changed_anywhere_is_never_an_exception(sample: Sample, data: st.DataObject):
    stored = bytearray(sample.data[: data.draw(st.integers(1, len(sample.data)))])
    for place in data.draw(st.lists(st.integers(0, len(stored) - 1), max_size=3)):
        stored[place] = data.draw(st.integers(0, 255))
    sample.write(stored)
    try:
        sample.read()
    except ConfigError:  # the name of a column has changed
        assert sample.config.kind == "parquet"


@ANY_KIND
def test_files_are_read_through_fsspec_as_from_disk(sample: Sample):
    address = f"memory://contract/{sample.file.name}"
    with fsspec.open(address, "wb") as stored:
        stored.write(sample.data)  # type: ignore[reportAttributeAccessIssue]
    third = len(sample.data) // 3
    bounds = (third, 2 * third) if sample.config.kind in SPLIT else ()
    here, parts = sample.read(bounds), [(part.start, part.end) for part in sample.split(third)]
    sample.file = SourceFile(address, sample.file.name)
    assert sample.read(bounds) == here
    split = sample.config.split_file(sample.file, len(sample.data), third)
    assert [(part.start, part.end) for part in split] == parts


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
    for kept in ({"kind": "books_text", "paths": ["place"]}, {"kind": "hf_datasets", "path": "place"}):
        config = TypeAdapter(AnySource).validate_python({"name": "x", **kept})
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

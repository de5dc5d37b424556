"""Deduplication as a whole, without Ray: who is kept, and that nothing but documents and settings decides."""

import shutil
import unicodedata
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster import shards as making
from cluster.artefacts.shard_records import SHARD_RECORDS
from cluster.runtime import ray_runtime
from data_prep.dedup import graph, near, records
from data_prep.dedup import texts as blocks
from data_prep.dedup.config import NearDedup
from data_prep.dedup.near import band_keys, sign
from data_prep.dedup.records import RecordWriter, read_range
from data_prep.dedup.texts import shingle
from data_prep.layout import SELECTION_FILES
from data_prep.stages.deduplicate import deduplicate
from tests.data_prep.dedup.corpus import (
    FULL,
    MIN_CHARACTERS,
    NEAR,
    TEXTS,
    VERIFIED,
    dedup,
    firsts_of_components,
    kept_documents,
    kept_texts,
    split,
    without_ray,
    workspace,
    write_documents,
)
from tests.data_prep.killed import kill_after
from tests.surroundings import flip_bit

SHARDS = split(TEXTS, [30, 31])
STEPS = (
    "id-hashes id-repeats document-hashes document-repeats near-buckets near-edges near-round-00-large"
    " near-round-00-small near-repeats paragraph-hashes paragraph-repeats paragraphs-removed"
)
STEPS_OF_VERIFIED = "near-pairs near-shingles near-edges"


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=4),
    st.tuples(st.integers(1, 30), st.integers(1, 8)),
)
def test_of_equal_texts_the_first_is_kept_and_no_other(tmp_path_factory, shards, sizes):
    out = tmp_path_factory.mktemp("exact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PARTITION_RECORDS", sizes[0])
        patch.setattr(records, "BLOCK_RECORDS", sizes[1])
        manifest = dedup(out, shards, "exact")
    seen, expected = set(), []
    for shard in shards:
        expected.append([text for text in shard if text not in seen and not seen.add(text)])
    assert kept_texts(out, len(shards)) == expected
    assert manifest.stats["duplicates"] == sum(map(len, shards)) - len(seen)
    assert manifest.stats["documents_kept"] == manifest.stats["sources"]["web"]["documents_kept"] == len(seen)
    dedup(out, shards, "none")
    assert kept_texts(out, len(shards)) == shards


def in_one_bucket(method) -> np.ndarray:
    """[texts, texts] bool: whether two texts share a bucket."""
    bands, rows = NearDedup(**method["near"]).shape
    keys = band_keys(sign(shingle(pa.array(TEXTS), 2), bands * rows, 1), bands, rows)
    return (keys[:, None] == keys[None]).any(axis=2)


def test_near_duplicates_are_the_components_of_documents_that_share_a_bucket(tmp_path):
    expected = firsts_of_components(in_one_bucket(NEAR))
    manifest = dedup(tmp_path / "out", split(TEXTS, [20, 21, 50]), NEAR)
    assert kept_documents(tmp_path / "out", 4) == expected
    assert 12 <= len(expected) < len(TEXTS) / 2
    assert manifest.stats["near_duplicates"] == len(TEXTS) - len(expected)
    assert manifest.stats["near"]["found"]["0.6"] >= 0.95
    assert any(path.name.startswith("near-round-01") for path in (tmp_path / "out" / "work").iterdir())


@pytest.mark.parametrize("sizes", [(1 << 22, 1 << 22), (50, 30)])
def test_verified_near_duplicates_are_those_whose_ngrams_are_as_similar_as_is_asked_for(
    tmp_path, monkeypatch, sizes
):
    sets = [set(pairwise(text.split())) for text in TEXTS]
    similar = np.array([[len(a & b) / len(a | b) >= 0.85 for b in sets] for a in sets])
    met = in_one_bucket(VERIFIED)
    expected = firsts_of_components(met & similar)
    assert len(expected) > len(firsts_of_components(met))
    monkeypatch.setattr(records, "PARTITION_RECORDS", sizes[0])
    monkeypatch.setattr(records, "BLOCK_RECORDS", sizes[1])
    dedup(tmp_path, split(TEXTS, [20, 21, 50]), VERIFIED)
    assert kept_documents(tmp_path, 4) == expected


@given(st.lists(st.sets(st.integers(0, 5), max_size=3), max_size=30), st.integers(1, 20), st.integers(1, 4))
def test_documents_of_a_bucket_are_paired_with_its_first_and_those_before(
    tmp_path_factory, buckets, block, paired
):
    out = tmp_path_factory.mktemp("pairs")
    with RecordWriter(out / "records.arrow", near.COLUMNS) as writer:
        for document, own in enumerate(buckets):
            values = np.array(sorted(own), dtype=np.uint64)
            writer.write({"bucket": values, "document": np.full(len(own), document, dtype=np.uint64)})
    expected = set()
    for bucket in range(6):
        members = [document for document, own in enumerate(buckets) if bucket in own]
        for place, document in enumerate(members):
            others = {*members[:1], *members[max(0, place - paired) : place]} - {document}
            expected |= {(document, other) for other in others} | {(other, document) for other in others}
    (out / "made").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BLOCK_RECORDS", block)
        patch.setattr(graph, "PAIRED_BEFORE", paired)
        graph.pair_documents(out, 0, 1, out / "made" / "pairs.arrow")
    runs = read_range(out / "made", 0, 1 << 40)
    pairs = [zip(run["node"].tolist(), run["other"].tolist(), strict=True) for run in runs]
    assert {pair for own in pairs for pair in own} == expected


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(fingerprint, texts that are kept) of the corpus in three shards."""
    out = tmp_path_factory.mktemp("undisturbed")
    fingerprint = dedup(out, SHARDS, FULL).fingerprint
    return fingerprint, [text for own in kept_texts(out, 3) for text in own]


@settings(max_examples=settings.default.max_examples // 6)
@given(bounds=st.lists(st.integers(0, len(TEXTS)), max_size=4))
def test_the_same_documents_are_kept_however_they_are_spread_over_shards(
    tmp_path_factory, undisturbed, bounds
):
    out = tmp_path_factory.mktemp("spread")
    shards = split(TEXTS, bounds)
    dedup(out, shards, FULL)
    assert [text for own in kept_texts(out, len(shards)) for text in own] == undisturbed[1]


@pytest.mark.parametrize("sizes", [(7, 5, 1), (50, 1 << 20, 1000), (1 << 20, 3, 1 << 20)])
def test_partitions_and_blocks_of_any_size_give_the_same_artefact(tmp_path, undisturbed, monkeypatch, sizes):
    monkeypatch.setattr(records, "PARTITION_RECORDS", sizes[0])
    monkeypatch.setattr(records, "BLOCK_RECORDS", sizes[1])
    monkeypatch.setattr(blocks, "BLOCK_BYTES", sizes[2])
    assert dedup(tmp_path, SHARDS, FULL).fingerprint == undisturbed[0]
    files = list((tmp_path / "work" / "near-edges").glob("*.arrow"))
    assert (len(files) == 1) == (sizes[0] == 1 << 20)


# -- damage and interruption ------------------------------------------------------------------------------------


def prepared(out, method=FULL):
    """(workspace, fingerprint) of a finished deduplication; its files may be damaged."""
    fingerprint = dedup(out, SHARDS, method).fingerprint
    return workspace(out, len(SHARDS), method), fingerprint


def times(directory) -> dict[str, int]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.stat().st_mtime_ns for path in files}


def flip_a_byte(directory) -> None:
    flip_bit(min([*directory.glob("0*.arrow"), *directory.glob("*.parquet")]))


def test_without_the_work_an_intact_artefact_needs_none_and_a_damaged_one_makes_it_again(
    tmp_path, monkeypatch
):
    job, fingerprint = prepared(tmp_path)
    shutil.rmtree(tmp_path / "work")
    with monkeypatch.context() as patch:
        patch.setattr(making, "map_shards", None)
        assert deduplicate(job).fingerprint == fingerprint
    assert not (tmp_path / "work").exists()
    path = tmp_path / "dedup" / SELECTION_FILES.files(3)[2]
    good = path.read_bytes()
    flip_bit(path)
    with without_ray():
        assert deduplicate(job).fingerprint == fingerprint
    assert path.read_bytes() == good


@pytest.mark.parametrize(
    ("method", "step"),
    [*((FULL, step) for step in STEPS.split()), *((VERIFIED, step) for step in STEPS_OF_VERIFIED.split())],
)
def test_a_step_that_is_damaged_or_lost_is_made_again_and_no_other(tmp_path, method, step):
    job, fingerprint = prepared(tmp_path, method)
    for damage in (flip_a_byte, shutil.rmtree):
        shutil.rmtree(tmp_path / "dedup")
        damage(tmp_path / "work" / step)
        before = times(tmp_path / "work")
        with without_ray():
            assert deduplicate(job).fingerprint == fingerprint
        after = times(tmp_path / "work")
        assert {file.partition("/")[0] for file in after if after[file] != before.get(file)} == {step}


def test_other_settings_replace_the_work_of_earlier_ones(tmp_path):
    job, fingerprint = prepared(tmp_path)
    others = [workspace(tmp_path, 3, settings) for settings in (NEAR, VERIFIED)]
    with without_ray():
        made = [deduplicate(other).fingerprint for other in others]
        assert len({fingerprint, *made}) == 3
        assert deduplicate(job).fingerprint == fingerprint


MIN_LENGTH = 3
LINES = st.sampled_from(
    ["", "one line", "One, LINE!", "öne liné 1", "one line 2", "xy", "日本語の文", "日本語の文。", "z" * 9]
)
PAGES = st.lists(LINES, min_size=1, max_size=5).map("\n".join).filter(bool)


def normalise(line):
    """The letters and digits of a line, in lower case, without accents."""
    return "".join(
        c for c in unicodedata.normalize("NFD", line).lower() if unicodedata.category(c)[0] in "LN"
    )


def remove_in_memory(shards, scope, max_removed):
    seen, result = set(), []
    for texts in shards:
        result.append([])
        for text in texts:
            if scope == "within":
                seen = set()
            kept = []
            for line in text.splitlines(keepends=True):
                key = normalise(line)
                if len(key) < MIN_LENGTH or key not in seen:
                    kept.append(line)
                if len(key) >= MIN_LENGTH:
                    seen.add(key)
            is_edited = len(kept) < len(text.splitlines())
            left = "".join(kept).strip("\n") if is_edited else text
            lost = 1 - len(left) / len(text)
            if not is_edited or (len(left) >= MIN_CHARACTERS and lost <= max_removed):
                result[-1].append(left)
    return result


@given(
    st.lists(st.lists(PAGES, max_size=4), min_size=1, max_size=3),
    st.sampled_from(["within", "corpus"]),
    st.sampled_from([0.3, 0.6, 1.0]),
)
@example(
    [["one line\nöne liné\nzzzzzzzzz", "zzzzzzzzz\nxy\nxy\nabcde"], ["One line\nfghij klmno pqrst"]],
    "corpus",
    0.6,
)
def test_paragraphs_are_those_of_a_loop_over_all_texts(tmp_path_factory, shards, scope, max_removed):
    out = tmp_path_factory.mktemp("paragraphs")
    paragraphs = {"scope": scope, "min_length": MIN_LENGTH, "max_removed": max_removed}
    manifest = dedup(out, shards, {"documents": False, "paragraphs": paragraphs})
    expected = remove_in_memory(shards, scope, max_removed)
    assert kept_texts(out, len(shards)) == expected
    dropped = sum(map(len, shards)) - sum(map(len, expected))
    assert manifest.stats["paragraph_duplicates"] == dropped
    assert manifest.stats["documents_kept"] == sum(map(len, expected))


def test_paragraphs_of_equal_documents_are_not_missed_in_the_first_of_them(tmp_path):
    text = "The same long paragraph in both.\nAnd another paragraph after it."
    settings_ = {"documents": True, "paragraphs": {"scope": "corpus", "max_removed": 0.9}}
    other = text.splitlines()[0] + "\nSomething else that is not anywhere."
    manifest = dedup(tmp_path / "out", [[text, text, other]], settings_)
    assert kept_texts(tmp_path / "out", 1) == [[text, "Something else that is not anywhere."]]
    assert (manifest.stats["duplicates"], manifest.stats["removed_paragraphs"]) == (1, 1)
    # A paragraph goes with its line break.
    assert manifest.stats["removed_paragraph_bytes"] == text.index("And")


WORK = """
from data_prep.stages.deduplicate import deduplicate
from tests.data_prep.dedup.corpus import FULL, workspace
out = Path(sys.argv[1])
deduplicate(workspace(out, 5, FULL))
"""


def test_killed_between_steps_or_within_one_it_ends_the_same(tmp_path):
    shards = split(TEXTS, [15, 30, 31, 60])
    expected = dedup(tmp_path / "expected", shards, FULL).fingerprint
    write_documents(tmp_path / "out", shards)
    # In the buckets of near-duplicates: hashes and repeats of ids and documents are made by then.
    kill_after(2 * (5 + 1) + 2, WORK, tmp_path / "out")
    work = tmp_path / "out" / "work"
    (partial,) = work.glob(".near-buckets.*.partial")
    finished = {
        record.entry.path: (partial / record.entry.path).stat().st_mtime_ns
        for record in SHARD_RECORDS.read_all(partial)
    }
    assert 2 <= len(finished) < len(shards)
    job = workspace(tmp_path / "out", len(shards), FULL)
    with ray_runtime("local", num_cpus=2):
        assert deduplicate(job).fingerprint == expected
        assert {name: (work / "near-buckets" / name).stat().st_mtime_ns for name in finished} == finished
        assert deduplicate(job).fingerprint == expected

"""The stage as a whole, without Ray: who is kept, and that nothing but documents and settings decides."""

import shutil
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster import sharded_artefact
from cluster.artefacts import parts
from cluster.artefacts.manifest import read_manifest
from data_prep.dedup import graph, near, records
from data_prep.dedup import texts as blocks
from data_prep.dedup.config import NearDedup
from data_prep.dedup.near import band_keys, sign
from data_prep.dedup.records import RecordWriter, read_range
from data_prep.dedup.repeats import RepeatsSplit
from data_prep.dedup.texts import shingle
from data_prep.selection import selection_files
from data_prep.stages.deduplicate import deduplicate
from tests.data_prep.dedup.corpus import (
    dedup,
    kept_documents,
    kept_texts,
    without_ray,
    workspace,
    write_documents,
)

NEAR = {"documents": False, "near": {"threshold": 0.6, "ngram": 2, "verify": False}}
VERIFIED = {
    "documents": False,
    "near": {"threshold": 0.85, "ngram": 2, "bands": 38, "rows": 5},
}
FULL = {
    "documents": True,
    "paragraphs": {"scope": "corpus", "min_length": 20},
    "near": {"threshold": 0.6, "ngram": 2, "verify": False},
}


def family_corpus(seed=4, num_families=12, size=6):
    """Texts in which every family descends from one text, a few words changed from each to the next; shuffled.

    Some have one of two last paragraphs.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    words = ["".join(generator.choice([*"abcdefghij"], 6)) for _ in range(3000)]
    texts = []
    for _ in range(num_families):
        text = list(generator.choice(words, 60))
        for _ in range(size):
            for place in generator.choice(60, int(generator.integers(0, 6)), replace=False):
                text[place] = str(generator.choice(words))
            footer = generator.choice(
                ["", "\nshared by many documents here", "\nand by these others there too"]
            )
            texts.append(" ".join(text) + footer)
    generator.shuffle(texts)
    return texts


TEXTS = family_corpus()


def split(texts, bounds):
    """The texts in shards that end at `bounds`."""
    edges = [0, *sorted(min(bound, len(texts)) for bound in bounds), len(texts)]
    return [texts[start:end] for start, end in pairwise(edges)]


@settings(max_examples=12)
@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=4))
def test_of_equal_texts_the_first_is_kept_and_no_other(tmp_path_factory, shards):
    out = tmp_path_factory.mktemp("exact")
    manifest = dedup(out, shards, "exact")
    seen, expected = set(), []
    for shard in shards:
        expected.append([text for text in shard if text not in seen and not seen.add(text)])
    assert kept_texts(out, len(shards)) == expected
    assert manifest.stats["duplicates"] == sum(map(len, shards)) - len(seen)
    assert manifest.stats["documents_kept"] == manifest.stats["sources"]["web"]["documents_kept"] == len(seen)


def test_without_deduplication_every_document_is_kept(tmp_path):
    dedup(tmp_path / "out", [["a", "a"], [], ["a"]], "none")
    assert kept_texts(tmp_path / "out", 3) == [["a", "a"], [], ["a"]]


def test_near_duplicates_are_the_components_of_documents_that_share_a_bucket(tmp_path):
    met = in_one_bucket(NEAR)
    expected = firsts_of_components(met)
    manifest = dedup(tmp_path / "out", split(TEXTS, [20, 21, 50]), NEAR)
    assert kept_documents(tmp_path / "out", 4) == expected
    assert 12 <= len(expected) < len(TEXTS) / 2
    assert manifest.stats["near_duplicates"] == len(TEXTS) - len(expected)
    assert manifest.stats["near"]["found"]["0.6"] >= 0.95
    assert any(path.name.startswith("near-round-01") for path in (tmp_path / "out" / "work").iterdir())


def in_one_bucket(method):
    """[texts, texts] bool: whether two texts share a bucket."""
    bands, rows = NearDedup(**method["near"]).shape
    keys = band_keys(sign(shingle(pa.array(TEXTS), 2), bands * rows, 1), bands, rows)
    return (keys[:, None] == keys[None]).any(axis=2)


def firsts_of_components(linked):
    """The first text of every component of the graph."""
    labels = connected_components(coo_array(linked), directed=False)[1]
    return sorted(np.unique(labels, return_index=True)[1].tolist())


def test_verified_near_duplicates_are_those_whose_ngrams_are_as_similar_as_is_asked_for(
    tmp_path, monkeypatch
):
    words = [text.split() for text in TEXTS]
    sets = [set(pairwise(own)) for own in words]
    similar = np.array([[len(a & b) / len(a | b) >= 0.85 for b in sets] for a in sets])
    met = in_one_bucket(VERIFIED)
    expected = firsts_of_components(met & similar)
    assert len(expected) > len(firsts_of_components(met))
    kept = []
    for number, sizes in enumerate([(1 << 22, 1 << 22), (50, 30)]):
        monkeypatch.setattr(records, "PARTITION_RECORDS", sizes[0])
        monkeypatch.setattr(records, "BLOCK_RECORDS", sizes[1])
        dedup(tmp_path / str(number), split(TEXTS, [20, 21, 50]), VERIFIED)
        kept.append(kept_documents(tmp_path / str(number), 4))
    assert kept == [expected] * 2


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
            expected |= {
                (document, other) for other in [*members[:1], *members[max(0, place - paired) : place]]
            }
    (out / "made").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BLOCK_RECORDS", block)
        patch.setattr(graph, "PAIRED_BEFORE", paired)
        split_ = RepeatsSplit(out, 0, 1, near.KEYS, ())
        graph.pair_documents(split_, out / "made" / "pairs.arrow")
    found = [(a, b) for run in read_range(out / "made", 0, 1 << 40)
             for a, b in zip(run["node"].tolist(), run["other"].tolist(), strict=True)]  # fmt: skip
    expected = {(a, b) for a, b in expected if a != b}
    assert set(found) == expected | {(b, a) for a, b in expected}


@settings(max_examples=4)
@given(st.lists(st.integers(0, len(TEXTS)), max_size=4))
def test_the_same_documents_are_kept_however_they_are_spread_over_shards(tmp_path_factory, bounds):
    out = tmp_path_factory.mktemp("spread")
    shards = split(TEXTS, bounds)
    dedup(out, shards, FULL)
    assert [text for own in kept_texts(out, len(shards)) for text in own] == undisturbed(tmp_path_factory)[1]


def test_partitions_and_blocks_of_any_size_give_the_same_artefact(tmp_path_factory, monkeypatch):
    fingerprint, _ = undisturbed(tmp_path_factory)
    for partition, block, block_bytes in ((7, 5, 1), (50, 1 << 20, 1000), (1 << 20, 3, 1 << 20)):
        out = tmp_path_factory.mktemp("partitions")
        monkeypatch.setattr(records, "PARTITION_RECORDS", partition)
        monkeypatch.setattr(records, "BLOCK_RECORDS", block)
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        assert dedup(out, split(TEXTS, [30, 31]), FULL).fingerprint == fingerprint
    assert len(list((out / "work" / "near-edges").glob("*.arrow"))) == 1


_undisturbed = {}


def undisturbed(tmp_path_factory):
    """(fingerprint, texts that are kept) of the corpus in three shards."""
    if not _undisturbed:
        out = tmp_path_factory.mktemp("undisturbed")
        manifest = dedup(out, split(TEXTS, [30, 31]), FULL)
        _undisturbed["result"] = manifest.fingerprint, [text for own in kept_texts(out, 3) for text in own]
    return _undisturbed["result"]


@pytest.fixture
def prepared(tmp_path, tmp_path_factory):
    """(workspace, documents, fingerprint) of a finished deduplication; its files may be damaged."""
    shards = split(TEXTS, [30, 31])
    manifest = dedup(tmp_path / "out", shards, FULL)
    documents = read_manifest(tmp_path / "out" / "documents")
    return workspace(tmp_path / "out", len(shards), FULL), documents, manifest.fingerprint


def test_an_intact_artefact_needs_none_of_the_work(prepared, monkeypatch):
    job, documents, fingerprint = prepared
    shutil.rmtree(job.out / "work")
    monkeypatch.setattr(sharded_artefact, "map_shards", None)
    assert deduplicate(job, documents).fingerprint == fingerprint
    assert not (job.out / "work").exists()


@pytest.mark.parametrize("with_work", [True, False])
def test_a_damaged_selection_comes_back_as_it_was(prepared, with_work):
    job, documents, fingerprint = prepared
    path = job.out / "dedup" / selection_files(3)[2]
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"!")
    if not with_work:
        shutil.rmtree(job.out / "work")
    with without_ray():
        assert deduplicate(job, documents).fingerprint == fingerprint
    assert path.read_bytes() == good


STEPS = (
    "id-hashes",
    "id-repeats",
    "document-hashes",
    "document-repeats",
    "near-buckets",
    "near-edges",
    "near-round-00-large",
    "near-round-00-small",
    "near-repeats",
    "paragraph-hashes",
    "paragraph-repeats",
    "paragraphs-removed",
)


def assert_made_again(job, documents, fingerprint, step, damage):
    """After damage to a step, the same artefact comes back, and no other step is made again."""
    shutil.rmtree(job.out / "dedup")
    damage(job.out / "work" / step)
    before = times(job.out / "work")
    with without_ray():
        assert deduplicate(job, documents).fingerprint == fingerprint
    after = times(job.out / "work")
    assert {name.partition("/")[0] for name in after if after[name] != before.get(name)} == {step}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_is_damaged_or_lost_is_made_again_and_no_other(prepared, step):
    for damage in (flip_a_byte, shutil.rmtree):
        assert_made_again(*prepared, step, damage)


def flip_a_byte(directory):
    path = sorted(directory.glob("0*.arrow") or ())[0] if list(directory.glob("0*.arrow")) else None
    path = path or next(directory.glob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def times(directory):
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize("after", range(0, len(STEPS) + 1, 3))
def test_a_run_that_died_between_steps_goes_on_and_ends_the_same(
    tmp_path, tmp_path_factory, monkeypatch, after
):
    """The death is an error that nothing catches, between two artefacts; kills within one are tested with Ray."""
    shards = split(TEXTS, [30, 31])
    documents = write_documents(tmp_path / "out", shards)
    job = workspace(tmp_path / "out", len(shards), FULL)
    build, count = parts.commit, 0

    def die(*args, **kwargs):
        nonlocal count
        count += 1
        if count > after:
            raise KeyboardInterrupt
        return build(*args, **kwargs)

    with without_ray():
        monkeypatch.setattr(parts, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            deduplicate(job, documents)
        monkeypatch.setattr(parts, "commit", build)
        assert not (job.out / "dedup").exists()
        finished = times(job.out / "work")
        assert deduplicate(job, documents).fingerprint == undisturbed(tmp_path_factory)[0]
    later = times(job.out / "work")
    assert all(later[name] == time for name, time in finished.items() if not name.startswith("."))


@pytest.mark.parametrize("step", ["near-pairs", "near-shingles", "near-edges"])
def test_a_step_of_the_verification_that_is_damaged_is_made_again_and_no_other(tmp_path, step):
    fingerprint = dedup(tmp_path / "out", split(TEXTS, [30, 31]), VERIFIED).fingerprint
    job = workspace(tmp_path / "out", 3, VERIFIED)
    assert_made_again(job, read_manifest(job.out / "documents"), fingerprint, step, flip_a_byte)


def test_other_settings_replace_the_work_of_earlier_ones(prepared):
    job, documents, fingerprint = prepared
    others = [workspace(job.out, 3, settings) for settings in (NEAR, VERIFIED)]
    with without_ray():
        made = [deduplicate(other, documents).fingerprint for other in others]
        assert len({fingerprint, *made}) == 3
        assert deduplicate(job, documents).fingerprint == fingerprint

"""Deduplication on Ray: the result is that of one process, also after a kill."""

from cluster.artefacts.shard_records import SHARD_RECORDS
from cluster.runtime import ray_runtime
from data_prep.stages.deduplicate import deduplicate
from tests.data_prep.dedup.corpus import FULL, TEXTS, dedup, split, workspace, write_documents
from tests.data_prep.killed import kill_after

SHARDS = split(TEXTS, [15, 30, 31, 60])
WORK = """
from cluster.artefacts.manifest import read_manifest
from data_prep.stages.deduplicate import deduplicate
from tests.data_prep.dedup.corpus import FULL, workspace
out = Path(sys.argv[1])
deduplicate(workspace(out, 5, FULL), read_manifest(out / "documents"))
"""


def test_killed_between_steps_or_within_one_it_ends_the_same(tmp_path):
    expected = dedup(tmp_path / "expected", SHARDS, FULL).fingerprint
    documents = write_documents(tmp_path / "out", SHARDS)
    # In the buckets of near-duplicates: hashes and repeats of ids and documents are made by then.
    kill_after(2 * (5 + 1) + 2, WORK, tmp_path / "out")
    work = tmp_path / "out" / "work"
    (partial,) = work.glob(".near-buckets.*.partial")
    finished = {
        record.entry.path: (partial / record.entry.path).stat().st_mtime_ns
        for record in SHARD_RECORDS.read_all(partial)
    }
    assert 2 <= len(finished) < len(SHARDS)
    job = workspace(tmp_path / "out", len(SHARDS), FULL)
    with ray_runtime("local", num_cpus=2):
        assert deduplicate(job, documents).fingerprint == expected
        assert {name: (work / "near-buckets" / name).stat().st_mtime_ns for name in finished} == finished
        assert deduplicate(job, documents).fingerprint == expected

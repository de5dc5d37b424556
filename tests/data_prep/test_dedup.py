"""Which documents deduplication keeps."""

import numpy as np
import pytest
from data_prep.dedup.kept import kept_files, read_kept, write_kept
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import CorruptArtefactError
from data_prep.dedup import exact
from data_prep.dedup.exact import keep_all, keep_first
from data_prep.dedup.index import IndexSplit, index_documents, load_index
from data_prep.document import Document
from data_prep.documents import DocumentWriter

SHARDS = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12), max_size=6)


def as_hashes(shards):
    return [np.array(shard, dtype=np.uint64).reshape(-1, 2) for shard in shards]


@settings(deadline=None)
@given(SHARDS, st.integers(1, 8))
def test_the_first_document_with_a_text_is_kept_and_no_other(shards, partition_documents):
    seen, expected = set(), []
    for shard in shards:
        expected.append([row for row, key in enumerate(shard) if key not in seen and not seen.add(key)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "PARTITION_DOCUMENTS", partition_documents)
        kept = keep_first(as_hashes(shards))
    assert [rows.tolist() for rows in kept] == expected


@settings(deadline=None)
@given(SHARDS)
def test_without_deduplication_every_row_is_kept(shards):
    assert [rows.tolist() for rows in keep_all(as_hashes(shards))] == [list(range(len(s))) for s in shards]


def test_index_tells_equal_texts_from_different_ones(tmp_path):
    texts = ["same text", "other text", "same text", "", "Ünïcode ☃"]
    with DocumentWriter(tmp_path / "documents.parquet") as writer:
        for number, text in enumerate(texts):
            writer.add(Document(f"d:{number}", "s", "u", "t", "en", text))
    result = index_documents(IndexSplit(tmp_path / "documents.parquet"), tmp_path / "index.npy")
    (index,) = load_index(tmp_path, ["index.npy"])
    assert result.rows == len(index) == len(texts)
    assert index["text_bytes"].tolist() == [len(text.encode()) for text in texts]
    assert [rows.tolist() for rows in keep_first([index["text_hash"]])] == [[0, 1, 3, 4]]
    assert len(np.unique(index["draw"])) == len(texts)


def test_kept_rows_survive_the_disk_and_damage_is_named(tmp_path):
    path = tmp_path / kept_files(3)[1]
    write_kept(path, np.array([0, 5, 70_000]))
    assert read_kept(tmp_path, 1).tolist() == [0, 5, 70_000]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptArtefactError, match=path.name):
        read_kept(tmp_path, 1)
    with pytest.raises(CorruptArtefactError, match="document shard 2"):
        read_kept(tmp_path, 2)

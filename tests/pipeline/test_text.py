"""Documents are found through the index, which has nothing of each, where all of them are said to be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.token_store import TokenStore
from pipeline.samples.packed import NO_SOURCE, empty_slices
from pipeline.samples.text import find_documents, number_sources, write_sources
from tests.data_prep.test_token_store import encoded, write_store

SHARDS = st.lists(st.lists(st.lists(st.integers(0, 70_000), max_size=9), max_size=7), min_size=1, max_size=4)


@given(SHARDS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_index_finds_every_document_in_any_order(tmp_path_factory, shards, batch_documents, random):
    rows = [
        [
            encoded(f"{shard}:{row}", ids, [0, len(ids) // 2] if len(ids) > 1 else None)
            for row, ids in enumerate(own)
        ]
        for shard, own in enumerate(shards)
    ]
    store = TokenStore.open(
        write_store(tmp_path_factory.mktemp("s") / "tokens", rows, 70_001, batch_documents)
    )
    documents = np.array(random.sample(range(store.num_documents), store.num_documents), dtype=np.int64)
    expected, found = store.arrays().of(documents), find_documents(store.index, documents)
    assert all((ours == theirs).all() for ours, theirs in zip(found[2:], expected[2:], strict=True))
    names = [f"source{number}" for number in (3, 0, 2)]
    places, slices = np.arange(len(documents)), empty_slices(np.arange(len(documents) + 1))
    slices.documents[:], slices.starts[:], slices.stops[:], slices.closed[:] = documents, 0, 0, False
    numbers = np.empty((len(documents), 1), dtype=np.int16)
    write_sources(store.index, slices, places, number_sources(store, names), numbers)
    told = [store.source(document) for document in documents]
    assert numbers[:, 0].tolist() == [names.index(name) if name in names else NO_SOURCE for name in told]

"""Connected components by alternating stars, against scipy."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from data_prep.dedup import records
from data_prep.dedup.graph import EDGES, ROUND, both_ways, distinct, list_leaves
from data_prep.dedup.records import RecordWriter, document_ranges, number_documents, read_range
from data_prep.layout import RECORD_FILES

ROWS = 7
"""Documents in every shard."""


def numbers(nodes):
    """Numbers of documents from positions in the corpus."""
    nodes = np.asarray(nodes, dtype=np.int64)
    return number_documents(0, nodes % ROWS) + (nodes // ROWS).astype(np.uint64) * np.uint64(1 << 32)


def leaves(directory, edges, num_nodes):
    """(positions of the nodes that are not the first of their component, rounds until nothing changed)."""
    ranges = document_ranges([ROWS] * -(-num_nodes // ROWS))
    files = RECORD_FILES.files(len(ranges))
    graph = directory / "edges"
    graph.mkdir()
    left, right = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    with RecordWriter(graph / "00000-of-00001.arrow", EDGES) as writer:
        writer.write(both_ways(distinct(numbers(left), numbers(right))))
    number, num_changed = 0, 1
    while num_changed:
        num_changed = 0
        for name, operation in ROUND:
            target = directory / f"{number}-{name}"
            target.mkdir()
            for file, bounds in zip(files, ranges, strict=True):
                num_changed += operation(graph, *bounds, target / file).stats["changed"]
            graph = target
        number += 1
    (directory / "leaves").mkdir()
    for file, bounds in zip(files, ranges, strict=True):
        list_leaves(graph, *bounds, directory / "leaves" / file)
    found = [part["document"] for part in read_range(directory / "leaves", 0, (1 << 64) - 1)]
    documents = np.concatenate([np.empty(0, dtype=np.uint64), *found])
    rows, shards = documents & np.uint64(0xFFFFFFFF), documents >> np.uint64(32)
    return (shards * np.uint64(ROWS) + rows).astype(np.int64).tolist(), number


def leaves_by_scipy(edges, num_nodes):
    left, right = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(left)), (left, right)), shape=(num_nodes, num_nodes))
    labels = connected_components(graph, directed=False)[1]
    firsts = {int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)}
    return [node for node in range(num_nodes) if node not in firsts]


NODES = st.integers(0, 39)


@given(
    st.lists(st.tuples(NODES, NODES).filter(lambda pair: pair[0] != pair[1]), max_size=40),
    st.integers(1, 50),
    st.integers(1, 20),
)
@example([(20, node) for node in range(40) if node != 20], 50, 3)
def test_components_are_those_of_scipy(tmp_path_factory, edges, partition, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PARTITION_RECORDS", partition)
        patch.setattr(records, "BLOCK_RECORDS", block)
        found, _ = leaves(tmp_path_factory.mktemp("graph"), edges, 40)
    assert found == leaves_by_scipy(edges, 40)


def test_a_long_path_in_any_order_takes_logarithmically_many_rounds(tmp_path):
    num_nodes = 2000
    order = np.random.Generator(np.random.Philox(3)).permutation(num_nodes)
    found, rounds = leaves(tmp_path, np.stack([order[:-1], order[1:]], axis=1), num_nodes)
    assert found == list(range(1, num_nodes))
    assert rounds <= math.log2(num_nodes) + 2

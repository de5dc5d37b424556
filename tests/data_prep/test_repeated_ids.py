"""Documents that repeat an id: told apart by the place of their records, or rejected, whatever the shards are."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.artefacts.errors import TooManyRejectsError
from cluster.artefacts.manifest import hash_file
from data_prep.config import PreparationConfig
from data_prep.documents import DocumentStore
from data_prep.inputs import group_inputs, list_inputs
from data_prep.layout import DEDUP
from data_prep.selection import Selection, load_selection, read_selection, write_selection
from data_prep.stages.collect import collect
from data_prep.stages.deduplicate import deduplicate
from data_prep.verify import list_rejects
from data_prep.workspace import Workspace
from tests.data_prep.dedup.corpus import without_ray


def prepare(directory, files, shard_bytes, **changes):
    """The manifest of the selection, and the names of the kept documents by the bytes of their records."""
    directory.mkdir(exist_ok=True)
    for name, ids in files.items():
        rows = [json.dumps({"id": own, "text": f"{name} text {at}"}) for at, own in enumerate(ids)]
        (directory / name).write_text("\n".join(rows))
    source = {"kind": "json_lines", "name": "s", "paths": [str(directory / "*.jsonl")], "id_field": "id"}
    plain = {"name": "x", "out": directory / f"out-{shard_bytes}", "sources": [source], "min_characters": 1}
    config = PreparationConfig.model_validate(plain | {"shard_bytes": shard_bytes} | changes)
    config.out.mkdir(exist_ok=True)
    inputs = list_inputs(config)
    digests = [hash_file(Path(file.path))[0] for file in inputs.files]
    job = Workspace(config, group_inputs(inputs, shard_bytes), digests, replace=True)
    with without_ray():
        manifest = deduplicate(job, collect(job))
    store = DocumentStore.open(config.out / "documents")
    documents = [
        document
        for shard in range(job.num_shards)
        for document in store.read_selected(shard, read_selection(config.out / DEDUP, shard, job.num_shards))
    ]
    return manifest, {(each.uri, each.meta["byte_start"]): each.doc_id for each in documents}


IDS = st.lists(st.sampled_from([1, "1", "a", "b", "s:1", "1 @ a.jsonl:0", "", 2]), max_size=9)


@given(first=IDS, second=IDS.filter(bool))
@example(first=[1, 1, "1 @ a.jsonl:43"], second=["1", 2, 2])
def test_every_document_has_an_id_of_its_own_and_the_first_of_equal_ids_is_kept(
    tmp_path_factory, first, second
):
    directory = tmp_path_factory.mktemp("ids")
    files = {"a.jsonl": first, "b.jsonl": second}
    manifest, names = prepare(directory, files, 1 << 20)
    _, shared_out = prepare(directory, files, 40)
    assert shared_out == names
    assert len(set(names.values())) == len(names) == len(first) + len(second)
    given_ids = [str(own) for own in (*first, *second)]
    seen: set[str] = set()
    num_repeated = 0
    for own, ((uri, start), name) in zip(given_ids, sorted(names.items()), strict=True):
        if " @ " in own or own in seen:
            assert name == f"s:{own} @ {uri}:{start}"
        else:
            assert name == (f"s:{own}" if own else f"s:{uri}:{start}")
        num_repeated += own in seen and " @ " not in own
        seen |= {own} - {""}
    assert manifest.stats["repeated_ids"] == manifest.stats["sources"]["s"]["repeated_ids"] == num_repeated


def test_repeated_ids_are_rejected_where_that_is_asked_for(tmp_path):
    files = {"a.jsonl": [1, 2, 1], "b.jsonl": [3, 2]}
    with pytest.raises(TooManyRejectsError, match=r"a\.jsonl.* s:1"):
        prepare(tmp_path, files, 40, repeated_ids="reject")
    manifest, names = prepare(tmp_path, files, 40, repeated_ids="reject", max_rejects=2)
    assert sorted(names.values()) == ["s:1", "s:2", "s:3"]
    assert manifest.stats["repeated_ids"] == manifest.stats["rejects"] == 2
    assert [reject.uri for reject in list_rejects(tmp_path / "out-40")] == ["a.jsonl", "b.jsonl"]


def test_a_selection_keeps_what_repeats_through_all_that_is_done_to_it(tmp_path):
    spans = np.array([[0, 2], [5, 7]])
    whole = Selection(np.array([1, 4, 6]), np.array([0, 2, 0]), spans, repeated_ids=np.array([4, 6]))
    write_selection(tmp_path / "x", whole)
    loaded = load_selection(tmp_path / "x")
    for each in (loaded, loaded.take(np.array([1, 2])), loaded.between(2, 9), loaded.with_whole_texts()):
        assert np.isin(each.rows, each.repeated_ids).tolist()[-2:] == [True, True]
    assert not np.isin(loaded.rows, loaded.repeated_ids)[0]

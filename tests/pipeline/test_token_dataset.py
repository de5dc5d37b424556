"""Samples by number and step: the same whatever the ranks, every document of the split and no other, and an epoch's
index made once, ahead of time."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import ConfigError, MismatchError
from data_prep.token_store import TokenStore
from pipeline.run.directory import RunDirectory
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from pipeline.samples.batch_plan import BatchPlan
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.index_cache import EpochPrefetch
from pipeline.samples.loader import StepLoader
from pipeline.samples.mixture import Sampling, StoreShare
from pipeline.samples.packed import DOCUMENT, MARKS, NO_SOURCE, OPENED, EpochRows, Packed
from pipeline.samples.text import find_documents, number_sources, write_sources
from tests.conftest import write_store
from tests.data_prep import test_token_store


def make_dataset(*paths: Path, seed: int = 1, held_out: float = 0.2, **options) -> TokenDataset:
    stores = [TokenStore.open(path) for path in paths]
    weights = options.pop("weights", [1.0] * len(stores))
    ingredients = [StoreShare(*each) for each in zip(stores, weights, strict=True)]
    return TokenDataset(ingredients, Sampling(sequence_length=16, seed=seed, held_out=held_out, **options))


def test_samples_of_a_step_are_sorted_by_length_whatever_the_number_of_ranks(store: Path):
    dataset, plan = make_dataset(store), BatchPlan(samples_per_step=12, micro_batch_size=4)

    def lengths(sample_ids: np.ndarray, epochs: np.ndarray, length: int) -> np.ndarray:
        assert length == 16
        return ((sample_ids + epochs) % 5).astype(np.int64)

    def loader(rank: int = 0, world_size: int = 1) -> StepLoader[Packed]:
        phases = [(0, dataset), (5, make_dataset(store, seed=2))]
        return StepLoader(phases, plan, lambda p: p, rank=rank, world_size=world_size, lengths=lengths)

    for step in (0, 3, 6):
        numbers = [loader().samples(step, number) for number in range(3)]
        first = 12 * (step - (5 if step >= 5 else 0))
        assert sorted(np.concatenate(numbers).tolist()) == list(range(first, first + 12))
        ids, epochs = loader().phase(step)[1].identify(np.concatenate(numbers))
        assert (np.diff(lengths(ids, epochs, 16)) >= 0).all()
    whole = loader().load(3)
    for rank in range(3):
        ((number, own),) = loader(rank, 3).load(3).items()
        assert number == rank
        assert (own.sample_ids == whole[rank].sample_ids).all()
        assert (own.input_ids == whole[rank].input_ids).all()
    identified, _ = dataset.identify(loader().samples(3, 1))
    assert (identified == whole[1].sample_ids).all()


def test_an_error_while_loading_is_raised_where_the_batch_is_awaited(store: Path):
    def fail(packed: Packed) -> Packed:
        raise OSError("the disk is gone")

    loader = StepLoader([(0, make_dataset(store))], BatchPlan(4, 2), fail, rank=0, world_size=1)
    with pytest.raises(OSError, match="the disk is gone"):
        list(loader.steps(0, 2))


stages = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=3)


@given(stages=stages, size=st.integers(1, 4), micro=st.integers(1, 3), since=st.integers(0, 8))
def test_steps_read_every_sample_once_and_in_order(
    stages: list[tuple[int, int]], size: int, micro: int, since: int
):
    warmup = tuple((steps, micro * count) for steps, count in stages)
    plan = BatchPlan(micro * size, micro, warmup)
    read = [
        plan.samples(step, number, since=since)
        for step in range(since, since + 20)
        for number in range(plan.num_micro_batches(step))
    ]
    assert np.concatenate(read).tolist() == list(range(plan.samples_between(since, since + 20)))


@given(st.sets(st.integers(0, 30), max_size=8), st.integers(0, 40))
def test_updates_read_the_data_steps_that_are_not_left_out(skipped: set[int], update: int):
    kept = [step for step in range(200) if step not in skipped]
    entries = tuple(SkippedStep(at_update=step, data_step=step, loss=9.0, score=None) for step in skipped)
    ledger = SkipLedger(RunDirectory(Path("unread")), entries)
    assert ledger.data_step(update) == kept[update]


def test_the_next_epoch_is_begun_when_half_of_one_is_read(store: Path, monkeypatch: pytest.MonkeyPatch):
    begun = []
    begin = EpochPrefetch.begin

    def noted(self: EpochPrefetch, part: int, epoch: int) -> Future:
        begun.append((part, epoch))
        return begin(self, part, epoch)

    monkeypatch.setattr(EpochPrefetch, "begin", noted)
    samples = make_dataset(store)
    count = samples.samples_per_epoch[0]
    samples.batch(range(count // 2))
    assert set(begun) == {(0, 0)}
    samples.batch(range(count // 2, count // 2 + 2))
    assert set(begun) == {(0, 0), (0, 1)}


def test_an_epoch_reads_every_training_token_once_and_none_of_a_held_out_document(store: Path):
    train, held_out = make_dataset(store), make_dataset(store, split="held_out")
    total = train.stores[0].num_documents
    assert train.num_documents + held_out.num_documents == total
    assert 0 < held_out.num_documents < total / 2
    seen, unseen = (
        [piece for k in range(each.samples_per_epoch[0]) for piece in each.origin(k).slices]
        for each in (train, held_out)
    )
    assert not {piece.document for piece in seen} & {piece.document for piece in unseen}
    expected = train.stores[0].lengths[~train.stores[0].held_out(0.2)].sum()
    assert expected - 16 < sum(piece.stop - piece.start for piece in seen) <= expected


def test_stores_of_different_tokenizers_and_sources_that_are_not_there_are_refused(
    store: Path, tmp_path: Path
):
    with pytest.raises(MismatchError, match="tokenizers"):
        make_dataset(store, write_store(tmp_path / "other", vocab_size=150))
    ingredient = StoreShare(TokenStore.open(store), sources=("tset",))
    with pytest.raises(ConfigError, match=r"tset.* test"):
        TokenDataset([ingredient], Sampling(sequence_length=16, seed=1, held_out=0.2))


def test_an_epoch_that_several_ask_for_at_once_is_made_once_and_those_used_last_are_kept():
    made, go = [], threading.Event()

    def make(part: int, epoch: int) -> Any:
        made.append(epoch)
        go.wait()
        return epoch

    epochs = EpochPrefetch(make, 2)
    epochs.begin(0, 0)
    epochs.begin(0, 0)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(epochs.get, 0, 0) for _ in range(3)]
        go.set()
    assert [each.result() for each in waiting] == [0, 0, 0]
    for epoch in (1, 0, 2, 0, 1):
        epochs.get(0, epoch)
    assert made == [0, 1, 2, 1]


def test_an_error_is_raised_where_the_epoch_is_wanted_and_the_next_attempt_is_made_anew():
    make = Mock(side_effect=[MemoryError("no room for it"), MemoryError("no room for it"), "rows"])
    epochs = EpochPrefetch(make, 2)
    epochs.begin(0, 1)
    for thread in threading.enumerate():
        if thread.name == "epoch-1-of-0":
            thread.join()
    with pytest.raises(MemoryError, match="no room for it"):
        epochs.get(0, 1)
    assert epochs.get(0, 1) == "rows"


SHARDS = st.lists(st.lists(st.lists(st.integers(0, 70_000), max_size=9), max_size=7), min_size=1, max_size=4)


@given(SHARDS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_index_finds_every_document_in_any_order(tmp_path_factory, shards, batch_documents, random):
    rows = [
        [
            test_token_store.encoded(f"{shard}:{row}", ids, [0, len(ids) // 2] if len(ids) > 1 else None)
            for row, ids in enumerate(own)
        ]
        for shard, own in enumerate(shards)
    ]
    store = TokenStore.open(
        test_token_store.write_store(tmp_path_factory.mktemp("s") / "tokens", rows, 70_001, batch_documents)
    )
    documents = np.array(random.sample(range(store.num_documents), store.num_documents), dtype=np.int64)
    arrays, found = store.arrays(), find_documents(store.index, documents)
    expected = arrays.of(documents)
    assert all((ours == theirs).all() for ours, theirs in zip(found[2:], expected[2:], strict=True))
    for k, document in enumerate(documents.tolist()):
        first, size = found.token_starts[k], found.lengths[k]
        assert (arrays.ids[first : first + size] == store.tokens(document)).all()
        first, size = found.sentence_starts[k], found.sentence_counts[k]
        assert (arrays.words[first : first + size] == store.sentence_starts(document)).all()
    names = [f"source{number}" for number in (3, 0, 2)]
    places, table = np.arange(len(documents)), np.zeros((len(documents), 4), dtype=np.int32)
    table[:, DOCUMENT], table[:, MARKS] = documents, OPENED
    slices = EpochRows(table, np.arange(len(documents) + 1)).slices_of(places)
    numbers = np.empty((len(documents), 1), dtype=np.int16)
    write_sources(store.index, slices, places, number_sources(store, names), numbers)
    told = [store.source(document) for document in documents]
    assert numbers[:, 0].tolist() == [names.index(name) if name in names else NO_SOURCE for name in told]

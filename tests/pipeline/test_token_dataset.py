"""Samples by number: the same whatever the ranks, every document of the split and no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError, MismatchError
from data_prep.token_store import TokenStore
from pipeline.samples.batch_plan import BatchPlan
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.loader import StepLoader
from pipeline.samples.mixture import StoreShare
from pipeline.samples.packed import Packed
from tests.conftest import write_store


def make_dataset(*paths: Path, seed: int = 1, held_out: float = 0.2, **options) -> TokenDataset:
    stores = [TokenStore.open(path) for path in paths]
    weights = options.pop("weights", [1.0] * len(stores))
    ingredients = [StoreShare(*each) for each in zip(stores, weights, strict=True)]
    return TokenDataset(ingredients, sequence_length=16, seed=seed, held_out=held_out, **options)


def test_training_and_held_out_samples_share_no_document(store: Path):
    train, held_out = make_dataset(store), make_dataset(store, split="held_out")
    total = train.stores[0].num_documents
    assert train.num_documents + held_out.num_documents == total
    assert 0 < held_out.num_documents < total / 2
    seen = {p.document for k in range(train.samples_per_epoch[0]) for p in train.origin(k).slices}
    unseen = {p.document for k in range(held_out.samples_per_epoch[0]) for p in held_out.origin(k).slices}
    assert not seen & unseen


def test_an_epoch_reads_every_training_token_once(store: Path):
    dataset = make_dataset(store)
    count = dataset.samples_per_epoch[0]
    read = sum(piece.stop - piece.start for k in range(count) for piece in dataset.origin(k).slices)
    expected = dataset.stores[0].lengths[~dataset.stores[0].held_out(0.2)].sum()
    assert expected - 16 < read <= expected


def test_the_next_epoch_has_another_order(store: Path):
    dataset = make_dataset(store)
    count = dataset.samples_per_epoch[0]
    first, second = dataset.batch(range(8)), dataset.batch(range(count, count + 8))
    assert (first.epochs == 0).all()
    assert (second.epochs == 1).all()
    assert not (first.input_ids == second.input_ids).all()


def test_a_sample_does_not_depend_on_what_is_read_with_it(store: Path):
    dataset = make_dataset(store)
    together, alone = dataset.batch([5, 9, 2]), dataset.batch([9])
    assert (together.input_ids[1] == alone.input_ids[0]).all()


def test_ranks_share_out_the_same_micro_batches(store: Path):
    dataset, plan = make_dataset(store), BatchPlan(samples_per_step=12, micro_batch_size=2)

    def batches(world_size: int) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for rank in range(world_size):
            loader = StepLoader[Packed](
                [(0, dataset)], plan, lambda packed: packed, rank=rank, world_size=world_size
            )
            for step in loader.steps(0, 3):
                found |= {100 * step.update + one.number: one.data.input_ids for one in step.micro_batches}
        return found

    single = batches(1)
    for world_size in (2, 3, 6):
        shared = batches(world_size)
        assert shared.keys() == single.keys()
        assert all((shared[key] == single[key]).all() for key in single)


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
        (own,) = loader(rank, 3).load(3)
        assert (own.data.sample_ids == whole[rank].data.sample_ids).all()
        assert (own.data.input_ids == whole[rank].data.input_ids).all()
    identified, _ = dataset.identify(loader().samples(3, 1))
    assert (identified == whole[1].data.sample_ids).all()


def test_an_error_while_loading_is_raised_where_the_batch_is_awaited(store: Path):
    def fail(packed: Packed) -> Packed:
        raise OSError("the disk is gone")

    loader = StepLoader([(0, make_dataset(store))], BatchPlan(4, 2), fail, rank=0, world_size=1)
    with pytest.raises(OSError, match="the disk is gone"):
        list(loader.steps(0, 2))


def test_stores_are_mixed_by_weight(store: Path, tmp_path: Path):
    other = write_store(tmp_path / "other", num_documents=100, seed=5)
    dataset = make_dataset(store, other, weights=[3.0, 1.0])
    drawn = [dataset.origin(k).store for k in range(1024)]
    assert np.bincount(drawn).tolist() == [768, 256]


def test_stores_of_different_tokenizers_are_not_mixed(store: Path, tmp_path: Path):
    other = write_store(tmp_path / "other", vocab_size=150)
    with pytest.raises(MismatchError, match="different tokenizers"):
        make_dataset(store, other)


def test_too_few_held_out_documents_are_refused_with_the_key_to_change(store: Path):
    with pytest.raises(ConfigError, match="do not fill one sample"):
        make_dataset(store, held_out=1e-9, split="held_out")


def test_a_store_named_twice_gives_each_of_its_languages_its_own_weight(tmp_path: Path):
    opened = TokenStore.open(write_store(tmp_path / "tokens", langs=("en", "de")))
    ingredients = [StoreShare(opened, 3.0, langs=("de",)), StoreShare(opened, 1.0, langs=("en",))]
    dataset = TokenDataset(ingredients, sequence_length=16, seed=1, held_out=0.2)
    counts = {"de": 0, "en": 0}
    for sample in range(1024):
        langs = {opened.lang(piece.document) for piece in dataset.origin(sample).slices}
        assert len(langs) == 1
        counts[langs.pop()] += 1
    assert counts == {"de": 768, "en": 256}


def test_a_source_that_the_store_has_not_is_named_with_those_it_has(store: Path):
    ingredient = StoreShare(TokenStore.open(store), sources=("tset",))
    with pytest.raises(ConfigError, match="has no source tset; it has test"):
        TokenDataset([ingredient], sequence_length=16, seed=1, held_out=0.2)

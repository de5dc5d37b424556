"""The index of an epoch is made once, ahead of time, and is the same as one that is made later."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from data_prep.token_store import TokenStore
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.index_cache import EpochPrefetch
from pipeline.samples.mixture import StoreShare
from tests.conftest import write_store


def test_an_epoch_that_several_ask_for_at_once_is_made_once():
    made, go = [], threading.Event()

    def make(part: int, epoch: int) -> tuple[int, int]:
        made.append((part, epoch))
        go.wait()
        return part, epoch

    epochs = EpochPrefetch(make, 4)
    epochs.begin(0, 7)
    epochs.begin(0, 7)
    found: list[tuple[int, int]] = []
    waiting = [threading.Thread(target=lambda: found.append(epochs.get(0, 7))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    go.set()
    for thread in waiting:
        thread.join()
    assert made == [(0, 7)]
    assert found == 3 * [(0, 7)]


def test_only_the_epochs_used_last_are_kept():
    made = []
    epochs = EpochPrefetch(lambda part, epoch: made.append(epoch), 2)
    for epoch in (0, 1, 0, 2, 0, 1):
        epochs.get(0, epoch)
    assert made == [0, 1, 2, 1]


def test_an_error_is_raised_where_the_epoch_is_wanted_and_the_next_attempt_is_made_anew():
    attempts = []

    def make(part: int, epoch: int) -> str:
        attempts.append(epoch)
        if len(attempts) < 3:
            raise MemoryError("no room for it")
        return "rows"

    epochs = EpochPrefetch(make, 2)
    epochs.begin(0, 1)
    for thread in threading.enumerate():
        if thread.name == "epoch-1-of-0":
            thread.join()
    with pytest.raises(MemoryError, match="no room for it"):
        epochs.get(0, 1)
    assert epochs.get(0, 1) == "rows"


def dataset(*paths: Path) -> TokenDataset:
    ingredients = [StoreShare(TokenStore.open(path), float(weight + 1)) for weight, path in enumerate(paths)]
    return TokenDataset(ingredients, sequence_length=16, seed=1, held_out=0.2)


def test_the_next_epoch_is_begun_when_half_of_one_is_read(store: Path, monkeypatch: pytest.MonkeyPatch):
    begun = []
    begin = EpochPrefetch.begin

    def noted(self: EpochPrefetch, part: int, epoch: int) -> None:
        begun.append((part, epoch))
        begin(self, part, epoch)

    monkeypatch.setattr(EpochPrefetch, "begin", noted)
    samples = dataset(store)
    count = samples.samples_per_epoch[0]
    samples.batch(range(count // 2))
    assert begun == []
    samples.batch(range(count // 2, count // 2 + 2))
    assert begun == [(0, 1)]


def test_samples_are_the_same_whether_epochs_were_prepared_or_not(store: Path, tmp_path: Path):
    other = write_store(tmp_path / "other", num_documents=100, seed=5)
    for paths in ((store,), (store, other)):
        fresh, prepared = dataset(*paths), dataset(*paths)
        first = 3 * sum(fresh.samples_per_epoch)
        prepared.prepare(first)
        numbers = np.arange(first, first + 50)
        ahead, later = prepared.batch(numbers), fresh.batch(numbers)
        assert np.array_equal(ahead.input_ids, later.input_ids)
        assert np.array_equal(ahead.sample_ids, later.sample_ids)

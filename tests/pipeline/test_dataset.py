"""Samples by number and step: the same alone, among others and whatever the ranks, every document of the split and no
other, in one language where that is asked for; and an epoch's index made once, ahead of time."""

from __future__ import annotations

import itertools
import re
import shutil
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
from cluster.node_load import Memory
from data_prep.token_store import TokenStore
from pipeline.run.directory import RunDirectory
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from pipeline.samples import dataset as dataset_module
from pipeline.samples import mixture, shuffle
from pipeline.samples.batch_plan import BatchPlan
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.formats import FORMATS, PAIR_FORMATS, packing, pair_chunks
from pipeline.samples.index_cache import EpochPrefetch
from pipeline.samples.loader import StepLoader
from pipeline.samples.mixture import StoreShare
from pipeline.samples.packed import DOCUMENT, MARKS, NO_SOURCE, OPENED, EpochRows, Packed
from pipeline.samples.text import find_documents, number_sources, write_sources
from tests.conftest import write_store
from tests.data_prep import test_token_store
from tests.pipeline.materials import CORPUS, FIRST_ORDINARY, open_samples, same, write_corpus
from tests.pipeline.packed_texts import row_alone

LANGS = [("de", "en", "en", "en", "en", "en", "en", "ro")[d % 8] for d in range(240)]
LENGTH = 24


def make(path: Path, format: str = "contiguous", **options: Any) -> TokenDataset:
    shares = options.pop("ingredients", None) or [StoreShare(TokenStore.open(path, verify=False))]
    return open_samples(shares, format=format, **options)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The token store of the corpus."""
    return write_corpus(tmp_path_factory.mktemp("formats") / "tokens", CORPUS, LANGS)


every_format = pytest.mark.parametrize("format", FORMATS)


@every_format
def test_stores_of_more_documents_than_32_bits_number_give_the_same_samples(
    tokens: Path, format: str, monkeypatch: pytest.MonkeyPatch
):
    def read() -> Packed:
        dataset = make(tokens, format)
        return dataset.batch(np.arange(2 * dataset.samples_per_epoch[0]))

    expected = read()
    asked = []
    for module in (mixture, packing, pair_chunks, shuffle):
        monkeypatch.setattr(module, "index_type", lambda count: asked.append(count) or np.int64)
    found = read()
    assert asked
    assert same(found, expected)


@every_format
def test_a_sample_is_the_same_alone_and_among_others(tokens: Path, format: str):
    dataset = make(tokens, format, with_sentence_starts=True, with_langs=True)
    epoch = dataset.samples_per_epoch[0]
    numbers = [5, 0, epoch + 3, 9, epoch - 1, 2 * epoch]
    together = dataset.batch(numbers)
    for row, number in enumerate(numbers):
        assert same(dataset.batch([number]), row_alone(together, row))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells how a file is mapped")
@pytest.mark.parametrize("larger", [False, True])
def test_stores_that_are_larger_than_memory_are_read_without_what_lies_around(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, larger: bool
):
    # Other tests may still map the files of `tokens`.
    copy = Path(shutil.copytree(tokens, tmp_path / "tokens"))
    stores = [TokenStore.open(copy), TokenStore.open(copy)]
    total = 2 * stores[0].size_bytes - (1 if larger else 0)
    monkeypatch.setattr(dataset_module, "memory", lambda: Memory(total=total, available=0))
    make(copy, ingredients=[StoreShare(store) for store in stores])
    regions = re.split(r"(?m)^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
    flags = [" rr" in one.split("VmFlags:")[1] for one in regions if str(copy) in one]
    assert flags == [larger] * len(stores) * len([*copy.glob("*.arrow")]), "the flag for reads at random"


@every_format
def test_the_origin_names_the_tokens_of_the_sample(tokens: Path, format: str):
    dataset = make(tokens, format)
    for number in range(0, 3 * dataset.samples_per_epoch[0], 7):
        ids = dataset.batch([number]).input_ids[0]
        pieces = dataset.origin(number).slices
        told = [CORPUS.ids(piece.document, piece.start, piece.stop) for piece in pieces]
        assert ids[ids >= FIRST_ORDINARY].tolist() == [*itertools.chain(*told)]


@every_format
def test_samples_have_the_types_and_shapes_they_are_promised(tokens: Path, format: str):
    packed = make(tokens, format, with_sentence_starts=True, with_langs=True).batch(range(6))
    is_pair = format in PAIR_FORMATS
    wanted = {
        "input_ids": (np.int64, (6, LENGTH)),
        "sample_ids": (np.uint64, (6,)),
        "epochs": (np.uint64, (6,)),
        "langs": (np.int64, (6,)),
        "segment_ids": (np.uint8, (6, LENGTH)) if is_pair else None,
        "pair_labels": (np.int64, (6,)) if is_pair else None,
    }
    arrays = {name: getattr(packed, name) for name in wanted}
    assert {name: one if one is None else (one.dtype, one.shape) for name, one in arrays.items()} == wanted
    boundaries, sentences = packed.cu_seqlens, packed.sentence_starts
    assert boundaries.dtype == sentences.dtype == np.int32
    assert boundaries[-1] == 6 * LENGTH
    assert (np.diff(boundaries) > 0).all()
    assert (np.diff(sentences) > 0).all()
    assert set(range(0, 6 * LENGTH, LENGTH)) <= set(boundaries.tolist())
    assert (packed.input_ids.reshape(-1)[sentences] >= FIRST_ORDINARY).all()


@every_format
def test_full_attention_knows_only_rows(tokens: Path, format: str):
    apart, full = make(tokens, format), make(tokens, format, attention="full")
    assert full.batch(range(5)).cu_seqlens.tolist() == [LENGTH * row for row in range(6)]
    assert (full.batch(range(5)).input_ids == apart.batch(range(5)).input_ids).all()


@every_format
def test_a_sample_with_languages_is_in_the_one_it_names(tokens: Path, format: str):
    dataset = make(tokens, format, with_langs=True)
    assert dataset.languages == ["de", "en", "ro"]
    packed = dataset.batch(range(300))
    for row, lang in zip(packed.input_ids, packed.langs, strict=True):
        owners = {CORPUS.owner(token) for token in row[row >= FIRST_ORDINARY].tolist()}
        assert {LANGS[owner] for owner in owners} == {dataset.languages[lang]}


@pytest.mark.parametrize("temperature", [None, 0.7, 0.0])
@pytest.mark.parametrize("mixed", [False, True], ids=["one store", "two shares"])
def test_languages_are_drawn_by_their_share_of_weighted_tokens_to_the_power_of_the_temperature(
    tokens: Path, mixed: bool, temperature: float | None
):
    store = TokenStore.open(tokens, verify=False)
    shares = [StoreShare(store)]
    if mixed:
        shares = [StoreShare(store, 3.0, langs=("en", "de")), StoreShare(store, 1.0, langs=("ro", "de"))]
    dataset = make(
        tokens, with_langs=True, language_temperature=temperature, ingredients=shares, held_out=0.0
    )
    langs = dataset.batch(range(1024)).langs
    natural = np.zeros(len(dataset.languages))
    for share in shares:
        chosen = [code for code in dataset.languages if code in (share.langs or dataset.languages)]
        sizes = {code: CORPUS.lengths[np.array(LANGS) == code].sum() for code in chosen}
        own = np.array([sizes.get(code, 0) for code in dataset.languages])
        natural += share.weight * own / own.sum()
    wanted = (natural / natural.sum()) ** (1.0 if temperature is None else temperature)
    assert np.bincount(langs) / 1024 == pytest.approx(wanted / wanted.sum(), abs=(3 if mixed else 1) / 1024)
    assert {dataset.origin(sample).store for sample in range(200)} == set(range(len(shares)))


def test_a_language_without_held_out_text_is_left_out_of_evaluations_only(tokens: Path):
    store = TokenStore.open(tokens, verify=False)
    held_out = store.held_out(0.01)
    missing = {"de", "en", "ro"} - {LANGS[document] for document in np.flatnonzero(held_out)}
    assert missing
    evaluated = make(tokens, "best_fit", with_langs=True, split="held_out", held_out=0.01)
    assert evaluated.languages == ["de", "en", "ro"]
    assert not missing & {evaluated.languages[lang] for lang in evaluated.batch(range(64)).langs}


def test_a_language_without_text_to_train_on_is_named(tokens: Path):
    with pytest.raises(ConfigError, match=r"in (de|ro) "):
        make(tokens, with_langs=True, sequence_length=2000)


def test_a_fingerprint_names_every_setting_that_changes_samples(tokens: Path):
    settings: list[dict[str, Any]] = [
        *({}, {"format": "best_fit"}, {"format": "segment_pair"}),
        *({"format": "segment_pair", "relation": "sop"}, {"attention": "full"}, {"with_langs": True}),
        *({"language_temperature": 0.7}, {"language_temperature": 0.5}),
        *({"seed": 2}, {"sequence_length": 32}),
    ]
    fingerprints = [make(tokens, **each).fingerprint for each in settings]
    assert len(set(fingerprints)) == len(settings)
    named = make(tokens, with_sentence_starts=True, source_names=["test"])
    assert named.fingerprint == fingerprints[0]


def test_formats_and_relations_that_do_not_go_together_are_refused(tokens: Path):
    for format, relation in (("segment_pair", None), ("contiguous", "sop")):
        with pytest.raises(ConfigError):
            make(tokens, format, relation=relation)


def test_samples_of_a_step_are_sorted_by_length_whatever_the_number_of_ranks(tokens: Path):
    dataset, plan = make(tokens), BatchPlan(samples_per_step=12, micro_batch_size=4)

    def lengths(sample_ids: np.ndarray, epochs: np.ndarray, length: int) -> np.ndarray:
        assert length == LENGTH
        return ((sample_ids + epochs) % 5).astype(np.int64)

    def loader(rank: int = 0, world_size: int = 1) -> StepLoader[Packed]:
        phases = [(0, dataset), (5, make(tokens, seed=2))]
        return StepLoader(phases, plan, lambda p: p, rank=rank, world_size=world_size, lengths=lengths)

    for step in (0, 3, 6):
        numbers = [loader().samples(step, number) for number in range(3)]
        first = 12 * (step - (5 if step >= 5 else 0))
        assert sorted(np.concatenate(numbers).tolist()) == list(range(first, first + 12))
        ids, epochs = loader().phase(step)[1].identify(np.concatenate(numbers))
        assert (np.diff(lengths(ids, epochs, LENGTH)) >= 0).all()
    whole = loader().load(3)
    assert (dataset.identify(loader().samples(3, 1))[0] == whole[1].sample_ids).all()
    for rank in range(3):
        assert loader(rank, 3).load(3).keys() == {rank}
        assert same(loader(rank, 3).load(3)[rank], whole[rank])


def test_an_error_while_loading_is_raised_where_the_batch_is_awaited(tokens: Path):
    def fail(packed: Packed) -> Packed:
        raise OSError("the disk is gone")

    loader = StepLoader([(0, make(tokens))], BatchPlan(4, 2), fail, rank=0, world_size=1)
    with pytest.raises(OSError, match="the disk is gone"):
        list(loader.steps(0, 2))


STAGES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=3)


@given(stages=STAGES, size=st.integers(1, 4), micro=st.integers(1, 3), since=st.integers(0, 8))
def test_steps_read_every_sample_once_and_in_order(stages, size: int, micro: int, since: int):
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


def test_the_next_epoch_is_begun_when_half_of_one_is_read(tokens: Path, monkeypatch: pytest.MonkeyPatch):
    begun = []
    begin = EpochPrefetch.begin

    def noted(self: EpochPrefetch, part: int, epoch: int) -> Future:
        begun.append((part, epoch))
        return begin(self, part, epoch)

    monkeypatch.setattr(EpochPrefetch, "begin", noted)
    samples = make(tokens)
    count = samples.samples_per_epoch[0]
    samples.batch(range(count // 2))
    assert set(begun) == {(0, 0)}
    samples.batch(range(count // 2, count // 2 + 2))
    assert set(begun) == {(0, 0), (0, 1)}


def test_an_epoch_reads_every_training_token_once_and_none_of_a_held_out_document(tokens: Path):
    train, held_out = make(tokens), make(tokens, split="held_out")
    total = train.stores[0].num_documents
    assert train.num_documents + held_out.num_documents == total
    assert 0 < held_out.num_documents < total / 2
    seen, unseen = (
        [piece for k in range(each.samples_per_epoch[0]) for piece in each.origin(k).slices]
        for each in (train, held_out)
    )
    assert not {piece.document for piece in seen} & {piece.document for piece in unseen}
    expected = train.stores[0].lengths[~train.stores[0].held_out(0.1)].sum()
    assert expected - LENGTH < sum(piece.stop - piece.start for piece in seen) <= expected


def test_stores_of_different_tokenizers_and_sources_that_are_not_there_are_refused(
    tokens: Path, tmp_path: Path
):
    other = write_store(tmp_path / "other", vocab_size=150)
    with pytest.raises(MismatchError):
        open_samples([StoreShare(TokenStore.open(path)) for path in (tokens, other)])
    ingredient = StoreShare(TokenStore.open(tokens), sources=("tset",))
    with pytest.raises(ConfigError, match="tset"):
        open_samples([ingredient])


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

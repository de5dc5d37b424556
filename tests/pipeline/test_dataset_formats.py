"""Samples of every format by number: alone as together, on any rank, in one language where that is asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError
from cluster.node_load import Memory
from data_prep.token_store import TokenStore
from pipeline.samples import dataset as dataset_module
from pipeline.samples import mixture, shuffle
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.formats import FORMATS, PAIR_FORMATS, packing, pair_chunks
from pipeline.samples.mixture import StoreShare
from pipeline.samples.packed import Packed
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

    def told() -> list[bool]:
        """Whether each mapped file's memory has the flag for reads at random."""
        flags, is_ours = [], False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            is_ours = str(copy) in line if line[0] in "0123456789abcdef" else is_ours
            if is_ours and line.startswith("VmFlags:"):
                flags.append(" rr" in line)
        return flags

    num_mapped = len(stores) * len([*copy.glob("*.arrow")])
    assert told() == [False] * num_mapped
    make(copy, ingredients=[StoreShare(store) for store in stores])
    assert told() == [larger] * num_mapped


@every_format
def test_the_origin_names_the_tokens_of_the_sample(tokens: Path, format: str):
    dataset = make(tokens, format)
    for number in range(0, 3 * dataset.samples_per_epoch[0], 7):
        ids = dataset.batch([number]).input_ids[0]
        told = [
            token
            for piece in dataset.origin(number).slices
            for token in CORPUS.ids(piece.document, piece.start, piece.stop)
        ]
        assert ids[ids >= FIRST_ORDINARY].tolist() == told


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
    assert sentences is not None
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
    assert packed.langs is not None
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
    assert langs is not None
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
    langs = evaluated.batch(range(64)).langs
    assert langs is not None
    assert evaluated.languages == ["de", "en", "ro"]
    assert not missing & {evaluated.languages[lang] for lang in langs}


def test_a_language_without_text_to_train_on_is_named(tokens: Path):
    with pytest.raises(ConfigError, match=r"in (de|ro) "):
        make(tokens, with_langs=True, sequence_length=2000)


def test_a_fingerprint_names_every_setting_that_changes_samples(tokens: Path):
    settings: list[dict[str, Any]] = [
        {},
        {"format": "best_fit"},
        {"format": "segment_pair"},
        {"format": "segment_pair", "relation": "sop"},
        {"attention": "full"},
        {"with_langs": True},
        {"language_temperature": 0.7},
        {"language_temperature": 0.5},
        {"seed": 2},
        {"sequence_length": 32},
    ]
    fingerprints = [make(tokens, **each).fingerprint for each in settings]
    assert len(set(fingerprints)) == len(settings)
    assert make(tokens, with_sentence_starts=True).fingerprint == fingerprints[0]


def test_formats_and_relations_that_do_not_go_together_are_refused(tokens: Path):
    with pytest.raises(ConfigError, match="segment_pair"):
        make(tokens, "segment_pair", relation=None)
    with pytest.raises(ConfigError, match="sop"):
        make(tokens, "contiguous", relation="sop")

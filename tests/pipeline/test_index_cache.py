"""A run that finds cached indices of its epochs reads the same samples, whatever happened to the cache; compiled loops
are never older than what they call."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.token_store import TokenStore
from pipeline.checkpoint.checkpoint import MODEL_FILE, list_checkpoints
from pipeline.run.directory import RunDirectory
from pipeline.samples import SOURCES, kernel_cache
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.formats import FORMATS
from pipeline.samples.index_cache import IndexCache
from pipeline.samples.mixture import StoreShare, cut_parts
from tests.benchmarks.start import write_short_documents
from tests.pipeline.materials import CORPUS, Corpus, open_samples, same, write_corpus
from tests.pipeline.ranks import make_run, train_alone
from tests.surroundings import flip_bit

LANGS = [("de", "en", "en", "ro")[d % 4] for d in range(240)]
OTHER = Corpus([[3 + (d + s) % 5 for s in range(1 + d % 4)] for d in range(90)])
SOURCE_NAMES = ["other", "test"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[TokenStore]:
    directory = tmp_path_factory.mktemp("stores")
    other = ["en"] * len(OTHER.sentences)
    paths = write_corpus(directory / "a", CORPUS, LANGS), write_corpus(directory / "b", OTHER, other)
    return [TokenStore.open(path) for path in paths]


def make(stores: list[TokenStore], cache: IndexCache | None = None, **options: Any) -> TokenDataset:
    shares = [StoreShare(store, weight) for store, weight in zip(stores, (2.0, 1.0), strict=False)]
    return open_samples(shares, source_names=SOURCE_NAMES, with_sentence_starts=True, cache=cache, **options)


def writing(directory: Path, reported: list[str] | None = None) -> IndexCache:
    events = [] if reported is None else reported
    return IndexCache(
        directory, writes=True, from_tokens=0, report=lambda event, message: events.append(event)
    )


MIXED = {"with_langs": True, "language_temperature": 0.7, "attention": "full"}


@pytest.mark.parametrize(
    ("format", "split"), [*zip(FORMATS, itertools.repeat("train")), ("best_fit", "held_out")]
)
@pytest.mark.parametrize("mixed", [False, True])
def test_samples_are_the_same_from_the_cache(
    stores: list[TokenStore], tmp_path: Path, format: str, split: str, mixed: bool, monkeypatch
):
    options = {"format": format, "split": split, "held_out": 0.4, **(MIXED if mixed else {})}
    used = stores if mixed else stores[:1]
    plain = make(used, **options)
    count = sum(plain.samples_per_epoch)
    samples = np.arange(count // 3, count // 3 + 40)
    scattered = [count // 3 + 30, count // 3, count // 3 + 30]
    expected = plain.batch(samples)
    make(used, writing(tmp_path / "index"), **options).batch(samples)
    # Documents are not looked at again.
    monkeypatch.setattr("pipeline.samples.dataset.cut_parts", None)
    kept = make(used, IndexCache(tmp_path / "index", from_tokens=0), **options)
    assert (kept.samples_per_epoch, kept.num_documents) == (plain.samples_per_epoch, plain.num_documents)
    assert kept.languages == plain.languages
    kept.prepare(int(samples[0]))
    assert same(kept.batch(samples), expected)
    assert same(kept.batch(scattered), plain.batch(scattered))
    for sample in samples.tolist():
        assert kept.origin(sample) == plain.origin(sample)


@pytest.mark.parametrize("format", ["contiguous", "best_fit", "segment_pair"])
def test_damage_anywhere_is_noticed_before_it_is_used_and_mended(
    stores: list[TokenStore], tmp_path: Path, format: str
):
    samples = np.arange(30)
    expected = make(stores[:1], format=format).batch(samples)
    make(stores[:1], writing(tmp_path / "good"), format=format).batch(samples)
    files = [path.relative_to(tmp_path / "good") for path in (tmp_path / "good").rglob("*.[nj]*")]
    assert {"parts.json", "manifest.json", "order.npy"} < {path.name for path in files}

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])

    for number, (file, damage) in enumerate(itertools.product(files, (cut, flip_bit, Path.unlink))):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", directory)
        damage(directory / file)
        first, second = [], []
        for reported in (first, second):
            dataset = make(stores[:1], writing(directory, reported), format=format)
            assert same(dataset.batch(samples), expected)
        # An index without a manifest was never finished, and the summary is made anew without a word.
        unseen = file.name == "parts.json" or (file.name == "manifest.json" and damage is Path.unlink)
        assert (first, second) == ([] if unseen else ["index-damaged"], [])
    foreign, reported = next((tmp_path / "good").glob("*/part-*")) / "foreign.npy", []
    np.save(foreign, samples)
    dataset = make(stores[:1], writing(tmp_path / "good", reported), format=format)
    assert same(dataset.batch(samples), expected)
    assert reported == ["index-damaged"]
    assert not foreign.exists()


def test_an_index_is_made_by_one_of_those_that_need_it_and_mapped_by_all(
    stores: list[TokenStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected, made, cut = make(stores[:1]).batch(range(9)), [], cut_parts

    def counted(*arguments: Any) -> Any:
        found = cut(*arguments)
        return [
            (part, lambda epoch, maker=maker: made.append(epoch) or time.sleep(0.2) or maker(epoch))
            for part, maker in found
        ]

    monkeypatch.setattr("pipeline.samples.dataset.cut_parts", counted)
    datasets = [make(stores[:1], writing(tmp_path / "index")) for _ in range(3)]
    with ThreadPoolExecutor(3) as ranks:
        batches = list(ranks.map(lambda dataset: dataset.batch(range(9)), datasets))
    assert made == [0]
    assert all(same(batch, expected) for batch in batches)
    maps = Path("/proc/self/maps")
    if maps.exists():  # only Linux tells which files are mapped
        mapped = [line.split()[-1] for line in maps.read_text().splitlines() if str(tmp_path) in line]
        assert max(Counter(mapped).values()) == len(datasets)


def test_another_seed_finds_nothing_and_takes_the_place(stores: list[TokenStore], tmp_path: Path):
    directory = tmp_path / "index"
    make(stores, writing(directory)).batch(range(5))
    (first,) = directory.iterdir()
    cache = writing(directory)
    assert same(make(stores, cache, seed=2).batch(range(5)), make(stores, seed=2).batch(range(5)))
    cache.evict_unused()
    (second,) = directory.iterdir()
    assert second != first


def test_epochs_that_are_over_are_deleted_with_what_killed_runs_left(
    stores: list[TokenStore], tmp_path: Path
):
    dataset = make(stores[:1], writing(tmp_path / "index"))
    count = dataset.samples_per_epoch[0]
    dataset.batch([0])
    (kept,) = (tmp_path / "index").iterdir()
    (kept / ".part-0-epoch-0.0123456789ab.partial").mkdir()
    for epoch in range(5):
        dataset.batch([epoch * count])
    found = {path.name for path in kept.iterdir() if path.is_dir()}
    assert found == {"part-0-epoch-3", "part-0-epoch-4"}


@pytest.mark.parametrize("obstacle", ["a file", "a full disk"])
def test_a_file_system_that_refuses_is_reported_once_and_nothing_else_changes(
    stores: list[TokenStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
):
    whole = shutil.disk_usage(tmp_path)
    if obstacle == "a file":
        (tmp_path / "index").write_text("in the way")
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: whole._replace(free=1))
    reported: list[str] = []
    dataset = make(stores, writing(tmp_path / "index", reported))
    count = sum(dataset.samples_per_epoch)
    for first in (0, 2 * count):
        samples = range(first, first + 9)
        assert same(dataset.batch(samples), make(stores).batch(samples))
    assert reported == ["index-not-cached"]
    assert not list((tmp_path / "index").glob("*/*part-*/"))


def test_a_resumed_run_computes_the_same_from_a_cache_that_is_whole_or_damaged(tmp_path: Path):
    write_short_documents(tmp_path / "tokens", 600_000)
    settings = ("steps=8", "checkpoint.every_steps=4", "evaluation.every_steps=4")
    whole = make_run(tmp_path, tmp_path / "tokens", "whole", *settings)
    assert train_alone([whole]) == ["ended"]
    pattern = "*/part-0-epoch-0/order.npy"
    kept = sorted(whole.index_cache.glob(pattern))
    assert len(kept) == 2
    resumed = []
    for name in ("kept", "damaged"):
        run = RunDirectory(shutil.copytree(whole.path, whole.path.with_name(name)))
        shutil.rmtree(list_checkpoints(run.checkpoints)[-1])
        resumed.append(run)
    for path in resumed[1].index_cache.glob(pattern):
        with path.open("r+b") as stream:
            stream.seek(200)
            stream.write(bytes(8))
    assert train_alone(resumed) == ["ended", "ended"]
    weights = [(list_checkpoints(run.checkpoints)[-1] / MODEL_FILE).read_bytes() for run in (whole, *resumed)]
    assert weights[0] == weights[1] == weights[2]
    found = [[event["event"] for event in run.events()].count("index-damaged") for run in resumed]
    assert found == [0, 2]
    mended = sorted(resumed[1].index_cache.glob(pattern))
    assert [path.read_bytes() for path in mended] == [path.read_bytes() for path in kept]


def test_every_change_of_a_file_with_loops_gives_compiled_code_another_place(tmp_path: Path):
    kernel = tmp_path / "kernels" / "a.py"
    kernel.parent.mkdir()
    kernel.write_text("one = 1")
    places = [kernel_cache([tmp_path])]
    kernel.write_text("one = 2")
    places.append(kernel_cache([tmp_path]))
    kernel.rename(kernel.with_name("c.py"))
    places.append(kernel_cache([tmp_path]))
    assert len(set(places)) == 3
    assert kernel_cache([tmp_path]) == places[-1]
    assert {source.name for source in SOURCES} == {"samples", "objectives"}


def test_numba_uses_that_place_unless_another_is_named(tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}

    def place(**more: str) -> str:
        program = "import pipeline.samples, numba; print(numba.config.CACHE_DIR)"
        command = [sys.executable, "-c", program]
        return subprocess.check_output(command, text=True, env={**environment, **more}).strip()

    assert place(HOME=str(tmp_path)).startswith(f"{tmp_path}/.cache/cloze/kernels/")
    assert place(NUMBA_CACHE_DIR=str(tmp_path)) == str(tmp_path)
    (tmp_path / "file").touch()
    assert place(HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path)).startswith(f"{tmp_path}/cloze-")

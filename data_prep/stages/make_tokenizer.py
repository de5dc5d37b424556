"""Selected documents to a trained tokenizer, or a tokenizer that exists into its place.

Documents are drawn for training by the hash of their ids: every source by its weight, every language with a
temperature. The draw needs one small histogram per document shard and no list of documents: how many bytes of text
fall on each range of hashes, for every language.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.manifest import InputEntry, Manifest, hash_file
from cluster.artefacts.shard_records import ShardRecord, report_status
from cluster.copies import place_of_file
from cluster.runtime import node_cpus
from cluster.shards import ShardResult, WriteShard
from data_prep.documents import one_chunk, read_selected
from data_prep.hashing import hash_strings
from data_prep.layout import DOCUMENTS, SAMPLE_FILES, SELECTION_FILES, TOKENIZER, TOKENIZER_FILE, WORK
from data_prep.ragged import string_offsets
from data_prep.selection import load_selection
from data_prep.token_writer import write_tokenizer
from data_prep.tokenizers import PretrainedTokenizer, TrainedTokenizer, WordPiece
from data_prep.tokenizers.pretrained import convert_tokenizer, find_tokenizer
from data_prep.tokenizers.special import tokenizer_facts
from data_prep.tokenizers.training import limited
from data_prep.workspace import Workspace

VERSION = 4
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""
SAMPLE = "tokenizer-sample"
"""The work artefact that training documents are drawn with, and its directory."""


def make_tokenizer(job: Workspace, selection: Manifest) -> Manifest:
    """Make the `tokenizer` artefact.

    Raises:
        MissingInputError: the tokenizer that is asked for does not exist.
        ConfigError: it cannot be used.
    """
    wanted = job.config.tokenizer
    make_sample: Callable[[], object] | None = None
    inputs: Sequence[Manifest | InputEntry]
    if isinstance(wanted, PretrainedTokenizer):
        published = find_tokenizer(wanted.path)

        def make(_: int) -> WriteShard:
            return partial(convert_tokenizer, published, wanted.lowercase)

        inputs = [
            InputEntry(kind="source-file", uri=place_of_file(file), fingerprint=hash_file(file)[0])
            for file in published.files
        ]
        settings = {"kind": wanted.kind, "format": published.format, "lowercase": wanted.lowercase}
    else:
        make_sample = partial(_make_sample, job, selection)

        def make(_: int) -> WriteShard:
            return partial(
                draw_and_train,
                out=job.config.out,
                documents=[entry.path for entry in job.documents.files],
                selection=selection.kind,
                sources=[own.source.name for own in job.shards],
                wanted=wanted,
                # Only Ray knows the processors of a node, and none is needed to confirm a finished tokenizer.
                num_threads=node_cpus(),
            )

        inputs = [job.documents, selection]
        settings = wanted.model_dump(mode="json")

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        write_tokenizer(directory, (directory / TOKENIZER_FILE).read_bytes())
        return tokenizer_facts(directory / TOKENIZER_FILE)

    settings = {"version": VERSION} | settings
    return job.build(
        TOKENIZER,
        [TOKENIZER_FILE],
        make,
        config=settings,
        inputs=inputs,
        contents=lambda _: [settings, [entry.fingerprint for entry in inputs]],
        finish=finish,
        # Training has threads.
        num_cpus=1.0 if make_sample is None else None,
        before=make_sample,
    )


def draw_and_train(
    path: Path,
    *,
    out: Path,
    documents: Sequence[str],
    selection: str,
    sources: Sequence[str],
    wanted: TrainedTokenizer,
    num_threads: int,
) -> ShardResult:
    """Add up the histograms, decide how often the documents of each stratum are taken, and train on these.

    Args:
        documents: files of the document shards.
        selection: directory in `out` of the artefact that decided about them.
        sources: name of every shard's source.

    Raises:
        ConfigError: as `plan_draws`.
    """
    num_shards = len(documents)
    files = [out / WORK / SAMPLE / file for file in SAMPLE_FILES.files(num_shards)]
    by_source: dict[str, dict[str, Draw]] = {name: {} for name in sources}
    for (source, lang), draw in plan_draws(add_histograms(zip(sources, files, strict=True)), wanted).items():
        by_source[source][lang] = draw
    drawn = [
        (out / DOCUMENTS / file, out / selection / SELECTION_FILES.file(shard, num_shards), by_source[source])
        for shard, (file, source) in enumerate(zip(documents, sources, strict=True))
    ]
    return train_tokenizer(drawn, wanted, num_threads, path)


def _make_sample(job: Workspace, selection: Manifest) -> Manifest:
    """Make the histograms that documents are drawn with; they do not depend on the sampling settings."""

    def make(shard: int) -> WriteShard:
        return partial(write_histogram, job.documents_path(shard), job.selection_path(selection, shard))

    hashes = job.selection_hashes(selection)
    return job.build(
        SAMPLE,
        SAMPLE_FILES,
        make,
        config={"version": VERSION},
        inputs=[job.documents, selection],
        contents=lambda shard: [VERSION, job.documents.files[shard].xxh3_128, hashes[shard]],
    )


# -- documents to train on -----------------------------------------------------------------------------------

NUM_BINS = 1 << 16
"""Number of hash ranges: a sample exceeds its share by at most one range."""
SAMPLING_SALT = 1
"""Keeps the draw independent of the draw of held-out documents."""
_SCHEMA = pa.schema([("lang", pa.string()), ("bin", pa.uint32()), ("text_bytes", pa.uint64())])

Stratum = tuple[str, str]
"""(source, language)."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How often the documents of one stratum are taken."""

    passes: int
    """Every document is taken this many times."""
    num_bins: int
    """Documents whose hash is in the first this many bins are taken once more."""


NOTHING = Draw(0, 0)


def write_histogram(documents: Path, selection: Path, path: Path) -> ShardResult:
    """Write how many bytes of kept text fall into each bin, per language: rows of lang, bin, text_bytes."""
    counts: dict[str, np.ndarray] = {}
    for langs, bins, texts in _read(documents, selection):
        sizes = np.diff(string_offsets(texts)).astype(np.int64)
        names = langs.to_numpy(zero_copy_only=False)
        for lang in langs.unique().to_pylist():
            own = names == lang
            np.add.at(counts.setdefault(lang, np.zeros(NUM_BINS, np.int64)), bins[own], sizes[own])
    columns: list[list[pa.Array]] = [[], [], []]
    for lang in sorted(counts):
        filled = np.flatnonzero(counts[lang])
        columns[0].append(pa.array([lang] * len(filled), type=pa.string()))
        columns[1].append(pa.array(filled.astype(np.uint32)))
        columns[2].append(pa.array(counts[lang][filled].astype(np.uint64)))
    arrays = [pa.chunked_array(parts, type=field.type) for parts, field in zip(columns, _SCHEMA, strict=True)]
    table = pa.table(arrays, schema=_SCHEMA)
    pq.write_table(table, str(path), compression="zstd", write_statistics=False)
    return ShardResult(rows=table.num_rows)


def add_histograms(files: Iterable[tuple[str, Path]]) -> dict[Stratum, np.ndarray]:
    """Per stratum [NUM_BINS] int64 bytes, from the (source, histogram file) of every document shard."""
    totals: dict[Stratum, np.ndarray] = {}
    for source, path in files:
        table = pq.read_table(str(path), schema=_SCHEMA)
        langs = table["lang"].to_numpy()
        bins, sizes = (table[name].to_numpy().astype(np.int64) for name in ("bin", "text_bytes"))
        for lang in table["lang"].unique().to_pylist():
            own = langs == lang
            np.add.at(totals.setdefault((source, lang), np.zeros(NUM_BINS, np.int64)), bins[own], sizes[own])
    return dict(sorted(totals.items()))


def plan_draws(histograms: Mapping[Stratum, np.ndarray], wanted: TrainedTokenizer) -> dict[Stratum, Draw]:
    """How often the documents of each stratum are taken.

    Sources first share the text by weight. Then a language with the share q gets one proportional to q^alpha
    (Conneau and Lample 2019, section 3.1), and its sources keep their proportions. The text drawn in all is the
    smaller of `train_bytes` and the corpus; a stratum whose share exceeds what it has is taken more than once.

    Args:
        histograms: from `add_histograms`.

    Raises:
        ConfigError: `weights` gives weight only to sources without text.
    """
    sizes = {stratum: int(counts.sum()) for stratum, counts in histograms.items()}
    total = sum(sizes.values())
    if wanted.weights is None:
        shares = {stratum: size / max(1, total) for stratum, size in sizes.items()}
    else:
        of_source = Counter[str]()
        for (source, _), size in sizes.items():
            of_source[source] += size
        # In the order of the sources: the order of `weights` is no part of the settings' hash.
        present = {source: wanted.weights.get(source, 0.0) for source, size in of_source.items() if size}
        if not (scale := sum(present.values())) > 0:
            raise ConfigError(
                "tokenizer.weights gives no weight to any source that has text.",
                next_step="give a source with text a weight above 0",
            )
        shares = {
            (source, lang): present.get(source, 0.0) / scale * size / max(1, of_source[source])
            for (source, lang), size in sizes.items()
        }
    of_lang: dict[str, float] = {}
    for (_, lang), share in shares.items():
        of_lang[lang] = of_lang.get(lang, 0.0) + share
    flat = {lang: share**wanted.alpha for lang, share in of_lang.items() if share > 0}
    scale = sum(flat.values())
    draws = {}
    for (source, lang), share in shares.items():
        if share:
            share = flat[lang] / scale * share / of_lang[lang]
        passes, rest = divmod(round(share * min(wanted.train_bytes, total)), max(1, sizes[source, lang]))
        ends = np.cumsum(histograms[source, lang])
        # At least one document of everything that has a share, however small.
        needed = max(rest, 1) if share > 0 and not passes else rest
        num_bins = int(np.searchsorted(ends, needed)) + 1 if needed else 0
        draws[source, lang] = Draw(passes, num_bins)
    return draws


def drawn_texts(documents: Path, selection: Path, draws: Mapping[str, Draw]) -> Iterator[str]:
    """The drawn texts of a document shard, in order, each as often as it is drawn.

    Args:
        draws: by language.
    """
    if all(draw == NOTHING for draw in draws.values()):
        return
    for langs, bins, texts in _read(documents, selection):
        own = [draws.get(lang, NOTHING) for lang in langs.to_pylist()]
        times = np.array([draw.passes for draw in own], dtype=np.int64)
        times += bins < np.array([draw.num_bins for draw in own], dtype=np.int64)
        taken = np.flatnonzero(times)
        for text, count in zip(texts.take(pa.array(taken)).to_pylist(), times[taken].tolist(), strict=True):
            for _ in range(count):
                yield text


def _read(documents: Path, selection: Path) -> Iterator[tuple[pa.Array, np.ndarray, pa.Array]]:
    """(languages, [rows] int64 bins, texts) of the kept rows, a row group at a time."""
    for table in read_selected(documents, ("doc_id", "lang", "text"), load_selection(selection)):
        ids, langs, texts = (one_chunk(table[name]) for name in ("doc_id", "lang", "text"))
        bins = (hash_strings(ids, salt=SAMPLING_SALT) >> np.uint64(48)).astype(np.int64)
        yield langs, bins, texts


# -- training ------------------------------------------------------------------------------------------------

DrawnShard = tuple[Path, Path, Mapping[str, Draw]]
"""A document shard, its selection, and what is drawn from it by language."""


def train_tokenizer(
    drawn: Sequence[DrawnShard], wanted: TrainedTokenizer, num_threads: int, path: Path
) -> ShardResult:
    """Train on what is drawn from all document shards and write `tokenizer.json`.

    Args:
        num_threads: threads of the trainer; they do not change its result.
    """
    # Read by the thread pools of the libraries when they start.
    os.environ["RAYON_NUM_THREADS"] = str(min(num_threads, len(os.sched_getaffinity(0))))
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    counts = {"train_documents": 0, "train_bytes": 0}

    def texts() -> Iterator[str]:
        for shard in drawn:
            for text in drawn_texts(*shard):
                counts["train_documents"] += 1
                counts["train_bytes"] += len(text.encode("utf-8"))
                yield text
            report_status(path, f"read {counts['train_bytes'] / 1e6:,.1f} MB of text")
        task = f"{wanted.vocab_size:,} entries from {counts['train_bytes'] / 1e6:,.1f} MB of text"
        report_status(path, f"training {task}")

    if isinstance(wanted, WordPiece):
        languages = {lang for _, _, draws in drawn for lang, draw in draws.items() if draw != NOTHING}
        lowercase = languages <= {"en"} if wanted.lowercase == "auto" else wanted.lowercase
        if lowercase and (others := sorted(languages - {"en"})):
            report_status(
                path, f"`lowercase: true` takes accents off and Hangul apart, in {', '.join(others)} too"
            )
        wanted = wanted.model_copy(update={"lowercase": lowercase})
    trained, own_counts = wanted.train(limited(texts(), wanted))
    path.write_text(trained, encoding="utf-8")
    return ShardResult(rows=1, stats={**counts, **own_counts})

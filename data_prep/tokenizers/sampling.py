"""Documents that a tokenizer is trained on: every source by its weight, every language with a temperature.

A document is drawn or not by the hash of its id, so the draw needs one small histogram per document shard and no
list of documents: how many bytes of text fall on each range of hashes, for every language.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster.artefacts.errors import ConfigError
from cluster.shards import ShardResult
from data_prep.documents import one_chunk, read_selected
from data_prep.hashing import hash_strings
from data_prep.ragged import string_offsets
from data_prep.selection import load_selection
from data_prep.tokenizers.config import TrainedTokenizer

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


def plan_draws(
    histograms: Mapping[Stratum, np.ndarray], wanted: TrainedTokenizer, sources: Sequence[str]
) -> dict[Stratum, Draw]:
    """How often the documents of each stratum are taken.

    Sources first share the text by weight. Then a language with the share q gets one proportional to q^alpha
    (Conneau and Lample 2019, section 3.1), and its sources keep their proportions. The text drawn in all is the
    smaller of `train_bytes` and the corpus; a stratum whose share exceeds what it has is taken more than once.

    Args:
        histograms: from `add_histograms`.
        sources: names of all sources of the preparation.

    Raises:
        ConfigError: `weights` names other sources than there are, or gives weight only to those without text.
    """
    sizes = {stratum: int(counts.sum()) for stratum, counts in histograms.items()}
    shares = _with_temperature(_by_source(sizes, wanted.weights, sources), wanted.alpha)
    total = min(wanted.train_bytes, sum(sizes.values()))
    draws = {}
    for stratum, share in shares.items():
        passes, rest = divmod(round(share * total), max(1, sizes[stratum]))
        ends = np.cumsum(histograms[stratum])
        # At least one document of everything that has a share, however small.
        needed = max(rest, 1) if share > 0 and not passes else rest
        num_bins = int(np.searchsorted(ends, needed)) + 1 if needed else 0
        draws[stratum] = Draw(passes, num_bins)
    return draws


def _by_source(
    sizes: Mapping[Stratum, int], weights: Mapping[str, float] | None, sources: Sequence[str]
) -> dict[Stratum, float]:
    """Each stratum's share of the text when sources give by weight, languages by size."""
    total = max(1, sum(sizes.values()))
    if weights is None:
        return {stratum: size / total for stratum, size in sizes.items()}
    if set(weights) != set(sources):
        raise ConfigError(
            f"tokenizer.weights names {', '.join(sorted(weights))}; the sources are {', '.join(sources)}.",
            next_step="give every source a weight (0 leaves it out), or remove `weights`",
        )
    totals = {name: sum(size for (source, _), size in sizes.items() if source == name) for name in sources}
    present = {name: weights[name] for name in sources if totals[name]}
    if not sum(present.values()) > 0:
        raise ConfigError(
            "tokenizer.weights gives no weight to any source that has text.",
            next_step="give a source with text a weight above 0",
        )
    scale = sum(present.values())
    return {
        (source, lang): present.get(source, 0.0) / scale * size / max(1, totals[source])
        for (source, lang), size in sizes.items()
    }


def _with_temperature(shares: Mapping[Stratum, float], alpha: float) -> dict[Stratum, float]:
    """The shares with every language's sum q raised to alpha, normalised again; languages without text have 0."""
    of_lang: dict[str, float] = {}
    for (_, lang), share in shares.items():
        of_lang[lang] = of_lang.get(lang, 0.0) + share
    flat = {lang: share**alpha for lang, share in of_lang.items() if share > 0}
    scale = sum(flat.values())
    return {
        (source, lang): flat[lang] / scale * share / of_lang[lang] if share else 0.0
        for (source, lang), share in shares.items()
    }


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

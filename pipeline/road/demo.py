"""The demo: a road on one machine, from docstrings to scores on tasks that are made from held-out docstrings.

Rows for two tasks:

- `code`: which words of a sentence are code? Its authors marked them with backquotes, which are taken away. A network
  that has read such text before knows the words that the labelled sentences lack, and the places of code.
- `word_order`: is a sentence in order, or were its halves exchanged? Every sentence occurs twice, in order and
  disordered, so that neither counting words nor remembering sentences scores more than 50%.

Which side a document is on, and the order of sentences, are hashes of document ids: the same store gives the same rows.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.storage import storage_errors
from data_prep.document import Document
from data_prep.token_store import TokenStore
from pipeline.road.run import Finished, commit_report, run_stages, stages_of
from pipeline.road.stages import RoadConfig, StageConfig, load_stages
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import read_metrics
from pipeline.samples.noise import Noise

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "demo"
_POLL_S = 0.2


def run_demo(out: Path, *, kill_a_worker: bool) -> tuple[Finished, Path, str]:
    """Make everything under `out`, continuing after the finished stages of an earlier, interrupted demo.

    Returns:
        What the stages made, the page of the road, and in words the worker that was killed; empty without a kill.
    """
    if not CONFIGS.is_dir():
        raise MissingInputError(
            f"The demo's configurations are not at {CONFIGS}.", next_step="run it from a clone: make demo"
        )
    # What is printed to be typed next holds in every directory.
    out = out.resolve()
    road = demo_road(out)
    loaded = load_stages(road, made=[out / "tasks"])
    found, killed = Finished(), ""

    def write_tasks() -> None:
        write_rows(TokenStore.open(found.stores[0]), loaded.pretrain.data.held_out, out / "tasks")

    def train_and_kill(settings: PretrainConfig) -> RunDirectory:
        nonlocal killed
        run, killed = _train_and_kill(settings)
        return run

    stages = stages_of(road, loaded, found, replace=True, train=train_and_kill if kill_a_worker else None)
    stages.insert(-1, ("tasks: rows of held-out docstrings", write_tasks))
    run_stages(stages, loaded, found, typed="cloze demo", address="local")
    return found, commit_report(road, found), killed


def demo_road(out: Path) -> RoadConfig:
    """The road of `configs/demo`, with everything below one directory."""
    runs_dir = str(out / "runs")
    rows = {
        f"tasks.{task}.{side}": str(out / "tasks" / task / f"{side}.jsonl")
        for task in ("code", "word_order")
        for side in ("train", "evaluation")
    }
    stores = [{"path": str(out / "data" / "tokens")}]
    return RoadConfig(
        name="report",
        out=out,
        data=(StageConfig(config=CONFIGS / "data.yaml", settings={"out": str(out / "data")}),),
        pretrain=StageConfig(
            config=CONFIGS / "pretrain.yaml", settings={"runs_dir": runs_dir, "data.stores": stores}
        ),
        finetune=(
            StageConfig(
                config=CONFIGS / "finetune.yaml",
                settings={"out": str(out / "scores"), "runs_dir": runs_dir, **rows},
            ),
        ),
    )


def _train_and_kill(settings: PretrainConfig) -> tuple[RunDirectory, str]:
    """Train a new run, and kill one of its processes with SIGKILL half-way, as a failing machine would.

    Returns:
        The run, and in words which worker was killed and where the run continued.
    """
    from pipeline.pretrain.launch import create_run, execute

    run, killed = create_run(settings), {}

    def kill() -> None:
        while not (steps := read_metrics(run)) or steps[-1]["step"] < settings.num_steps // 2:
            time.sleep(_POLL_S)
        worker = run.events(Event.STARTED)[-1]["workers"][-1]
        os.kill(worker["pid"], signal.SIGKILL)
        killed.update(worker, step=steps[-1]["step"])

    threading.Thread(target=kill, name="killer", daemon=True).start()
    execute(run)
    starts = run.events(Event.STARTED)
    if not killed or len(starts) < 2:
        return run, "nothing was killed: the run ended first"
    return run, (
        f"worker {killed['rank']} (process {killed['pid']}) got SIGKILL after step {killed['step']};"
        f" all workers continued from the checkpoint at step {starts[-1]['step']}"
    )


SIZES: Mapping[str, tuple[int, int]] = {"code": (300, 300), "word_order": (1600, 800)}
"""By task, the rows to train on and to evaluate on; with 800 of `word_order`, some seeds do not learn it."""
CODE, PROSE = "B-code", "O"
"""Every word of code is an entity of its own."""
MIN_WORDS, MAX_WORDS = 6, 40
"""Words of the shortest and the longest sentence used."""

_PARAGRAPH = re.compile(r"\n\s*\n|[^\n]*\n[ \t]*[-=~]{3,}[ \t]*(?:\n|$)")
"""Between paragraphs: a blank line, or a heading with its underline."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*[.,;:!?]?")
_MIN_WORD_SHARE = 0.7
"""Share of a sentence's blank-separated parts that must be words; the rest may be code or numbers."""
_MARKED = re.compile(r"[(\[]*(?::\w+:)?(?P<marks>`+)(?P<code>[^`]+)(?P=marks)(?:s|_)*[.,;:!?)\]]*")
_AROUND = "()[].,;:!?"
_PUNCTUATION = ".,;:!?"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A usable sentence of a held-out document."""

    id: str
    """`DOC_ID#NUMBER`, the number counting the document's usable sentences from 0."""
    text: str
    draw: int
    """A uint64 hash of the id; sorting by it shuffles."""


def write_rows(store: TokenStore, held_out: float, out: Path) -> None:
    """Write `TASK/train.jsonl` and `TASK/evaluation.jsonl` below a directory for every task.

    Args:
        held_out: share of the documents that pre-training did not see.

    Raises:
        ConfigError: the held-out documents are too few.
    """
    documents = list(store.documents(np.flatnonzero(store.held_out(held_out))))
    for task, rows_of in TASKS.items():
        counts = SIZES[task]
        sides = split(documents, counts[1] / sum(counts))
        made = [list(islice(rows_of(side), count)) for side, count in zip(sides, counts, strict=True)]
        for rows, count in zip(made, counts, strict=True):
            if len(rows) < count:
                raise ConfigError(
                    f"The held-out documents of {store.place} (held_out {held_out}) are too few for `{task}`:"
                    f" {count} rows are needed on one side, found {len(rows)}.",
                    next_step="pre-train with a larger data.held_out, or prepare more text",
                )
        for name, rows in zip(("train", "evaluation"), made, strict=True):
            file = out / task / f"{name}.jsonl"
            with storage_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                lines = (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
                write_durably(file, b"".join(lines))


def split(documents: Iterable[Document], evaluation_share: float) -> tuple[list[Sentence], list[Sentence]]:
    """Cut documents into usable sentences, shuffled, and split them by document: to train on, and to evaluate on. No
    text is there twice.

    Texts that occur on both sides (as docstrings that are inherited do) stay on the evaluation side only.
    """
    train: list[Sentence] = []
    evaluation: list[Sentence] = []
    for document in documents:
        draw = float(Noise.of("held-out-split", document.doc_id).uniform())
        (evaluation if draw < evaluation_share else train).extend(_sentences_of(document))
    seen: set[str] = set()
    kept = [*_unseen(evaluation, seen)]
    return [*_unseen(train, seen)], kept


def split_sentences(text: str) -> Iterator[str]:
    """Cut text into sentences at [.!?] before a capital; paragraphs end sentences, line ends do not.

    Underlined headings, such as `Returns` in NumPy's docstrings, are left out.
    """
    for paragraph in _PARAGRAPH.split(text):
        if words := paragraph.split():
            yield from _SENTENCE_END.split(" ".join(words))


def code_rows(sentences: Iterable[Sentence]) -> Iterator[Row]:
    """Words with their tags, code or prose; every sentence has some code."""
    for one in sentences:
        if tagged := tag_words(one.text):
            yield {"id": one.id, "tokens": tagged[0], "tags": tagged[1]}


def tag_words(text: str) -> tuple[list[str], list[str]] | None:
    """The words of a sentence, without marks and the punctuation around them, and their tags.

    Returns:
        None where nothing is marked, or marks are unclear: code of several words, or half a pair of backquotes.
    """
    words, tags = [], []
    for part in text.split():
        marked = _MARKED.fullmatch(part)
        if marked is None and "`" in part:
            return None
        words.append(marked["code"] if marked else part.strip(_AROUND) or part)
        tags.append(CODE if marked else PROSE)
    return (words, tags) if CODE in tags else None


def word_order_rows(sentences: Iterable[Sentence]) -> Iterator[Row]:
    """Sentences in pairs: disordered, and the same one in order."""
    for one in sentences:
        # Without the capital at the start and the punctuation at the end, which would give the order away.
        words = f"{one.text[0].lower()}{one.text[1:]}".rstrip(_PUNCTUATION).split()
        if disordered := exchange_halves(words, Noise.of("word-order", one.id)):
            for label, order in (("disordered", disordered), ("in_order", words)):
                yield {"id": f"{one.id}-{label}", "text": " ".join(order), "label": label}


def exchange_halves(words: Sequence[str], noise: Noise) -> list[str] | None:
    """Put the end of a sentence before its beginning; its first and its last word stay, because single words there
    would give the order away.

    Args:
        noise: scalar; decides where, in the middle third, the sentence is cut.

    Returns:
        The words in their new order, or None where every cut would leave punctuation inside or change nothing.
    """
    first, last = len(words) // 3, len(words) - len(words) // 3
    cuts = [place for place in range(max(2, first), last) if words[place - 1][-1] not in _PUNCTUATION]
    if not cuts:
        return None
    cut = cuts[int(noise.integers(len(cuts)))]
    moved = [words[0], *words[cut:-1], *words[1:cut], words[-1]]
    return None if moved == list(words) else moved


TASKS: Mapping[str, Callable[[Iterable[Sentence]], Iterator[Row]]] = {
    "code": code_rows,
    "word_order": word_order_rows,
}


def _sentences_of(document: Document) -> Iterator[Sentence]:
    usable = (sentence for sentence in split_sentences(document.text) if _is_usable(sentence))
    for number, sentence in enumerate(usable):
        identity = f"{document.doc_id}#{number}"
        draw = int(Noise.of("held-out-order", identity).bits())
        yield Sentence(identity, sentence, draw)


def _is_usable(sentence: str) -> bool:
    """Prose, not code, tables or fragments."""
    parts = sentence.split()
    if not MIN_WORDS <= len(parts) <= MAX_WORDS:
        return False
    if not sentence[0].isupper() or sentence[-1] not in ".!?":
        return False
    return sum(_WORD.fullmatch(part) is not None for part in parts) >= _MIN_WORD_SHARE * len(parts)


def _unseen(sentences: list[Sentence], seen: set[str]) -> Iterator[Sentence]:
    """The sentences in hashed order, without those whose text (case aside) is in `seen`, which grows."""
    for sentence in sorted(sentences, key=lambda one: (one.draw, one.id)):
        if (text := sentence.text.lower()) not in seen:
            seen.add(text)
            yield sentence

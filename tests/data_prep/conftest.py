"""A small corpus with everything that happens to real ones, and its preparation."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from data_prep.config import PreparationConfig

_WORD_LIST = """
the of and to in a is was for as on by with that from at it are were this which or be his has had its an first one two
city river music people history century system world language science energy light water king empire north south great
small known called became where between during after before however many
"""
WORDS = tuple(_WORD_LIST.split())
NUM_ARTICLES = 48
"""Articles in four files of the corpus; two of them are short, two have the text of another."""
NUM_SHORT = NUM_DUPLICATES = 2
NUM_BOOKS = 3


def sentences(generator: random.Random, count: int) -> str:
    """`count` sentences in paragraphs."""
    made = []
    for number in range(count):
        words = [generator.choice(WORDS) for _ in range(generator.randint(4, 18))]
        end = "\n" if number % 5 == 4 else " "
        made.append(
            " ".join(words).capitalize() + generator.choice([".", ".", "?", " (café, 3.5 km)."]) + end
        )
    return "".join(made).strip()


def write_corpus(directory: Path) -> Path:
    """Extracted Wikipedia articles and books; the same bytes every time."""
    generator = random.Random(7)
    (directory / "wiki").mkdir(parents=True)
    (directory / "books").mkdir()
    texts = [sentences(generator, generator.randint(8, 40)) for _ in range(NUM_ARTICLES)]
    texts[5] = texts[17] = "Too short."
    texts[30], texts[41] = texts[2], texts[3]
    for file in range(4):
        own = range(file * 12, file * 12 + 12)
        blocks = [
            f'<doc id="{n}" url="https://en.wikipedia.org/wiki?curid={n}" title="Title {n}">\n'
            f"Title {n}\n\n{texts[n]}\n</doc>\n"
            for n in own
        ]
        (directory / "wiki" / f"wiki_{file:02d}").write_text("".join(blocks), encoding="utf-8")
    for number in range(NUM_BOOKS):
        (directory / "books" / f"book{number}.txt").write_text(sentences(generator, 150), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small corpus; tests must not change it."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def small_config(corpus: Path, out: Path, **changes: Any) -> PreparationConfig:
    """A preparation of the small corpus in seven shards."""
    plain = {
        "name": "small",
        "out": out,
        "sources": [
            {"kind": "wikipedia_extracted", "name": "wiki", "paths": [str(corpus / "wiki" / "*")]},
            {"kind": "books_text", "name": "books", "paths": [str(corpus / "books" / "*.txt")]},
        ],
        "shard_bytes": 1,
        "tokenizer": {"vocab_size": 600, "train_bytes": 60_000},
    }
    return PreparationConfig.model_validate(plain | changes)


@pytest.fixture(scope="session")
def configure(corpus: Path) -> Callable[..., PreparationConfig]:
    """Makes a configuration of the small corpus: `configure(out, **changes)`."""
    return partial(small_config, corpus)


@pytest.fixture(scope="session")
def finished(configure: Callable[..., PreparationConfig], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The small corpus, prepared; tests must not change it."""
    from cluster.runtime import ray_runtime
    from data_prep.job import prepare

    with ray_runtime("local", num_cpus=2):
        return prepare(configure(tmp_path_factory.mktemp("finished") / "out"))

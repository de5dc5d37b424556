"""Question answering in SQuAD's JSON: SQuAD 1.1 and 2.0, XQuAD."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson

from cluster.artefacts.errors import ConfigError
from pipeline.finetune.evaluation_sets.base import EvaluationSet, Files, Named


def read_squad(path: Path) -> Iterator[Named]:
    """Contexts, named `TITLE#NUMBER` by the paragraph's number, and questions, named by their ids."""
    try:
        for article in orjson.loads(path.read_bytes())["data"]:
            for number, paragraph in enumerate(article["paragraphs"]):
                yield f"{article['title']}#{number}", paragraph["context"]
                for question in paragraph["qas"]:
                    yield question["id"], question["question"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not JSON as SQuAD has it: {error!r}.",
            next_step="compare the file with the one of the official release, or leave its task out of"
            " `decontaminate`",
        ) from None


def read_xquad(path: Path) -> Iterator[Named]:
    """Like SQuAD; the names begin with the language, because the ids are the same in all of them."""
    language = path.stem.rpartition(".")[2]
    yield from ((f"{language}:{name}", text) for name, text in read_squad(path))


_ORIGIN = "SQuAD (rajpurkar.github.io/SQuAD-explorer)"
SQUAD_1 = EvaluationSet((Files(("squad/dev-v1.1*.json",), read_squad),), _ORIGIN)
SQUAD_2 = EvaluationSet((Files(("squad/dev-v2.0*.json",), read_squad),), _ORIGIN)
XQUAD = EvaluationSet(
    (Files(("xquad/xquad.*.json",), read_xquad),), "XQuAD (github.com/google-deepmind/xquad)"
)

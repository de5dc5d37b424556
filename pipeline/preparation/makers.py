"""The configuration that makes a token store, for runs whose tokens are not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cluster.artefacts.errors import ClozeError, MissingInputError
from cluster.artefacts.places import Place, absolute, as_place, inner
from cluster.copies import is_there
from data_prep.config import PreparationConfig
from data_prep.layout import TOKENS
from data_prep.tokenizers.config import AnyTokenizer, TrainedTokenizer
from pipeline.config.loading import load_merged
from pipeline.config.shipped import SUFFIX, list_shipped
from pipeline.run.config import PretrainConfig


@dataclass(frozen=True, slots=True)
class Maker:
    """A configuration that makes a store."""

    typed: str
    """Its file, or the name of one that comes with cloze."""
    vocab_size: int | None
    """Entries of the vocabulary that it asks for; None where its tokenizer exists already."""


def missing_stores(config: PretrainConfig, beside: Path | None = None) -> dict[Place, Maker | None]:
    """The stores of a run that are not there, each with what makes it; None where no configuration is found that does.

    Args:
        beside: the run's own file, in whose folder, and in the folder `data` beside that, configurations are looked
            for. They are also looked for in the working directory and among those that come with cloze.
    """
    return {
        store.path: maker_of(store.path, beside) for store in config.data.stores if not is_there(store.path)
    }


def require_makers(missing: dict[Place, Maker | None]) -> None:
    """Refuse stores that are not there, and that no known configuration makes.

    Raises:
        MissingInputError: names the first.
    """
    for store, maker in missing.items():
        if maker is None:
            raise MissingInputError(
                f"There is no token store {store}, and no configuration here has an `out` that it would lie in.",
                next_step="correct data.stores, or prepare it: cloze data prepare CONFIG",
            )


def maker_of(store: Place, beside: Path | None = None) -> Maker | None:
    """The first configuration whose `out` or `publish` holds the store."""
    wanted = absolute(store)
    for typed, path in _candidates(beside):
        try:
            plain = load_merged(PreparationConfig, path)
        except (ClozeError, OSError, ValueError):
            continue  # of another program
        outs = [as_place(str(plain[key])) for key in ("out", "publish") if plain.get(key)]
        if "sources" in plain and any(
            wanted in (absolute(out), absolute(inner(out, TOKENS))) for out in outs
        ):
            return Maker(typed, vocab_size_of(plain.get("tokenizer") or {}))
    return None


def vocab_size_of(tokenizer: Any) -> int | None:
    """Entries of the vocabulary that settings of a tokenizer ask for; None for one that exists already, or is wrong."""
    try:
        settings = TypeAdapter(AnyTokenizer).validate_python(tokenizer)
    except ValidationError:
        return None
    return settings.vocab_size if isinstance(settings, TrainedTokenizer) else None


def _candidates(beside: Path | None) -> Iterator[tuple[str, Path]]:
    near = [] if beside is None else [beside.parent, beside.parent / "data", beside.parent.parent / "data"]
    for folder in dict.fromkeys([*near, Path(), Path("configs/data")]):
        yield from ((str(path), path) for path in sorted(folder.glob(f"*{SUFFIX}")))
    yield from ((one.name, one.path) for one in list_shipped() if "data" in one.name)

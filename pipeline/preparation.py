"""The configuration of a preparation: read, checked with all that it names, and found by the store that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cluster.artefacts.errors import ClozeError, ConfigError, MissingInputError
from cluster.artefacts.places import Place, absolute, as_place
from cluster.copies import committed_at, is_there
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText
from data_prep.filters import AnyFilter
from data_prep.inputs import Input, as_problems, check_inputs, find_input_errors
from data_prep.layout import TOKENS
from data_prep.sources import AnySource
from data_prep.tokenizers import AnyTokenizer, TrainedTokenizer
from pipeline.config.loading import load_merged, load_plain, validate
from pipeline.config.shipped import SUFFIX, list_shipped
from pipeline.run.config import PretrainConfig


def evaluation_texts(config: DecontaminationConfig) -> Iterator[EvaluationText]:
    """As in `evaluation_sets`, which imports every task: only a configuration that names some waits for that."""
    from pipeline.tasks import evaluation_sets

    return evaluation_sets.evaluation_texts(config)


def load_preparation(path: Path, overrides: Sequence[str] = ()) -> PreparationConfig:
    """Read and validate a data configuration, and check that its files, tokenizer, filters and evaluation sets exist.

    Raises:
        MissingInputError: the configuration or something that it names does not exist.
        ConfigError: every problem at once. Where a part of the configuration is wrong, the files of the other parts
            are checked nevertheless.
    """
    return load_with_inputs(path, overrides)[0]


def load_with_inputs(path: Path, overrides: Sequence[str] = ()) -> tuple[PreparationConfig, list[Input]]:
    """Like `load_preparation`, with the source files that were found, so that they need not be listed again."""
    plain = load_plain(PreparationConfig, path, overrides)
    try:
        config = validate(PreparationConfig, plain, str(path))
    except ConfigError as error:
        # The valid parts of an invalid configuration may also name missing things.
        found, _ = find_input_errors(
            sources=_valid_items(AnySource, plain.get("sources")),
            filters=list(_valid_items(AnyFilter, plain.get("filters")).values()),
            tokenizer=_valid(AnyTokenizer, plain.get("tokenizer")),
            decontaminate=_valid(DecontaminationConfig, plain.get("decontaminate")),
            takedown=_valid(Path, plain.get("takedown")),
            evaluation_texts=evaluation_texts,
        )
        if not found:
            raise
        missing = [problem for key, own in found for problem in as_problems(key, own)]
        problems = (*error.problems, *missing)
        raise ConfigError(
            f"{path}: {len(problems)} problems in the configuration:", problems=problems
        ) from None
    return config, check_inputs(config, evaluation_texts)


def _valid_items(annotation: Any, values: Any) -> dict[int, Any]:
    """The valid settings of a list by their places; none where there is no list."""
    found = enumerate(values if isinstance(values, list) else [])
    return {number: valid for number, one in found if (valid := _valid(annotation, one))}


def _valid(annotation: Any, value: Any) -> Any:
    """The value as settings; None where it is absent or invalid."""
    try:
        return None if value is None else TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return None


# -- the configuration that makes a token store -----


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
        store.path: maker_of(store.path, beside)
        for store in config.data.stores
        if not is_there(committed_at(store.path, TOKENS))
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
        if "sources" in plain and any(wanted in (absolute(out), absolute(out / TOKENS)) for out in outs):
            return Maker(typed, vocab_size_of(plain.get("tokenizer") or {}))
    return None


def vocab_size_of(tokenizer: Any) -> int | None:
    """Entries of the vocabulary that settings of a tokenizer ask for; None for one that exists already, or is wrong."""
    settings = _valid(AnyTokenizer, tokenizer)
    return settings.vocab_size if isinstance(settings, TrainedTokenizer) else None


def _candidates(beside: Path | None) -> Iterator[tuple[str, Path]]:
    near = [] if beside is None else [beside.parent, beside.parent / "data", beside.parent.parent / "data"]
    for folder in dict.fromkeys([*near, Path(), Path("configs/data")]):
        yield from ((str(path), path) for path in sorted(folder.glob(f"*{SUFFIX}")))
    yield from ((one.name, one.path) for one in list_shipped() if "data" in one.name)

"""Read the configuration of a preparation, and check that everything it names exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cluster.artefacts.errors import ConfigError
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText
from data_prep.filters import AnyFilter
from data_prep.input_checks import as_problems, check_inputs, find_input_errors
from data_prep.inputs import Inputs, list_inputs
from data_prep.sources import AnySource, SourceFile
from data_prep.tokenizers.config import AnyTokenizer
from pipeline.config.loading import load_plain, validate


def evaluation_texts(config: DecontaminationConfig) -> Iterator[EvaluationText]:
    """As in `evaluation_sets`, which imports every task: only a configuration that names some waits for that."""
    from pipeline.tune import evaluation_sets

    return evaluation_sets.evaluation_texts(config)


def load_preparation(path: Path, overrides: Sequence[str] = ()) -> PreparationConfig:
    """Read and validate a data configuration, and check that its files, tokenizer, filters and evaluation sets exist.

    Raises:
        MissingInputError: the configuration or something that it names is not there.
        ConfigError: every problem at once. Where a part of the configuration is wrong, the files of the other parts
            are checked nevertheless.
    """
    return _load(path, overrides)[0]


def load_with_inputs(path: Path, overrides: Sequence[str] = ()) -> tuple[PreparationConfig, Inputs]:
    """Like `load_preparation`, with the source files that were found, so that they need not be listed again."""
    return (loaded := _load(path, overrides))[0], list_inputs(*loaded)


def _load(
    path: Path, overrides: Sequence[str]
) -> tuple[PreparationConfig, Mapping[int, Sequence[SourceFile]]]:
    plain = load_plain(PreparationConfig, path, overrides)
    try:
        config = validate(PreparationConfig, plain, str(path))
    except ConfigError as error:
        missing = [
            problem
            for key, found in find_input_errors(**_valid_parts(plain), evaluation_texts=evaluation_texts)
            for problem in as_problems(key, found)
        ]
        if not missing:
            raise
        problems = (*error.problems, *missing)
        raise ConfigError(
            f"{path}: {len(problems)} problems in the configuration:", problems=problems
        ) from None
    return config, check_inputs(config, evaluation_texts)


def _valid_parts(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The valid parts of an invalid configuration, as arguments of `find_input_errors`."""
    sources, filters = (_listed(plain.get(name)) for name in ("sources", "filters"))
    return {
        "sources": {number: valid for number, one in sources if (valid := _valid(AnySource, one))},
        "filters": [valid for _, one in filters if (valid := _valid(AnyFilter, one))],
        "tokenizer": _valid(AnyTokenizer, plain.get("tokenizer")),
        "decontaminate": _valid(DecontaminationConfig, plain.get("decontaminate")),
    }


def _listed(value: Any) -> enumerate[Any]:
    return enumerate(value if isinstance(value, list) else [])


def _valid(annotation: Any, value: Any) -> Any:
    """The value as settings; None where it is absent or invalid."""
    try:
        return None if value is None else TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return None

"""Everything that a preparation reads, looked for before it starts: files, filters, a tokenizer, evaluation sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cluster.artefacts.errors import ClozeError, ConfigError, ConfigProblem, MissingInputError
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationTexts
from data_prep.decontaminate.steps import check_evaluation_texts
from data_prep.filters import FilterChain
from data_prep.sources import SourceConfig, SourceFile
from data_prep.stages.take_down import read_ids
from data_prep.tokenizers.config import PretrainedTokenizer
from data_prep.tokenizers.pretrained import find_tokenizer


def check_inputs(
    config: PreparationConfig, evaluation_texts: EvaluationTexts | None
) -> dict[int, Sequence[SourceFile]]:
    """Refuse what would stop the preparation later. Reads no text and needs no Ray.

    Returns:
        The files of every source, by its place among the sources.

    Raises:
        MissingInputError: files, a tokenizer or evaluation sets are not there; all of them are named.
        ConfigError: something that is named cannot be used, such as a language that a filter does not know.
    """
    listed: dict[int, Sequence[SourceFile]] = {}
    found = find_input_errors(
        dict(enumerate(config.sources)),
        config.filters,
        config.tokenizer,
        config.decontaminate,
        evaluation_texts,
        listed,
    )
    if (ids := config.takedown) is not None:
        found += _errors([("takedown", lambda: read_ids(ids))])
    if len(found) == 1:
        raise found[0][1]
    problems = tuple(problem for key, error in found for problem in as_problems(key, error))
    title = f"{len(problems)} problems with what the configuration names:"
    if any(isinstance(error, ConfigError) for _, error in found):
        raise ConfigError(title, problems=problems)
    if found:
        raise MissingInputError("\n".join([title, *map(str, problems)]))
    return listed


def find_input_errors(
    sources: Mapping[int, Any],
    filters: Sequence[Any],
    tokenizer: Any,
    decontaminate: Any,
    evaluation_texts: EvaluationTexts | None,
    listed: dict[int, Sequence[SourceFile]] | None = None,
) -> list[tuple[str, ClozeError]]:
    """The errors of all parts of a configuration, each with the dotted key of its part.

    Args:
        sources: settings of sources by their place in the list.
        tokenizer: settings of a tokenizer; None leaves it out, as for `decontaminate`.
        listed: gets the files of the sources, by their places.
    """

    def list_files(number: int, source: SourceConfig) -> None:
        files = source.list_files()
        if listed is not None:
            listed[number] = files

    checks: list[tuple[str, Callable[[], Any]]] = []
    for number, source in sources.items():
        checks.append((f"sources.{number}", partial(list_files, number, source)))
        if source.filters is not None:
            checks.append((f"sources.{number}.filters", lambda source=source: FilterChain(source.filters)))
    checks.append(("filters", lambda: FilterChain(filters)))
    if isinstance(tokenizer, PretrainedTokenizer):
        checks.append(("tokenizer.path", lambda: find_tokenizer(tokenizer.path)))
    if decontaminate is not None:
        checks.append(("decontaminate", lambda: check_evaluation_texts(decontaminate, evaluation_texts)))
    return _errors(checks)


def _errors(checks: Sequence[tuple[str, Callable[[], Any]]]) -> list[tuple[str, ClozeError]]:
    errors: list[tuple[str, ClozeError]] = []
    for key, check in checks:
        try:
            check()
        except (ConfigError, MissingInputError) as error:
            errors.append((key, error))
    return errors


def as_problems(key: str, error: ClozeError) -> list[ConfigProblem]:
    """An error as problems of the configuration."""
    if isinstance(error, ConfigError) and error.problems:
        return list(error.problems)
    remedy = f" Next: {error.next_step}" if error.next_step else ""
    return [ConfigProblem(key, "", f"{error.problem}{remedy}")]

"""The inputs of a preparation: all that it names is looked for; source files are listed and grouped into shards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ClozeError, ConfigError, ConfigProblem, MissingInputError
from cluster.artefacts.places import size_and_version
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationTexts, check_evaluation_texts
from data_prep.filters import FilterChain
from data_prep.sources.base import SourceConfig, SourceFile
from data_prep.tokenizers.pretrained import PretrainedTokenizer, find_tokenizer

MIN_PART_BYTES = 1 << 20
"""Smaller files are not split, however small shards are: a task costs more than reading this."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Input:
    """A source file as it was found."""

    source: SourceConfig
    file: SourceFile
    size_bytes: int
    """Of the file as it is stored."""
    version: str
    """Changes when the file does: its size and time of modification, or what the remote store offers."""


@dataclass(slots=True)
class ShardInput:
    """The input of one document shard."""

    source: SourceConfig
    parts: list[SourceFile]
    """Files of the source, or parts of big ones."""
    size_bytes: int
    """Of the parts as they are stored."""


def list_inputs(
    config: PreparationConfig, listed: Mapping[int, Sequence[SourceFile]] | None = None
) -> list[Input]:
    """Every source file in storage order: sources as configured, files by name.

    Args:
        listed: the files of each source, by its place, where they are known already.

    Raises:
        MissingInputError: a path or pattern matches nothing.
        ConfigError: a file's name is not UTF-8, which manifests and documents are.
    """
    inputs = [
        Input(source, file, *stored_size_and_version(file.path))
        for number, source in enumerate(config.sources)
        for file in (listed[number] if listed else source.list_files())
    ]
    # Python has a byte that is not UTF-8 as a surrogate (PEP 383).
    if odd := [own.file.path for own in inputs if _SURROGATE.search(own.file.path)]:
        shown = ", ".join(str(os.fsencode(path))[1:] for path in odd[:3])
        raise ConfigError(
            f"The names of {len(odd)} source files are not UTF-8: {shown}.",
            kept="everything; nothing was made",
            next_step="rename them, such as with `convmv -r -f latin1 -t utf8 --notest DIRECTORY`",
        )
    return inputs


def stored_size_and_version(path: str) -> tuple[int, str]:
    """Bytes of a source file as it is stored, and what changes when it does.

    Raises:
        MissingInputError: it is gone.
    """
    try:
        return size_and_version(path)
    except FileNotFoundError as error:
        raise MissingInputError(
            f"{path} was listed but is gone.", next_step="restore the file, or correct the source's `paths`"
        ) from error


def check_inputs(config: PreparationConfig, evaluation_texts: EvaluationTexts | None) -> list[Input]:
    """The source files, once nothing is found that would stop the preparation later. Reads no text and needs no Ray.

    Raises:
        MissingInputError: files, a tokenizer or evaluation sets are not there; all of them are named.
        ConfigError: something that is named cannot be used, such as a language that a filter does not know.
    """
    found, listed = find_input_errors(
        dict(enumerate(config.sources)),
        config.filters,
        config.tokenizer,
        config.decontaminate,
        config.takedown,
        evaluation_texts,
    )
    if len(found) == 1:
        raise found[0][1]
    problems = tuple(problem for key, error in found for problem in as_problems(key, error))
    title = f"{len(problems)} problems with what the configuration names:"
    if any(isinstance(error, ConfigError) for _, error in found):
        raise ConfigError(title, problems=problems)
    if found:
        raise MissingInputError("\n".join([title, *map(str, problems)]))
    return list_inputs(config, listed)


def find_input_errors(
    sources: Mapping[int, Any],
    filters: Sequence[Any],
    tokenizer: Any,
    decontaminate: Any,
    takedown: Path | None,
    evaluation_texts: EvaluationTexts | None,
) -> tuple[list[tuple[str, ClozeError]], dict[int, Sequence[SourceFile]]]:
    """The errors of all parts of a configuration, each with the dotted key of its part; and the files of the sources.

    Args:
        sources: settings of sources by their place in the list.
        tokenizer: settings of a tokenizer; None leaves it out, as for `decontaminate` and `takedown`.
    """
    listed: dict[int, Sequence[SourceFile]] = {}

    def list_files(number: int, source: SourceConfig) -> None:
        listed[number] = source.list_files()

    checks: list[tuple[str, Callable[[], Any]]] = []
    for number, source in sources.items():
        checks.append((f"sources.{number}", partial(list_files, number, source)))
        if source.filters is not None:
            checks.append((f"sources.{number}.filters", partial(FilterChain, source.filters)))
    checks.append(("filters", lambda: FilterChain(filters)))
    if isinstance(tokenizer, PretrainedTokenizer):
        checks.append(("tokenizer.path", lambda: find_tokenizer(tokenizer.path)))
    if decontaminate is not None:
        checks.append(("decontaminate", lambda: check_evaluation_texts(decontaminate, evaluation_texts)))
    if takedown is not None:
        checks.append(("takedown", lambda: read_ids(takedown)))
    found: list[tuple[str, ClozeError]] = []
    for key, check in checks:
        try:
            check()
        except (ConfigError, MissingInputError) as error:
            found.append((key, error))
    return found, listed


def as_problems(key: str, error: ClozeError) -> list[ConfigProblem]:
    """An error as problems of the configuration."""
    if isinstance(error, ConfigError) and error.problems:
        return list(error.problems)
    remedy = f" Next: {error.next_step}" if error.next_step else ""
    return [ConfigProblem(key, "", f"{error.problem}{remedy}")]


def read_ids(path: Path) -> tuple[str, ...]:
    """The ids of a list, sorted.

    Raises:
        MissingInputError: there is no such file.
        ConfigError: it is not text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MissingInputError(
            f"The list of documents to take down, {path}, cannot be read: {error.strerror}.",
            next_step="write it with an id a line (`cloze data find` prints ids), or correct `takedown`",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not UTF-8 text.", next_step="write it with an id a line, or correct `takedown`"
        ) from None
    return tuple(
        sorted({line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")})
    )


def group_inputs(inputs: Iterable[Input], shard_bytes: int) -> list[ShardInput]:
    """Cut the list of files into document shards of at most `shard_bytes`, each of one source.

    A bigger file is split where its source can split it, and is a shard by itself where it cannot.
    """
    shards: list[ShardInput] = []
    part_bytes = max(shard_bytes, MIN_PART_BYTES)
    for own in inputs:
        parts = [own.file]
        if own.size_bytes > part_bytes:
            parts = own.source.split_file(own.file, own.size_bytes, part_bytes)
        for part in parts:
            size = (own.size_bytes if part.end is None else part.end) - part.start
            last = shards[-1] if shards else None
            if last is None or last.source is not own.source or last.size_bytes + size > shard_bytes:
                shards.append(last := ShardInput(own.source, [], 0))
            last.parts.append(part)
            last.size_bytes += size
    return shards

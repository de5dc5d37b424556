"""The inputs of a preparation: all that it names is looked for; source files are listed and grouped into shards."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ClozeError, ConfigError, ConfigProblem, MissingInputError
from cluster.artefacts.places import size_and_version
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationTexts, check_evaluation_texts
from data_prep.filters import FilterChain
from data_prep.sources.base import FilePart, SourceConfig, SourceFile
from data_prep.tokenizers.pretrained import PretrainedTokenizer, find_tokenizer

MIN_PART_BYTES = 1 << 20
"""Smaller files are not split, however small shards are: a task costs more than reading this."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE = -1
"""The end of a part that ends where its file does."""


class Inputs:
    """Every source file, in storage order."""

    def __init__(self, sources: Sequence[SourceConfig]) -> None:
        self.sources = tuple(sources)
        self.source_numbers = array("I")
        """[files] places in `sources`."""
        self.files: list[SourceFile] = []
        self.sizes = array("q")
        """[files] bytes."""
        self.versions: list[str] = []
        """Each changes when the file does: its size and time of modification, or what the remote store offers."""

    def add(self, source: int, file: SourceFile, size_bytes: int, version: str) -> None:
        """Add a file of a source at the end."""
        self.source_numbers.append(source)
        self.files.append(file)
        self.sizes.append(size_bytes)
        self.versions.append(version)

    def __len__(self) -> int:
        return len(self.sizes)


def list_inputs(
    config: PreparationConfig, listed: Mapping[int, Sequence[SourceFile]] | None = None
) -> Inputs:
    """Every source file in storage order: sources as configured, files by name.

    Args:
        listed: the files of each source, by its place, where they are known already.

    Raises:
        MissingInputError: a path or pattern matches nothing.
        ConfigError: a file's name is not UTF-8, which manifests and documents are.
    """
    inputs = Inputs(config.sources)
    for number, source in enumerate(config.sources):
        for file in listed[number] if listed else source.list_files():
            inputs.add(number, file, *stored_size_and_version(file.path))
    # Python has a byte that is not UTF-8 as a surrogate (PEP 383).
    if odd := [file.path for file in inputs.files if _SURROGATE.search(file.path)]:
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


def check_inputs(config: PreparationConfig, evaluation_texts: EvaluationTexts | None) -> Inputs:
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
        evaluation_texts,
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
    return list_inputs(config, listed)


def find_input_errors(
    sources: Mapping[int, Any],
    filters: Sequence[Any],
    tokenizer: Any,
    decontaminate: Any,
    evaluation_texts: EvaluationTexts | None,
) -> tuple[list[tuple[str, ClozeError]], dict[int, Sequence[SourceFile]]]:
    """The errors of all parts of a configuration, each with the dotted key of its part; and the files of the sources.

    Args:
        sources: settings of sources by their place in the list.
        tokenizer: settings of a tokenizer; None leaves it out, as for `decontaminate`.
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
    return _errors(checks), listed


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


class Groups:
    """The source parts of every document shard: files, or parts of big ones, of one source."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.sizes = array("q")
        """[shards] bytes of source files, as they are stored."""
        self._files = array("q")
        """[parts] indices of their files."""
        self._starts, self._ends = array("q"), array("q")
        self._bounds = array("q", [0])
        """[shards + 1] the parts of shard `i` are those from `_bounds[i]` to `_bounds[i + 1]`."""

    def __len__(self) -> int:
        return len(self.sizes)

    def add(self, shard_bytes: int, file: int, start: int, end: int | None) -> None:
        """Add a part, to the last shard where it fits."""
        inputs = self.inputs
        size = (inputs.sizes[file] if end is None else end) - start
        fits = (
            len(self)
            and inputs.source_numbers[self._files[-1]] == inputs.source_numbers[file]
            and self.sizes[-1] + size <= shard_bytes
        )
        if not fits:
            self.sizes.append(0)
            self._bounds.append(len(self._files))
        self.sizes[-1] += size
        self._bounds[-1] += 1
        self._files.append(file)
        self._starts.append(start)
        self._ends.append(_WHOLE if end is None else end)

    def source_number(self, shard: int) -> int:
        """The place of a shard's source among the sources."""
        return self.inputs.source_numbers[self._files[self._bounds[shard]]]

    def parts(self, shard: int) -> tuple[FilePart, ...]:
        """Inputs of a shard."""
        return tuple(
            FilePart(self.inputs.files[file], start, end) for file, start, end in self._columns(shard)
        )

    def contents(self, shard: int, digests: Sequence[str]) -> list[list[Any]]:
        """Name, digest, start and end of every part of a shard.

        Args:
            digests: of all files.
        """
        return [
            [self.inputs.files[file].name, digests[file], start, end]
            for file, start, end in self._columns(shard)
        ]

    def _columns(self, shard: int) -> Iterator[tuple[int, int, int | None]]:
        own = slice(self._bounds[shard], self._bounds[shard + 1])
        for file, start, end in zip(self._files[own], self._starts[own], self._ends[own], strict=True):
            yield file, start, None if end == _WHOLE else end


def group_inputs(inputs: Inputs, shard_bytes: int) -> Groups:
    """Cut the list of files into shards of at most `shard_bytes`, each of one source.

    A bigger file is split where its source can split it, and is a shard by itself where it cannot.
    """
    groups = Groups(inputs)
    part_bytes = max(shard_bytes, MIN_PART_BYTES)
    for number, size in enumerate(inputs.sizes):
        if size <= part_bytes:
            groups.add(shard_bytes, number, 0, None)
            continue
        source = inputs.sources[inputs.source_numbers[number]]
        for part in source.split_file(inputs.files[number], size, part_bytes):
            groups.add(shard_bytes, number, part.start, part.end)
    return groups

"""`prepare`: from source files to a token store, as committed artefacts.

    documents/        one Parquet shard per group of source files
    dedup/            per document shard, the rows that are kept
    decontamination/  the same without what evaluation sets hold, where that is asked for
    tokenizer/        tokenizer.json
    takedown/         the rows without documents that were taken down, where there is a list of them
    tokens/           one Arrow shard per document shard

Every stage is a `build_sharded_artefact`: finished and intact shards are confirmed, missing or
damaged is made, and nothing else is touched. The result depends on source files and configuration only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.manifest import Manifest
from cluster.artefacts.owner import exclusive
from cluster.artefacts.storage import is_committed, storage_errors
from cluster.copies import is_there
from cluster.publication import push
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationTexts
from data_prep.input_hashes import hash_inputs
from data_prep.inputs import Input, check_inputs, group_inputs, read_ids
from data_prep.layout import STAGES, TOKENS
from data_prep.stages.collect import collect
from data_prep.stages.decontaminate import decontaminate
from data_prep.stages.deduplicate import deduplicate
from data_prep.stages.make_tokenizer import make_tokenizer
from data_prep.stages.take_down import take_down
from data_prep.stages.tokenize import tokenize
from data_prep.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Prepared:
    """A finished preparation."""

    out: Path
    documents: Manifest
    dedup: Manifest
    selection: Manifest
    """The selection of the tokenised documents: the last decision, of deduplication, decontamination or takedown."""
    tokenizer: Manifest
    tokens: Manifest

    @property
    def token_store(self) -> Path:
        """Directory to open as a `TokenStore`."""
        return self.out / TOKENS

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the tokens, which covers everything before them."""
        return self.tokens.fingerprint


def prepare(
    config: PreparationConfig,
    *,
    replace: bool = False,
    evaluation_texts: EvaluationTexts | None = None,
    inputs: Sequence[Input] | None = None,
) -> Prepared:
    """Make, continue, repair or confirm the artefacts of `config`. Needs a Ray cluster, unless all is finished.

    Args:
        replace: allow artefacts of other sources or settings in `config.out` to be replaced.
        evaluation_texts: gives the texts of the tasks in `config.decontaminate`; needed where it names any.
        inputs: the source files, where they are listed already and everything that is named is known to be there.

    Raises:
        MissingInputError: a source names files that do not exist, or an evaluation set does not exist.
        EmptyCorpusError: the sources hold no usable document.
        TooManyRejectsError: more than `max_rejects` inputs are unreadable; finished shards are kept.
        ConfigError: `out` holds other data and `replace` is False, or `out` holds nothing while others have published
            to `publish`; the tokenizer cannot be used; or `decontaminate` names what `evaluation_texts` does not give.
        StorageError: the file system or the store refused, or another preparation is writing to `out`.
    """
    if config.publish is not None and not replace:
        _require_pulled(config.out, config.publish)
    with _selected(config, replace, evaluation_texts, inputs) as (job, dedup, selection):
        tokenizer = make_tokenizer(job, selection)
        if config.takedown is not None:
            selection = take_down(job, selection, read_ids(config.takedown))
        tokens = tokenize(job, selection, tokenizer)
        if config.publish is not None:
            publish(config.out, config.publish, replace=replace)
    return Prepared(config.out, job.documents, dedup, selection, tokenizer, tokens)


def publish(out: Path, uri: str, *, replace: bool = False) -> None:
    """Copy the committed artefacts of a preparation to a URI, oldest first; `work/` stays.

    Arguments and errors: as `cluster.publication.push`.
    """
    for stage in STAGES:
        if is_committed(out / stage):
            push(out / stage, f"{uri}/{stage}", replace=replace)


def _require_pulled(out: Path, uri: str) -> None:
    """Refuse to make all again what another machine has published.

    Raises:
        ConfigError: the URI holds stages, and `out` none.
    """
    if any(is_committed(out / stage) for stage in STAGES):
        return
    if found := [stage for stage in STAGES if is_there(f"{uri}/{stage}")]:
        raise ConfigError(
            f"{uri} holds {', '.join(found)} already, and {out} holds none of them: all would be made again.",
            kept="what is there",
            next_step=f"cloze pull {quote(uri)} {quote(str(out))}, and the same command, which continues from them;"
            " or name another URI by `publish`, or add --replace to make all again",
        )


def prepare_tokenizer(
    config: PreparationConfig,
    *,
    replace: bool = False,
    evaluation_texts: EvaluationTexts | None = None,
    inputs: Sequence[Input] | None = None,
) -> Manifest:
    """Like `prepare`, but ends with the tokenizer; a later `prepare` continues from there."""
    with _selected(config, replace, evaluation_texts, inputs) as (job, _, selection):
        return make_tokenizer(job, selection)


@contextmanager
def _selected(
    config: PreparationConfig,
    replace: bool,
    evaluation_texts: EvaluationTexts | None,
    inputs: Sequence[Input] | None,
) -> Iterator[tuple[Workspace, Manifest, Manifest]]:
    """Hold the output directory, with the documents in it, what deduplication keeps of them, and what decontamination
    keeps of that: the same if no evaluation set is to be removed."""
    if inputs is None:
        inputs = check_inputs(config, evaluation_texts)
    with storage_errors(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
    with exclusive(config.out, "a preparation"):
        digests = hash_inputs(inputs, config.out)
        job = Workspace(config, group_inputs(inputs, config.shard_bytes), replace)
        job.documents = collect(job, inputs, digests)
        selection = dedup = deduplicate(job)
        if config.decontaminate.tasks and evaluation_texts is not None:
            selection = decontaminate(job, dedup, evaluation_texts)
        yield job, dedup, selection

"""Models by their names on the Hugging Face Hub: `NAME`, `ORGANISATION/NAME`, either with `@REVISION`.

The local cache of `huggingface_hub` (HF_HOME) is asked first, then the Hub (HF_ENDPOINT), unless HF_HUB_OFFLINE is set.
Only the files that cloze reads are downloaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import orjson

from cluster.artefacts.errors import DownloadError, ReferenceNotFoundError

ANSWER_TIMEOUT_S = 10
"""The Hub has to say within this time whether it has a model."""
CONFIG_FILE = "config.json"
WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
VOCABULARY_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model"),
    "tokenizer.model",
)
"""One of them holds the vocabulary of a tokenizer."""
TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    *("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
"""All that a tokenizer may be made from."""
_A_RUN = "list the runs there are: cloze runs"
_NAME = re.compile(r"(?P<repository>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
_OF_RUNS = re.compile(r"latest|best|\d+", re.ASCII)
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json")
_OTHER_WEIGHTS = re.compile(r"pytorch_model.*\.bin|tf_model\.h5|flax_model\.msgpack|model\.ckpt.*|.*\.gguf")


@dataclass(frozen=True, slots=True)
class HubName:
    """The name of a model on the Hub."""

    repository: str
    """`bert-base-uncased` or `facebook/bart-base`."""
    revision: str | None = None
    """A branch, a tag or a commit; None for the cached revision, else the newest."""

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")


def hub_name(reference: str) -> HubName | None:
    """A reference as a name on the Hub; None where it cannot be one, such as a path or `RUN@best`."""
    found = _NAME.fullmatch(reference)
    if found is None or ".." in reference or "--" in found["repository"]:
        return None
    revision = found["revision"]
    if revision and _OF_RUNS.fullmatch(revision):
        return None
    return HubName(found["repository"], revision)


def find_cached(name: HubName) -> Path | None:
    """The directory of a model in the cache, named for its commit, with all or some of its files; the network is not
    asked."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        # Cloze reads some of a repository's files; with the names of all of them, none of the others are missed.
        return Path(
            snapshot_download(
                name.repository, revision=name.revision, local_files_only=True, allow_patterns=[CONFIG_FILE]
            )
        )
    except (IncompleteSnapshotError, LocalEntryNotFoundError, HFValidationError):
        return None


def fetch(name: HubName, otherwise: str) -> Path:
    """The directory of a model in the cache, named for its commit; downloads what is missing.

    Args:
        otherwise: what else the name could have meant and is not, as the first sentence of messages.

    Raises:
        ReferenceNotFoundError: the Hub has no such model, keeps it from this user, or does not answer.
        DownloadError: a file could not be downloaded.
    """
    from huggingface_hub import constants, is_offline_mode

    cached = find_cached(name)
    if cached is not None and _is_complete(cached):
        return cached
    if is_offline_mode():
        if cached is not None and (cached / CONFIG_FILE).is_file():
            return cached  # reading it says which file is missing
        raise ReferenceNotFoundError(
            f"{otherwise} The Hugging Face Hub was not asked for a model {name}, because HF_HUB_OFFLINE is set, and"
            f" {constants.HF_HUB_CACHE} has none.",
            next_step=f"{_A_RUN}; unset HF_HUB_OFFLINE; or where there is a network: {_download_command(name)}",
        )
    return _download(name, otherwise)


def _download(name: HubName, otherwise: str) -> Path:
    import httpx2
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    try:
        info = HfApi().model_info(name.repository, revision=name.revision, timeout=ANSWER_TIMEOUT_S)
    except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as error:
        _explain(name, error, otherwise)
    there = sorted(file.rfilename for file in info.siblings or ())
    weights = [file for file in there if _WEIGHTS.fullmatch(file)]
    files = [file for file in there if file in (CONFIG_FILE, *TOKENIZER_FILES)] + weights
    if CONFIG_FILE not in files:
        raise ReferenceNotFoundError(
            f"{otherwise} {constants.ENDPOINT}/{name.repository} has no {CONFIG_FILE}: it is no model of transformers.",
            next_step="name another model",
        )
    if not weights:
        _refuse_weights(name, there, ((info.config or {}).get("architectures") or ["AutoModel"])[0])
    try:
        return Path(
            snapshot_download(
                name.repository, revision=name.revision, allow_patterns=files, etag_timeout=ANSWER_TIMEOUT_S
            )
        )
    except GatedRepoError as error:  # the Hub describes such a model to everybody
        _explain(name, error, otherwise)
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise DownloadError(
            f"{name} cannot be downloaded from {constants.ENDPOINT}: {_first_line(error)}",
            kept=f"the files that are complete, in {constants.HF_HUB_CACHE}",
            next_step="type the same command again; a token for a model with terms of use: HF_TOKEN",
        ) from None


def _refuse_weights(name: HubName, there: list[str], architecture: str) -> NoReturn:
    """Refuse a model without safetensors files, before gigabytes of others are downloaded."""
    found, next_step = "has no weights", "name another model"
    if others := [file for file in there if _OTHER_WEIGHTS.fullmatch(file)]:
        where = repr(name.repository) + (f", revision={name.revision!r}" if name.revision else "")
        found = f"has its weights only in {others[0]}"
        next_step = (
            f'if you trust it, write it anew, and name DIR:\n  python -c "import transformers as t; '
            f"[one.from_pretrained({where}).save_pretrained('DIR') for one in (t.{architecture}, t.AutoTokenizer)]\""
        )
    raise ReferenceNotFoundError(
        f"The model {name} of the Hugging Face Hub {found}; cloze reads {WEIGHTS_FILE}.", next_step=next_step
    )


def _explain(name: HubName, error: Exception, otherwise: str) -> NoReturn:
    """Raise the error of a look-up as one of ours."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = f"the Hugging Face Hub ({constants.ENDPOINT})"
    absent = (
        f"{otherwise} There is no model {name.repository} on {hub}.",
        f"{_A_RUN}; or correct the name: a model's page on the Hub has it (a private model needs HF_TOKEN)",
    )
    known = {
        GatedRepoError: (
            f"{otherwise} {constants.ENDPOINT}/{name.repository} is shown only to those who accepted its terms.",
            "accept them on that page, and set HF_TOKEN",
        ),
        RepositoryNotFoundError: absent,
        HFValidationError: absent,
        RevisionNotFoundError: (
            f"{otherwise} {constants.ENDPOINT}/{name.repository} has no revision {name.revision}.",
            f"leave out the revision: {name.repository}",
        ),
    }
    unreachable = (
        f"{otherwise} Whether {hub} has a model {name} cannot be found out: {_first_line(error)}",
        f"{_A_RUN}; check the network (HF_ENDPOINT, HTTPS_PROXY); or where there is one: {_download_command(name)}",
    )
    problem, next_step = next((text for kind, text in known.items() if isinstance(error, kind)), unreachable)
    raise ReferenceNotFoundError(problem, next_step=next_step) from None


def _is_complete(directory: Path) -> bool:
    """Whether a model can be read from there: another program may have fetched less."""
    there = {file.name for file in directory.iterdir() if file.is_file()}
    if CONFIG_FILE not in there or there.isdisjoint(VOCABULARY_FILES):
        return False
    if WEIGHTS_FILE in there:
        return True
    try:
        shards = orjson.loads((directory / INDEX_FILE).read_bytes())["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return there.issuperset(shards)


def _download_command(name: HubName) -> str:
    revision = f" --revision {name.revision}" if name.revision else ""
    return f"hf download {name.repository}{revision} --local-dir DIR, and name DIR"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")

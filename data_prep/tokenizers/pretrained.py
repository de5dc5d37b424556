"""A tokenizer that exists already, in whatever format it was published: found, converted and checked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from cluster.artefacts.errors import ClozeError, ConfigError, MissingInputError
from cluster.artefacts.places import Place, PlaceSetting, Uri, as_place
from cluster.artefacts.signatures import refuse_unsigned
from cluster.artefacts.storage import is_committed, open_artefact
from cluster.copies import committed_at, local_copy
from data_prep.layout import TOKENIZER, TOKENIZER_FILE
from data_prep.tokenizers import byte_level_bpe, wordpiece
from data_prep.tokenizers.sentencepiece import check_conversion, convert, probe_texts
from data_prep.tokenizers.special import check_tokenizer

if TYPE_CHECKING:
    from cluster.shards import ShardResult

Lowercase = bool | Literal["auto"]


class PretrainedTokenizer(BaseModel):
    """Use a tokenizer that exists, so that the tokens fit another preparation or a published model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["pretrained"] = "pretrained"
    path: PlaceSetting
    """A `tokenizer.json` of Hugging Face tokenizers, a SentencePiece `.model`, or a directory with one of them, with
    GPT-2's `encoder.json` and `vocab.bpe` (or `vocab.json` and `merges.txt`), or with BERT's `vocab.txt`; or the fsspec
    URI of a preparation, its tokenizer or its tokens."""
    lowercase: Lowercase = "auto"
    """Whether a `vocab.txt` is one of lower-cased text without accents. `auto`: it is when no entry holds a
    capital letter, special tokens and unused entries aside."""


@dataclass(frozen=True, slots=True)
class Published:
    """The files of a tokenizer."""

    format: str
    """A name in `FORMATS`."""
    files: tuple[Path, ...]
    uri: Uri | None = None
    """URI that `files` are copied from; other machines have copies of their own."""


FORMATS: Mapping[str, Callable[[tuple[Path, ...], Lowercase], str]] = MappingProxyType(
    {
        "tokenizer.json": lambda files, lowercase: files[0].read_bytes().decode("utf-8"),
        "byte-level BPE": lambda files, lowercase: byte_level_bpe.from_files(*files),
        "WordPiece": lambda files, lowercase: wordpiece.from_file(files[0], lowercase),
        "SentencePiece": lambda files, lowercase: convert(files[0].read_bytes()),
    }
)
"""Converters to a `tokenizer.json`, by file format."""

_LAYOUTS = (
    ("tokenizer.json", (TOKENIZER_FILE,)),
    ("byte-level BPE", ("encoder.json", "vocab.bpe")),
    ("byte-level BPE", ("vocab.json", "merges.txt")),
    ("SentencePiece", ("spiece.model",)),
    ("SentencePiece", ("sentencepiece.bpe.model",)),
    ("SentencePiece", ("tokenizer.model",)),
    ("WordPiece", ("vocab.txt",)),
)
"""Usual file names of published tokenizers, the most telling first."""
_BY_SUFFIX = MappingProxyType({".model": "SentencePiece", ".txt": "WordPiece", ".json": "tokenizer.json"})


def find_tokenizer(path: Place | str) -> Published:
    """The tokenizer that a place is or holds; at a URI, an artefact's.

    Raises:
        MissingInputError: there is none.
        CorruptArtefactError: it is a file of an artefact, and was changed.
        UntrustedArtefactError: signatures are asked for, and it is no file of a signed artefact.
    """
    path = as_place(path)
    if isinstance(path, Uri):
        copy = local_copy(committed_at(path, TOKENIZER), only=[TOKENIZER_FILE])
        return replace(_find(copy / TOKENIZER_FILE), uri=path)
    found = _find(path)
    directory, names = found.files[0].parent, {file.name for file in found.files}
    is_listed = is_committed(directory) and names <= {
        entry.path for entry in open_artefact(directory, only=names).files
    }
    if not is_listed:
        refuse_unsigned(str(found.files[0]), "no file of an artefact")
    return found


def _find(path: Path) -> Published:
    if path.is_dir():
        # A preparation has its tokenizer in a directory of that name.
        for directory, (name, files) in itertools.product((path, path / TOKENIZER), _LAYOUTS):
            if all((directory / file).is_file() for file in files):
                return Published(name, tuple(directory / file for file in files))
    elif path.is_file() and path.suffix in _BY_SUFFIX:
        return Published(_BY_SUFFIX[path.suffix], (path,))
    looked = path / TOKENIZER_FILE if path.is_dir() else path
    known = "; ".join(" with ".join(files) for _, files in _LAYOUTS)
    raise MissingInputError(
        f"There is no {looked}, nor a tokenizer in another format that is known.",
        next_step=f"name a tokenizer.json, a SentencePiece .model, or a directory with one of: {known}",
    )


def read_tokenizer(published: Published, lowercase: Lowercase = "auto") -> str:
    """The `tokenizer.json` of a published tokenizer; one that is such a file stays as it is, byte for byte.

    Raises:
        ConfigError: it cannot be read.
    """
    from tokenizers import Tokenizer

    try:
        data = FORMATS[published.format](published.files, lowercase)
        Tokenizer.from_str(data)
    except ClozeError:
        raise
    except Exception as error:  # the library raises bare Exception
        names = " and ".join(str(file) for file in published.files)
        raise ConfigError(f"{names} cannot be loaded as {published.format}: {error}") from None
    return data


def convert_tokenizer(published: Published, lowercase: Lowercase, path: Path) -> ShardResult:
    """Write the `tokenizer.json` of a published tokenizer.

    Its statistics count the pieces of text that compared a SentencePiece model with its conversion, and those where
    both segmentations score the same.

    Raises:
        ConfigError: it cannot be read, cannot be used to make a token store, or does not give the model's own ids.
    """
    from tokenizers import Tokenizer

    from cluster.shards import ShardResult

    published = find_tokenizer(published.uri) if published.uri else published
    data = read_tokenizer(published, lowercase)
    check_tokenizer(Tokenizer.from_str(data), published.files[0])
    stats = {}
    if published.format == "SentencePiece":
        model = published.files[0].read_bytes()
        stats = check_conversion(
            model, data, probe_texts(model), "name a tokenizer.json that was published with the model"
        )
    path.write_bytes(data.encode("utf-8"))
    return ShardResult(rows=1, stats=stats)

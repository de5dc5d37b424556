"""Docstrings of the standard library and of installed packages: technical English that every machine has.

Files are found and parsed, never imported. Their names are relative to the directory that holds the package
(`json/decoder.py`, `torch/nn/functional.py`), so the same locked environment is the same corpus anywhere.
"""

from __future__ import annotations

import ast
import codecs
import inspect
import io
import os
import re
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from typing import Literal

import xxhash
from pydantic import Field, model_validator

from cluster.artefacts.errors import MissingInputError
from data_prep.document import Document
from data_prep.sources.base import Skipped, SourceFile, WholeFiles, read_whole
from data_prep.text import UnreadableError, clean_text

SKIPPED_DIRECTORIES = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "node_modules", "lib2to3"}
    | {"test", "tests", "_tests", "idle_test"}
    | {"vendor", "_vendor", "vendored", "_vendored", "extern", "externals", "_externals"}
    | {"third_party", "thirdparty", "thirdparty_files"}
)
"""Tests, other people's packages, and directories of files for other interpreters."""
SKIPPED_FILES = re.compile(
    r"(^|/)(_?version|conftest|test_[^/]*|[^/]*_test|[^/]*_pb2(_grpc)?|py3\d+_[^/]*)\.py$"
)
"""Tests, generated code, files for one interpreter, and version files, which differ between builds."""
MAX_FILE_BYTES = 16 << 20


class PythonDocsConfig(WholeFiles):
    """Docstrings of Python code."""

    kind: Literal["python_docs"] = "python_docs"
    packages: tuple[str, ...] = ()
    """Installed packages by the name they are imported under, such as `sklearn`."""
    stdlib: bool = True
    """Whether to read the standard library of the running interpreter."""
    min_characters: int = Field(default=200, ge=1)
    """Shorter docstrings are skipped."""
    max_bytes: int | None = Field(default=None, gt=0)
    """Limit on the bytes of source read: a fixed pseudo-random choice among all files; None reads all."""

    @model_validator(mode="after")
    def _reads_something(self) -> PythonDocsConfig:
        if not self.packages and not self.stdlib:
            raise ValueError("name some `packages`, or set `stdlib: true`")
        return self

    def list_files(self) -> list[SourceFile]:
        """All source files, sorted by name, at most `max_bytes` of them together: in the order of their hashed names
        until the next would pass the limit.

        Raises:
            MissingInputError: a package is not installed, or is one extension module without Python source.
        """
        files: dict[str, str] = {}
        if self.stdlib:
            root = sysconfig.get_path("stdlib")
            files.update(_source_files(root, root))
        for package in self.packages:
            files.update(_package_files(package))
        found = [SourceFile(path=path, name=name) for name, path in sorted(files.items())]
        if self.max_bytes is None:
            return found
        chosen: list[SourceFile] = []
        size = 0
        for file in sorted(found, key=lambda file: xxhash.xxh3_64_intdigest(file.name.encode())):
            size += os.path.getsize(file.path)
            if size > self.max_bytes:
                break
            chosen.append(file)
        return sorted(chosen, key=lambda file: file.name)

    def documents_of(self, file: SourceFile) -> Iterator[Document | Skipped]:
        """A file's docstrings of `min_characters` or more, in their order."""
        data = read_whole(file, MAX_FILE_BYTES)
        try:
            # From its coding cookie or byte order mark.
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            text = data.decode(encoding)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's code
                tree = ast.parse(text)
        except UnicodeDecodeError as error:
            raise UnreadableError(f"invalid {error.encoding}: {error.reason}", error.start) from None
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnreadableError(f"not Python {sysconfig.get_python_version()}: {error}") from None
        offsets = _Offsets(data, encoding)
        module = re.sub(r"(/__init__)?\.py$", "", file.name).replace("/", ".")
        seen: Counter[str] = Counter()
        for name, literal, value in _docstrings(tree):
            seen[name] += 1
            text = clean_text(inspect.cleandoc(value))
            if len(text) < self.min_characters:
                continue
            repeated = f":{literal.lineno}" if seen[name] > 1 else ""
            meta = {
                "byte_start": offsets.of(literal.lineno, literal.col_offset),
                "byte_end": offsets.of(literal.end_lineno, literal.end_col_offset),
                "package": module.partition(".")[0],
            }
            title = f"{module}.{name}" if name else module
            yield self.document(file, f"{file.name}#{name}{repeated}", text, meta, title=title)


def _package_files(package: str) -> dict[str, str]:
    """Name and path of a package's source files, located without importing it."""
    spec = PathFinder.find_spec(package) if "." not in package else None
    files: dict[str, str] = {}
    if spec is not None:
        for root in sorted(spec.submodule_search_locations or ()):
            files.update(_source_files(root, os.path.dirname(root)))
        if spec.submodule_search_locations is None and str(spec.origin).endswith(".py"):
            files[os.path.basename(str(spec.origin))] = str(spec.origin)
    if not files:
        raise MissingInputError(
            f"The package {package!r} is not installed here with Python source.",
            next_step="install it, or correct `packages`; names are as in imports, such as `sklearn`",
        )
    return files


def _source_files(directory: str, root: str) -> Iterator[tuple[str, str]]:
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if name not in SKIPPED_DIRECTORIES)
        # Once for a folder: for each of its files it would take most of the time of a listing.
        folder = os.path.relpath(parent, root).replace(os.sep, "/")
        for name in sorted(names):
            relative = name if folder == os.curdir else f"{folder}/{name}"
            if name.endswith(".py") and not SKIPPED_FILES.search(relative):
                yield relative, os.path.join(parent, name)


_Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _docstrings(scope: _Scope, name: str = "") -> Iterator[tuple[str, ast.expr, str]]:
    """Docstrings of a scope and all in it: qualified name (empty for the module), node and value."""
    first = scope.body[0] if scope.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        value = first.value.value
        if isinstance(value, str):
            yield name, first.value, value
    inner = f"{name}." if isinstance(scope, ast.ClassDef) else f"{name}.<locals>." if name else ""
    for child in _inner_scopes(scope.body):
        yield from _docstrings(child, inner + child.name)


def _inner_scopes(
    body: Sequence[ast.AST],
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions defined by statements, also under `if`, `try` and the like."""
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
            continue
        for block in ("body", "handlers", "orelse", "finalbody"):
            nested = getattr(statement, block, ())
            if isinstance(nested, list):
                yield from _inner_scopes(nested)


class _Offsets:
    """Byte offsets in the file of the parser's positions (a line, and a column in UTF-8 bytes)."""

    def __init__(self, data: bytes, encoding: str) -> None:
        mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
        self._data = data
        self._encoding = None if encoding in ("utf-8", "utf-8-sig") else encoding
        self._starts = [mark, *(end.end() for end in re.finditer(rb"\r\n|\r|\n", data))]

    def of(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        start = self._starts[line - 1]
        if self._encoding is None:
            return start + column
        text = self._data[start:].split(b"\n", 1)[0].decode(self._encoding)
        return start + len(text.encode("utf-8")[:column].decode("utf-8").encode(self._encoding))

"""Docstrings: found without importing, named the same everywhere, with exact bytes."""

import ast
import sys

import pytest
from pydantic import ValidationError

from cluster.artefacts.errors import MissingInputError
from data_prep.sources.python_docs import PythonDocsConfig
from tests.data_prep import reading

MODULE = reading.stored("docstrings.py.txt") + "\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package `sample_docs` whose modules fail when imported."""
    root = tmp_path / "sample_docs"
    for directory in (root, root / "inner", root / "tests", root / "_vendor"):
        directory.mkdir()
        (directory / "module.py").write_text(MODULE, encoding="utf-8")
    (root / "__init__.py").write_text('"""Package that is long enough."""\n1 / 0\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    return root


def source(package="sample_docs", **settings) -> PythonDocsConfig:
    return PythonDocsConfig(name="s", stdlib=False, packages=(package,), min_characters=20, **settings)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_meta_gives_the_exact_bytes_of_the_docstring(package, encoding):
    module = f"# -*- coding: {encoding.removesuffix('-sig')} -*-\n" + MODULE.replace("—", "ü")
    data = module.replace("\n", "\r\n").encode(encoding)
    (package / "module.py").write_bytes(data)
    documents = [each for each in reading.read(source()) if each.uri == "sample_docs/module.py"]
    assert len(documents) == 5
    for document in documents:
        literal = data[document.meta["byte_start"] : document.meta["byte_end"]].decode(encoding)
        assert ast.literal_eval(literal).strip()[:9] == document.text[:9]


def test_nothing_is_imported_and_tests_and_vendored_code_are_skipped(package):
    uris = {document.uri for document in reading.read(source())}
    assert uris == {"sample_docs/__init__.py", "sample_docs/inner/module.py", "sample_docs/module.py"}
    assert "sample_docs" not in sys.modules


def test_nesting_without_end_is_a_reject(package):
    (package / "inner" / "module.py").write_bytes(b"(" * 5000)
    assert reading.read(source()).offsets == [0]


def test_a_limit_chooses_the_same_files_every_time(package):
    first, second = (source(max_bytes=600).list_files() for _ in range(2))
    assert first == second
    assert 0 < len(first) < 3


def test_what_reads_nothing_is_refused():
    with pytest.raises(MissingInputError, match="no_such_package"):
        reading.read(source("no_such_package"))
    with pytest.raises(ValidationError, match="stdlib: true"):
        PythonDocsConfig(name="s", stdlib=False)


def test_the_standard_library_is_named_relative_to_its_root():
    config = PythonDocsConfig(name="s")
    files = {file.name: file for file in config.list_files()}
    assert not any("site-packages" in name or "/test/" in name for name in files)
    titles = reading.Results(config.read(files["json/decoder.py"])).titles
    assert "json.decoder.JSONDecoder" in titles

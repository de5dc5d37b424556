"""Docstrings: found without importing, named the same everywhere, with exact bytes."""

import ast
import sys

import pytest
from pydantic import ValidationError

from cluster.artefacts.errors import MissingInputError
from data_prep.sources.python_docs import PythonDocsConfig
from tests.data_prep import reading

LONG = "A sentence that is repeated until the docstring is long enough. " * 4
MODULE = reading.stored("docstrings.py.txt").replace("{LONG}", LONG) + "\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package `sample_docs` whose modules fail when imported."""
    root = tmp_path / "sample_docs"
    for directory in (root, root / "inner", root / "tests", root / "_vendor"):
        directory.mkdir()
        (directory / "module.py").write_text(MODULE, encoding="utf-8")
    (root / "__init__.py").write_text(f'"""Package. {LONG}"""\n1 / 0\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    return root


def read(package="sample_docs") -> reading.Results:
    return reading.read(PythonDocsConfig(name="s", stdlib=False, packages=(package,)))


def in_module(found: reading.Results) -> list:
    """The documents of the outermost module."""
    return [document for document in found.documents if document.uri == "sample_docs/module.py"]


def test_docstrings_of_modules_classes_and_functions_are_documents(package):
    documents = in_module(read())
    assert [(document.title, document.doc_id) for document in documents] == [
        ("sample_docs.module", "s:sample_docs/module.py#"),
        ("sample_docs.module.Outer", "s:sample_docs/module.py#Outer"),
        ("sample_docs.module.Outer.method", "s:sample_docs/module.py#Outer.method"),
        ("sample_docs.module.twice", "s:sample_docs/module.py#twice"),
        ("sample_docs.module.twice", "s:sample_docs/module.py#twice:22"),
    ]
    assert documents[1].text == f"Outer — naïve. {LONG.strip()}\n\nParameters:\n    Indented more."
    assert {document.meta["package"] for document in documents} == {"sample_docs"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_meta_gives_the_exact_bytes_of_the_docstring(package, encoding):
    source = f"# -*- coding: {encoding.removesuffix('-sig')} -*-\n" + MODULE.replace("—", "ü")
    data = source.replace("\n", "\r\n").encode(encoding)
    (package / "module.py").write_bytes(data)
    documents = in_module(read())
    assert len(documents) == 5
    for document in documents:
        literal = data[document.meta["byte_start"] : document.meta["byte_end"]].decode(encoding)
        assert ast.literal_eval(literal).strip()[:9] == document.text[:9]


def test_nothing_is_imported_and_tests_and_vendored_code_are_skipped(package):
    uris = {document.uri for document in read()}
    assert uris == {"sample_docs/__init__.py", "sample_docs/inner/module.py", "sample_docs/module.py"}
    assert "sample_docs" not in sys.modules


@pytest.mark.parametrize(
    ("content", "offset"), [(b"print 'python 2'", 0), (b"\n\nx = '\xff'", 7), (b"a\0b", 0), (b"(" * 5000, 0)]
)
def test_a_file_that_is_no_python_3_is_rejected(package, content, offset):
    (package / "inner" / "module.py").write_bytes(content)
    (reject,) = read().rejects
    assert reject.byte_offset == offset


def test_lone_surrogates_from_escapes_do_not_reach_the_text(package):
    (package / "inner" / "module.py").write_text(f'"""\\ud800 {LONG}"""')
    assert f" {LONG.rstrip()}" in read().texts


def test_a_limit_chooses_the_same_files_every_time(package):
    config = PythonDocsConfig(name="s", packages=("sample_docs",), stdlib=False, max_bytes=2500)
    assert config.list_files() == config.list_files()
    assert 0 < len(config.list_files()) < 3


def test_what_reads_nothing_is_refused():
    with pytest.raises(MissingInputError, match="no_such_package"):
        read("no_such_package")
    with pytest.raises(ValidationError, match="stdlib: true"):
        PythonDocsConfig(name="s", stdlib=False)


def test_the_standard_library_is_named_relative_to_its_root():
    config = PythonDocsConfig(name="s")
    files = {file.name: file for file in config.list_files()}
    assert not any("site-packages" in name or "/test/" in name for name in files)
    titles = reading.Results(config.read(files["json/decoder.py"])).titles
    assert "json.decoder.JSONDecoder" in titles

"""Docstrings: found without importing, named the same everywhere, with exact bytes."""

import ast
import sys

import pytest
from pydantic import ValidationError

from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart
from data_prep.sources.python_docs import PythonDocsConfig
from tests.data_prep import reading

LONG = "A sentence that is repeated until the docstring is long enough. " * 4
MODULE = f'''"""Module. {LONG}"""
raise RuntimeError("never imported")

class Outer:
    """Outer — naïve. {LONG}

    Parameters:
        Indented more.
    """

    def method(self):
        """Method. {LONG}"""

    def short(self):
        """Too short."""

try:
    def twice():
        """First. {LONG}"""
except ImportError:
    def twice():
        r\'\'\'Second \\d. {LONG}\'\'\'
'''


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


def read(**settings) -> list[Document | Reject]:
    config = PythonDocsConfig(name="docs", stdlib=False, **settings)
    return reading.read(config)


def test_docstrings_of_modules_classes_and_functions_are_documents(package):
    documents = [
        document for document in read(packages=("sample_docs",)) if document.uri.endswith("s/module.py")
    ]
    assert [(document.title, document.doc_id) for document in documents] == [
        ("sample_docs.module", "docs:sample_docs/module.py#"),
        ("sample_docs.module.Outer", "docs:sample_docs/module.py#Outer"),
        ("sample_docs.module.Outer.method", "docs:sample_docs/module.py#Outer.method"),
        ("sample_docs.module.twice", "docs:sample_docs/module.py#twice"),
        ("sample_docs.module.twice", "docs:sample_docs/module.py#twice:22"),
    ]
    assert documents[1].text == f"Outer — naïve. {LONG.strip()}\n\nParameters:\n    Indented more."
    assert {document.meta["package"] for document in documents} == {"sample_docs"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_meta_gives_the_exact_bytes_of_the_docstring(package, encoding):
    source = f"# -*- coding: {encoding.removesuffix('-sig')} -*-\n" + MODULE.replace("—", "ü")
    path = package / "module.py"
    path.write_bytes(source.replace("\n", "\r\n").encode(encoding))
    data = path.read_bytes()
    documents = [
        document for document in read(packages=("sample_docs",)) if document.uri.endswith("s/module.py")
    ]
    assert len(documents) == 5
    for document in documents:
        literal = data[document.meta["byte_start"] : document.meta["byte_end"]].decode(encoding)
        assert ast.literal_eval(literal).strip()[:9] == document.text[:9]


def test_nothing_is_imported_and_tests_and_vendored_code_are_skipped(package):
    uris = {document.uri for document in read(packages=("sample_docs",))}
    assert uris == {"sample_docs/__init__.py", "sample_docs/inner/module.py", "sample_docs/module.py"}
    assert "sample_docs" not in sys.modules


@pytest.mark.parametrize(
    ("content", "offset"), [(b"print 'python 2'", 0), (b"\n\nx = '\xff'", 7), (b"a\0b", 0), (b"(" * 5000, 0)]
)
def test_a_file_that_is_no_python_3_is_rejected(package, content, offset):
    (package / "inner" / "module.py").write_bytes(content)
    rejects = [result for result in read(packages=("sample_docs",)) if isinstance(result, Reject)]
    assert [(reject.uri, reject.byte_offset) for reject in rejects] == [
        ("sample_docs/inner/module.py", offset)
    ]


def test_lone_surrogates_from_escapes_do_not_reach_the_text(package):
    (package / "inner" / "module.py").write_text(f'"""\\ud800 {LONG}"""')
    found = {document.uri: document.text for document in read(packages=("sample_docs",))}
    assert found["sample_docs/inner/module.py"] == f" {LONG.rstrip()}"


def test_a_limit_chooses_the_same_files_every_time(package):
    config = PythonDocsConfig(name="docs", packages=("sample_docs",), stdlib=False, max_bytes=2500)
    chosen = config.list_files()
    assert chosen == config.list_files()
    assert 0 < len(chosen) < 3


def test_a_missing_package_is_named_with_the_remedy():
    with pytest.raises(MissingInputError, match=r"'no_such_package' is not installed[\s\S]*install it"):
        read(packages=("no_such_package",))


def test_a_config_that_reads_nothing_is_refused():
    with pytest.raises(ValidationError, match="stdlib: true"):
        PythonDocsConfig(name="docs", stdlib=False)


def test_the_standard_library_is_named_relative_to_its_root():
    config = PythonDocsConfig(name="docs")
    files = {file.name: file for file in config.list_files()}
    assert "json/decoder.py" in files
    assert not any("site-packages" in name or "/test/" in name for name in files)
    titles = [document.title for document in config.read(FilePart(files["json/decoder.py"]))]
    assert "json.decoder.JSONDecoder" in titles

"""The readers of the original GLUE files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.tune.tasks.glue import ColaConfig, MrpcConfig, RteConfig, Sst2Config, WnliConfig


def write(folder: Path, train: bytes | str, dev: bytes | str) -> Path:
    folder.mkdir()
    for name, content in (("train.tsv", train), ("dev.tsv", dev)):
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_cola_has_no_header_and_its_label_in_the_second_column(tmp_path):
    folder = write(
        tmp_path / "CoLA", "gj04\t1\t\tThey left.\ngj04\t0\t*\tThem left.\n", "gj04\t1\t\tWe stayed.\n"
    )
    data = ColaConfig(path=folder).load()
    assert [(e.text_a, e.text_b, e.label) for e in data.train] == [
        ("They left.", None, 1),
        ("Them left.", None, 0),
    ]
    assert data.labels == ("unacceptable", "acceptable")


def test_unbalanced_quotes_do_not_glue_lines_together(tmp_path):
    train = 'sentence\tlabel\n"so it goes\t1\nthe "end"" of " it\t0\n'
    data = Sst2Config(path=write(tmp_path / "SST-2", train, "sentence\tlabel\nfine \t1\n")).load()
    assert [e.text_a for e in data.train] == ['"so it goes', 'the "end"" of " it']


def test_unicode_line_separators_do_not_cut_a_line(tmp_path):
    train = "index\tsentence1\tsentence2\tlabel\n0\ta\u0085b\u2028c\td\x0ce\tentailment\n"
    data = RteConfig(path=write(tmp_path / "RTE", train, train)).load()
    assert data.train[0].text_a == "a\u0085b\u2028c"


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path):
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    train = b"\xef\xbb\xbf" + f"{head}\r\n1\t5\t6\tA .\tB .\r\n".encode()
    data = MrpcConfig(path=write(tmp_path / "MRPC", train, f"{head}\n0\t7\t8\tC .\tD .\n")).load()
    assert data.train[0].label == 1
    assert data.train[0].text_b == "B ."


def test_last_line_without_line_end_is_read(tmp_path):
    folder = write(tmp_path / "SST-2", "sentence\tlabel\nx\t1", "sentence\tlabel\ny\t0\n")
    data = Sst2Config(path=folder).load()
    assert len(data.train) == 1


@pytest.mark.parametrize(
    ("train", "line", "said"),
    [
        ("sentence\tlabel\nfine\t1\nno label\n", 3, "1 columns"),
        ("sentence\tlabel\nfine\t1\ntoo\tmany\t1\n", 3, "3 columns"),
        ("sentence\tlabel\nfine\t2\n", 2, "'2', not one of 0, 1"),
        ("sentence\tlabel\nfine\t1\n\nfine\t1\n", 3, "the line is blank"),
        ("text\tlabel\nfine\t1\n", 1, "there is no column `sentence`"),
        (b"sentence\tlabel\nfi\xffne\t1\n", 2, "not valid UTF-8"),
    ],
)
def test_bad_line_is_named_by_file_and_number(tmp_path, train, line, said):
    folder = write(tmp_path / "SST-2", train, "sentence\tlabel\nfine\t1\n")
    with pytest.raises(ConfigError) as raised:
        Sst2Config(path=folder).load()
    assert f"{folder / 'train.tsv'}, line {line}:" in str(raised.value)
    assert said in str(raised.value)


def test_file_without_examples_is_refused(tmp_path):
    folder = write(tmp_path / "SST-2", "", "sentence\tlabel\nfine\t1\n")
    with pytest.raises(ConfigError, match=r"0 examples to train on and 1 to evaluate on in .*train\.tsv"):
        Sst2Config(path=folder).load()


def test_missing_file_is_named_with_the_archive_that_holds_it(tmp_path):
    with pytest.raises(MissingInputError, match=r"CoLA/train\.tsv.*\n.*CoLA\.zip of the GLUE benchmark"):
        ColaConfig(path=tmp_path / "CoLA").load()


def test_changed_bytes_change_the_input_fingerprint(tmp_path):
    folder = write(tmp_path / "SST-2", "sentence\tlabel\nx\t1\n", "sentence\tlabel\ny\t0\n")
    before = Sst2Config(path=folder).load().inputs
    (folder / "dev.tsv").write_text("sentence\tlabel\ny\t1\n")
    after = Sst2Config(path=folder).load().inputs
    assert before[0].fingerprint == after[0].fingerprint
    assert before[1].fingerprint != after[1].fingerprint


@pytest.mark.corpora
@pytest.mark.skipif(
    "CLOZE_DATA" not in os.environ, reason="CLOZE_DATA names no folder with the real GLUE files"
)
@pytest.mark.parametrize(
    ("kind", "folder", "num_train", "num_evaluation"),
    [
        (ColaConfig, "CoLA", 8551, 1043),
        (Sst2Config, "SST-2", 67349, 872),
        (MrpcConfig, "MRPC", 3667, 408),  # one official training pair is missing from this copy
        (RteConfig, "RTE", 2490, 277),
        (WnliConfig, "WNLI", 635, 71),
    ],
)
def test_real_files_give_the_published_counts(kind, folder, num_train, num_evaluation):
    data = kind(path=Path(os.environ["CLOZE_DATA"]) / "glue" / folder).load()
    assert (len(data.train), len(data.evaluation)) == (num_train, num_evaluation)
    assert {example.label for example in data.evaluation} == {0, 1}
    assert all(example.text_a for example in (*data.train, *data.evaluation))
    assert len({example.id for example in data.evaluation}) == num_evaluation

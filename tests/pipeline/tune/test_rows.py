"""One's own rows: every form from CSV, JSON lines and Parquet, and a clear answer to every wrong file."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.config.loading import validate
from pipeline.tasks import TASKS
from pipeline.tasks.files.rows import read_rows
from pipeline.tasks.forms import UNLABELLED, Answer
from pipeline.tasks.rows import RowsTaskConfig
from pipeline.tune.config import FinetuneConfig

WRITERS = ("csv", "jsonl", "parquet")


def write(path: Path, rows: list[dict]) -> Path:
    """Rows in the format of the suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def task(kind: str, train: Path, evaluation: Path | None = None, **settings) -> Any:
    return one_file(kind, train, evaluation=evaluation or train, **settings)


def one_file(kind: str, train: Path, **settings) -> Any:
    plain = {"kind": f"rows_{kind}", "train": train, **settings}
    return validate(FinetuneConfig, {"tasks": {"own": plain}}, "here").tasks["own"]


@pytest.mark.parametrize("suffix", WRITERS)
def test_texts_and_pairs_are_read_from_every_format(tmp_path, suffix):
    texts = [
        ('He said "yes",\nand left.', "He left.", "yes"),
        ("Größe 日本", "", "no"),
        ("wort " * 40_000, "x", "no"),
    ]
    names = ("premise", "hypothesis", "gold")
    path = write(tmp_path / f"train.{suffix}", [dict(zip(names, each, strict=True)) for each in texts])
    columns = {"text": "premise", "text_b": "hypothesis", "label": "gold"}
    data = task("classification", path, columns=columns).load()
    assert data.labels == ("no", "yes")
    assert [(e.text_a, e.text_b, data.labels[e.label]) for e in data.train] == texts
    single = task("classification", path, columns={"text": "premise", "label": "gold"}).load()
    assert single.train[0].text_b is None


def test_unlabelled_rows_are_predicted_as_a_test_set(tmp_path):
    train = write(tmp_path / "train.jsonl", [{"text": "x", "label": label} for label in "ab"])
    test = write(tmp_path / "test.jsonl", [{"text": "y", "name": "n7"}])
    columns = {"text": "text", "label": "label", "id": None}
    config = task("classification", train, test=test, columns=columns)
    data = config.load()
    assert [(each.id, each.label) for each in data.test] == [("test-1", UNLABELLED)]
    assert len(data.inputs) == 3
    assert config.submission(data.test, np.array([[0.5, 2.0]]), data.labels) == {
        "test-predictions.jsonl": b'{"id":"test-1","prediction":"b","logits":[0.5,2.0]}\n'
    }


MEN = {"question": "Who?", "context": "A man and a man."}
SUM = {"question": "1 + 1?", "choices": ["2", "0", "1"]}
WHY = {"question": "Why?", "text": "T.", "a": "so", "b": "not", "label": "A"}
ORG = {"tokens": ["EU", "calls"], "tags": ["B-ORG", "O"]}


@pytest.mark.parametrize(
    ("kind", "suffix", "rows", "settings", "labels", "found"),
    [
        ("classification", "jsonl", [{"text": "x", "label": label} for label in (10, 9)], {}, ("9", "10"), [1, 0]),
        ("classification", "jsonl", [{"text": "x", "label": label} for label in (10, 9)],
            {"labels": ["10", "9", "0"]}, ("10", "9", "0"), [0, 1]),
        ("classification", "parquet", [{"text": "x", "label": label} for label in (True, False)],
            {}, ("false", "true"), [1, 0]),
        ("regression", "csv", [{"text": "x", "label": "1.5"}, {"text": "y", "label": "-2e1"}], {}, (), [1.5, -20]),
        # An answer without a place is at the first one where it occurs.
        ("spans", "jsonl",
            [MEN | {"answers": each} for each in ("a man", ["man", "A man"], {"text": ["man"], "answer_start": [12]})],
            {}, (), [(Answer("a man", 10),), (Answer("man", 2), Answer("A man", 0)), (Answer("man", 12),)]),
        ("spans", "csv", [{"q": "Who?", "c": "A man and a man.", "a": "man", "s": 12}],
            {"columns": {"question": "q", "context": "c", "answer": "a", "start": "s"}}, (), [(Answer("man", 12),)]),
        ("tags", "parquet", [ORG], {}, ("O", "B-ORG"), [(("EU", "calls"), ("B-ORG", "O"))]),
        ("tags", "jsonl", [ORG], {}, ("O", "B-ORG"), [(("EU", "calls"), ("B-ORG", "O"))]),
        ("tags", "csv", [{"tokens": "EU calls", "tags": "B-ORG O"}],
            {}, ("O", "B-ORG"), [(("EU", "calls"), ("B-ORG", "O"))]),
        ("tags", "parquet", [{"tokens": ["a", "b"], "tags": [3, 0]}], {}, ("0", "3"), [(("a", "b"), ("3", "0"))]),
        # A choice is named by its number from 0, its letter or its text.
        ("choices", "jsonl",
            [{"question": "Why?", "choices": ["so", "not"], "label": label} for label in (1, "B", "not")],
            {}, (), [((("Why?", "so"), ("Why?", "not")), 1)] * 3),
        ("choices", "jsonl", [SUM | {"label": label} for label in (0, 1.0, "A")],
            {}, (), [(tuple(("1 + 1?", choice) for choice in SUM["choices"]), label) for label in (0, 1, 0)]),
        ("choices", "csv", [WHY], {"columns": {"choices": ["a", "b"], "context": "text"}},
            (), [((("T.", "Why? so"), ("T.", "Why? not")), 0)]),
        ("generation", "csv", [{"article": " Long text. ", "headline": "Short"}],
            {"columns": {"source": "article", "target": "headline"}}, (), [("Long text.", "Short")]),
    ],
)  # fmt: skip
def test_rows_of_every_form_are_read(tmp_path, kind, suffix, rows, settings, labels, found):
    shown = {
        "spans": lambda each: each.answers,
        "tags": lambda each: (each.words, each.tags),
        "choices": lambda each: (each.pairs, each.label),
        "generation": lambda each: (each.source, each.target),
    }.get(kind, lambda each: each.label)
    config = task(kind, write(tmp_path / f"train.{suffix}", rows), **settings)
    data = config.load()
    assert data.labels == labels
    assert [shown(each) for each in data.train] == found
    if "B-ORG" in labels:
        # Tags that mark entities are scored by entities.
        measured = config.measure(data.train, [("B-ORG", "O")])
        assert measured == {"accuracy": 1, "f1": 1, "precision": 1, "recall": 1}


GOOD = [{"text": "x", "label": "a"}, {"text": "y", "label": "b"}]


SPAN = '{"question": "q", "context": "abc", "answers": %s}\n'
CHOICE = '{"question": "q", "choices": %s, "label": %s}\n'
OFFSET = '{"text": ["b"], "answer_start": [0]}'


@pytest.mark.parametrize(
    ("kind", "name", "content", "said", "remedy"),
    [
        ("classification", "t.csv", "body,label\nx,a\n", "line 2: there is no column `text`", "set columns.text"),
        ("classification", "t.csv", "text,label\nx,a\ny\n", "line 3: 1 values, but 2 columns", "quote values"),
        ("classification", "t.csv", 'text,label\n"x,a\ny,b\n', "line 3: unexpected end of data", 'write ""'),
        ("classification", "t.csv", "text,text\nx,a\n", "line 1: the column `text` occurs more than once", "rename"),
        ("classification", "t.csv", "text,label\nx,c\n", "line 2: the label in column `label` is 'c', not", "labels"),
        ("classification", "t.csv", "text,label\nx,a\nz, \n", "line 3: the column `label` is empty", "as `test`"),
        ("classification", "t.jsonl", '{"text": "x", "label": null}\n', "1: the column `label` is empty", "fill it"),
        ("classification", "t.csv", "text,label\n", "2 examples to train on and 0 to evaluate on", ""),
        ("classification", "t.csv", "text\tlabel\nx\ta\n", "line 1: there is a single column", "to .tsv"),
        ("classification", "t.tsv", "text,label\nx,a\n", "several with commas between them", "to .csv"),
        ("classification", "t.jsonl", '{"text": ["x"], "label": "a"}\n', "line 1: the column `text` holds", ""),
        ("classification", "t.jsonl", "[1]\n", "line 1: no JSON object", "an object per row"),
        ("classification", "t.json", '[{"text": "x", "label": "a"},\n3]', "row 2", "an object per row"),
        ("classification", "t.json", '[{"text": "x"},\n{"text"}]', "line 2", "an object per row"),
        ("classification", "t.parquet", "x", "cannot be read as Parquet", ""),
        ("classification", "t.xlsx", "x", "none of the suffixes .csv, .tsv", ""),
        ("classification", "t.csv.gz", gzip.compress(b"text,label\nx,a\n")[:-9], "t.csv.gz", ""),
        ("regression", "t.csv", "text,label\nx,high\n", "line 2: the column `label` holds 'high', no number", ""),
        ("regression", "t.csv", "text;label\nx;1,5\n", "line 2: the column `label` holds '1,5'", ""),
        ("regression", "t.csv", "text,label\nx,nan\n", "line 2: the column `label` holds 'nan'", ""),
        ("spans", "t.jsonl", SPAN % '"d"', "line 1: the answer 'd' does not occur", "copy"),
        ("spans", "t.jsonl", SPAN % OFFSET, "line 1: the answer 'b' is not at character 0", "count characters from 0"),
        ("spans", "t.jsonl", SPAN % '""', "is no text", ""),
        ("spans", "t.jsonl", SPAN % "[]", "there is no answer", "squad2"),
        ("tags", "t.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}\n', "line 1: there are 2 words and 1 tags", ""),
        ("tags", "t.jsonl", '{"tokens": ["a"], "tags": ["B-X"]}\n', "the tag 'B-X' is none of O", "labels"),
        ("choices", "t.jsonl", CHOICE % ('["2", "0", "1"]', '"2"'), "is '2', the text", ""),
        ("choices", "t.jsonl", CHOICE % ('"x"', "0"), "no list of two or more", ""),
        ("choices", "t.jsonl", CHOICE % ('["x", "y"]', "2"), "is '2'", "from A to B"),
    ],
)  # fmt: skip
def test_wrong_rows_are_named_by_file_and_line_with_a_way_out(tmp_path, kind, name, content, said, remedy):
    good = {
        "classification": GOOD,
        "regression": [{"text": "x", "label": 1}],
        "spans": [{"question": "q", "context": "abc", "answers": "b"}],
        "tags": [{"tokens": ["a"], "tags": ["O"]}],
        "choices": [{"question": "q", "choices": ["x", "y"], "label": 0}],
    }
    train = write(tmp_path / "train.jsonl", good[kind])
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as raised:
        task(kind, train, path).load()
    assert str(path) in str(raised.value)
    assert said in str(raised.value)
    assert remedy in raised.value.next_step


def test_file_that_is_missing_or_has_one_label_is_refused(tmp_path):
    with pytest.raises(MissingInputError, match=r"absent\.csv"):
        task("classification", tmp_path / "absent.csv").load()
    with pytest.raises(MissingInputError, match=str(tmp_path)):
        task("classification", tmp_path).load()
    path = write(tmp_path / "train.jsonl", GOOD[:1])
    with pytest.raises(ConfigError, match="`label`"):
        task("classification", path).load()
    path.write_text("")
    with pytest.raises(ConfigError, match=r"train\.jsonl"):
        task("classification", path, write(tmp_path / "dev.jsonl", GOOD)).load()


JSON = json.dumps(GOOD, indent=1).encode()


@pytest.mark.parametrize(
    ("name", "content", "names", "rows"),
    [
        # Windows' line ends; a value of two lines.
        ("t.csv", '\ufefftext,label\r\n"two\r\nlines",a\r\n\r\nb,c\r\n', ("t-2", "t-5"),
            [{"text": "two\r\nlines", "label": "a"}, {"text": "b", "label": "c"}]),
        ("t.tsv", 'text\tlabel\r\n"so\ta\r\nsaid "it" \tb\r\n', ("t-2", "t-3"),
            [{"text": '"so', "label": "a"}, {"text": 'said "it" ', "label": "b"}]),
        # Semicolons of a spreadsheet separate where the first line has most of them.
        ("t.csv", '\ufefftext;label\r\n"a, b; ""c""";1,5\r\nd;2\r\n', ("t-2", "t-3"),
            [{"text": 'a, b; "c"', "label": "1,5"}, {"text": "d", "label": "2"}]),
        ("t.json", JSON, ("t-1", "t-2"), GOOD),
        ("t.json.gz", gzip.compress(JSON), ("t-1", "t-2"), GOOD),
        ("t.jsonl.gz", gzip.compress(b'{"text":"x","label":"a"}\n{"text":"y","label":"b"}\n'), ("t-1", "t-2"), GOOD),
        ("t.csv.gz", gzip.compress(b"text,label\nx,a\ny,b\n"), ("t-2", "t-3"), GOOD),
    ],
)  # fmt: skip
def test_rows_are_named_and_read_as_their_file_has_them(tmp_path, name, content, names, rows):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    found = [(row.name, row.values) for row in read_rows(tmp_path / name)]
    assert found == list(zip(names, rows, strict=True))


POLISH = b"text,label\n" + b"x,a\n" * 9000 + "Żółta róża pachnie, a świt jest bliski.,b".encode("cp1250")


@pytest.mark.parametrize(
    ("suffix", "content", "line", "encoding"),
    [
        ("csv", POLISH, 9002, "cp1250"),
        ("csv", "text,label\nx,a\n".encode("utf-16"), 1, "utf-16"),
        ("csv", "text,label\n대한민국의 수도는 서울이다,a\n".encode("euc-kr"), 2, "cp949"),
    ],
    ids=["cp1250", "utf-16", "cp949"],
)
def test_text_that_is_no_utf_8_is_named_by_line_with_the_command_that_converts_it(
    tmp_path, suffix, content, line, encoding
):
    path = tmp_path / f"train.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"line {line}: byte 0") as raised:
        task("classification", path).load()
    assert raised.value.next_step.endswith(f"iconv -f {encoding} -t utf-8 {path} > NEW")


def test_numbers_that_pandas_made_floats_are_the_same_labels_and_nan_is_none(tmp_path):
    train = write(tmp_path / "train.parquet", [{"text": "x", "label": n} for n in (0.0, 1.0, 2.5)])
    dev = write(tmp_path / "dev.jsonl", [{"text": "x", "label": n} for n in (1, 0, 2.5)])
    data = task("classification", train, dev).load()
    assert data.labels == ("0", "1", "2.5")
    assert [each.label for each in data.evaluation] == [1, 0, 2]
    for kind in ("classification", "regression"):
        for value in (float("nan"), None):
            path = write(tmp_path / "dev.parquet", [{"text": "x", "label": each} for each in (1.0, value)])
            with pytest.raises(ConfigError, match=r"dev\.parquet, row 2: .*`label`"):
                task(kind, train, path).load()
    twice = tmp_path / "twice.parquet"
    pq.write_table(pa.table([["x"], ["y"]], names=["text", "text"]), twice)
    with pytest.raises(ConfigError, match=r"line 1: .*`text`"):
        task("classification", twice).load()


def test_every_form_has_a_task_on_own_rows():
    own = {task.form for task in TASKS.values() if issubclass(task, RowsTaskConfig)}
    assert own == {task.form for task in TASKS.values()}


def test_single_file_is_split_by_the_names_of_its_rows(tmp_path):
    rows = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(400)]
    whole = one_file("classification", write(tmp_path / "all.jsonl", rows)).load()
    assert 20 < len(whole.evaluation) < 60
    assert {example.id for example in whole.train}.isdisjoint(example.id for example in whole.evaluation)
    assert len(whole.train) + len(whole.evaluation) == 400
    # The first rows fall on the same sides, whatever comes behind them.
    (tmp_path / "fewer").mkdir()
    fewer = one_file("classification", write(tmp_path / "fewer" / "all.jsonl", rows[:300])).load()
    assert {example.id for example in fewer.evaluation} <= {example.id for example in whole.evaluation}
    half = one_file("classification", tmp_path / "all.jsonl", evaluation_share=0.5).load()
    assert 160 < len(half.evaluation) < 240
    write(tmp_path / "all.jsonl", rows[:2])
    with pytest.raises(ConfigError, match=r"all\.jsonl"):
        one_file("classification", tmp_path / "all.jsonl").load()

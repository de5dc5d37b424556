"""GLUE's test sets, its diagnostic set, and the layout of the Hub."""

from __future__ import annotations

import json

import datasets
import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.tasks import TASKS
from pipeline.tasks.forms import UNLABELLED
from pipeline.tasks.glue import MrpcConfig, RteConfig
from tests.pipeline.tasks.excerpts import EXCERPTS, task_of, write


def test_mnli_is_submitted_with_the_diagnostic_set(tmp_path):
    (tmp_path / "ax.tsv").write_text("index\tsentence1\tsentence2\n0\tThe cat sat.\tThe cat did not sit.\n")
    config = task_of(tmp_path, EXCERPTS["mnli"], diagnostic="ax.tsv", submit=True)
    data = config.load()
    assert len(data.evaluation) == 4
    assert [(each.id, each.group) for each in data.test] == [
        ("0", "matched"),
        ("1", "matched"),
        ("0", "mismatched"),
        ("0", "diagnostic"),
    ]
    assert config.submission(data.test, np.eye(3)[[0, 1, 2, 2]]) == {
        "MNLI-m.tsv": b"index\tprediction\n0\tentailment\n1\tneutral\n",
        "MNLI-mm.tsv": b"index\tprediction\n0\tcontradiction\n",
        "AX.tsv": b"index\tprediction\n0\tcontradiction\n",
    }


def test_diagnostic_set_with_labels_is_scored_by_matthews(tmp_path):
    head = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n"
    rows = "\t\tNegation\t\tArtificial\tThe cat sat.\tThe cat did not sit.\tcontradiction\n" * 2
    rows += "\t\tNegation\t\tArtificial\tA cat sat.\tA cat sat.\tentailment\n"
    (tmp_path / "ax.tsv").write_text(head + rows)
    config = task_of(tmp_path, EXCERPTS["mnli"], diagnostic="ax.tsv")
    data = config.load()
    assert len(data.evaluation) == 7
    measured = config.measure(data.evaluation, np.eye(3)[[2, 1, 2, 1, 2, 2, 0]])
    assert measured == {"accuracy_matched": 1, "accuracy_mismatched": 1, "diagnostic_matthews": 1}
    assert data.inputs[-1].uri == str(tmp_path / "ax.tsv")


@pytest.mark.parametrize(
    ("kind", "file", "rows", "first"),
    [
        ("cola", "CoLA.tsv", "index\tsentence\n7\tBill left.\n", "0"),
        ("sst2", "SST-2.tsv", "index\tsentence\n7\tuneasy .\n", "0"),
        ("mrpc", "MRPC.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n7\t1\t2\tA\tB\n", "0"),
        ("rte", "RTE.tsv", "index\tsentence1\tsentence2\n7\tA\tB\n", "entailment"),
        ("wnli", "WNLI.tsv", "index\tsentence1\tsentence2\n7\tA\tB\n", "0"),
        ("qnli", "QNLI.tsv", "index\tquestion\tsentence\n7\tA\tB\n", "entailment"),
        ("qqp", "QQP.tsv", "id\tquestion1\tquestion2\n7\tA\tB\n", "0"),
    ],
)
def test_predictions_of_the_test_set_are_submitted_under_its_numbers(tmp_path, kind, file, rows, first):
    write(tmp_path, {"test.tsv": rows})
    config = TASKS[kind](path=tmp_path, submit=True)
    paths, examples = config.split("test")
    assert [path.name for path in paths] == ["test.tsv"]
    assert [each.label for each in examples] == [UNLABELLED]
    expected = f"index\tprediction\n7\t{first}\n".encode()
    assert config.submission(examples, np.array([[1.0, 0.0]])) == {file: expected}


def test_data_sets_of_the_hub_give_what_the_official_files_give(tmp_path):
    rows = {"sentence1": ["A."], "sentence2": ["B."], "label": [1], "idx": [0]}
    features = datasets.Features(
        sentence1=datasets.Value("string"),
        sentence2=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "not_entailment"]),
        idx=datasets.Value("int32"),
    )
    splits = {"train": rows, "validation": rows, "test": rows | {"label": [-1], "idx": [5]}}
    saved = {name: datasets.Dataset.from_dict(split, features) for name, split in splits.items()}
    datasets.DatasetDict(saved).save_to_disk(str(tmp_path / "saved"))
    files = tmp_path / "files/data"
    files.mkdir(parents=True)
    saved["train"].to_parquet(str(files / "train-00000-of-00001.parquet"))
    for name in ("validation", "test"):
        saved[name].to_json(str(files / f"{name}.jsonl"))
    for folder in ("saved", "files"):
        data = RteConfig(path=tmp_path / folder, submit=True).load()
        found = [(each.text_a, each.text_b, each.label) for each in (*data.train, *data.evaluation)]
        assert found == [("A.", "B.", 1)] * 2
        assert [(each.id, each.label) for each in data.test] == [("5", UNLABELLED)]
        assert len(data.inputs) == 3
    unlabelled = json.dumps({"sentence1": "A.", "sentence2": "B.", "label": -1}) + "\n"
    (files / "validation.jsonl").write_text(unlabelled)
    with pytest.raises(ConfigError, match=r"validation\.jsonl, line 1"):
        RteConfig(path=tmp_path / "files").load()
    (files / "validation.jsonl").unlink()
    with pytest.raises(MissingInputError, match="`validation`"):
        RteConfig(path=tmp_path / "files").load()


def test_paraphrases_of_the_hub_have_the_columns_of_all_pairs(tmp_path):
    line = json.dumps({"sentence1": "A.", "sentence2": "B.", "label": 0, "idx": 0}) + "\n"
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(line)
    data = MrpcConfig(path=tmp_path).load()
    assert [(e.text_a, e.text_b, e.label) for e in data.train] == [("A.", "B.", 0)]

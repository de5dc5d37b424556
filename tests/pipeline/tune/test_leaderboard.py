"""Predictions of test sets as leaderboards take them, and their archives."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.decontaminate.config import DecontaminationConfig
from pipeline.tasks.evaluation_sets import evaluation_texts
from pipeline.tasks.superglue import BoolqConfig
from pipeline.tune.run import finetune
from pipeline.tune.summary import make_archive
from pipeline.tune.trials import scores_directory
from tests.pipeline.tune.conftest import Recorder, config_in, scratch_in, write_tokenizer

PASSAGE = "the film was good and the plot was bad"
PAIR = {"premise": PASSAGE, "hypothesis": "the plot was bad"}
PARAGRAPH = {
    "text": PASSAGE,
    "questions": [
        {
            "question": "a film",
            "idx": 20,
            "answers": [{"text": "good", "idx": 7, "label": 1}, {"text": "bad", "idx": 8, "label": 0}],
        },
        {"question": "a plot", "idx": 21, "answers": [{"text": "bad", "idx": 9, "label": 1}]},
    ],
}
NEWS = {"text": PASSAGE, "entities": [{"start": 4, "end": 7}, {"start": 26, "end": 29}]}
QUERY = {"query": "the @placeholder was bad", "idx": 40, "answers": [{"text": "plot"}]}
ROWS: dict[str, dict[str, Any]] = {
    "BoolQ": {"question": "was the film good", "passage": PASSAGE, "label": True},
    "CB": PAIR | {"label": "neutral"},
    "COPA": {"premise": PASSAGE, "choice1": "good", "choice2": "bad", "question": "cause", "label": 1},
    "MultiRC": {"passage": PARAGRAPH},
    "ReCoRD": {"passage": NEWS, "qas": [QUERY]},
    "RTE": PAIR | {"label": "entailment"},
    "WiC": {"word": "film", "sentence1": "a film", "sentence2": "the film", "label": False},
}
"""A labelled line of each task, as the release has it."""
KINDS = {name: name.lower() for name in ROWS} | {"RTE": "superglue_rte"}


def unlabelled(name: str) -> dict[str, Any]:
    """A line of a test set."""
    row = json.loads(json.dumps(ROWS[name]))
    row.pop("label", None)
    for question in row["passage"]["questions"] if name == "MultiRC" else ():
        for answer in question["answers"]:
            del answer["label"]
    for query in row.get("qas", ()):
        del query["answers"]
    return row


def write_superglue(folder: Path) -> None:
    for name, row in ROWS.items():
        (folder / name).mkdir(parents=True)
        for split in ("train", "val"):
            (folder / name / f"{split}.jsonl").write_text(json.dumps({"idx": 0} | row) + "\n")
        lines = [json.dumps({"idx": number} | unlabelled(name)) for number in (5, 3)]
        (folder / name / "test.jsonl").write_text("\n".join(lines) + "\n")
    diagnostic = {"AX-b": {"sentence1": "a", "sentence2": "film"}, "AX-g": PAIR | {"pair_id": 1}}
    for number, (name, row) in enumerate(diagnostic.items(), 11):
        line = {"idx": number, "label": "entailment", **row}
        (folder / f"{name}.jsonl").write_text(json.dumps(line))


def test_corpora_are_decontaminated_against_test_sets_too_where_they_are_there(tmp_path):
    write_superglue(tmp_path / "superglue")
    config = DecontaminationConfig(tasks=("superglue",), data=tmp_path)

    def read() -> set[tuple[str, str]]:
        return {(text.task, text.file.name) for text in evaluation_texts(config)}

    with_tests = {(kind, f"{split}.jsonl") for kind in KINDS.values() for split in ("val", "test")}
    assert read() == with_tests
    for path in tmp_path.rglob("test.jsonl"):
        path.unlink()
    assert read() == {(kind, "val.jsonl") for kind in KINDS.values()}


@pytest.fixture(scope="module")
def submitted(tmp_path_factory) -> Path:
    """Scores of all tasks of SuperGLUE, whose test sets were predicted."""
    folder = tmp_path_factory.mktemp("superglue")
    write_superglue(folder / "data")
    write_tokenizer(folder / "tokenizer.json")
    tasks: dict[str, Any] = {
        name: {"kind": kind, "path": folder / "data" / name, "submit": True} for name, kind in KINDS.items()
    }
    tasks["RTE"] |= {"ax_b": folder / "data/AX-b.jsonl", "ax_g": folder / "data/AX-g.jsonl"}
    training = {"epochs": 1, "batch_size": 4, "max_length": 48}
    scratch = scratch_in(folder, max_positions=64)
    config = config_in(folder, tasks=tasks, training=training, scratch=scratch)
    with Recorder():
        finetune(config, None)
    return scores_directory(config, None)


@pytest.fixture(scope="module")
def files(submitted) -> dict[str, list[dict]]:
    with zipfile.ZipFile(io.BytesIO(make_archive([submitted]).content)) as opened:
        assert opened.testzip() is None
        contents = {name: opened.read(name).splitlines() for name in opened.namelist()}
    return {name: [json.loads(line) for line in lines] for name, lines in contents.items()}


def test_files_have_the_names_and_lines_that_superglue_takes(files):
    allowed = {
        **dict.fromkeys(("BoolQ.jsonl", "WiC.jsonl"), ("true", "false")),
        "CB.jsonl": ("entailment", "contradiction", "neutral"),
        "COPA.jsonl": (0, 1),
        "ReCoRD.jsonl": ("film", "plot"),
        **dict.fromkeys(("RTE.jsonl", "AX-b.jsonl", "AX-g.jsonl"), ("entailment", "not_entailment")),
    }
    numbers = {"ReCoRD.jsonl": [40, 40], "AX-b.jsonl": [11], "AX-g.jsonl": [12]}
    assert files.keys() == allowed.keys() | {"MultiRC.jsonl"}
    for name, labels in allowed.items():
        assert [line["idx"] for line in files[name]] == numbers.get(name, [5, 3]), name
        assert all(line.keys() == {"idx", "label"} and line["label"] in labels for line in files[name]), name


def test_answers_of_multirc_are_nested_as_they_came(files):
    first, second = files["MultiRC.jsonl"]
    assert (first["idx"], second["idx"]) == (5, 3)
    answers = {each["idx"]: each["answers"] for each in first["passage"]["questions"]}
    assert {key: [one["idx"] for one in each] for key, each in answers.items()} == {20: [7, 8], 21: [9]}
    assert {one["label"] for each in answers.values() for one in each} <= {0, 1}


def test_archive_has_the_same_bytes_each_time_and_tells_what_is_missing(submitted):
    one, two = make_archive([submitted]), make_archive([submitted, submitted])
    assert one.content == two.content
    assert (one.leaderboard, one.missing) == ("SuperGLUE", ("WSC.jsonl",))
    assert set(make_archive([submitted], seed=2).files.values()) == {f"{name}-random-2" for name in ROWS}
    with pytest.raises(MissingInputError):
        make_archive([submitted], seed=3)


def test_line_of_a_test_set_without_its_number_is_named(tmp_path):
    write_superglue(tmp_path)
    (tmp_path / "BoolQ/test.jsonl").write_text(json.dumps({"question": "a", "passage": "b"}))
    with pytest.raises(ConfigError, match=r"test\.jsonl, line 1: `idx`"):
        BoolqConfig(path=tmp_path / "BoolQ", submit=True).load()

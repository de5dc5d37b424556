"""Metrics against scikit-learn and by hand; evaluation sets have all texts of all files, and every task has one."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText
from pipeline.tasks import TASKS
from pipeline.tasks.evaluation_sets import GROUPS, SETS, evaluation_texts, expand
from pipeline.tasks.forms import Choices, Example, TaggedSentence
from pipeline.tasks.generation import TranslationConfig
from pipeline.tasks.metrics import measure
from pipeline.tasks.metrics.squad import UNANSWERABLE_METRICS
from pipeline.tasks.metrics.texts import ROUGE_NAMES
from pipeline.tasks.rows import RowsTaskConfig
from pipeline.tune.summary import GLUE_METRICS, glue_average
from tests.pipeline.tasks.excerpts import write

RANDOM = np.random.Generator(np.random.Philox(key=1))


@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_equal_scikit_learn_on_random_predictions(classes):
    labels, predictions = RANDOM.integers(0, classes, (2, 200))
    found = measure(
        ["accuracy", "matthews", "macro_f1", "f1"][: 4 if classes == 2 else 3], labels, predictions
    )
    assert found["accuracy"] == accuracy_score(labels, predictions)
    assert found["matthews"] == matthews_corrcoef(labels, predictions)
    assert found["macro_f1"] == f1_score(labels, predictions, average="macro")
    if classes == 2:
        assert found["f1"] == f1_score(labels, predictions)


@pytest.mark.parametrize(("right", "constant", "f1"), [(2, 0, 0.0), (2, 1, 2 / 3), (0, 0, 0.0)])
def test_constant_predictions_give_zero_matthews_without_a_warning(right: int, constant: int, f1: float):
    labels, predictions = np.array([1] * right + [0] * (4 - right)), np.full(4, constant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure(["matthews", "f1"], labels, predictions)
    assert found == {"matthews": 0.0, "f1": pytest.approx(f1)}


def measured_by(config) -> set[str]:
    """The metrics that a task measures on a few made-up examples."""
    if config.form == "spans":
        return {"exact_match", "f1"} if config.answerable else set(UNANSWERABLE_METRICS)
    if config.form == "generation":
        return {*ROUGE_NAMES, *TranslationConfig.metrics}
    if config.form == "tags":
        return set(config.measure([TaggedSentence("1", ("a",), ("O",))], [["O"]]))
    if config.form == "instructions":
        return set(config.measure((), losses=1.0, tokens=1, written=None))
    if config.form == "choices":
        example = Choices("1", (("a", "b"), ("a", "c")), 0, accepted=(0,), answers=("b", "c"))
        return set(config.measure([example], np.eye(2)[:1]))
    groups = getattr(config, "groups", ("",))
    examples = [Example("1", "a", None, label, group) for group in groups for label in (0, 1)]
    return set(config.measure(examples, np.eye(2)[[0, 1] * len(groups)]))


@pytest.mark.parametrize("kind", TASKS)
def test_tasks_only_name_metrics_that_they_measure(kind):
    config = TASKS[kind].without_files({"kind": kind, "split": "dev"})
    assert set(config.metrics) <= measured_by(config)


def test_correlations_equal_scipy_and_are_zero_for_constants():
    labels, predictions = RANDOM.normal(size=(2, 50))
    found = measure(["pearson", "spearman"], labels, predictions)
    assert found["pearson"] == pytest.approx(np.corrcoef(labels, predictions)[0, 1])
    first, second = (np.argsort(np.argsort(side)) for side in (labels, predictions))
    assert found["spearman"] == pytest.approx(np.corrcoef(first, second)[0, 1])
    # Ranks 1.5, 1.5, 3, 4 against 1, 2, 3, 4: 1 - 6 * 0.5 / (4 * 15) is the formula without ties, 0.95.
    found = measure(["spearman"], np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.0, 5.0, 9.0]))
    assert found["spearman"] == pytest.approx(4.5 / (5 * 4.5) ** 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measure(["pearson", "spearman"], labels, np.ones(50)) == {"pearson": 0, "spearman": 0}
        assert measure(["pearson"], labels[:1], labels[:1]) == {"pearson": 0}
        for number in (np.nan, np.inf):
            broken = np.append(predictions[1:], number)
            assert measure(["pearson", "spearman"], labels, broken) == {"pearson": 0, "spearman": 0}
        assert abs(measure(["pearson"], labels, 1 + 1e-14 * predictions)["pearson"]) <= 1


# The leaderboard's entry of BERT-large (Devlin et al. 2019): 80.5 over nine tasks.
BERT_LARGE = {
    "cola": {"matthews": 60.5, "accuracy": 0.0},
    "sst2": {"accuracy": 94.9},
    "mrpc": {"f1": 89.3, "accuracy": 85.4},
    "stsb": {"pearson": 87.6, "spearman": 86.5},
    "qqp": {"f1": 72.1, "accuracy": 89.3},
    "mnli": {"accuracy_matched": 86.7, "accuracy_mismatched": 85.9, "diagnostic_matthews": 39.6},
    "qnli": {"accuracy": 92.7},
    "rte": {"accuracy": 70.1},
    "wnli": {"accuracy": 65.1},
}


def test_average_over_glue_is_what_the_leaderboard_says_and_there_is_none_over_a_part():
    assert glue_average(BERT_LARGE) == pytest.approx(80.5, abs=0.05)
    assert glue_average({task: found for task, found in BERT_LARGE.items() if task != "rte"}) is None
    assert glue_average(BERT_LARGE | {"qqp": {"f1": 72.1}}) is None


def test_average_over_glue_names_metrics_that_the_tasks_have():
    for kind, metrics in GLUE_METRICS.items():
        assert set(metrics) <= set(TASKS[kind].metrics)


def texts_of(data: Path, *tasks: str) -> list[EvaluationText]:
    return list(evaluation_texts(DecontaminationConfig(tasks=tasks, data=data)))


def test_every_kind_of_task_on_published_data_has_an_evaluation_set_of_its_name_or_in_its_group():
    for kind, task in TASKS.items():
        own = issubclass(task, RowsTaskConfig | TranslationConfig)
        sets = task.sets()
        assert bool(sets) != own, kind
        assert {each.name for each in sets} <= SETS.keys()
        assert own or kind in SETS.keys() | GROUPS.keys()


def test_groups_are_expanded_to_known_sets_once_each():
    assert not GROUPS.keys() & SETS.keys()
    assert all(set(expand([group])) <= SETS.keys() for group in GROUPS)
    assert expand(["squad", "glue", "squad2", "rte"]) == ["squad1", "squad2", *GROUPS["glue"]]


def test_unknown_names_are_all_refused_with_the_nearest():
    with pytest.raises(ConfigError) as raised:
        evaluation_texts(DecontaminationConfig(tasks=("glu", "xsum", "squat1")))
    first, second = raised.value.problems
    assert (first.key, second.key) == ("decontaminate.tasks.0", "decontaminate.tasks.2")
    assert "did you mean glue?" in first.message
    assert "did you mean squad1?" in second.message


def test_no_folder_and_missing_files_are_refused_by_the_call(tmp_path, monkeypatch):
    monkeypatch.delenv("CLOZE_DATA", raising=False)
    with pytest.raises(MissingInputError, match="CLOZE_DATA"):
        evaluation_texts(DecontaminationConfig(tasks=("rte",)))
    with pytest.raises(MissingInputError, match=r"`rte`.*RTE/dev\.tsv"):
        evaluation_texts(DecontaminationConfig(tasks=("rte",), data=tmp_path))
    with pytest.raises(MissingInputError, match="gone"):
        evaluation_texts(DecontaminationConfig(tasks=("rte",), data=tmp_path / "gone"))
    monkeypatch.setenv("CLOZE_DATA", str(tmp_path))
    write(tmp_path, {"glue/RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n"})
    assert list(evaluation_texts(DecontaminationConfig(tasks=("rte",)))) == []
    assert list(evaluation_texts(DecontaminationConfig())) == []


def test_settings_for_other_machines_name_the_folder_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert DecontaminationConfig(data=Path("sets")).located().data == tmp_path / "sets"
    monkeypatch.setenv("CLOZE_DATA", "other")
    assert DecontaminationConfig().located().data == tmp_path / "other"
    monkeypatch.delenv("CLOZE_DATA")
    assert DecontaminationConfig().located().data is None


QQP = "1\t2\t3\tWhy?\tWhat about jlpt5? 0\n4\t5\t6\tHow?\tWhen 1\t1\n"
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t5\t6\tA .\tB .\r\n"
CONLLU = (
    "# sent_id = w-1\n# text = From the AP.\n1\tFrom\tfrom\n\n# sent_id = w-2\n# text = Yes\n1\tYes\tyes\n"
)
PASSAGE = {"context": "Kontext.", "qas": [{"id": "q1", "question": "Was?", "answers": []}]}
SQUAD = json.dumps({"data": [{"title": "T", "paragraphs": [PASSAGE]}]})
BANK = {"label": 1, "text": "Word: bank. Sentence 1: The bank . Sentence 2: A bank of snow ."}
WIC = f'{json.dumps(BANK)}\n{{"word": "bank", "sentence1": "x", "sentence2": "y"}}\n'


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("rte", {"glue/RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb \tentailment\n",
            "glue/RTE/test.tsv": "index\tsentence1\tsentence2\n0\tc\td\n"},
            [("dev-2", "a"), ("dev-2", "b"), ("test-2", "c"), ("test-2", "d")]),
        ("mrpc", {"glue/MRPC/dev.tsv": MRPC}, [("dev-2", "A ."), ("dev-2", "B .")]),
        # Only the test file of CoLA has a header.
        ("cola", {"glue/CoLA/dev.tsv": "gj04\t1\t\tThey left.\ngj04\t0\t*\tThem left.\n",
            "glue/CoLA/test.tsv": "index\tsentence\n0\tWe stayed.\n"},
            [("dev-1", "They left."), ("dev-2", "Them left."), ("test-2", "We stayed.")]),
        # QQP may have a header, and a label glued to the question.
        ("qqp", {"glue/QQP/dev.tsv": QQP},
            [("dev-1", "Why?"), ("dev-1", "What about jlpt5?"), ("dev-2", "How?"), ("dev-2", "When 1")]),
        ("qqp", {"glue/QQP/dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + QQP},
            [("dev-2", "Why?"), ("dev-2", "What about jlpt5?"), ("dev-3", "How?"), ("dev-3", "When 1")]),
        ("mnli", {"glue/MNLI/dev_matched.jsonl": '{"premise": "p", "hypothesis": "h", "label": "neutral"}\n'},
            [("dev_matched-1", "p"), ("dev_matched-1", "h")]),
        ("mnli", {"glue/MNLI/dev_mismatched.tsv": "index\tgenre\tsentence1\tsentence2\tgold_label\n0\tx\tq\ti\tn\n",
            "glue/MNLI/dev_matched.jsonl": "{}"}, [("dev_mismatched-2", "q"), ("dev_mismatched-2", "i")]),
        ("squad1", {"squad/dev-v1.1.json": SQUAD}, [("T#0", "Kontext."), ("q1", "Was?")]),
        ("xquad", {"xquad/xquad.de.json": SQUAD}, [("de:T#0", "Kontext."), ("de:q1", "Was?")]),
        ("xsum", {"xsum/test.jsonl": '{"document": "d\\ne", "summary": "s", "id": "7"}\n'},
            [("7", "d\ne"), ("7", "s")]),
        ("wic", {"wic/val.jsonl": WIC},
            [("val-1", "The bank ."), ("val-1", "A bank of snow ."), ("val-2", "x"), ("val-2", "y")]),
        ("wnut17", {"wnut17/emerging.dev.conll": "Soldier\tO\nkilled\tO\n\nPolice\tO\nlast\tO",
            "wnut17/emerging.test.annotated": "\t\nA\tO\n\t\n\n"},
            [("emerging.dev-1", "Soldier killed"), ("emerging.dev-4", "Police last"), ("emerging.test-2", "A")]),
        ("ud-english-ewt", {"ud-english-ewt/en_ewt-ud-dev.conllu": CONLLU,
            "ud-english-ewt/en_ewt-ud-test.conllu": ""}, [("w-1", "From the AP."), ("w-2", "Yes")]),
        ("sst5", {"sst5/dev.txt": "(3 (2 It) (4 (2 -LRB-) (2 's)))\n", "sst5/test.txt": ""}, [("dev-1", "It ( 's")]),
    ],
)  # fmt: skip
def test_all_texts_of_an_example_are_read(tmp_path, name, files, expected):
    write(tmp_path, files)
    found = texts_of(tmp_path, name)
    assert [(text.task, text.example, text.text) for text in found] == [(name, *each) for each in expected]
    assert {text.file.relative_to(tmp_path.resolve()).as_posix() for text in found} <= files.keys()


@pytest.mark.parametrize(
    ("task", "file", "content", "line"),
    [
        ("rte", "glue/RTE/dev.tsv", "index\tpremise\n", "line 1: "),
        ("rte", "glue/RTE/dev.tsv", "index\tsentence1\tsentence2\n1\ta\n", "line 2: "),
        ("rte", "glue/RTE/dev.tsv", b"index\tsentence1\tsentence2\n1\ta\t\xff\n", "line 2: byte 4 "),
        ("qqp", "glue/QQP/dev.tsv", "1\t2\t3\n", "line 1: "),
        ("xsum", "xsum/test.jsonl", '{"document": "d"}\n', "line 1: "),
        ("xsum", "xsum/test.jsonl", "{\n", "line 1: "),
        ("wic", "wic/val.jsonl", '{"text": "Sentence 1: alone"}\n', "line 1: "),
        ("squad1", "squad/dev-v1.1.json", '{"data": [{}]}', ""),
        ("sst5", "sst5/dev.txt", "no tree\n", "line 1: "),
    ],
)
def test_a_file_that_is_something_else_is_named_with_its_line(tmp_path, task, file, content, line):
    write(tmp_path, {"sst5/test.txt": "", file: content})
    with pytest.raises(ConfigError) as raised:
        texts_of(tmp_path, task)
    assert str(tmp_path / file) in str(raised.value)
    assert line in str(raised.value)


@pytest.mark.corpora
def test_real_files_give_the_published_numbers_of_examples(corpora):
    absent = {"mrqa", "cnn_dailymail", "swag", "race", "snli", *GROUPS["superglue"]} - {"wic"}
    examples: dict[str, set[str]] = {}
    questions = 0
    for text in texts_of(corpora, *(name for name in SETS if name not in absent)):
        examples.setdefault(text.task, set()).add(text.example)
        questions += text.task == "squad1" and "#" not in text.example
        assert text.text.strip()
    counts = {task: len(names) for task, names in examples.items()}
    assert questions == 10_570
    assert counts.pop("squad2")
    assert counts == {
        "cola": 1043 + 1063,
        "sst2": 872 + 1821,
        "mrpc": 408 + 1725,
        "stsb": 1500 + 1379,
        "rte": 277 + 3000,
        "wnli": 71 + 146,
        "qnli": 5463 + 5463,
        "qqp": 23_497,
        "mnli": 9815,
        "ax": 1104,
        "squad1": 10_570 + 2067,
        "xquad": 3 * (1190 + 240),
        "xsum": 1000,
        "wic": 5228,
        "sst5": 1101 + 2210,
        "wnut17": 1009 + 1287,
        "ud-english-ewt": 2001 + 2077,
    }

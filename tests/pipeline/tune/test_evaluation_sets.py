"""Evaluation sets: all texts of all files, whatever their quirks, and every task has one."""

import json
from pathlib import Path

import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.decontaminate.config import DecontaminationConfig
from pipeline.tune.evaluation_sets import (
    GROUPS,
    SETS,
    evaluation_texts,
    expand,
)
from pipeline.tune.tasks import TASKS
from pipeline.tune.tasks.rows import RowsTaskConfig
from pipeline.tune.tasks.translation import TranslationConfig


def write(data: Path, file: str, content: str | bytes) -> None:
    path = data / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def texts_of(data: Path, *tasks: str) -> list[tuple[str, str, str]]:
    config = DecontaminationConfig(tasks=tasks, data=data)
    return [(text.task, text.example, text.text) for text in evaluation_texts(config)]


def test_every_kind_of_task_on_published_data_has_an_evaluation_set():
    for kind, task in TASKS.items():
        own = issubclass(task, RowsTaskConfig | TranslationConfig)
        assert bool(task.evaluation_sets) != own, kind
        assert {each.name for each in task.evaluation_sets} <= SETS.keys()


def test_a_task_is_in_the_sets_of_its_name_or_its_group():
    published = {kind for kind, task in TASKS.items() if task.evaluation_sets}
    assert published <= SETS.keys() | GROUPS.keys()


def test_groups_name_known_sets_once():
    assert all(
        set(members) <= SETS.keys() and len(set(members)) == len(members) for members in GROUPS.values()
    )
    assert not GROUPS.keys() & SETS.keys()
    assert expand(["squad", "glue", "squad2", "rte"]) == ["squad1", "squad2", *GROUPS["glue"]]


def test_unknown_names_are_all_refused_with_the_nearest_and_all_known_ones():
    config = DecontaminationConfig(tasks=("glu", "xsum", "squat1"))
    with pytest.raises(ConfigError) as raised:
        evaluation_texts(config)
    first, second = raised.value.problems
    assert (first.key, second.key) == ("decontaminate.tasks.0", "decontaminate.tasks.2")
    assert "did you mean glue?" in first.message
    assert "did you mean squad1?" in second.message
    assert all(name in first.message for name in (*SETS, *GROUPS))


def test_no_folder_and_missing_files_are_refused_by_the_call(tmp_path, monkeypatch):
    monkeypatch.delenv("CLOZE_DATA", raising=False)
    with pytest.raises(MissingInputError, match="CLOZE_DATA"):
        evaluation_texts(DecontaminationConfig(tasks=("rte",)))
    with pytest.raises(MissingInputError, match=r"`rte` is not at .*RTE/dev\.tsv.*\n.*GLUE benchmark"):
        evaluation_texts(DecontaminationConfig(tasks=("rte",), data=tmp_path))
    with pytest.raises(MissingInputError, match="no folder"):
        evaluation_texts(DecontaminationConfig(tasks=("rte",), data=tmp_path / "gone"))
    monkeypatch.setenv("CLOZE_DATA", str(tmp_path))
    write(tmp_path, "glue/RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n")
    assert list(evaluation_texts(DecontaminationConfig(tasks=("rte",)))) == []
    assert list(evaluation_texts(DecontaminationConfig())) == []


def test_settings_for_other_machines_name_the_folder_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert DecontaminationConfig(data=Path("sets")).located().data == tmp_path / "sets"
    monkeypatch.setenv("CLOZE_DATA", "other")
    assert DecontaminationConfig().located().data == tmp_path / "other"
    monkeypatch.delenv("CLOZE_DATA")
    assert DecontaminationConfig().located().data is None


def test_pairs_give_both_texts_of_dev_and_test_and_name_their_file(tmp_path):
    write(tmp_path, "glue/RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb \tentailment\n")
    write(tmp_path, "glue/RTE/test.tsv", "index\tsentence1\tsentence2\n0\tc\td\n")
    found = list(evaluation_texts(DecontaminationConfig(tasks=("rte",), data=tmp_path)))
    assert [(t.example, t.text) for t in found] == [
        ("dev-2", "a"),
        ("dev-2", "b"),
        ("test-2", "c"),
        ("test-2", "d"),
    ]
    assert found[-1].file == (tmp_path / "glue/RTE/test.tsv").resolve()


def test_byte_order_marks_and_windows_line_ends_are_accepted(tmp_path):
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    write(tmp_path, "glue/MRPC/dev.tsv", b"\xef\xbb\xbf" + f"{head}\r\n1\t5\t6\tA .\tB .\r\n".encode())
    assert texts_of(tmp_path, "mrpc") == [("mrpc", "dev-2", "A ."), ("mrpc", "dev-2", "B .")]


def test_cola_has_no_header_in_dev_and_one_in_test(tmp_path):
    write(tmp_path, "glue/CoLA/dev.tsv", "gj04\t1\t\tThey left.\ngj04\t0\t*\tThem left.\n")
    write(tmp_path, "glue/CoLA/test.tsv", "index\tsentence\n0\tWe stayed.\n")
    assert [text for *_, text in texts_of(tmp_path, "cola")] == ["They left.", "Them left.", "We stayed."]


@pytest.mark.parametrize("head", ["", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"])
def test_qqp_with_or_without_header_and_with_a_label_glued_to_the_question(tmp_path, head):
    write(
        tmp_path, "glue/QQP/dev.tsv", head + "1\t2\t3\tWhy?\tWhat about jlpt5? 0\n4\t5\t6\tHow?\tWhen 1\t1\n"
    )
    expected = ["Why?", "What about jlpt5?", "How?", "When 1"]
    assert [text for *_, text in texts_of(tmp_path, "qqp")] == expected


def test_mnli_is_read_from_official_columns_and_from_json_lines(tmp_path):
    record = {"premise": "p", "hypothesis": "h", "label": "neutral"}
    write(tmp_path, "glue/MNLI/dev_matched.jsonl", json.dumps(record) + "\n")
    assert texts_of(tmp_path, "mnli") == [("mnli", "dev_matched-1", "p"), ("mnli", "dev_matched-1", "h")]
    write(
        tmp_path,
        "glue/MNLI/dev_mismatched.tsv",
        "index\tgenre\tsentence1\tsentence2\tgold_label\n0\tx\tq\ti\tn\n",
    )
    assert [text for *_, text in texts_of(tmp_path, "mnli")] == ["q", "i"]


def test_squad_gives_contexts_and_questions_and_xquad_their_languages(tmp_path):
    paragraph = {"context": "Kontext.", "qas": [{"id": "q1", "question": "Was?", "answers": []}]}
    content = json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]})
    write(tmp_path, "squad/dev-v1.1.json", content)
    write(tmp_path, "xquad/xquad.de.json", content)
    assert texts_of(tmp_path, "squad1") == [("squad1", "T#0", "Kontext."), ("squad1", "q1", "Was?")]
    assert [example for _, example, _ in texts_of(tmp_path, "xquad")] == ["de:T#0", "de:q1"]


def test_xsum_and_wic_give_all_texts_of_an_example(tmp_path):
    write(tmp_path, "xsum/test.jsonl", json.dumps({"document": "d\ne", "summary": "s", "id": "7"}) + "\n")
    assert texts_of(tmp_path, "xsum") == [("xsum", "7", "d\ne"), ("xsum", "7", "s")]
    joined = {"label": 1, "text": "Word: bank. Sentence 1: The bank . Sentence 2: A bank of snow ."}
    apart = {"word": "bank", "sentence1": "x", "sentence2": "y"}
    write(tmp_path, "wic/val.jsonl", f"{json.dumps(joined)}\n{json.dumps(apart)}\n")
    assert [text for *_, text in texts_of(tmp_path, "wic")] == ["The bank .", "A bank of snow .", "x", "y"]


def test_sentences_of_annotated_words(tmp_path):
    write(tmp_path, "wnut17/emerging.dev.conll", "Soldier\tO\nkilled\tO\n\nPolice\tO\nlast\tO")
    write(tmp_path, "wnut17/emerging.test.annotated", "\t\nA\tO\n\t\n\n")
    assert texts_of(tmp_path, "wnut17") == [
        ("wnut17", "emerging.dev-1", "Soldier killed"),
        ("wnut17", "emerging.dev-4", "Police last"),
        ("wnut17", "emerging.test-2", "A"),
    ]
    conllu = "# sent_id = w-1\n# text = From the AP.\n1\tFrom\tfrom\n\n# sent_id = w-2\n# text = Yes\n1\tYes\tyes\n"
    write(tmp_path, "ud-english-ewt/en_ewt-ud-dev.conllu", conllu)
    write(tmp_path, "ud-english-ewt/en_ewt-ud-test.conllu", "")
    assert [t[1:] for t in texts_of(tmp_path, "ud-english-ewt")] == [("w-1", "From the AP."), ("w-2", "Yes")]
    write(tmp_path, "sst5/dev.txt", "(3 (2 It) (4 (2 -LRB-) (2 's)))\n")
    write(tmp_path, "sst5/test.txt", "")
    assert texts_of(tmp_path, "sst5") == [("sst5", "dev-1", "It ( 's")]


@pytest.mark.parametrize(
    ("task", "file", "content", "said"),
    [
        ("rte", "glue/RTE/dev.tsv", "index\tpremise\n", "line 1: there is no column `sentence1`"),
        ("rte", "glue/RTE/dev.tsv", "index\tsentence1\tsentence2\n1\ta\n", "line 2: 2 columns"),
        ("rte", "glue/RTE/dev.tsv", b"index\tsentence1\tsentence2\n1\ta\t\xff\n", "line 2: byte 4 is not valid"),
        ("qqp", "glue/QQP/dev.tsv", "1\t2\t3\n", "line 1: 3 columns"),
        ("xsum", "xsum/test.jsonl", '{"document": "d"}\n', "line 1: there is no text `summary`"),
        ("xsum", "xsum/test.jsonl", "{\n", "line 1: no valid JSON"),
        ("wic", "wic/val.jsonl", '{"text": "Sentence 1: alone"}\n', "line 1: there are no two sentences"),
        ("squad1", "squad/dev-v1.1.json", '{"data": [{}]}', "is not JSON as SQuAD has it"),
        ("sst5", "sst5/dev.txt", "no tree\n", "line 1: no tree"),
    ],
)  # fmt: skip
def test_a_file_that_is_something_else_is_named_with_its_line(tmp_path, task, file, content, said):
    write(tmp_path, file, content)
    write(tmp_path, "sst5/test.txt", "")
    with pytest.raises(ConfigError) as raised:
        texts_of(tmp_path, task)
    assert str(tmp_path / file) in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.corpora
def test_real_files_give_the_published_numbers_of_examples(corpora):
    absent = {"mrqa", "cnn_dailymail", "swag", "race", "snli", *GROUPS["superglue"]} - {"wic"}
    config = DecontaminationConfig(tasks=tuple(name for name in SETS if name not in absent), data=corpora)
    examples: dict[str, set[str]] = {}
    questions = 0
    for text in evaluation_texts(config):
        examples.setdefault(text.task, set()).add(text.example)
        questions += text.task == "squad1" and "#" not in text.example
        assert text.text.strip()
    counts = {task: len(names) for task, names in examples.items()}
    assert questions == 10_570
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
        "squad2": counts["squad2"],
        "xquad": 3 * (1190 + 240),
        "xsum": 1000,
        "wic": 5228,
        "sst5": 1101 + 2210,
        "wnut17": 1009 + 1287,
        "ud-english-ewt": 2001 + 2077,
    }

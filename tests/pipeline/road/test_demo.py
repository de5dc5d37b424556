"""A road is checked to its end before it starts; the demo, made small, goes from source files to scores."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import read_manifest
from data_prep.document import Document
from data_prep.token_store import TokenStore
from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.config.loading import load_config
from pipeline.road import demo
from pipeline.road.demo import CODE, demo_road, exchange_halves, split, split_sentences, tag_words, write_rows
from pipeline.road.stages import RoadConfig, StageConfig, load_stages
from pipeline.run.directory import RunDirectory
from pipeline.samples.noise import Noise
from tests.pipeline.command import cloze

DATA = """
sources:
  - {kind: python_docs, name: docstrings, stdlib: false, packages: [click, jinja2], max_bytes: 500000}
tokenizer: {vocab_size: 512}
"""
PRETRAIN = """
data: {held_out: 0.5}
model: {num_layers: 1, hidden_size: 32, num_heads: 2, intermediate_size: 32}
cluster: {workers: 1}
steps: 4
schedule: {warmup_steps: 1}
evaluation: {every_steps: 4, samples: 16}
checkpoint: {every_steps: 4}
"""
FINETUNE = """
training: {epochs: 1}
seeds: [1]
compare_random: false
side_by_side: 1
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for a demo of few documents, steps and rows, with the shipped settings otherwise."""
    configs = tmp_path / "configs"
    configs.mkdir()
    for name, changes in (("data", DATA), ("pretrain", PRETRAIN), ("finetune", FINETUNE)):
        (configs / f"{name}.yaml").write_text(f"base: {demo.CONFIGS / name}.yaml\n{changes}")
    monkeypatch.setattr(demo, "CONFIGS", configs)
    monkeypatch.setattr(demo, "SIZES", dict.fromkeys(demo.SIZES, (16, 8)))
    return tmp_path / "demo"


def test_demo_ends_with_a_checkpoint_and_a_score_for_each_task(small: Path):
    report = json.loads(cloze("demo", "--out", small, "--json"))
    assert (report["steps"], report["held_out"]["steps"]) == (4, [0, 4])
    name = report["reference"].partition("@")[0]
    run = RunDirectory(small / "runs" / name)
    assert run.config().evaluation.samples == 16
    (checkpoint,) = list_checkpoints(run.checkpoints)
    assert step_of(checkpoint) == 4
    scores = {score["task"]: score["metrics"] for score in report["scores"]}
    assert set(scores) == {"code", "word_order"}
    assert 0 <= scores["word_order"]["accuracy"] <= 1
    (directory,) = (small / "scores").glob("*/*@4")
    assert read_manifest(directory).kind == "scores"
    assert Path(report["page"]).is_file()

    again = cloze("demo", "--out", small)
    first, last = report["held_out"]["values"]
    assert f"{first:.3f} first, {last:.3f} ± 0." in again
    assert "exact duplicates dropped" in again
    assert f"cloze resume {name} " in again
    assert again.rstrip().endswith(Path(report["page"]).resolve().as_uri())


NOUNS = ("matrix", "actor", "model", "tensor", "array", "worker", "score", "layer")
Rows = dict[str, list[dict[str, Any]]]


def sentence(number: int) -> str:
    """A sentence of eleven words that no other number has."""
    first, second = NOUNS[number % 8], NOUNS[number // 8 % 8]
    digits = " ".join("abcdefghij"[int(digit)] * 3 for digit in f"{number:03d}")
    return f"Return the `{first}` of numpy whose {second} is {digits} here."


class Store:
    """What the tasks use of a token store: 300 documents of three sentences, the even ones held out."""

    place = "tokens"

    def __init__(self, change: Callable[[str], str] = str) -> None:
        texts = ["\n".join(sentence(3 * n + k) for k in range(3)) for n in range(300)]
        self.all_documents = [
            Document(f"docs:{n}", "docs", "", "", "en", change(text), {}) for n, text in enumerate(texts)
        ]

    def documents(self, numbers: np.ndarray) -> list[Document]:
        return [self.all_documents[number] for number in numbers]

    def held_out(self, fraction: float) -> np.ndarray:
        return np.arange(300) % 2 == 0


def write(out: Path, **sizes: tuple[int, int]) -> dict[str, Rows]:
    """By task and side, the rows: 120 to train on and 60 to evaluate on, unless `sizes` says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SIZES", dict.fromkeys(demo.SIZES, (120, 60)) | sizes)
        write_rows(cast(TokenStore, Store()), 0.5, out)
    return {
        task: {
            side: [json.loads(line) for line in (out / task / f"{side}.jsonl").read_bytes().splitlines()]
            for side in ("train", "evaluation")
        }
        for task in demo.TASKS
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    return write(tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("task", demo.TASKS)
def test_no_document_is_on_both_sides_and_all_are_held_out(written: dict[str, Rows], task: str):
    rows = written[task]
    assert (len(rows["train"]), len(rows["evaluation"])) == (120, 60)
    train, evaluation = ({row["id"].partition("#")[0] for row in side} for side in rows.values())
    assert not train & evaluation
    assert all(int(doc_id.removeprefix("docs:")) % 2 == 0 for doc_id in train | evaluation)


def test_rows_are_the_same_every_time(written: dict[str, Rows], tmp_path: Path):
    assert write(tmp_path) == written


def test_text_found_on_both_sides_stays_in_the_evaluation_only():
    shared = "Arrays are converted before they are used by the estimator."
    sides = split(Store(lambda text: f"{text}\n{shared}").all_documents, 0.5)
    assert [sum(s.text == shared for s in side) for side in sides] == [0, 1]


def test_too_little_text_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="`code`"):
        write(tmp_path, code=(5000, 60))


def test_every_sentence_occurs_in_order_and_disordered_with_the_same_words_and_ends(written: dict[str, Rows]):
    rows = written["word_order"]["train"]
    for disordered, ordered in zip(rows[::2], rows[1::2], strict=True):
        assert (disordered["label"], ordered["label"]) == ("disordered", "in_order")
        moved, words = disordered["text"].split(), ordered["text"].split()
        assert moved != words
        assert sorted(moved) == sorted(words)
        assert (moved[0], moved[-1]) == (words[0], words[-1])
        assert (words[0].islower(), words[-1].isalpha()) == (True, True)


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        ("a b, c, d, e f", None),
        ("a b c, d e f", "a c, d e b f"),
        ("no no no no no no", None),
    ],
)
def test_halves_are_not_cut_after_punctuation_and_must_differ(words: str, moved: str | None):
    found = exchange_halves(words.split(), Noise.of(1))
    assert (found and " ".join(found)) == moved


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Call ``np.sum`` first.", ["np.sum"]),
        ("It is (`axis`), or :func:`~torch.sum`!", ["axis", "~torch.sum"]),
        ("See (the `axis`), if any.", ["axis"]),
        ("All `Tensor`s of `nn.Module`_ are moved.", ["Tensor", "nn.Module"]),
        ("Nothing is marked here.", None),
        ("Code of `two words` is unclear.", None),
        ("Half of a `pair is unclear.", None),
        ("A ``pair` of unequal marks is unclear.", None),
    ],
)
def test_marks_of_docstrings_are_read(text: str, code: list[str] | None):
    tagged = tag_words(text)
    found = tagged and [word for word, tag in zip(*tagged, strict=True) if tag == CODE]
    assert found == code
    # Punctuation would tell the tags of words beside it.
    assert not tagged or not any(re.search(r"[(),;:!?]", word) for word in tagged[0])


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "One line\ngoes on. Then 2.5 more! Is it?\n\nAnother paragraph",
            ["One line goes on.", "Then 2.5 more!", "Is it?", "Another paragraph"],
        ),
        (
            "It is fast.\n\nReturns\n-------\nout : array\n    The result.\nNotes\n  =====\nSee there.",
            ["It is fast.", "out : array The result.", "See there."],
        ),
    ],
    ids=["paragraphs", "headings"],
)
def test_sentences_end_at_full_stops_and_paragraphs_but_not_at_line_ends_or_headings(
    text: str, sentences: list[str]
):
    assert list(split_sentences(text)) == sentences


def test_code_and_fragments_are_no_sentences():
    junk = ">>> x = np.ones(3); y = x + 1; print(x, y)\n\nstarts in lower case and ends here.\n\nToo short."
    store = Store(lambda text: f"{junk}\n\n{text}")
    assert all(s.text.startswith("Return the") for s in split(store.all_documents, 0.5)[0])


CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture
def road(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A road of docstrings, a small network and one task of one's own rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"word {n},{n % 2}\n" for n in range(10)))
    rows = "{kind: rows_classification, train: rows.csv, columns: {text: text, label: label}}"
    (tmp_path / "tune.yaml").write_text(f"tasks: {{parity: {rows}}}\ntraining: {{lr: 1e-3, batch_size: 2}}\n")
    demo = CONFIGS / "demo"
    path = tmp_path / "road.yaml"
    path.write_text(
        f"name: small\ndata: [{{config: {demo}/practice-data.yaml}}]\n"
        f"pretrain: {{config: {demo}/practice-pretrain.yaml}}\nfinetune: [{{config: tune.yaml}}]\n"
    )
    return path


def loaded(road: Path, *overrides: str):
    return load_stages(load_config(RoadConfig, road, overrides))


def test_sound_road_has_the_configurations_of_its_stages(road: Path):
    stages = loaded(road, "pretrain.settings.steps=70", "finetune.0.settings.seeds=[5]")
    assert [one.name for one in stages.data] == ["practice"]
    assert stages.pretrain.steps == 70
    assert stages.finetune[0].seeds == (5,)


def test_settings_may_be_nested_or_dotted_and_keep_their_types():
    stage = StageConfig(config=Path("a.yaml"), settings={"a": {"b": [1, "x y"]}, "c.d": None, "e": "1"})
    assert stage.overrides == ['a.b=[1,"x y"]', "c.d=null", 'e="1"']


def test_problems_of_all_stages_are_told_at_once(road: Path):
    with pytest.raises(ConfigError) as caught:
        loaded(
            road,
            "data.0.settings.min_caracters=1",
            "pretrain.settings.stepz=1",
            "finetune.0.settings.tasks.parity.train=gone.csv",
        )
    told = str(caught.value)
    for text in ("data.0:", "min_characters", "pretrain:", "did you mean steps", "finetune.0:", "gone.csv"):
        assert text in told


def test_single_problem_keeps_its_own_error(road: Path):
    rows = "{kind: rows_generation, train: rows.csv, columns: {source: text, target: label}}"
    Path("tune.yaml").write_text(f"tasks: {{parity: {rows}}}\ntraining: {{lr: 1e-3, batch_size: 2}}\n")
    with pytest.raises(MismatchError, match="parity"):
        loaded(road)


def test_store_must_be_there_unless_a_preparation_makes_it(road: Path):
    assert loaded(road, "data.0.settings.out=made", "pretrain.settings.data.stores=[{path: made/tokens}]")
    with pytest.raises(ConfigError, match="elsewhere/tokens"):
        loaded(road, "pretrain.settings.data.stores=[{path: elsewhere/tokens}]")


def test_task_whose_files_the_road_makes_is_not_read_yet(road: Path):
    Path("tune.yaml").write_text(Path("tune.yaml").read_text().replace("rows.csv", "practice/data/rows.csv"))
    assert set(loaded(road).finetune[0].tasks) == {"parity"}
    demo = demo_road(Path("demo"))
    assert set(load_stages(demo, made=[Path("demo/tasks")]).finetune[0].tasks) == {"code", "word_order"}


def test_stop_of_a_submitted_road_waits_for_its_run_to_save(road: Path):
    from pipeline.commands.verbs import app
    from pipeline.run.submission import prepare

    short, long = (
        prepare(app, ["road", str(road), f"pretrain.settings.guards.grace_s={grace}"]).stop_grace_s
        for grace in (10, 500)
    )
    assert long - short == 490

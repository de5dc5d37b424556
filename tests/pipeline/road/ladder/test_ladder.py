"""`cloze ladder` as users type it: stopped, continued, finished, and its figures computed again from predictions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.artefacts.errors import ConfigError
from pipeline.inspect.lineage import trace
from pipeline.pretrain.launch import find_same_run
from pipeline.road.ladder.config import Ladder, load_ladder
from pipeline.road.ladder.results import collect, commit_result
from pipeline.road.ladder.stages import place_of, pretraining, run_stages, seconds_of, stages_of
from pipeline.run.events import Event
from tests.pipeline.process_group import PATIENCE_S, forked_environment
from tests.pipeline.real_text import write_text_store

PRETRAIN = """
name: masked
data: {stores: [{path: data/tokens}], held_out: 0.1}
model: {num_layers: 1, hidden_size: 32, num_heads: 2, intermediate_size: 64, max_positions: 64, dropout: 0.0}
objective: {kind: mlm}
batch: {sequence_length: 32, samples: 8, micro_batch_size: 8}
steps: 1
optimizer: {lr: 1e-3}
evaluation: {every_steps: 100, samples: 16}
checkpoint: {every_steps: 100, keep_last: 1}
zero: {stage: 0}
"""
DATA = "name: text\nout: data\nsources: [{kind: books_text, name: books, paths: [text/*]}]\n"
FINETUNE = """
tasks:
  colours:
    kind: rows_classification
    train: train.csv
    evaluation: dev.csv
    columns: {text: text, label: label}
training: {epochs: 2, lr: 1e-3, batch_size: 8, max_length: 32}
num_threads: 1
"""
LADDER = """
name: two
data: [data.yaml]
tokens: 40_000
seeds: [1, 2]
finetune: finetune.yaml
arms: {none: {pretrain: masked.yaml, initial: random}, masked: {pretrain: masked.yaml}}
comparisons:
  masked:
    title: None and masked
    order: none < masked
    tasks: [colours]
    source: A paper, table 1
    finding: more with masks | than without
ceilings: {colours: {score: 1.0, source: by eye}}
"""
COLOURS = ("red", "blue", "green")


def write_ladder(directory: Path) -> Path:
    """A ladder of two arms, whose data is prepared already."""
    write_text_store(directory / "data" / "tokens", "tiny")
    (directory / "text").mkdir()
    (directory / "text" / "book.txt").write_text("A text of some words, which nothing reads.\n" * 10)
    for name, count in (("train", 48), ("dev", 30)):
        rows = [f"the sky is {COLOURS[n % 3]} {n},{COLOURS[n % 3]}" for n in range(count)]
        (directory / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    for name, text in (("data", DATA), ("masked", PRETRAIN), ("finetune", FINETUNE), ("ladder", LADDER)):
        (directory / f"{name}.yaml").write_text(text)
    return directory / "ladder.yaml"


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [forked_environment() / "bin" / "python", "-m", "pipeline.cli", "ladder", "ladder.yaml", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end_of(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def ladder_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ladder(tmp_path_factory.mktemp("ladder"))


@pytest.fixture(scope="module")
def stopped(ladder_file: Path) -> subprocess.CompletedProcess[str]:
    """The ladder, stopped by SIGTERM in the middle of its first pre-training."""
    directory = ladder_file.parent
    process = start(directory)
    while not started_runs(directory) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    return end_of(process)


def started_runs(directory: Path) -> list[Path]:
    """Find the runs that have started.

    The first evaluation lies before them; all of their steps together take less time than a busy test is late.
    """
    return [path for path in directory.glob("runs/*/events.jsonl") if '"event":"started"' in path.read_text()]


@pytest.fixture(scope="module")
def finished(
    ladder_file: Path, stopped: subprocess.CompletedProcess[str]
) -> subprocess.CompletedProcess[str]:
    """The same command again, to the end."""
    return end_of(start(ladder_file.parent, "--markdown", "ladder.md", "--html", "ladder.html", "--json"))


@pytest.fixture
def shown(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What it told programs."""
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.fixture
def ladder(ladder_file: Path, monkeypatch: pytest.MonkeyPatch) -> Ladder:
    monkeypatch.chdir(ladder_file.parent)
    return load_ladder(Path("ladder.yaml"), [])


def test_stopped_ladder_ends_with_75_and_the_command_that_continues_it(
    stopped: subprocess.CompletedProcess[str],
):
    assert stopped.returncode == 75, stopped.stderr
    assert "Next: cloze ladder ladder.yaml" in stopped.stderr
    assert "Traceback" not in stopped.stderr


def test_same_command_continues_the_runs_that_had_begun(
    finished: subprocess.CompletedProcess[str], ladder: Ladder
):
    assert finished.returncode == 0, finished.stderr
    runs = [find_same_run(ladder.run_of("masked", seed)) for seed in (1, 2)]
    assert len(list(Path("runs").glob("two-masked-*"))) == 2
    assert sum(len(one.events(Event.STARTED)) for one in runs if one is not None) > 2


def test_time_of_an_arm_is_the_mean_of_its_runs_and_the_total_has_every_training(
    shown: dict[str, Any], ladder: Ladder
):
    seconds = {name: seconds_of(ladder, stage) for name, stage in stages_of(ladder).items()}
    assert seconds.pop("data-text") is None
    assert all(value is not None and value > 0 for value in seconds.values())
    runs = [seconds[f"pretrain-two-masked-seed{seed}"] or 0.0 for seed in (1, 2)]
    assert shown["spent"]["by_arm"] == pytest.approx({"none": 0.0, "masked": statistics.fmean(runs)})
    assert shown["spent"]["total_s"] == pytest.approx(sum(filter(None, seconds.values())), abs=0.1)


def test_figures_are_those_of_the_saved_predictions(shown: dict[str, Any], ladder: Ladder):
    means = {}
    for arm in ("none", "masked"):
        values = []
        for seed in (1, 2):
            (path,) = (ladder.config.out / shown["scores"][f"{arm}/{seed}"]).glob("predictions-*.jsonl")
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            values.append(statistics.fmean(line["label"] == line["prediction"] for line in lines))
        means[arm] = statistics.fmean(values)
    (comparison,) = shown["comparisons"]
    (task,) = comparison["tasks"]
    assert {score["arm"]: score["mean"] for score in task["scores"]} == pytest.approx(means)
    assert task["pairs"][0]["difference"] == pytest.approx(means["masked"] - means["none"])
    (facts,) = shown["tasks"]
    assert facts["floors"] == pytest.approx({"most frequent label": 1 / 3, "words alone": 1.0})


def test_arms_show_their_held_out_loss_before_and_after_pre_training(shown: dict[str, Any], ladder: Ladder):
    first, last = [], []
    for seed in (1, 2):
        run = place_of(ladder, pretraining(ladder, "masked", seed))
        assert run is not None
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        losses = [line["data"]["loss"] for line in lines if line["kind"] == "held_out"]
        first.append(losses[0])
        last.append(losses[-1])
    arms = {arm["arm"]: arm["held_out"] for arm in shown["arms"]}
    assert arms["none"] is None
    assert arms["masked"] == pytest.approx([statistics.fmean(first), statistics.fmean(last)])
    assert f"{arms['masked'][0]:.3f} to {arms['masked'][1]:.3f}" in Path("ladder.md").read_text()


def test_result_is_an_artefact_of_the_scores(shown: dict[str, Any], ladder: Ladder):
    assert Path(shown["directory"]) == ladder.directory
    assert json.loads((ladder.directory / "ladder.json").read_bytes()).items() <= shown.items()
    manifest = json.loads((ladder.directory / "manifest.json").read_bytes())
    assert [entry["kind"] for entry in manifest["inputs"]] == ["scores"] * 4
    tree = trace(str(ladder.directory), ladder.config.runs_dir)
    assert (tree.kind, {node.kind for node in tree.inputs}) == ("ladder", {"scores"})
    assert "checkpoint" in {each.kind for node in tree.inputs for each in node.inputs}


def test_finished_ladder_starts_nothing(finished: subprocess.CompletedProcess[str], ladder: Ladder):
    before = {path: path.stat().st_mtime_ns for path in Path("ladder").rglob("*.*") if path.name != ".lock"}
    run_stages(ladder, "cloze ladder ladder.yaml")
    assert commit_result(ladder, collect(ladder)) == ladder.directory
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_pages_show_verdicts_and_need_nothing_else(
    finished: subprocess.CompletedProcess[str], ladder: Ladder
):
    verdict = collect(ladder)["comparisons"][0]["tasks"][0]["pairs"][0].verdict
    for name in ("ladder.md", "ladder.html"):
        text = Path(name).read_text()
        assert f"{verdict}" in text
        assert "A paper, table 1" in text
    assert "more with masks | than" in Path("ladder.html").read_text()
    assert not re.search(r"<script|(?:src|href)=[\"'](?!#)|url\((?!#)", Path("ladder.html").read_text())
    assert "<svg" in Path("ladder.html").read_text()


def test_another_budget_is_another_ladder(finished: subprocess.CompletedProcess[str], ladder: Ladder):
    longer = load_ladder(Path("ladder.yaml"), ["tokens=50000"])
    left = [name for name, stage in stages_of(longer).items() if place_of(longer, stage) is None]
    assert left == [
        "pretrain-two-masked-seed1",
        "finetune-masked-seed1",
        "pretrain-two-masked-seed2",
        "finetune-masked-seed2",
    ]
    assert all(place_of(ladder, stage) is not None for stage in stages_of(ladder).values())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            ["arms.masked.finetune=[training.lrr=1]", "arms.none.pretrain=no.yaml"],
            ["training.lrr", "no.yaml"],
        ),
        (
            [
                "comparisons.masked.order=none < maskd",
                "seeds=[1, 1]",
                "ceilings.colors={score: 1, source: x}",
            ],
            ["did you mean colours?", "did you mean masked?", "seeds"],
        ),
        (["data=[other.yaml]"], ["data/tokens"]),
        (["finetune=sst2.yaml"], ["sst2"]),
        (["arms.masked.finetune=[training.distill.teacher=scores]"], ["arms.masked.finetune", "teacher"]),
    ],
    ids=["files", "names", "store of no data", "data that may hold evaluation texts", "teacher"],
)
def test_all_problems_are_told_at_once_and_refused(ladder: Ladder, wrong: list[str], words: list[str]):
    Path("other.yaml").write_text(DATA.replace("out: data", "out: elsewhere"))
    Path("sst2.yaml").write_text("tasks: {colours: {kind: sst2, path: sst2}}\n")
    with pytest.raises(ConfigError) as caught:
        load_ladder(Path("ladder.yaml"), wrong)
    assert all(word in str(caught.value) for word in words)


def test_sizes_before_data_is_prepared_are_those_of_the_vocabulary_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    file = write_ladder(tmp_path)
    shutil.rmtree("data")
    with Path("data.yaml").open("a") as data:
        data.write("tokenizer: {vocab_size: 700}\n")
    found = load_ladder(file, []).flops_per_token("masked")
    Path("masked.yaml").write_text(PRETRAIN.replace("{num_layers", "{vocab_size: 700, num_layers"))
    assert found == load_ladder(file, []).flops_per_token("masked")

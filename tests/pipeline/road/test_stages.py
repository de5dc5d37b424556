"""A road is checked to its end before its first stage starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.artefacts.errors import ConfigError, MismatchError
from pipeline.config.loading import load_config
from pipeline.road.demo import demo_road
from pipeline.road.stages import RoadConfig, StageConfig, load_stages

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

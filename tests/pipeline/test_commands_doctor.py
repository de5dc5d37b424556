"""`cloze doctor` on the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pipeline.commands import verbs


@pytest.fixture
def app(tmp_path, monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI", "CLOZE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOZE_LOCAL_CLUSTER", str(tmp_path / "no-cluster.json"))
    return verbs.app


def test_doctor_exits_0_when_nothing_failed_and_answers_programs(app, tmp_path):
    result = CliRunner().invoke(app, ["doctor", "--json", "--runs-dir", str(tmp_path)])
    answer = json.loads(result.stdout)
    assert result.exit_code == 0, result.output
    assert answer["ok"] is True
    assert {"name", "status", "found", "remedy"} == set(answer["checks"][0])


def test_doctor_exits_1_when_something_failed_and_says_what_to_do(app, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    result = CliRunner().invoke(
        app, ["doctor", "--runs-dir", str(tmp_path), "--address", "http://127.0.0.1:2"]
    )
    assert result.exit_code == 1
    assert "2 failed" in result.output
    assert "MLFLOW_TRACKING_URI" in result.output

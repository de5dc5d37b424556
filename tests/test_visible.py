"""What strangers wrote moves no cursor, exchanges no letters and opens no address, on a terminal or on a page."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cluster import logs
from cluster.artefacts.errors import ConfigError, MissingInputError, StorageError
from cluster.artefacts.signatures import make_keys
from cluster.artefacts.visible import visible
from pipeline.commands.output import json_text, print_table
from pipeline.run.tracking import start_run

ODD = "a\x1b[2J\x9b\u202eb\r"


def test_nothing_odd_reaches_the_terminal(capsys: pytest.CaptureFixture[str]):
    print_table(ODD, ("x", ODD), [(1, ODD)])
    print_table("", ("x",), [(ODD,)] * 1001)
    logs.say(ODD)
    print(MissingInputError(ODD, kept=ODD, next_step=ODD))
    printed = "".join(capsys.readouterr()) + json_text({"a": ODD})
    assert set(ODD) & set(printed) <= set("a[2Jb")
    assert json.loads(json_text({"a": ODD})) == {"a": ODD}
    assert visible("line\n\tשלום\u200e") == "line\n\tשלום\u200e"


@pytest.mark.parametrize("name", ["../../x", "a/b", "", ".."])
def test_keys_are_written_where_they_were_asked_for(tmp_path: Path, name: str):
    with pytest.raises(ConfigError):
        make_keys(tmp_path / "keys/inner", name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file", "locked"])
def test_a_directory_of_runs_that_cannot_be_written_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    # As for a user who is not root.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError):
        start_run("e", "n", config={}, tags={}, runs_dir=tmp_path / place / "runs")

"""`cloze cluster render` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.artefacts.errors import ConfigError, StorageError
from pipeline.commands.verbs import app


def render(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cluster", "render", *arguments], catch_exceptions=False)
    if isinstance(result.exception, BaseException) and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_files_are_written_with_their_settings_and_what_comes_next_is_printed(tmp_path: Path):
    printed = render(
        "slurm", "--set", "nodes=4", "--set", "verb=pretrain a.yaml", "--out", str(tmp_path / "out")
    )
    assert printed == (tmp_path / "out" / "NEXT.md").read_text()
    assert "#SBATCH --nodes=4\n" in (tmp_path / "out" / "cloze.sbatch").read_text()
    assert (tmp_path / "out" / "cloze.sbatch").stat().st_mode & 0o111
    render(str(tmp_path / "out" / "settings.yaml"), "--out", str(tmp_path / "again"))
    for path in sorted((tmp_path / "out").iterdir()):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_changed_files_are_replaced_on_request_only(tmp_path: Path):
    render("ssh", "--out", str(tmp_path))
    render("ssh", "--out", str(tmp_path))
    (tmp_path / "node.sh").write_text("edited")
    with pytest.raises(ConfigError, match=r"other versions of node\.sh") as caught:
        render("ssh", "--set", "port=7000", "--out", str(tmp_path))
    assert "start.sh" not in str(caught.value)
    assert (tmp_path / "node.sh").read_text() == "edited"
    render("ssh", "--set", "port=7000", "--out", str(tmp_path), "--replace")
    assert ":7000" in (tmp_path / "node.sh").read_text()
    with pytest.raises(StorageError, match="/proc/there"):
        render("ssh", "--out", "/proc/there")
    with pytest.raises(ConfigError, match="is a file"):
        render("ssh", "--out", str(tmp_path / "node.sh"))

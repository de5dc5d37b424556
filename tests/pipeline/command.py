"""The command line in this process, for tests of what it answers."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from pipeline.commands.verbs import app


def cloze(*arguments: object) -> str:
    """What a verb that succeeds prints."""
    done = invoke(*arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def invoke(*arguments: object, catch_exceptions: bool = True) -> Result:
    """How a verb ends, and what it prints."""
    return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=catch_exceptions)

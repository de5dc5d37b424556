"""Ctrl-C on the command line: what is kept, how to go on, and the exit code of shells."""

import sys

import pytest
import typer

from pipeline import cli


def run(monkeypatch, verb) -> object:
    """Exit code of the command line with one verb."""
    app = typer.Typer()
    app.command()(verb)
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "enter_start_directory", lambda: None)
    monkeypatch.setattr(sys, "argv", ["cloze"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize("note", [None, "cloze resume tiny-1"])
def test_an_interrupted_verb_says_how_to_go_on(monkeypatch, capsys, note):
    def verb():
        interrupt = KeyboardInterrupt()
        if note:
            interrupt.add_note(note)
        raise interrupt

    assert run(monkeypatch, verb) == 130
    assert f"To continue: {note or 'the same command'}\n" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 3, 130])
def test_a_verb_that_ends_by_itself_keeps_its_exit_code_and_its_words(monkeypatch, capsys, code):
    def verb():
        raise typer.Exit(code)

    assert run(monkeypatch, verb) == code
    assert capsys.readouterr().err == ""

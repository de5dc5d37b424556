"""Typed errors: they cross process boundaries whole, and no two share an exit code."""

import copy
import pickle

import pytest

from cluster.artefacts.errors import ClozeError, ConfigError, ConfigProblem, exit_codes


def all_errors() -> list[type[ClozeError]]:
    found, pending = [], [ClozeError]
    while pending:
        found.append(pending.pop())
        pending.extend(found[-1].__subclasses__())
    return [cls for cls in found if cls.__module__ == "cluster.artefacts.errors"]


@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_with_all_it_says(cls):
    problems = {"problems": (ConfigProblem("a.b", "3", "must be 4"),)} if cls is ConfigError else {}
    error = cls("it broke", kept="the rest", next_step="type this", **problems)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert vars(again) == vars(error)
        assert str(again) == str(error)
    if problems:
        assert str(error).splitlines()[:2] == ["it broke", "  a.b = 3: must be 4"]


def test_exit_codes_are_distinct():
    # A class without a code of its own has its parent's, and another page.
    assert sorted(exit_codes()) == sorted(cls.exit_code for cls in all_errors() if "exit_code" in vars(cls))

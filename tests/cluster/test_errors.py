"""Typed errors: they cross process boundaries whole, and no two share an exit code."""

import copy
import pickle

import pytest

from cluster.artefacts.errors import (
    ClozeError,
    ConfigError,
    ConfigProblem,
    exit_codes,
)


def all_errors() -> list[type[ClozeError]]:
    found, pending = [], [ClozeError]
    while pending:
        found.append(pending.pop())
        pending.extend(found[-1].__subclasses__())
    return [cls for cls in found if cls.__module__ == "cluster.artefacts.errors"]


@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_with_all_it_says(cls):
    error = cls("it broke", kept="the rest", next_step="type this")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert (again.problem, again.kept, again.next_step) == ("it broke", "the rest", "type this")
        assert str(again) == str(error)


def test_config_problems_survive_pickling():
    error = ConfigError(
        "1 problem", problems=(ConfigProblem("a.b", "3", "must be 4"),), next_step="change it"
    )
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ConfigError)
    assert again.problems == error.problems
    assert str(again).splitlines() == ["1 problem", "  a.b = 3: must be 4", "Next: change it"]


def test_exit_codes_are_distinct():
    # A class without a code of its own has its parent's, and another page.
    assert sorted(exit_codes()) == sorted(cls.exit_code for cls in all_errors() if "exit_code" in vars(cls))

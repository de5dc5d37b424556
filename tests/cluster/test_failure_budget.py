"""Which failures of a group are tried again."""

from __future__ import annotations

import pytest

from cluster.failure_budget import FailureBudget


class Failed(Exception):
    """As Ray Train's error of a group: the exceptions of its workers."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.worker_failures = dict(enumerate(errors))


@pytest.mark.parametrize(
    ("errors", "again"),
    [
        ([RuntimeError("connection reset by peer")], True),
        ([ValueError("once more")], True),
        ([ModuleNotFoundError("No module named 'flash'")], False),
        ([RuntimeError("connection reset by peer"), NotImplementedError("no such mix")], False),
    ],
)
def test_what_cannot_pass_is_not_tried_again(errors: list[Exception], again: bool) -> None:
    assert FailureBudget(max_failures=3).spend(Failed(*errors)) is again

"""A watch goes on after errors."""

import threading

from cluster.artefacts.errors import StorageError
from cluster.artefacts.owner import repeated


def test_an_error_ends_no_watch_and_the_block_ends_after_a_last_look(capsys):
    looks, third = [], threading.Event()

    def look() -> None:
        looks.append(None)
        if len(looks) == 3:
            third.set()
        raise StorageError("full") if len(looks) < 3 else OSError("stale")

    with repeated(look, 0.01, name="a watch", once_more=True):
        assert third.wait(60)
        before = len(looks)
    assert len(looks) > before
    assert capsys.readouterr().err.splitlines() == ["a watch: StorageError: full", "a watch: OSError: stale"]

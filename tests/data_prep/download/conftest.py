"""A publisher on this machine, and requests that do not wait long for it."""

from collections.abc import Iterator

import pytest

from data_prep.download.http import Http
from tests.data_prep.download.publisher import Publisher, serve


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with serve() as own:
        yield own


@pytest.fixture
def http() -> Iterator[Http]:
    """Requests that wait for milliseconds."""
    own = Http(attempts=4, first_wait_s=0.01, longest_wait_s=0.02, timeout_s=5)
    with own.session:
        yield own

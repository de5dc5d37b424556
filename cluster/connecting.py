"""The way into a Ray cluster that runs: refused within seconds, in one sentence, where there is none to enter."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.artefacts.errors import ClusterUnreachableError

_PROBE_TIMEOUT_S = 5.0
_REFUSED_TOKEN = ("InvalidAuthToken", "Unauthenticated", "AuthenticationError")
"""What Ray's log says where a cluster asks for a token and is given none or another one."""


def connect_to_cluster(address: str, **options: Any) -> None:
    """`ray.init` at an address that the user named. `options` are those of `ray.init`.

    Raises:
        ClusterUnreachableError: nothing answers there, what answers is no Ray, or the cluster refuses the token.
    """
    import ray
    from ray.exceptions import AuthenticationError

    _require_grpc(address)
    with _captured_stderr() as said:
        try:
            ray.init(address=address, **options)
        except AuthenticationError as error:
            raise _refused(address, str(error).partition("\n")[0]) from error
        except (ConnectionError, RuntimeError, ValueError) as error:
            if any(word in text for word in _REFUSED_TOKEN for text in (str(error), said.getvalue())):
                raise _refused(address, "the token is missing or wrong") from error
            raise _no_answer(address, str(error).partition("\n")[0]) from error


def _require_grpc(address: str) -> None:
    """Ray itself tries for ten minutes to reach a port where nothing, or something else, listens."""
    import grpc

    host_and_port = address.removeprefix("ray://")
    if ":" not in host_and_port or "://" in host_and_port:
        return
    with grpc.insecure_channel(host_and_port, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_PROBE_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise _no_answer(address, f"no answer within {_PROBE_TIMEOUT_S:.0f} s") from None


class _Captured:
    """What was written to the standard error stream in the meantime."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def getvalue(self) -> str:
        self._file.seek(0)
        return self._file.read().decode(errors="replace")


@contextmanager
def _captured_stderr() -> Iterator[_Captured]:
    """Keep what Ray's C++ part writes to file descriptor 2; shown afterwards, unless connecting failed."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        said = _Captured(file)
        try:
            yield said
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
        if text := said.getvalue():
            sys.stderr.write(text)


def _refused(address: str, reason: str) -> ClusterUnreachableError:
    return ClusterUnreachableError(
        f"The Ray cluster at {address} refuses to be used: {reason}",
        next_step=(
            "export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, where FILE holds the cluster's token"
            " (on its head node `~/.ray/auth_token` unless set otherwise)"
        ),
    )


def _no_answer(address: str, reason: str) -> ClusterUnreachableError:
    return ClusterUnreachableError(
        f"No Ray cluster answers at {address}: {reason}",
        next_step=(
            "check the address, HOST:6379 unless the cluster was started with another --port,"
            " with `ray status --address=...`; without one, cloze runs locally"
        ),
    )

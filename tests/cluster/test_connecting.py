"""Connecting where no cluster answers, or one refuses access: an error within seconds, in one sentence."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.connecting import connect_to_cluster


def test_an_address_where_nothing_listens_is_refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ClusterUnreachableError, match=f"No Ray cluster answers at {address}"):
            connect_to_cluster(address)


def test_a_port_that_speaks_something_else_is_no_cluster():
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(ClusterUnreachableError, match=f"No Ray cluster answers at {address}"):
            connect_to_cluster(address)
        server.shutdown()

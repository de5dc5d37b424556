"""Connecting where no cluster answers, or one refuses access: an error within seconds, in one sentence."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cluster import connecting
from cluster.artefacts.errors import ClusterUnreachableError
from cluster.connecting import connect_to_cluster


@pytest.mark.parametrize("speaks", [False, True], ids=["nothing listens", "speaks something else"])
def test_an_address_without_a_cluster_is_refused(speaks: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connecting, "TIMEOUT_S", 1.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        if speaks:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        else:
            server.socket.close()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(ClusterUnreachableError, match=address):
            connect_to_cluster(address)
        if speaks:
            server.shutdown()

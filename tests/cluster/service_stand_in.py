"""A Service as kube-proxy makes it: one address that leads to the pod with a label.

There are no kubelets and no kube-proxy here, so this stands in for them: each connection is led to
the port of the pod that is labelled leader at that moment.
"""

import contextlib
import socket
import threading
from collections.abc import Mapping

from kube_api import Api

SELECTOR = "weft.dev/role=leader"


class ServiceStandIn:
    """`ports` says which local port each pod's process listens on; it may grow."""

    def __init__(self, api: Api, namespace: str, ports: Mapping[str, int]) -> None:
        self._api, self._namespace, self._ports = api, namespace, ports
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def leader(self) -> str:
        """The pod with the label; "" while there is none."""
        found = self._api.list("Pod", self._namespace, labelSelector=SELECTOR)
        return str(found[0]["metadata"]["name"]) if found else ""

    def close(self) -> None:
        """Take no more connections."""
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._lead, args=(client,), daemon=True).start()

    def _lead(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, KeyError):
            server = socket.create_connection(("127.0.0.1", self._ports[self.leader()]))
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()
            server.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

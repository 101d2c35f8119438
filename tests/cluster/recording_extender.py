"""An extender that only listens: which nodes kube-scheduler's own filters leave for each pod."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from processes import HttpThread


class RecordingExtender(HttpThread):
    """Refuses every node, so that pods stay as they are, and keeps the first question about each.

    `feasible[pod]` are the names kube-scheduler asked about; pods that it found no node for are
    never asked about.
    """

    def __init__(self) -> None:
        self.feasible: dict[str, frozenset[str]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                asked = json.loads(self.rfile.read(length))
                names = asked["NodeNames"] or []
                outer.feasible.setdefault(asked["Pod"]["metadata"]["name"], frozenset(names))
                answer = {"NodeNames": [], "FailedNodes": dict.fromkeys(names, "only listening")}
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), Handler))

    @property
    def configuration(self) -> dict[str, Any]:
        """A KubeSchedulerConfiguration that asks it about every pod, once, and scores no node."""
        return {
            "percentageOfNodesToScore": 100,
            "clientConnection": {"qps": 1_000, "burst": 1_000},
            "podInitialBackoffSeconds": 600,
            "podMaxBackoffSeconds": 600,
            "extenders": [
                {
                    "urlPrefix": f"http://127.0.0.1:{self._server.server_port}",
                    "filterVerb": "filter",
                    "nodeCacheCapable": True,
                }
            ],
        }

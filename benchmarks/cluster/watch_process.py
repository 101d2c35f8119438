"""An independent watch: when each pod was first seen with a node. Run as a process of its own.

    python watch_process.py HOST:PORT CA CERTIFICATE KEY COUNT

Says `watching`, then, once COUNT pods have nodes, one line of JSON. Times are CLOCK_MONOTONIC's,
which all processes of a machine share.
"""

import http.client
import json
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec


class Meta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""


class Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: Meta = Meta()
    spec: Spec = Spec()


class Line(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: Pod


DECODE = msgspec.json.Decoder(Line).decode


def summary(times: list[float]) -> dict[str, float]:
    """Rates in pods a second, from the first to the last and over the middle 80 %."""
    edge = len(times) // 10
    middle = times[edge : len(times) - edge] if edge else times
    return {
        "bound": len(times),
        "first": times[0],
        "last": times[-1],
        "rate": _rate(times),
        "middle_rate": _rate(middle),
    }


def _rate(times: list[float]) -> float:
    took = times[-1] - times[0]
    return round((len(times) - 1) / took, 1) if took > 0 else 0.0


class Watcher:
    """Goes on where it was when the server drops it, as it does with slow readers under load."""

    def __init__(self, where: str, context: ssl.SSLContext, count: int) -> None:
        self._where, self._context, self._count = where, context, count
        self._seen: set[str] = set()
        self.times: list[float] = []
        self.resumed = -1
        self._since = ""

    def begin(self) -> None:
        """From now."""
        connection = http.client.HTTPSConnection(self._where, context=self._context)
        connection.request("GET", "/api/v1/pods?limit=1")
        listed: dict[str, Any] = json.loads(connection.getresponse().read())
        self._since = listed["metadata"]["resourceVersion"]
        connection.close()

    def read(self, begun: Callable[[], None]) -> None:
        """One watch, to its end or ours."""
        self.resumed += 1
        connection = http.client.HTTPSConnection(self._where, context=self._context)
        connection.request("GET", f"/api/v1/pods?watch=1&resourceVersion={self._since}")
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"the watch was refused: {response.status}")
        begun()
        rest = b""
        while len(self.times) < self._count and (chunk := response.read1(1 << 20)):
            now = time.monotonic()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line, now)
        connection.close()

    def _take(self, line: bytes, now: float) -> None:
        told = DECODE(line)
        if told.type == "ERROR":
            sys.exit(f"the watch failed: {line.decode()}")
        pod = told.object
        self._since = pod.metadata.resource_version
        if pod.spec.node_name and pod.metadata.uid not in self._seen:
            self._seen.add(pod.metadata.uid)
            self.times.append(now)


def main() -> None:
    where, authority, certificate, key, count = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(certificate, key)
    watcher = Watcher(where, context, int(count))
    watcher.begin()
    watcher.read(lambda: print("watching", flush=True))
    while len(watcher.times) < int(count):
        watcher.read(lambda: None)
    found = {**summary(watcher.times), "watch_resumed": watcher.resumed}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""A fake of dcgm-exporter: it plays the GPUs that it is given, over HTTP, in its text format.

No GPU is looked at. Change `gpus` and `mood` at any time; a page shows what they are at the moment.
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import msgspec

Mood = Literal["good", "garbage", "slow", "broken"]

_NAMES = {
    "DCGM_FI_DEV_FB_USED": "used_mib",
    "DCGM_FI_DEV_FB_FREE": "free_mib",
    "DCGM_FI_DEV_FB_RESERVED": "reserved_mib",
    "DCGM_FI_DEV_GPU_UTIL": "util_percent",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active",
    "DCGM_FI_PROF_SM_OCCUPANCY": "sm_occupancy",
    "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active",
}


class PlayedPod(msgspec.Struct, frozen=True):
    """A pod on a GPU; `own` are its own values by metric name, where the exporter tells them."""

    namespace: str
    name: str
    container: str = "c"
    own: dict[str, float] = {}


class PlayedGpu(msgspec.Struct, frozen=True):
    """The exporter's values of one GPU; None leaves the metric out."""

    node: str
    index: int
    uuid: str = ""
    used_mib: float | None = 0
    free_mib: float | None = 16_000
    reserved_mib: float | None = None
    util_percent: float | None = 0
    power_w: float | None = 30
    sm_active: float | None = 0
    sm_occupancy: float | None = None
    dram_active: float | None = 0
    pods: tuple[PlayedPod, ...] = ()
    labels: dict[str, str] = {}

    def series(self) -> list[tuple[str, dict[str, str], float]]:
        """(name, labels, value) of each line, as KUBERNETES_VIRTUAL_GPUS has them."""
        card = {
            "gpu": str(self.index),
            "device": f"nvidia{self.index}",
            "modelName": "FakeWorkload",
            "Hostname": self.node,
            **({"UUID": self.uuid} if self.uuid else {}),
            **self.labels,
        }
        series = []
        for name, field in _NAMES.items():
            value = getattr(self, field)
            if value is None:
                continue
            own = [pod for pod in self.pods if name in pod.own]
            if not self.pods or own:
                series.append((name, card, value))
            for pod in self.pods:
                owner = {"pod": pod.name, "namespace": pod.namespace, "container": pod.container}
                series.append((name, card | owner, pod.own.get(name, value)))
        return series


def page(gpus: list[PlayedGpu]) -> str:
    """The metrics page of these GPUs."""
    by_name: dict[str, list[str]] = {}
    for gpu in gpus:
        for name, labels, value in gpu.series():
            inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
            by_name.setdefault(name, []).append(f"{name}{{{inner}}} {value:g}")
    lines = []
    for name, series in by_name.items():
        lines += [f"# HELP {name} FakeWorkload.", f"# TYPE {name} gauge", *series]
    return "\n".join(lines) + "\n"


class FakeExporter:
    """Use it as `with FakeExporter([...]) as exporter`; `address` is host:port, `url` its page."""

    def __init__(
        self, gpus: list[PlayedGpu] | None = None, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        self.gpus = gpus or []
        self.mood: Mood = "good"
        self.asked = threading.Semaphore(0)
        self._let_go = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake._answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        serve = self._server.serve_forever  # the argument: how soon it hears that it shall end
        self._thread = threading.Thread(target=serve, args=(0.02,), daemon=True)

    def __enter__(self) -> "FakeExporter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """host:port."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    @property
    def url(self) -> str:
        """The metrics page."""
        return f"http://{self.address}/metrics"

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        if self.mood == "slow":
            self._let_go.wait()
            return
        body = b"<html>no metrics here" if self.mood == "garbage" else page(self.gpus).encode()
        request.send_response(500 if self.mood == "broken" else 200)
        request.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
        self.asked.release()

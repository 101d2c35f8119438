"""`weft agent` as a node runs it, for tests: the process, and what it has done."""

import contextlib
import itertools
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from control_plane import HOST
from played_gpus import PlayedGpus
from processes import Server, free_ports
from real_node import RealNode

from weft.model.annotations import AGENT

ASKED = "each container"  # what it logs once the runtime asks about containers
_STARTS_S = 60.0
_numbers = itertools.count(1)


class Agent(Server):
    """A running `weft agent`, on played GPUs or (None) on this machine's own.

    `program` is what Python runs in the place of weft's own command.
    """

    def __init__(
        self,
        node: RealNode,
        gpus: PlayedGpus | None,
        *options: str | Path,
        program: Sequence[str | Path] = ("-m", "weft.cli.main"),
    ) -> None:
        self.node = node
        (self.port,) = free_ports(1)
        command: list[str | Path] = [
            *(sys.executable, *program, "agent", "--node-name", node.name),
            *(("--devices", gpus.path) if gpus is not None else ()),
            *("--nri-socket", node.containerd.nri_socket),
            *("--cri-socket", node.containerd.socket),
            *("--kubeconfig", node.plane.kubeconfig_for("weft-agent", "system:masters")),
            *("--listen", f"{HOST}:{self.port}", *options),
        ]
        super().__init__(command, node.folder / f"agent-{next(_numbers)}.log")
        self.name = "weft agent"

    def begin(self) -> None:
        """Start it; the runtime asks it about containers, and its node says so."""
        told = self.node.api.get("Node", self.node.name)["metadata"].get("annotations", {})
        self.start()
        self.until(ASKED)
        if AGENT not in told:
            self.wait_offered()

    def wait_offered(self) -> None:
        """Until its node says what it offers."""
        self.node.api.wait_for(
            lambda nodes: any(AGENT in n["metadata"].get("annotations", {}) for n in nodes), "Node"
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def said(self) -> str:
        """All of its log."""
        return self.log.read_text(errors="replace")

    def until(self, pattern: str, timeout_s: float = _STARTS_S) -> None:
        """As soon as this stands in its log."""
        self.wait_ready(lambda: re.search(pattern, self.said) is not None, timeout_s)

    def metrics(self) -> dict[str, float]:
        """Values of its /metrics, by name with labels as written there."""
        return metrics_of(f"http://{HOST}:{self.port}/metrics")

    def wait_killed(self, timeout_s: float) -> bool:
        """Tells whether it ended by itself in time."""
        process = self._process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        return not self.running

    def tell(self, number: int) -> None:
        """Send it this signal."""
        self._signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it this signal and wait; its exit code."""
        process = self._process
        assert process is not None
        self.tell(number)
        code = process.wait(_STARTS_S)
        self.kill()
        return code


def metrics_of(url: str) -> dict[str, float]:
    """Values of a page of metrics, by name with labels as written there."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


@contextlib.contextmanager
def agent(node: RealNode, gpus: PlayedGpus | None, *options: str | Path) -> Iterator[Agent]:
    """An agent that delivers; it is ended when this ends, if it still runs."""
    process = Agent(node, gpus, *options)
    try:
        process.begin()
        yield process
    finally:
        process.kill()

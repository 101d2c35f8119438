"""`weft scheduler` as users start it, for tests: the process, pods and nodes for it, the audit.

The audit reads API objects alone: what every process of Weft must be able to start from.
"""

import contextlib
import functools
import itertools
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import yaml
from control_plane import ControlPlane
from kube_api import Object, Objects
from processes import Server

from weft.core.ledger import Ledger, audit
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.dialects.registry import read_placement
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode

CARD_MIB, CARDS = 16_384, 2
GFD = {
    "nvidia.com/gpu.count": str(CARDS),
    "nvidia.com/gpu.memory": str(CARD_MIB),
    "nvidia.com/gpu.product": "Tesla-T4",
}
EXTENDER = ("--extender-port", "0", "--extender-address", "127.0.0.1")
ALONE = "--no-leader-elect"
GIB = DialectSettings(gpushare_unit="GiB")
_STARTS_S = 60.0
_SOME_URL = "http://127.0.0.1:54321"
_numbers = itertools.count(1)


class Weft(Server):
    """A running `weft scheduler`; `said` is what it has logged so far."""

    def __init__(self, kubeconfig: Path, log: Path, *options: str) -> None:
        command: list[str | Path] = [sys.executable, "-m", "weft.cli.main", "scheduler"]
        super().__init__([*command, "--kubeconfig", kubeconfig, "--http-port", "0", *options], log)
        self.name = "weft scheduler"

    @property
    def said(self) -> str:
        """All of its log."""
        return self.log.read_text(errors="replace")

    def until(self, pattern: str, timeout_s: float = _STARTS_S) -> re.Match[str]:
        """The first match in its log as soon as there is one; an error if it ends before."""
        self.wait_ready(lambda: re.search(pattern, self.said) is not None, timeout_s)
        found = re.search(pattern, self.said)
        assert found is not None
        return found

    @property
    def url(self) -> str:
        """Where its extender is reached; it must have been started with a port for it."""
        port = self.until(r"extender on (\d+)")[1]
        return f"http://127.0.0.1:{port}"

    def metrics(self) -> dict[str, float]:
        """Values of its extender's /metrics, by name with labels as written there."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def tell(self, number: int) -> None:
        """Send it this signal."""
        self._signal(number)

    def exit_code(self, timeout_s: float = 30.0) -> int:
        """Wait for its end; the code, or minus the signal's number."""
        process = self._process
        assert process is not None
        code = process.wait(timeout_s)
        self.kill()
        return code

    def end(self, number: int) -> int:
        """Send it this signal and wait; its exit code."""
        self.tell(number)
        return self.exit_code()


@contextlib.contextmanager
def weft(
    plane: ControlPlane, tmp_path: Path, *options: str, kubeconfig: Path | None = None
) -> Iterator[Weft]:
    """Starts Weft; it knows all there is when this returns, and is killed at the end if it still
    runs.

    Options of the command follow; with ALONE it need not wait for the lease of one that was
    killed. `kubeconfig` may lead it to the API server by another way.
    """
    process = starting(plane, tmp_path, *options, kubeconfig=kubeconfig)
    try:
        process.until(r"\bready: \d+ nodes")
        yield process
    finally:
        process.kill()


def starting(
    plane: ControlPlane, tmp_path: Path, *options: str, kubeconfig: Path | None = None
) -> Weft:
    """The process, just started: it has done nothing yet."""
    access = kubeconfig or plane.kubeconfig_for("weft", "system:masters")
    process = Weft(access, tmp_path / f"weft-{next(_numbers)}.log", *options)
    process.start()
    return process


def extender_config(url: str, dialects: str) -> Object:
    """The output of `weft extender config`, as a user would pass it on to kube-scheduler."""
    found: Object = yaml.safe_load(_printed(dialects).replace(_SOME_URL, url))
    return found


@functools.cache
def _printed(dialects: str) -> str:
    """The command's output for one URL, printed once: another URL changes nothing else."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "weft.cli.main",
            "extender",
            "config",
            "--dialects",
            dialects,
            "--url",
            _SOME_URL,
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


# --- what is in the cluster ----------------------------------------------------------------------


def resources(cards: int = CARDS, card_mib: int = CARD_MIB) -> dict[str, str]:
    """Resources as the device plugins of several systems report them for a node with so many
    cards."""
    gib = card_mib // 1024
    return {
        "elasticgpu.io/gpu-core": str(100 * cards),
        "elasticgpu.io/gpu-memory": str(card_mib * cards),
        "aliyun.com/gpu-mem": str(gib * cards),
        "aliyun.com/gpu-count": str(cards),
        "alnair/vgpu-memory": str(gib * cards),
        "alnair/vgpu-compute": str(100 * cards),
        "nvidia.com/gpu": str(cards),
    }


def nodes(plane: ControlPlane, count: int) -> None:
    """So many nodes, `node-0` …, each with CARDS cards and every system's device plugin."""
    for index in range(count):
        plane.create_fake_node(f"node-{index}", resources(), labels=GFD)


def pod(name: str, scheduler: str, limits: Mapping[str, object], **meta: object) -> Object:
    """A pod with one container; `meta` are more of its metadata."""
    asked = {resource: str(amount) for resource, amount in limits.items()}
    container = {"name": "main", "image": "none", "resources": {"limits": asked}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"containers": [container], "schedulerName": scheduler},
    }


# --- what must be so -----------------------------------------------------------------------------


def bound(pods: Objects) -> int:
    """How many of these have a node."""
    return sum(bool(one["spec"].get("nodeName")) for one in pods)


def all_bound(count: int) -> Callable[[Objects], bool]:
    """Makes the question whether there are so many pods, and each has a node."""
    return lambda pods: len(pods) == count == bound(pods)


def audited(plane: ControlPlane, namespace: str, settings: DialectSettings = GIB) -> Ledger:
    """The ledger as the API's objects alone say, whoever placed the pods. Nothing is over."""
    found = [
        inventory(msgspec.convert(raw, KubeNode, strict=False))[0] for raw in plane.api.list("Node")
    ]
    ledger = Ledger(found)
    by_name = {node.name: node for node in found}
    for raw in plane.api.list("Pod", namespace):
        one = msgspec.convert(raw, Pod, strict=False)
        node = by_name.get(one.spec.node_name or "")
        if node is not None and not one.ended:
            placement = read_placement(one, node, settings)
            assert placement is not None, one.metadata.name
            ledger.adopt(placement)
    assert audit(ledger) == []
    return ledger


def sigkill(process: Weft) -> None:
    """End it as a crash does: it can say and finish nothing more."""
    assert process.end(signal.SIGKILL) == -signal.SIGKILL

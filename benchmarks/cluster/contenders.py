"""The contenders: processes that are measured, how each is started and known to be ready."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from stage import Stage

# Both of tests/cluster, which `stage` has put on the path.
from binaries import cache  # isort: skip
from processes import Server  # isort: skip

HERE = Path(__file__).resolve().parent
QPS = {"qps": 5000, "burst": 10_000}
RAW_IN_FLIGHT = 64
_TICKS = os.sysconf("SC_CLK_TCK")


class Running(NamedTuple):
    """Processes that are there; the first one is whose name the run carries."""

    servers: list[Server]

    @property
    def main(self) -> Server:
        return self.servers[0]

    def stop(self) -> None:
        for server in self.servers:
            server.stop(timeout_s=20)


class Contender(NamedTuple):
    """`scheduler`: the schedulerName of the pods it is given; `events`: it writes one for each."""

    name: str
    scheduler: str
    start: Callable[[Stage], Running]
    events: bool = True


def weft(*options: str) -> Callable[[Stage], Running]:
    """`weft scheduler` as users start it."""

    def start(stage: Stage) -> Running:
        return Running([start_weft(stage, *options)])

    return start


def start_weft(stage: Stage, *options: str) -> Server:
    """The process, which has said that it leads."""
    server = weft_process(stage, *options)
    server.start()
    server.wait_ready(lambda: " leading, " in said(server))
    return server


def weft_process(stage: Stage, *options: str) -> Server:
    """The process, not started yet: as it comes, and with its decisions on record."""
    name = f"weft-{len(list(stage.folder.glob('weft-*.log')))}"
    record = stage.folder / f"{name}.jsonl.gz"
    kubeconfig = stage.plane.kubeconfig_for("weft", "system:masters")
    command = [sys.executable, "-m", "weft.cli.main", "scheduler", "--kubeconfig", str(kubeconfig)]
    command += ["--http-port", "0", "--decisions", str(record), *options]
    return Server(command, stage.folder / f"{name}.log")


def kube_scheduler(percent: int = 0) -> Callable[[Stage], Running]:
    """The real one, its client's own limit lifted; `percent` of the nodes scored, 0 as it comes."""

    def start(stage: Stage) -> Running:
        return Running([stage.plane.start_scheduler(_settings(percent))])

    return start


def raw(stage: Stage) -> Running:
    """Nothing but Binding POSTs."""
    script, kubeconfig = str(HERE / "raw_process.py"), str(stage.plane.kubeconfig)
    command = [sys.executable, script, kubeconfig, str(RAW_IN_FLIGHT)]
    server = Server(command, stage.folder / "raw.log")
    server.start()
    return Running([server])


def raw_go(stage: Stage) -> Running:
    """The same POSTs with Go's HTTP client, which is faster than ours: the server's own ceiling."""
    requests, plane = stage.folder / "requests", stage.plane
    script = [sys.executable, HERE / "raw_process.py", plane.kubeconfig, RAW_IN_FLIGHT, requests]
    subprocess.run([str(word) for word in script], check=True)
    pair = plane.authority.user("raw", "system:masters")
    files = [plane.authority.pair.certificate, pair.certificate, pair.key, requests]
    command = [go_client(), f"127.0.0.1:{plane.port}", *files, RAW_IN_FLIGHT]
    server = Server([str(word) for word in command], stage.folder / "raw-go.log")
    server.start()
    return Running([server])


def go_client() -> Path:
    """The program of raw.go, built once for each text of it, beside the cluster's binaries."""
    source = HERE / "raw.go"
    name = f"raw-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    program = cache() / name
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "build", "-o", str(program), str(source)], check=True)
    return program


def with_weft(dialects: str) -> Callable[[Stage], Running]:
    """kube-scheduler with Weft as its extender."""

    def start(stage: Stage) -> Running:
        extender = start_weft(stage, "--extender-port", "0", "--extender-address", "127.0.0.1")
        url = f"http://127.0.0.1:{extender_port(extender)}"
        return Running([stage.plane.start_scheduler(_extended(url, dialects)), extender])

    return start


def with_stub(dialects: str) -> Callable[[Stage], Running]:
    """kube-scheduler with an extender that only passes on."""

    def start(stage: Stage) -> Running:
        script, kubeconfig = str(HERE / "stub_process.py"), str(stage.plane.kubeconfig)
        command = [sys.executable, script, kubeconfig]
        stub = Server(command, stage.folder / f"stub-{os.urandom(4).hex()}.log")
        stub.start()
        stub.wait_ready(lambda: "port " in said(stub))
        port = said(stub).split()[-1]
        settings = _extended(f"http://127.0.0.1:{port}", dialects)
        del settings["extenders"][0]["preemptVerb"]
        return Running([stage.plane.start_scheduler(settings), stub])

    return start


def extender_port(server: Server) -> str:
    """Where this Weft process answers kube-scheduler."""
    found = re.search(r"extender on (\d+)", said(server))
    assert found is not None, said(server)
    return str(found[1])


def said(server: Server) -> str:
    """The process' log so far."""
    return server.log.read_text(errors="replace")


def cpu_s(server: Server) -> float:
    """CPU time of the process so far, seconds."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(server: Server) -> tuple[float, float]:
    """Resident memory of the process now, and the most it ever was; MB (10^6 bytes)."""
    text = Path(f"/proc/{server.pid}/status").read_text()
    found = [re.search(rf"{name}:\s+(\d+) kB", text) for name in ("VmRSS", "VmHWM")]
    now, most = (int(one[1]) * 1024 / 1e6 if one else 0.0 for one in found)
    return round(now, 1), round(most, 1)


def _settings(percent: int = 0) -> dict[str, Any]:
    settings: dict[str, Any] = {"clientConnection": QPS}
    return settings | ({"percentageOfNodesToScore": percent} if percent else {})


def _extended(url: str, dialects: str) -> dict[str, Any]:
    """The output of `weft extender config`, with the client's limit lifted."""
    printed = subprocess.run(
        [
            sys.executable,
            "-m",
            "weft.cli.main",
            "extender",
            "config",
            "--dialects",
            dialects,
            "--url",
            url,
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    told: dict[str, Any] = yaml.safe_load(printed.stdout)
    return {"extenders": told["extenders"], "profiles": told["profiles"], **_settings()}

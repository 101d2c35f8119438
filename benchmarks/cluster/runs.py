"""One run: pods waiting, a contender started, every binding seen by an independent watch."""

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from contenders import Contender, cpu_s
from objects import Manifest, pod
from stage import Stage

HERE = Path(__file__).resolve().parent
Figures = dict[str, Any]
EVENTS_PATIENCE_S = 5.0  # no event for so long: there will be no more


class RunFailedError(Exception):
    """A run that gives no figure."""


class Watch:
    """The watching process; `result` waits for all pods to be bound."""

    def __init__(self, stage: Stage, count: int) -> None:
        plane = stage.plane
        pair = plane.authority.user("watcher", "system:masters")
        files = [plane.authority.pair.certificate, pair.certificate, pair.key]
        command = [sys.executable, HERE / "watch_process.py", f"127.0.0.1:{plane.port}"]
        self._process = subprocess.Popen(
            [*map(str, command), *map(str, files), str(count)], stdout=subprocess.PIPE, text=True
        )
        if self._line(30) != "watching\n":
            raise RunFailedError("the watch did not begin")

    def result(self, timeout_s: float) -> Figures:
        """Rates and times; fails where not all are bound in time."""
        line = self._line(timeout_s)
        if not line:
            raise RunFailedError(f"not every pod was bound within {timeout_s:.0f} s")
        found: Figures = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        return self._process.stdout.readline() if ready else ""


@contextlib.contextmanager
def watching(stage: Stage, count: int) -> Iterator[Watch]:
    """A watch that has begun, for so many bindings."""
    watch = Watch(stage, count)
    try:
        yield watch
    finally:
        watch.close()


def plain(number: int, scheduler: str) -> Manifest:
    """A pod with one GPU."""
    return pod(f"pod-{number:05d}", scheduler)


def preloaded(
    stage: Stage,
    contender: Contender,
    pods: int,
    timeout_s: float = 240,
    made: Callable[[int, str], Manifest] = plain,
) -> Figures:
    """The rate at which the contender binds pods that were there before it, `made` by number and
    schedulerName."""
    stage.clear_pods()
    stage.add_pods(made(n, contender.scheduler) for n in range(pods))
    load = os.getloadavg()[0]
    servers = (stage.plane.api_server, stage.plane.etcd)
    with watching(stage, pods) as watch:
        before = [cpu_s(server) for server in servers]
        running = contender.start(stage)
        try:
            found = watch.result(timeout_s)
            if contender.events:
                found |= until_events(stage, pods, found)
            found["cpu_ms_per_pod"] = {
                server.name: round(cpu_s(server) * 1e3 / pods, 2)
                for server in running.servers
                if server.running
            }
            found["server_cpu_ms_per_pod"] = round(
                sum(cpu_s(s) - b for s, b in zip(servers, before, strict=True)) * 1e3 / pods, 2
            )
        finally:
            running.stop()
    found["load_average_before"] = round(load, 2)
    check(stage, found)
    return found


def until_events(stage: Stage, pods: int, found: Figures) -> Figures:
    """The rate until each pod has its event, or until no more come (kube-scheduler drops some)."""
    at_end, written, last = stage.events(), 0, time.monotonic()
    while (count := stage.events()) < pods:
        if count > written:
            written, last = count, time.monotonic()
        elif time.monotonic() - last > EVENTS_PATIENCE_S:
            break
        time.sleep(0.05)
    else:
        written, last = count, time.monotonic()
    took = max(last, found["last"]) - found["first"]
    return {
        "events_when_bound": at_end,
        "events": written,
        "rate_with_events": round((pods - 1) / took, 1),
    }


def check(stage: Stage, found: Figures) -> None:
    """The audit from the API, into the figures."""
    audit = stage.audit()
    found["audit"] = {"pods": audit.pods, "bound": audit.bound, "nodes_used": audit.nodes_used}
    if audit.faults:
        found["audit"]["faults"] = audit.faults


def interleaved(
    stage: Stage, contenders: Sequence[Contender], pods: int, runs: int, **how: Any
) -> dict[str, Figures]:
    """A B C A B C …: each contender's runs (`how` as `preloaded` has it), and the medians of their
    rates."""
    found: dict[str, Figures] = {one.name: {"runs": []} for one in contenders}
    for number in range(1, runs + 1):
        for one in contenders:
            began = time.monotonic()
            figures = preloaded(stage, one, pods, **how)
            found[one.name]["runs"].append(figures)
            took = time.monotonic() - began
            text = f"run {number}/{runs} {one.name}: {figures['rate']}/s"
            if one.events:
                text += f", {figures['rate_with_events']}/s with {figures['events']} events"
            say(f"{text} ({took:.0f} s in all)")
    for figures in found.values():
        for name in ("rate", "rate_with_events"):
            if name in figures["runs"][0]:
                figures[name] = statistics.median(run[name] for run in figures["runs"])
    return found


def sound(found: dict[str, Figures]) -> bool:
    """Tells whether no audit of these runs found a fault."""
    return not any("faults" in run["audit"] for one in found.values() for run in one["runs"])


def say(text: str) -> None:
    print(f"  {text}", flush=True)

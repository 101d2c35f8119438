"""The row `console`: what a `weft console` that ten browsers look at costs a live scheduler.

One scheduler on one cluster, in blocks that take turns: two without, four with ten consoles open,
two without, and so on. The first of four is compared with the first without, and so on, so that
what else the machine does falls on both. In a block pods are created one after the other, and then
many at once; then all are removed, so that each block finds the same cluster.

In earnest the console is a Deployment of its own, on another machine. Here the API server, etcd,
the scheduler and who creates the pods have one core, before all others where that is allowed, and
the console and its browsers the other: what is left is what its watches cost the API server.
"""

import asyncio
import contextlib
import itertools
import math
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from contenders import said, start_weft
from objects import NAMESPACE
from report import Bar, Row, Sizes
from shadowing import BoundPods
from stage import Stage  # makes tests/cluster importable

# isort: split
from processes import Server

from weft.kube.client import ApiClient, ClientOptions
from weft.kube.codec import PODS
from weft.kube.config import load

_CONSOLES = 10
_NODES = 100
_PAIRS_A_RUN = 4
_ALONE, _BURST = 100, 1_000
"""Large bursts: in some small ones the API server takes a tenth of a second more than in others,
whether or not consoles are open, presumably to collect garbage."""
_DRAWS = 2_000
_UNLIMITED = ClientOptions(qps=1e6, burst=10**6)
_MOST_RATIO, _LEAST_RATIO = 1.03, 0.97
_ADDRESS = re.compile(r"console is at (http://\S+)")


class _Block(NamedTuple):
    """A block's figures. For each pod: CPU time of the scheduler's process, how long its main
    thread waited for a core, and CPU time of the API server, ms; the median time until a pod that
    comes alone is bound, ms; and bindings a second of the burst."""

    cpu_ms: float
    core_wait_ms: float
    api_server_ms: float
    bound_ms: float
    rate: float


class _Figure(NamedTuple):
    """A ratio, with over without: the geometric mean over pairs, and its 95 % interval."""

    ratio: float
    low: float
    high: float


def console(stage: Stage, sizes: Sizes) -> Row:
    """CPU time, time until bound and a burst's rate, with ten consoles open over without."""
    stage.add_nodes(_NODES)
    pairs = sizes.runs * _PAIRS_A_RUN if sizes.runs > 1 else 4
    scheduler = start_weft(stage)
    cores = sorted(os.sched_getaffinity(0))
    try:
        with _on_one_core(cores[0], stage.plane.etcd, stage.plane.api_server, scheduler):
            blocks = asyncio.run(_in_turns(stage, scheduler, pairs, cores[-1]))
    finally:
        scheduler.stop(timeout_s=20)
    found: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 2), "cores": len(cores)}
    for name in _Block._fields:
        pairs_of = [(getattr(w, name), getattr(b, name)) for w, b in blocks]
        found[name] = {
            **compared([with_ / bare for with_, bare in pairs_of])._asdict(),
            "with": round(statistics.median(with_ for with_, _ in pairs_of), 3),
            "without": round(statistics.median(bare for _, bare in pairs_of), 3),
        }
    bars = [
        Bar.at_most("CPU time a pod, with ten consoles over without", *_of(found, "cpu_ms")),
        Bar.at_most("time until bound, likewise", *_of(found, "bound_ms")),
        Bar.at_least("bindings a second, likewise", found["rate"]["ratio"], _LEAST_RATIO),
    ]
    sizes_of = {"nodes": _NODES, "consoles": _CONSOLES, "pairs": pairs}
    return Row({**sizes_of, "alone": _ALONE, "burst": _BURST}, {"console": found}, bars)


def _of(found: dict[str, Any], name: str) -> tuple[float, float]:
    return found[name]["ratio"], _MOST_RATIO


def compared(ratios: list[float]) -> _Figure:
    """The mean of these ratios, and its interval by drawing pairs again."""
    draw, logs = random.Random(42), [math.log(ratio) for ratio in ratios]
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(_DRAWS))
    figures = statistics.fmean(logs), means[_DRAWS // 40], means[-_DRAWS // 40]
    return _Figure(*(round(math.exp(figure), 4) for figure in figures))


@contextlib.contextmanager
def _on_one_core(core: int, *servers: Server) -> Iterator[None]:
    """These processes and this thread run on this core alone, before others if that is allowed."""
    before = os.sched_getaffinity(0)
    for server in servers:
        _pin(server, core)
    _pin_thread(0, {core}, os.SCHED_RR)
    try:
        yield
    finally:
        _pin_thread(0, before, os.SCHED_OTHER)


def _pin(server: Server, core: int) -> None:
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        _pin_thread(int(task.name), {core}, os.SCHED_RR)


def _pin_thread(thread: int, cores: set[int], policy: int) -> None:
    os.sched_setaffinity(thread, cores)
    with contextlib.suppress(PermissionError):
        priority = os.sched_get_priority_min(policy)  # `nice` is among one session's processes
        os.sched_setscheduler(thread, policy, os.sched_param(priority))


async def _in_turns(
    stage: Stage, scheduler: Server, pairs: int, consoles_core: int
) -> list[tuple[_Block, _Block]]:
    """The blocks of each pair, the watched one first, in whatever order they came."""
    client = ApiClient(load(paths=(stage.plane.kubeconfig,), env={}), _UNLIMITED)
    async with client:
        pods = BoundPods(client)
        await pods.ready()
        measured = _Measured(stage, scheduler, pods, client)
        await measured.block()  # warm
        found: list[tuple[_Block, _Block]] = []
        while len(found) < pairs:
            bare = [await measured.block() for _ in range(2)]
            consoles = await asyncio.to_thread(_start_consoles, stage, consoles_core)
            try:
                watched = [await measured.block() for _ in range(4)]
            finally:
                for server in reversed(consoles):
                    await asyncio.to_thread(server.stop, timeout_s=20)
            bare += [await measured.block() for _ in range(2)]
            found += zip(watched, bare, strict=True)
        await pods.close()
    return found


class _Measured:
    """Measures one block after the other."""

    def __init__(self, stage: Stage, scheduler: Server, pods: BoundPods, client: ApiClient) -> None:
        self._api_server, self._scheduler = stage.plane.api_server, scheduler
        self._pods, self._client = pods, client
        self._number = itertools.count()

    async def block(self) -> _Block:
        """Create pods one by one, and then many at once; then remove them."""
        wait = _main_thread_waited_ms(self._scheduler)
        used, api_used = _cpu_ms(self._scheduler), _cpu_ms(self._api_server)
        alone = [await self._place() for _ in range(_ALONE)]
        began = time.perf_counter()
        await asyncio.gather(*(self._place() for _ in range(_BURST)))
        lasted = time.perf_counter() - began
        used, api_used = _cpu_ms(self._scheduler) - used, _cpu_ms(self._api_server) - api_used
        wait, pods = _main_thread_waited_ms(self._scheduler) - wait, _ALONE + _BURST
        options = msgspec.json.encode({"gracePeriodSeconds": 0})
        await self._client.call("DELETE", PODS.of(NAMESPACE), options, timeout_s=120)
        each = statistics.median(alone)
        return _Block(used / pods, wait / pods, api_used / pods, each, _BURST / lasted)

    async def _place(self) -> float:
        return await self._pods.place(f"pod-{next(self._number):05d}")


def _cpu_ms(server: Server) -> float:
    """CPU time of all threads of the process, so far."""
    return sum(_schedstat(task)[0] for task in Path(f"/proc/{server.pid}/task").iterdir()) / 1e6


def _main_thread_waited_ms(server: Server) -> float:
    """How long the thread that decides and binds was ready to run while others ran, so far."""
    return _schedstat(Path(f"/proc/{server.pid}"))[1] / 1e6


def _schedstat(task: Path) -> tuple[int, int]:
    """Nanoseconds on a core, and waiting for one; 0 of a thread that has just ended."""
    try:
        ran, waited, _ = (task / "schedstat").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    return int(ran), int(waited)


def _start_consoles(stage: Stage, core: int) -> list[Server]:
    """A console, and ten browsers that have its picture."""
    config = stage.folder / "console.yaml"
    config.write_text("apiVersion: weft.dev/v1\nkind: WeftConfiguration\n")
    kubeconfig = stage.plane.kubeconfig_for("console", "system:masters")
    words = ["-m", "weft.cli.main", "console", "--port", "0", "--config", str(config)]
    served = _on_core(core, stage, "console", [*words, "--kubeconfig", str(kubeconfig)])
    served.wait_ready(lambda: _ADDRESS.search(said(served)) is not None, 60)
    found = _ADDRESS.search(said(served))
    assert found is not None
    script = str(Path(__file__).resolve().with_name("viewers_process.py"))
    viewers = _on_core(core, stage, "viewers", [script, found[1], str(_CONSOLES)])
    viewers.wait_ready(lambda: "viewing" in said(viewers), 60)
    return [served, viewers]


def _on_core(core: int, stage: Stage, name: str, words: list[str]) -> Server:
    """A Python process that runs on this core alone."""
    number = len(list(stage.folder.glob(f"{name}-*.log")))
    server = Server([sys.executable, *words], stage.folder / f"{name}-{number}.log")
    server.start()
    _pin(server, core)
    return server

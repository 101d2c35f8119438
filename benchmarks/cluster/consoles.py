"""The row `console`: what a `weft console` that ten browsers look at costs a live scheduler.

One scheduler on one cluster, in blocks that take turns: two without, two with ten consoles open,
two with a control, two with bare watches. The first block of one kind in a round is compared with
the first of another kind, and so on, so that what else the machine does falls on all. In a block
pods are created one after the other, and then many at once; then all are removed, so that each
block finds the same cluster.

In earnest the console is a Deployment of its own, on another machine. Here the API server, etcd,
the scheduler and who creates the pods have one core, before all others where that is allowed, and
the console and its browsers the other: what is left is what its watches cost the API server, and
what any work on the other core costs the first, as the two share a cache, memory and power. The
control is a process on the other core that computes for as long as the console and its browsers
did, and asks nobody: consoles over control is the console's own cost. Twenty bare watches of pods,
also on the other core, tell what one costs that does nothing with what it reads: whoever follows
pods costs that much.
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
from typing import Any, Literal, NamedTuple

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

_CONSOLES, _WATCHES = 10, 20
_NODES = 100
_PAIRS_A_RUN = 4
_TURN = 2
"""Blocks of one kind before the next kind's turn: to start consoles takes a block's time."""
_ALONE, _BURST = 200, 1_000
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


Kind = Literal["without", "with", "control", "watches"]
_KINDS: tuple[Kind, ...] = ("without", "with", "control", "watches")
Blocks = dict[Kind, list[_Block]]


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
    beside = _OtherCore(stage, cores[-1])
    try:
        with _on_one_core(cores[0], stage.plane.etcd, stage.plane.api_server, scheduler):
            blocks = asyncio.run(_in_turns(stage, scheduler, pairs, beside))
    finally:
        scheduler.stop(timeout_s=20)
    found: dict[str, Any] = {name: _figures(blocks, name) for name in _Block._fields}
    found |= {"load_average": round(os.getloadavg()[0], 2), "cores": len(cores)}
    found["other_core"] = beside.shares_used()
    bars = [
        bar
        for name, over in (("", "with_over_without"), (", control aside", "with_over_control"))
        for bar in _bars(name, {each: found[each][over]["ratio"] for each in _Block._fields})
    ]
    sizes_of = {"nodes": _NODES, "consoles": _CONSOLES, "pairs": pairs}
    return Row({**sizes_of, "alone": _ALONE, "burst": _BURST}, {"console": found}, bars)


def _bars(name: str, ratios: dict[str, float]) -> list[Bar]:
    return [
        Bar.at_most(f"CPU time a pod, with ten consoles{name}", ratios["cpu_ms"], _MOST_RATIO),
        Bar.at_most(f"time until bound{name}", ratios["bound_ms"], _MOST_RATIO),
        Bar.at_least(f"bindings a second{name}", ratios["rate"], _LEAST_RATIO),
    ]


def _figures(blocks: Blocks, name: str) -> dict[str, Any]:
    """Ratios of one figure of the blocks, and its median in each kind."""
    of = {kind: [getattr(block, name) for block in blocks[kind]] for kind in _KINDS}

    def over(one: Kind, other: Kind, part: int = 1) -> dict[str, float]:
        ratios = [(a / b) ** (1 / part) for a, b in zip(of[one], of[other], strict=True)]
        return compared(ratios)._asdict()

    return {
        "with_over_without": over("with", "without"),
        "control_over_without": over("control", "without"),
        "with_over_control": over("with", "control"),
        "one_watch_over_none": over("watches", "without", _WATCHES),
        **{kind: round(statistics.median(values), 3) for kind, values in of.items()},
    }


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


async def _in_turns(stage: Stage, scheduler: Server, pairs: int, beside: "_OtherCore") -> Blocks:
    """As many blocks of each kind; a round begins with another kind each time, the first one so
    that consoles come before their control."""
    client = ApiClient(load(paths=(stage.plane.kubeconfig,), env={}), _UNLIMITED)
    found: Blocks = {kind: [] for kind in _KINDS}
    async with client:
        pods = BoundPods(client)
        await pods.ready()
        measured = _Measured(stage, scheduler, pods, client, beside)
        await measured.block()  # warm
        for number in range(pairs // _TURN):
            first = number % len(_KINDS)
            for kind in (*_KINDS[first:], *_KINDS[:first]):
                await asyncio.to_thread(beside.start, kind)
                try:
                    found[kind] += [await measured.block() for _ in range(_TURN)]
                finally:
                    await asyncio.to_thread(beside.stop)
        await pods.close()
    return found


class _OtherCore:
    """Runs consoles or their control on the core that the scheduler does not have."""

    def __init__(self, stage: Stage, core: int) -> None:
        self._stage, self._core = stage, core
        self._kind: Kind = "without"
        self._servers: list[Server] = []
        self._share_file = stage.folder / "share"
        self._shares: dict[Kind, dict[str, list[float]]] = {kind: {} for kind in _KINDS}

    def start(self, kind: Kind) -> None:
        """Have this kind of work on the core; consoles before their first control."""
        self._kind = kind
        if kind == "with":
            self._servers = _start_consoles(self._stage, self._core)
        elif kind == "control":
            self._share_file.write_text("0")
            self._servers = [self._started("burn_process.py", "burning", 1, self._share_file)]
        elif kind == "watches":
            plane = self._stage.plane
            pair = plane.authority.user("watcher", "system:masters")
            words = (f"127.0.0.1:{plane.port}", plane.authority.pair.certificate, *pair, _WATCHES)
            script = "bare_watches_process.py"
            self._servers = [self._started(script, "watching", _WATCHES, *words)]

    def _started(self, script: str, ready: str, times: int, *words: object) -> Server:
        """A script that says so many times that it is ready."""
        path = Path(__file__).resolve().with_name(script)
        name = script.removesuffix("_process.py")
        server = _on_core(self._core, self._stage, name, [str(path), *map(str, words)])
        server.wait_ready(lambda: said(server).count(ready) >= times, 60)
        return server

    def stop(self) -> None:
        """End that work."""
        for server in reversed(self._servers):
            server.stop(timeout_s=20)
        self._servers = []

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Note which share of the core the work takes in this phase of a block; the control takes
        what the consoles took."""
        if self._kind == "control":
            self._share_file.write_text(str(statistics.median(self._shares["with"][phase])))
        began, used_ms = time.perf_counter(), sum(map(_cpu_ms, self._servers))
        yield
        used_ms = sum(map(_cpu_ms, self._servers)) - used_ms
        share = used_ms / 1000 / (time.perf_counter() - began)
        self._shares[self._kind].setdefault(phase, []).append(share)

    def shares_used(self) -> dict[str, dict[str, float]]:
        """The median share of the core by phase, of each kind."""
        return {
            kind: {name: round(statistics.median(of), 3) for name, of in phases.items()}
            for kind, phases in self._shares.items()
        }


class _Measured:
    """Measures one block after the other."""

    def __init__(
        self,
        stage: Stage,
        scheduler: Server,
        pods: BoundPods,
        client: ApiClient,
        beside: _OtherCore,
    ) -> None:
        self._api_server, self._scheduler = stage.plane.api_server, scheduler
        self._pods, self._client, self._beside = pods, client, beside
        self._number = itertools.count()

    async def block(self) -> _Block:
        """Create pods one by one, and then many at once; then remove them."""
        wait = _main_thread_waited_ms(self._scheduler)
        used, api_used = _cpu_ms(self._scheduler), _cpu_ms(self._api_server)
        with self._beside.during("alone"):
            alone = [await self._place() for _ in range(_ALONE)]
        began = time.perf_counter()
        with self._beside.during("burst"):
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

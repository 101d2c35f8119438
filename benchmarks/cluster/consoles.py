"""The row `console`: what a `weft console` that ten browsers look at costs a live scheduler.

One scheduler on one cluster, in blocks that take turns: ten consoles open, or none. Which of two
blocks is first changes each time, and each is compared with the other of its pair, so that what
else the machine does, and how full the cluster is, falls on both. In a block pods are created one
after the other, and then many at once. In earnest the console is a Deployment of its own, on
another machine: here it and its browsers run only while a core is idle.
"""

import asyncio
import itertools
import math
import os
import random
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from contenders import said, start_weft
from report import Bar, Row, Sizes
from shadowing import BoundPods
from stage import Stage  # makes tests/cluster importable

# isort: split
from processes import Server

from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load

_CONSOLES = 10
_NODES = 100
_PAIRS_A_RUN = 8
_ALONE, _BURST = 30, 60
_DRAWS = 2_000
_UNLIMITED = ClientOptions(qps=1e6, burst=10**6)
_MOST_RATIO, _LEAST_RATIO = 1.03, 0.97
_ADDRESS = re.compile(r"console is at (http://\S+)")


class _Block(NamedTuple):
    """CPU time of the scheduler's main thread for each pod of a block, ms; the median time
    until a pod that comes alone is bound, likewise; and bindings a second of the burst."""

    cpu_ms: float
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
    pairs = max(2, sizes.runs * _PAIRS_A_RUN) if sizes.runs > 1 else 2
    scheduler = start_weft(stage)
    try:
        blocks = asyncio.run(_in_turns(stage, scheduler, pairs))
    finally:
        scheduler.stop(timeout_s=20)
    found: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 2)}
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


async def _in_turns(stage: Stage, scheduler: Server, pairs: int) -> list[tuple[_Block, _Block]]:
    """The blocks of each pair, the watched one first, in whatever order they came."""
    client = ApiClient(load(paths=(stage.plane.kubeconfig,), env={}), _UNLIMITED)
    async with client:
        pods = BoundPods(client)
        await pods.ready()
        number = itertools.count()
        await _block(pods, scheduler, number)  # warm
        found = []
        for pair in range(pairs):
            of_pair: dict[bool, _Block] = {}
            for watched in (True, False) if pair % 2 else (False, True):
                consoles = await asyncio.to_thread(_start_consoles, stage) if watched else []
                try:
                    of_pair[watched] = await _block(pods, scheduler, number)
                finally:
                    for server in reversed(consoles):
                        await asyncio.to_thread(server.stop, timeout_s=20)
            found.append((of_pair[True], of_pair[False]))
        await pods.close()
    return found


async def _block(pods: BoundPods, scheduler: Server, number: Iterator[int]) -> _Block:
    before = _main_thread_ms(scheduler)
    alone = [await pods.place(f"pod-{next(number):05d}") for _ in range(_ALONE)]
    began = time.perf_counter()
    await asyncio.gather(*(pods.place(f"pod-{next(number):05d}") for _ in range(_BURST)))
    lasted = time.perf_counter() - began
    used = _main_thread_ms(scheduler) - before
    return _Block(used / (_ALONE + _BURST), statistics.median(alone), _BURST / lasted)


def _main_thread_ms(server: Server) -> float:
    """CPU time of the thread that decides and binds, so far."""
    return int(Path(f"/proc/{server.pid}/schedstat").read_text().split()[0]) / 1e6


def _start_consoles(stage: Stage) -> list[Server]:
    """A console, and ten browsers that have its picture."""
    config = stage.folder / "console.yaml"
    config.write_text("apiVersion: weft.dev/v1\nkind: WeftConfiguration\n")
    kubeconfig = stage.plane.kubeconfig_for("console", "system:masters")
    words = ["-m", "weft.cli.main", "console", "--port", "0", "--config", str(config)]
    served = _at_leisure(stage, "console", [*words, "--kubeconfig", str(kubeconfig)])
    served.wait_ready(lambda: _ADDRESS.search(said(served)) is not None, 60)
    found = _ADDRESS.search(said(served))
    assert found is not None
    script = str(Path(__file__).resolve().with_name("viewers_process.py"))
    viewers = _at_leisure(stage, "viewers", [script, found[1], str(_CONSOLES)])
    viewers.wait_ready(lambda: "viewing" in said(viewers), 60)
    return [served, viewers]


def _at_leisure(stage: Stage, name: str, words: list[str]) -> Server:
    """A Python process that runs only while a core is idle: `nice` still delays others."""
    number = len(list(stage.folder.glob(f"{name}-*.log")))
    command = [shutil.which("chrt") or "chrt", "--idle", "0", sys.executable, *words]
    server = Server(command, stage.folder / f"{name}-{number}.log")
    server.start()
    return server

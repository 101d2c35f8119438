"""The row `console`: what a `weft console` that ten browsers look at costs a live scheduler.

Bindings a second of a burst, with the console and without, in turns on one cluster; and the time
until each of many pods is bound, on two clusters that are given pods in turns, as in `shadow`. In
earnest the console is a Deployment of its own, on another machine: here it and its browsers have
the lowest priority, and what is left is what its watches cost the API server.
"""

import asyncio
import os
import re
import shutil
import statistics
import sys
from pathlib import Path

from contenders import Contender, Running, said, start_weft, weft
from report import Bar, Row, Sizes
from runs import interleaved, sound
from shadowing import figures, took_ms
from stage import Stage  # makes tests/cluster importable

# isort: split
from processes import Server

_CONSOLES = 10
_NODES = 100
_MOST_RATIO, _LEAST_RATIO = 1.03, 0.97
_ADDRESS = re.compile(r"console is at (http://\S+)")


def console(stage: Stage, sizes: Sizes) -> Row:
    """A burst's rate and the median time until a pod is bound, with ten consoles over without."""
    stage.add_nodes(_NODES)
    contenders = [
        Contender("weft", "weft", weft()),
        Contender("weft, ten consoles open", "weft", _start_watched),
    ]
    found = interleaved(stage, contenders, min(sizes.pods, 8 * _NODES), sizes.runs)
    rates = [[run["rate"] for run in found[each.name]["runs"]] for each in contenders]
    ratio = statistics.median(with_ / bare for bare, with_ in zip(*rates, strict=True))
    took = _took_in_turns(stage, sizes.pods)
    found["until bound"] = {**figures(took), "load_average": round(os.getloadavg()[0], 2)}
    bars = [
        Bar.at_least("bindings a second, with ten consoles over without", ratio, _LEAST_RATIO),
        Bar.at_most("median until bound, likewise", found["until bound"]["median"], _MOST_RATIO),
        Bar.true(
            "audits without a fault", sound({each.name: found[each.name] for each in contenders})
        ),
    ]
    return Row({"nodes": _NODES, "pods": sizes.pods, "consoles": _CONSOLES}, found, bars)


def _took_in_turns(stage: Stage, pods: int) -> list[list[float]]:
    """On two new clusters: the one of the bursts has a past."""
    with Stage(stage.folder / "with") as watched, Stage(stage.folder / "without") as bare:
        for one in (watched, bare):
            one.add_nodes(_NODES)
        running = [start_weft(watched), start_weft(bare), *_start_consoles(watched)]
        try:
            return asyncio.run(took_ms([watched, bare], pods))
        finally:
            for server in reversed(running):
                server.stop(timeout_s=20)


def _start_watched(stage: Stage) -> Running:
    consoles = _start_consoles(stage)
    return Running([start_weft(stage), *consoles])


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
    """A Python process of the lowest priority."""
    number = len(list(stage.folder.glob(f"{name}-*.log")))
    command = [shutil.which("nice") or "nice", "-n", "19", sys.executable, *words]
    server = Server(command, stage.folder / f"{name}-{number}.log")
    server.start()
    return server

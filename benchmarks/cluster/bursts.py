"""Shared pods that come all at once for one node: how fast, and whether any card is overbooked."""

import re
import statistics
import time
import urllib.request
from collections.abc import Callable

from contenders import Contender, Running, extender_port, weft, with_weft
from objects import SHARE, pod
from report import Bar, Row, Sizes
from runs import Figures, check, say, sound, watching
from stage import Stage

DIALECTS = "gpushare"
ALONE = Contender("weft scheduler", "weft", weft())
BEHIND = Contender("kube-scheduler + weft", "default-scheduler", with_weft(DIALECTS))
ROOM_S = 120


def burst(stage: Stage, sizes: Sizes) -> Row:
    """Hundreds of shared pods for one node, in each form: all bound, hardly a bind refused."""
    count = sizes.burst_pods
    stage.add_nodes(1, pods=count + 100)
    forms = (ALONE, BEHIND)
    figures: dict[str, Figures] = {one.name: {"runs": []} for one in forms}
    worst = 0.0
    for one in forms:
        found = _one(stage, one, count, memory_gib=1)
        worst = max(worst, found["binds_refused"] / count)
        figures[one.name]["runs"].append(found)
        say(f"{one.name}: {count} pods in {found['took_s']} s, {found['binds_refused']} refused")
    bars = [
        Bar.at_most("share of binds refused", worst, 0.01),
        Bar.true("all bound, no card overbooked", sound(figures)),
    ]
    return Row({"nodes": 1, "pods": count}, figures, bars)


def small_burst(stage: Stage, sizes: Sizes) -> Row:
    """A handful for one node, from the first creation to the last binding."""
    count = sizes.small_burst_pods
    stage.add_nodes(1)
    found: dict[str, Figures] = {one.name: {"runs": []} for one in (ALONE, BEHIND)}
    for _ in range(sizes.runs):
        for one in (ALONE, BEHIND):
            figures = _one(stage, one, count, memory_gib=4)
            found[one.name]["runs"].append(figures)
            say(f"{one.name}: {count} pods in {figures['took_s']} s")
    for one_form in found.values():
        one_form["took_s"] = statistics.median(run["took_s"] for run in one_form["runs"])
    bars = [
        Bar.at_most("weft scheduler, seconds", found[ALONE.name]["took_s"], 2),
        Bar.true("all bound, no card overbooked", sound(found)),
    ]
    return Row({"nodes": 1, "pods": count}, found, bars)


def _one(stage: Stage, form: Contender, count: int, memory_gib: int) -> Figures:
    """Start the form, then create the pods while it watches."""
    stage.clear_pods()
    running = form.start(stage)
    try:
        refused = _refusals(stage, running)
        with watching(stage, count) as watch:
            began = time.monotonic()
            stage.add_pods(
                pod(f"pod-{n:05d}", form.scheduler, (SHARE, memory_gib)) for n in range(count)
            )
            found = watch.result(ROOM_S)
        found["took_s"] = round(found["last"] - began, 3)
        found["binds_refused"] = refused()
    finally:
        running.stop()
    check(stage, found)
    return found


def _refusals(stage: Stage, running: Running) -> Callable[[], int]:
    """How many bindings are refused from now on, by the API server or by Weft itself."""

    def now() -> int:
        text = str(stage.plane.api.request("GET", "/metrics"))
        total = counted(text, "apiserver_request_total", ('subresource="binding"', 'code="[45]'))
        for server in running.servers:
            if "--extender-port" in server.command:
                text = _metrics(extender_port(server))
                words = ('verb="bind"', 'result="error"')
                total += counted(text, "weft_extender_requests_total", words)
        return total

    before = now()
    return lambda: now() - before


def counted(text: str, name: str, words: tuple[str, ...]) -> int:
    """The sum of a metric's values, where its labels say all of these."""
    lines = (line for line in text.splitlines() if line.startswith(name + "{"))
    found = [line for line in lines if all(re.search(word, line) for word in words)]
    return int(sum(float(line.rpartition(" ")[2]) for line in found))


def _metrics(port: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())

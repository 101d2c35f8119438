"""Measures how long a page of the console takes in Chromium: on the clock, and of its thread's CPU.

Two cores that others use too say little on the clock, and 1.3 to 2 times too much of CPU time.
"""

import itertools
import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from chromium import Window
from shown import console, eventually, opened

from weft.console.picture import Picture, PictureMaker, PodFacts
from weft.console.sources import Kind
from weft.core.engine import Engine
from weft.core.explain.explanation import Explanation
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.lab.simulate.generate import generate_nodes
from weft.lab.simulate.openb import read_nodes
from weft.model import Placement, Share

_LOOP_S = 0.065
"""CPU seconds of the loop of `slower` on the machine that the bars were set on."""
NEW_PODS = 100
NAMESPACES = 7


class PageTime(NamedTuple):
    """Milliseconds on the clock, and of the page's main thread's CPU."""

    wall_ms: float
    cpu_ms: float


class FrameTime(NamedTuple):
    """A moving picture's milliseconds from frame to frame, the median, and CPU time of each."""

    between_ms: float
    cpu_ms: float


def slower() -> float:
    """How many times slower than where the bars were set this core is now, at least 1: a loop
    beside what is measured. Other machines' cores, and cores that others use too, take 1.3 to 2
    times the CPU time for the same work."""
    began, seen = time.thread_time(), dict[int, float]()
    for at in range(400_000):
        seen[at % 997] = seen.get(at % 991, 0) + at / 2
    return max((time.thread_time() - began) / _LOOP_S, 1)


class LargeCluster:
    """A cluster of so many GPUs, each with a pod. A hundred pods come each time they are asked
    for."""

    kind: Kind = "demo"
    about = "a large cluster"
    lives = True

    def __init__(self, gpus: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (file := Path(folder) / "nodes.csv").write_text(generate_nodes(gpus=gpus))
            self._nodes = read_nodes(file)
        self._engine = Engine([Profile("weft", [built_in().create("best-fit")])], self._nodes)
        self._cards = [(each.name, gpu) for each in self._nodes for gpu in each.gpus]
        for node, gpu in self._cards:
            self._add(f"{node}-{gpu.index}", node, Share(0, gpu.index, gpu.memory_mib // 4, 250))
        self._maker = PictureMaker(self._engine)
        self.came, self.wanted = 0, 0

    @property
    def gpus(self) -> int:
        return len(self._cards)

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    def picture(self) -> Picture:
        while self.came < self.wanted:
            for at in range(NEW_PODS):
                node, gpu = self._cards[(self.came * NEW_PODS + 7 * at) % len(self._cards)]
                self._add(f"new-{self.came}-{at}", node, Share(0, gpu.index, 10, 10))
            self.came += 1
        return self._maker.picture(time.time(), _facts)

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        return None

    def _add(self, uid: str, node: str, share: Share) -> None:
        self._engine.ledger.adopt(Placement(uid, node, (share,)))


def _facts(uid: str) -> PodFacts:
    return PodFacts(f"team-{len(uid) % NAMESPACES}", uid)


PAN = "scrollBy(0, count < 30 ? 40 : -40)"
ZOOM = "document.querySelectorAll('.zoom button')[count % 6 < 3 ? 1 : 0].click()"
FRAMES = """new Promise(done => {
  const times = [];
  let count = 0;
  const step = at => {
    times.push(at);
    %s;
    if (++count < 60) requestAnimationFrame(step);
    else done(times);
  };
  requestAnimationFrame(step);
})"""
_PLACED = "document.querySelectorAll('.tile')[3].querySelector('strong').textContent"
COME = f"""new Promise(done => {{
  const pods = {_PLACED};
  const marks = [];
  new PerformanceObserver((seen, self) => {{
    marks.push(...seen.getEntries().map(one => [one.name, one.startTime]));
    if ({_PLACED} === pods || marks.at(-1)[0] !== "weft-drawn") return;
    self.disconnect();
    done(marks);
  }}).observe({{ entryTypes: ["mark"] }});
}})"""
"""Returns once the number of pods is another one, with what was noted meanwhile."""
NEXT = """new Promise(done =>
  new PerformanceObserver((seen, self) => {
    if (seen.getEntriesByName("weft-drawn").length) self.disconnect(), done(0);
  }).observe({ entryTypes: ["mark"] }))"""
"""Returns with the next picture."""
FIRST = """window.first = {};
new PerformanceObserver(seen => {
  for (const one of seen.getEntries()) window.first[one.name] ??= one.startTime;
}).observe({ entryTypes: ["mark"] });"""
_FIRST = "window.first['weft-%s']"


def _cpu_ms(window: Window) -> float:
    found = window.ask("Performance.getMetrics")["metrics"]
    seconds: float = next(one["value"] for one in found if one["name"] == "TaskDuration")
    return 1000 * seconds


def count_cpu(window: Window) -> None:
    """From here on Chromium tells what its thread did, not how long it waited for a core."""
    window.ask("Performance.enable", timeDomain="threadTicks")


def drawn(window: Window, url: str) -> PageTime:
    """The map, from its data's arrival to the frame that shows it; CPU time is the whole page's."""
    note = window.ask("Page.addScriptToEvaluateOnNewDocument", source=FIRST)["identifier"]
    opened(window, f"{url}/map")
    data, shown = (eventually(window, _FIRST % name) for name in ("data", "drawn"))
    used = _cpu_ms(window)
    window.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=note)
    return PageTime(shown - data, used)


def frames(window: Window, script: str) -> FrameTime:
    """60 frames of a map that moves by this script."""
    before = _cpu_ms(window)
    times = window.run(FRAMES % script)
    used = _cpu_ms(window) - before
    steps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    return FrameTime(steps[len(steps) // 2], used / len(times))


def hundred_pods(window: Window, cluster: LargeCluster) -> PageTime:
    """A delta of a hundred pods, from its arrival to the frame; empty ones meanwhile count too."""
    before = _cpu_ms(window)
    cluster.wanted += 1
    marks = window.run(COME)
    used = _cpu_ms(window) - before
    longest, data = 0.0, 0.0
    for name, at in marks:
        if name == "weft-data":
            data = at
        elif data:
            longest = max(longest, at - data)
    return PageTime(longest, used)


class StartTime(NamedTuple):
    """Seconds on the clock, and of the process' CPU."""

    wall_s: float
    cpu_s: float


def demo_started(window: Window) -> StartTime:
    """`weft console --demo`, from its process' start to a map that has changed once."""
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with console("--demo") as url:
        opened(window, f"{url}/map")
        eventually(window, "document.querySelector('weft-map').dataset.drawn === '200'")
        window.run(NEXT)
        took = time.monotonic() - began
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return StartTime(took, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)

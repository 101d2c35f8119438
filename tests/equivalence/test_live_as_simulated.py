"""The live scheduler decides as the simulator does: the same pods, the same times, the same ends.

The simulator runs first. Then the same pods come to a fake API server and end when they ended
there, and a live cluster decides for them, in time that leaps.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from led_cluster import led
from long_form import few_or_many

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.cluster.control.interface import Attempt, BindOutcome
from weft.cluster.control.live_cluster import EngineCluster
from weft.core.engine import Bind, Event, PodAdded, PodGone, PolicyInput
from weft.core.framework import Profile
from weft.core.framework.residency import SECOND_NS
from weft.core.ledger import RequestLimits
from weft.core.ledger.table import CoResidents, Resident
from weft.core.policies.catalog import built_in
from weft.kube.bind import Bound
from weft.lab.simulate.sharing.job import Job
from weft.lab.simulate.sharing.pairs import CARD_MIB, OfferedLoad, PairTable, cluster, jobs
from weft.lab.simulate.sharing.run import SharedScenario, SharingRun
from weft.model.interference_table import INTERFERENCE, PredictionTier, interference, to_input
from weft.testing import AGENT_BY_NAME

pytestmark = pytest.mark.virtual_time

MODEL, KINDS = "V100", ("a", "b", "c", "d", "e")
CLASSES = ("best-effort", "batch", "", "latency-critical")
INSTANT_S = 1e-6
"""Events of one time happen one after another, so far apart."""
PART = 10
"""So many pods come or end in a process' life, where it is started anew again and again."""


class Happens(NamedTuple):
    """A pod comes, or ends."""

    at_ns: int
    comes: bool
    uid: str


class Placed(NamedTuple):
    uid: str
    node: str
    gpu: int


def placed(command: Bind) -> Placed:
    place = command.placement
    return Placed(place.uid, place.node, place.shares[0].gpu)


class Story:
    """Pods that slow each other down as predicted; most say about how long they take alone."""

    def __init__(self, seed: int, policy: str, **options: int) -> None:
        self.policy, self.options = policy, options
        rng, dice = np.random.default_rng(seed), random.Random(seed)
        speed = rng.uniform(0.4, 1.0, (len(KINDS), len(KINDS)))
        asks = tuple(int(mib) for mib in rng.integers(CARD_MIB // 4, CARD_MIB // 2, len(KINDS)))
        table = PairTable(KINDS, tuple(map(tuple, speed.tolist())), asks)
        self.slower = np.zeros((len(KINDS) + 1,) * 2)
        self.slower[:-1, :-1] = -np.log(speed)
        upper = self.slower + rng.uniform(0.0, 0.05, self.slower.shape)
        tier = np.full(upper.shape, PredictionTier.LEARNED, dtype=np.int8)
        tier[-1], tier[:, -1] = PredictionTier.UNKNOWN, PredictionTier.UNKNOWN
        told = (self.slower[None], upper[None], tier[None])
        self.input = PolicyInput(INTERFERENCE, to_input(interference(1, [MODEL], KINDS, told)))
        load = OfferedLoad(1.2, gpus=5, jobs=60, mean_s=900.0, expected_error=0.3)
        nodes = (
            msgspec.structs.replace(node, cpu_milli=64_000, memory_mib=2**18)
            for node in cluster(load.gpus, MODEL)
        )
        came = (
            msgspec.structs.replace(
                job,
                job_class=dice.choice(CLASSES),
                expected_s=job.expected_s if dice.random() < 0.9 else 0,
            )
            for job in jobs(table, load, seed)
        )
        self.scenario = SharedScenario(
            tuple(nodes),
            tuple(came),
            table.truth(),
            inputs={INTERFERENCE: self.input.value},
            measured=False,
        )
        self.jobs = {job.uid: job for job in self.scenario.jobs}

    def profile(self) -> Profile:
        return Profile("weft", [built_in().create(self.policy, **self.options)])

    def speed(self, who: Resident, co_residents: CoResidents) -> float:
        """As predicted."""
        at = KINDS.index(who.application)
        return float(
            np.exp(-sum(self.slower[at, KINDS.index(o.application)] for o in co_residents))
        )


class Simulated(SharingRun):
    """The simulator's run; what happened in it, and where it put whom, in order."""

    def __init__(self, story: Story) -> None:
        super().__init__(story.scenario, story.profile().lead)
        self.happened: list[Happens] = []
        self.placed: list[Placed] = []
        self.go()

    def tell(self, event: Event, at_ns: int | None = None) -> None:
        if isinstance(event, PodAdded):
            self.happened.append(Happens(self.now, True, event.pod.uid))
        elif isinstance(event, PodGone):
            self.happened.append(Happens(self.now, False, event.uid))
        super().tell(event, at_ns)

    def _bind(self, command: Bind) -> None:
        self.placed.append(placed(command))
        super()._bind(command)


class Living:
    """The same nodes on a fake API server, processes that decide, and what they bound, in order."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.placed: list[Placed] = []
        self.server = FakeApiServer()
        self.server.store.now = LoopClock().wall
        for node in story.scenario.nodes:
            cards = [
                {"index": g.index, "memory_mib": g.memory_mib, "model": g.model} for g in node.gpus
            ]
            marks = {
                "weft.dev/inventory": json.dumps({"gpus": cards}),
                **AGENT_BY_NAME,
            }
            has = {"cpu": "64", "memory": "256Gi", "pods": "110"}
            status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
            meta = {"name": node.name, "annotations": marks}
            self.server.add("nodes", {"metadata": meta, "spec": {}, "status": status})

    @asynccontextmanager
    async def process(self, *, lead: bool = True) -> AsyncIterator[EngineCluster]:
        """One process, from its start to its end."""
        line = MemoryLine(self.server, delay=lambda: 0, lag=lambda: 0)
        limits = RequestLimits(harvest_permille=self.story.scenario.harvest_permille)
        async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
            live = led(client, [self.story.profile()], limits=limits).live
            live.on_decision.append(self._hear)
            await live.start()
            live.handle(self.story.input)
            if lead:
                await live.lead(afresh=False, term=1)
            bookmarks = asyncio.create_task(self._bookmarks())
            yield live
            bookmarks.cancel()
            await live.stop()

    async def _bookmarks(self) -> None:
        """Watches that hear nothing for two minutes would begin anew."""
        while True:
            await asyncio.sleep(60)
            self.server.bookmark()

    def _hear(self, told: Attempt | BindOutcome) -> None:
        if isinstance(told, BindOutcome) and isinstance(told.outcome, Bound):
            self.placed.append(placed(told.command))

    async def happen(self, happened: Sequence[Happens], began_s: float) -> None:
        """All this, each at its time."""
        for one in happened:
            await until(began_s + one.at_ns / SECOND_NS)
            if one.comes:
                self.server.store.new_uid = lambda uid=one.uid: uid  # type: ignore[misc]
                self.server.add("pods", manifest(self.story.jobs[one.uid]))
            else:
                self.server.update("pods", one.uid, {"status": {"phase": "Succeeded"}}, "d")
        await until(0)


async def until(at_s: float) -> None:
    await asyncio.sleep(max(INSTANT_S, at_s - asyncio.get_running_loop().time()))


def manifest(job: Job) -> dict[str, Any]:
    marks = {
        "application": job.kind,
        "class": job.job_class,
        "expected-duration": str(job.expected_s or ""),
    }
    limits = {"weft.dev/gpu-memory": str(job.request_mib)}
    return {
        "metadata": {
            "name": job.uid,
            "namespace": "d",
            "annotations": {f"weft.dev/{key}": text for key, text in marks.items() if text},
        },
        "spec": {
            "schedulerName": "weft",
            "containers": [{"name": "c", "resources": {"limits": limits}}],
        },
    }


WAYS = [
    ("interference", {}),
    ("interference", {"most": 3}),
    ("interference", {"overlap": False}),
    ("auto", {}),
]


@pytest.mark.parametrize("seed", range(few_or_many(1, 2)))
@pytest.mark.parametrize(("policy", "options"), WAYS[: few_or_many(2, 4)])
async def test_live_decides_as_simulated(policy: str, options: dict[str, int], seed: int) -> None:
    story = Story(seed, policy, **options)
    simulated = Simulated(story)
    assert len(simulated.placed) == len(story.jobs)

    living = Living(story)
    async with living.process():
        await living.happen(simulated.happened, asyncio.get_running_loop().time() + 1)
    assert living.placed == simulated.placed


def test_durations_decide_here() -> None:
    """Else the tests beside this one say nothing of them."""
    with_them, without = (
        Simulated(Story(0, "interference", overlap=overlap)).placed for overlap in (True, False)
    )
    assert sum(one != other for one, other in zip(with_them, without, strict=True)) > 10


@pytest.mark.parametrize("seed", range(few_or_many(1, 2)))
@pytest.mark.parametrize(("policy", "options"), WAYS[2:])
async def test_processes_one_after_another_decide_as_one(
    policy: str, options: dict[str, int], seed: int
) -> None:
    """Where how long pods were together is no matter: that is not known to who comes after."""
    story = Story(seed, policy, **options)
    simulated = Simulated(story)

    living, began_s = Living(story), asyncio.get_running_loop().time() + 1
    for first in range(0, len(simulated.happened), PART):
        async with living.process():
            await living.happen(simulated.happened[first : first + PART], began_s)
    assert living.placed == simulated.placed


async def test_a_new_process_knows_what_pods_have_yet_to_do_but_for_those_that_left() -> None:
    """The API tells times of bindings in whole seconds, and nothing of pods that are gone: what a
    pod lost beside them is taken for done, so that it seems nearer to its end, at most by that.
    """
    story = Story(0, "interference", most=3)
    simulated = Simulated(story)
    nearer_s: list[float] = []

    living, began_s = Living(story), asyncio.get_running_loop().time() + 1.3
    async with living.process() as live:
        for first in range(0, len(simulated.happened), PART):
            await living.happen(simulated.happened[first : first + PART], began_s)
            async with living.process(lead=False) as fresh:
                nearer_s.extend(differences(story, live, fresh))
    assert sum(abs(one) < 1.0 for one in nearer_s) > 10
    assert sum(one > 60.0 for one in nearer_s) > 5


def differences(story: Story, live: EngineCluster, fresh: EngineCluster) -> list[float]:
    """By how much the new process takes each pod to be nearer to its end, seconds."""
    now_ns = int(asyncio.get_running_loop().time() * SECOND_NS)
    found = []
    for key, there in live.engine.residencies._on.items():
        for uid, residency in there.items():
            if not residency.expected_s:
                continue
            new = fresh.engine.residencies._on[key][uid]
            assert 0 <= residency.since_ns - new.since_ns < 1.01 * SECOND_NS
            nearer_s = residency.left_s(now_ns, story.speed) - new.left_s(now_ns, story.speed)
            done = residency.done(story.speed)
            done_s = done.seconds + (now_ns - done.since_ns) / SECOND_NS * done.speed
            lost_s = (now_ns - residency.since_ns) / SECOND_NS - done_s
            assert -len(there) <= nearer_s <= lost_s + len(there)
            found.append(nearer_s)
    return found

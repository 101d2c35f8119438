"""Two pods on one card of a live cluster, what they count, and who looks at it."""

import datetime
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import live_world
import numpy as np
from live_world import Json, World, living, node, pod, until

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cluster.stores.slowdown_store import KEY
from weft.cluster.telemetry.slowdown_observer import SlowdownObserver, SlowdownObserverOptions
from weft.cluster.telemetry.solo_rates import SoloProfiles
from weft.core.engine import Event, Evict, NotEvicted, PodProgress, PolicyInput, ProgressSeen
from weft.core.framework.signals import SignalsSnapshot
from weft.core.policies.catalog import built_in
from weft.interference.public_datasets import slowdowns
from weft.interference.records import SoloRun
from weft.interference.table import from_static
from weft.kube.client import ApiClient
from weft.kube.clock import SystemClock
from weft.kube.configmap import OwnConfigMap
from weft.model.interference_table import INTERFERENCE, InterferenceTable, to_input
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import QueryResult, TelemetryError
from weft.telemetry.sources.source import QueryOutcome, SourceReading
from weft.testing import AGENT_BY_NAME

NAMED = {"name": "weft-observed", "namespace": "kube-system"}
COUNTER, P99 = "weft_progress_total", "weft_p99_seconds"
LOOK_S = 15.0
ALONE_PER_S = 100.0
TABLE = from_static(
    1,
    slowdowns({one: dict.fromkeys(("serve", "train"), 1.02) for one in ("serve", "train")}, "test"),
)
"""Both are said to go well together."""


class Ahead(SystemClock):
    """The true time and as much as the test has let pass; nobody sleeps for long."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self._began_s = super().wall().timestamp()

    def scraped_s(self) -> float:
        """The time of a sample: what the test let pass alone."""
        return self._began_s + self.passed_s

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s

    def wall(self) -> datetime.datetime:
        return super().wall() + datetime.timedelta(seconds=self.passed_s)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.01))


class FakeCounters:
    """A source that only knows what pods count: at each look so many units a second more."""

    def __init__(self, clock: Ahead) -> None:
        self.error: TelemetryError | None = None
        self.more: list[tuple[bytes, float]] = []
        self._clock = clock
        self._values: dict[str, float] = {}
        self._samples: dict[str, list[tuple[float, float]]] = {}

    def count(self, **per_s: float) -> None:
        at_s = self._clock.scraped_s()
        for name, rate in per_s.items():
            self._values[name] = self._values.get(name, 1_000.0) + LOOK_S * rate
            samples = self._samples.setdefault(name, [])
            samples.append((at_s, self._values[name]))

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        return SourceReading([], [])

    async def series(self, names: Sequence[str], back_s: float) -> SourceReading:
        if self.error is not None:
            return SourceReading([], [QueryOutcome("progress", 0.1, self.error)])
        told = [
            (json.dumps({"__name__": COUNTER, "namespace": "d", "pod": name}).encode(), many[-4:])
            for name, many in self._samples.items()
        ]
        now_s = self._clock.wall().timestamp()
        told += [(labels, [(now_s, value)]) for labels, value in self.more]
        counts = np.array([len(many) for _, many in told], dtype=np.int64)
        flat = [sample for _, many in told for sample in many]
        times, values = (np.array([s[i] for s in flat], dtype=np.float64) for i in (0, 1))
        return SourceReading(
            [QueryResult([labels for labels, _ in told], counts, times, values)],
            [QueryOutcome("progress", 0.1)],
        )

    async def close(self) -> None:
        """Nothing is open."""


class Scene(World):
    """One process. `look` lets a look's time pass, in which pods do so much a second."""

    def __init__(
        self,
        server: FakeApiServer,
        client: ApiClient,
        base: InterferenceTable = TABLE,
        solos: Sequence[SoloRun] = (),
        policy: str = "interference",
        trusted: bool = True,
        **how: Any,
    ) -> None:
        super().__init__(server, client, built_in().create(policy), **how)
        assert isinstance(client.clock, Ahead)
        self.clock: Ahead = client.clock
        self.counters = FakeCounters(self.clock)
        store = OwnConfigMap(client, NAMED["namespace"], NAMED["name"])
        self.slowdown_observer = SlowdownObserver(
            self.live,
            self.counters,
            store,
            base,
            SoloProfiles(solos),
            SlowdownObserverOptions(COUNTER, P99, trusted=trusted),
        )
        self.slowdown_store = self.slowdown_observer.slowdown_store
        self.events: list[Event] = []
        handle = self.live.decide

        def heard(event: Event, now_ns: int) -> Any:
            self.events.append(event)
            found = handle(event, now_ns)
            self.asked += [one for one in found if isinstance(one, Evict)]
            return found

        self.asked: list[Evict] = []
        self.live.decide = heard

    async def start(self) -> None:
        """Starts following, with what is predicted known."""
        await super().start()
        self.live.handle(PolicyInput(INTERFERENCE, to_input(TABLE)))
        self.events.clear()

    def heard(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def seen(self) -> list[ProgressSeen]:
        return self.heard(ProgressSeen)

    def heard_of(self, name: str) -> list[PodProgress]:
        return [one for event in self.seen for one in event.observed if one.uid == self.uid(name)]

    def add(self, name: str, application: str = "", job_class: str = "", **marks: str) -> None:
        self.server.add("pods", asks(name, application or name, job_class, **marks))

    async def runs(self, name: str, application: str, job_class: str, **marks: str) -> None:
        """Add it, and wait until it does."""
        self.add(name, application, job_class, **marks)
        await self.bound(name)

    async def bound(self, *names: str) -> None:
        """Wait until the watch shows them bound, and running."""
        for name in names:
            await until(lambda name=name: self.is_bound(name))  # type: ignore[misc]
            await self.phase(name, "Running")

    async def phase(self, name: str, phase: str) -> None:
        """The kubelet says so, and the watch has shown it."""
        self.server.update("pods", name, {"status": {"phase": phase}}, "d")
        await until(lambda: (p := self.live.pod("d", name)) and p.status.phase == phase)

    def is_bound(self, name: str) -> bool:
        pod = self.live.pod("d", name)
        uid = pod.metadata.uid if pod is not None else ""
        held = self.live.engine.ledger.holdings.get(uid)
        here = pod is not None and bool(pod.spec.node_name)
        return here and held is not None and held.state == "committed"

    def application(self, name: str) -> str:
        """The application that the engine takes it to run."""
        return self.live.engine.ledger.holdings[self.uid(name)].placement.application

    async def look(self, **per_s: float) -> None:
        self.clock.passed_s += LOOK_S
        self.counters.count(**per_s)
        reading = await self.slowdown_observer.read(45.0)
        await self.slowdown_observer.observe(reading, SignalsSnapshot(0, 0))

    async def slow(self, times: int = 2) -> None:
        """`serve` gets half as much done as alone beside `train`, in so many windows.

        The engine leaves out the first one that it hears of a company.
        """
        for _ in range(times + 1):
            await self.look(serve=ALONE_PER_S / 2, train=90)

    async def idle(self) -> None:
        """Wait until nothing is being asked of the API."""
        await until(lambda: not self.parts.evictor._tasks)

    def refusals(self) -> list[NotEvicted]:
        return self.heard(NotEvicted)

    def tables(self) -> list[PolicyInput]:
        return self.heard(PolicyInput)


def asks(name: str, application: str, job_class: str, **marks: str) -> Json:
    """A pod with 4,000 MiB of a card; `marks` are annotations `weft.dev/…`."""
    made = pod(name, 4_000)
    told = {"application": application, "class": job_class, **marks}
    made["metadata"]["annotations"] = {
        f"weft.dev/{key.replace('_', '-')}": text for key, text in told.items() if text
    }
    return made


def card(model: str = "T4", count: int = 1) -> Json:
    made = node(count=count)
    cards = [{"index": i, "memory_mib": 16_000, "model": model} for i in range(count)]
    made["metadata"]["annotations"] = {
        "weft.dev/inventory": json.dumps({"gpus": cards}),
        **AGENT_BY_NAME,
    }
    return made


def api(*nodes: Json) -> AbstractAsyncContextManager[FakeApiServer]:
    """One node with a card, where none are given."""
    return live_world.api(*(nodes or (card(),)))


@asynccontextmanager
async def scene(
    server: FakeApiServer,
    *,
    lead: bool = True,
    quietly: bool = True,
    pods: bool = True,
    nameless: bool = False,
    clock: Ahead | None = None,
    **how: Any,
) -> AsyncIterator[Scene]:
    """A process' life, with `serve` and `train` on the card for long; `nameless`: they do not say
    which applications they are."""
    serve, train = ("", "") if nameless else ("serve", "train")
    async with client_of(server, clock or Ahead()) as client:
        made = Scene(server, client, **how)
        async with living(made, lead=lead, quietly=quietly):
            if lead and pods:
                await made.runs("serve", serve, "latency-critical", solo_rate=str(ALONE_PER_S))
                await made.runs("train", train, "best-effort", solo_rate=str(ALONE_PER_S))
                made.clock.passed_s += 120
                await made.look(serve=ALONE_PER_S, train=90)  # where they stand
            yield made


def stored(server: FakeApiServer) -> Any:
    """The ConfigMap's content; None without one."""
    text = live_world.stored(server, NAMED["name"]).get(KEY)
    return json.loads(text) if text else None

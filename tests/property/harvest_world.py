"""GPUs whose pods use less than they asked, until they grow; and metrics that are late or wrong.

`World` keeps what is true (who is bound, since when, using how much) and what the exporters say of
it: each look builds a snapshot with `telemetry/feed/memory_needs.py`. After every event it checks
what must hold, and each eviction against the rule read slowly.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

import harvest_nodes
import numpy as np
from long_form import AUDITED_EVERY
from ways import BESIDE, WEFT, Way

from weft.core.engine import (
    Bind,
    BindFailed,
    Command,
    Engine,
    Event,
    Evict,
    NodesChanged,
    NotEvicted,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    PolicyInput,
    SignalsChanged,
    Tick,
)
from weft.core.framework import Policy, Profile
from weft.core.framework.fragments import TYPICAL_PODS
from weft.core.framework.popularity import POPULAR_PODS, bare, weighted_input
from weft.core.framework.residency import GpuKey
from weft.core.framework.signals import FRESH, MISSING, snapshot
from weft.core.ledger import Holding, RequestLimits, audit
from weft.model import Node, Placement, PodRequest
from weft.telemetry.feed.doubts import freshness_of
from weft.telemetry.feed.memory_needs import (
    GpuMemory,
    PeakWatch,
    ResidentKeys,
    ResidentRows,
    idle_by_uid,
    measure,
    rows_of,
    with_memory_needs,
)
from weft.testing import node, shape

S = 1_000_000_000
CARD, RESERVE, CONTEXT, SCRAPE_S, SAMPLES = 10_000, 512, 100, 5, 30
APPLICATIONS = {"a": 6_000, "b": 9_000}
CLASSES = ("", "", "batch", "best-effort", "latency-critical")


def asked(pod: PodRequest) -> int:
    return pod.shape.gpu_requests[0].memory.value


class Harvesting(Policy):
    """The fullest GPU, idle memory included."""

    name = "harvesting"
    harvests = True


class Strict(Policy):
    """The same on requests alone."""

    name = "strict"


class Pod(NamedTuple):
    """A pod's request, when it was bound, and what it really uses (grows now and then)."""

    request: PodRequest
    bound_ns: int
    placement: Placement
    uses: int


LENDS = Way("harvesting", lambda: [Profile(WEFT, [Harvesting()])])
"""Lends whatever is idle; of what ships, `auto` does, where it knows enough of a GPU."""
STRICT = "strict"


class World:
    """The truth, and `engine`, which hears of it. `honest`: metrics are right and on time."""

    def __init__(
        self, random: Random, limits: RequestLimits, way: Way = LENDS, *, honest: bool
    ) -> None:
        self.random, self.honest, self.limits = random, honest, limits
        self.way, self.seed = way, random.getrandbits(16)
        self.undecided: set[str] = set()  # nobody knew since when, as its GPU was short of memory
        self.changes = random.random() < 0.7  # of nodes
        self.nodes: list[Node] = [node(name, gpus=2, memory_mib=CARD) for name in ("a", "b")]
        self.pods: dict[str, PodRequest] = {}
        self.flying: dict[str, Placement] = {}
        self.bound: dict[str, Pod] = {}
        self.leaving: set[str] = set()
        self.refused: set[str] = set()
        self.order: list[str] = []
        self.seen: dict[str, int] = {}
        self.history: list[tuple[int, dict[str, int]]] = []
        self.warmed: dict[str, bool] = {}
        self.watch = PeakWatch()
        self.knows_pods = random.random() < 0.7  # the exporter
        self.used: dict[tuple[str, int], set[int]] = {}
        self.measured: set[GpuKey] = set()
        self.hits: Counter[str] = Counter()
        self.now = self.version = self.made = 0
        self.closed: set[GpuKey] = set()
        self.log: list[tuple[Event, int, list[Command]]] = []
        self.engine = self.start()
        self.tell(NodesChanged(tuple(self.nodes)))

    def start(self) -> Engine:
        profiles = [*self.way.profiles(self.seed), Profile(STRICT, [Strict()])]
        return Engine(profiles, limits=self.limits)

    @property
    def gpus(self) -> list[GpuKey]:
        """Those that there are, in the ledger's order."""
        return [(one.name, gpu.index) for one in self.engine.ledger.table.nodes for gpu in one.gpus]

    # --- what happens ---

    def tell(self, event: Event) -> list[Command]:
        commands = self.engine.handle(event, self.now)
        self.log.append((event, self.now, commands))
        gone: set[GpuKey] = set()
        for command in commands:
            if isinstance(command, Evict):
                self._check_eviction(command, gone)
        binds = [command for command in commands if isinstance(command, Bind)]
        for number, command in enumerate(binds):
            self._check_bind(command, {later.pod.uid for later in binds[number:]})
            self.flying[command.pod.uid] = command.placement
            self.order.append(command.pod.uid)
        self.check()
        return commands

    def add(self) -> None:
        self.made += 1
        uid = f"p{self.made}"
        application = self.random.choice(("", "", *APPLICATIONS))
        sizes = (300, 1_000, 2_000, 3_000, 6_000, 9_000)
        asks = shape(
            memory_mib=APPLICATIONS.get(application) or self.random.choice(sizes),
            job_class=self.random.choice(CLASSES),
            application=application,
        )
        own = self.random.choice(self.way.names)
        profile = self.random.choice((own, own, own, own, own, BESIDE, STRICT))
        self.pods[uid] = PodRequest(
            uid,
            uid,
            asks,
            scheduler_name=profile,
            created_ns=self.now,
            workload=f"w{self.made % 5}",
        )
        self.tell(PodAdded(self.pods[uid]))

    def answer(self) -> None:
        """A binding arrives, or is refused; the API shows it with its time, or not yet."""
        uid = self.random.choice(list(self.flying))
        place = self.flying.pop(uid)
        if self.random.random() < 0.15:
            self.hits["a binding refused"] += 1
            self.order.remove(uid)
            self.tell(BindFailed(uid))
            return
        self.bound[uid] = Pod(self.pods[uid], self.now, place, 0)
        self.tell(PodBound(uid))
        if self.random.random() < 0.7:
            self.show(uid)

    def show(self, uid: str) -> None:
        """The API shows the pod bound, and since when."""
        bound_ns, place = self.bound[uid].bound_ns, self.bound[uid].placement
        self.seen[uid] = bound_ns + int(uid[1:])
        self.tell(PodSeenBound(place, self.seen[uid], self.pods[uid].shape.job_class))

    def place_of(self, uid: str) -> tuple[int, int]:
        """When it was bound: those that the API does not show yet last, as they were decided."""
        return self.seen.get(uid, 1 << 62), self.order.index(uid)

    def complete(self, uid: str) -> None:
        """Ends the pod; the peak that the engine was told of is what is known of its kind."""
        pod, peak = self.pods[uid], self.engine.signals.source.peaks_mib.get(uid)
        if peak is not None:
            self.hits["a run was seen whole"] += 1
            kind = pod.shape.application or pod.workload, asked(pod)
            self.used.setdefault(kind, set()).add(peak)
        self.gone(uid, completed=True)

    def gone(self, uid: str, **how: Any) -> None:
        self.bound.pop(uid, None)
        self.flying.pop(uid, None)
        self.pods.pop(uid, None)
        self.leaving.discard(uid)
        self.refused.discard(uid)
        if uid in self.order:
            self.order.remove(uid)
        self.tell(PodGone(uid, **how))

    def pass_time(self, seconds: int) -> None:
        """Pods use memory: up to what they asked, and now and then a little beyond."""
        for uid in [uid for uid in self.bound if uid not in self.seen]:
            if self.random.random() < 0.3:
                self.show(uid)  # a watch is late, but not for long
        for _ in range(max(1, seconds // SCRAPE_S)):
            self.now += min(seconds, SCRAPE_S) * S
            for uid in list(self.bound):
                self._use(uid)
            self.history.append((self.now, {uid: pod.uses for uid, pod in self.bound.items()}))
        self.history = self.history[-200:]
        self.tell(Tick())

    def _use(self, uid: str) -> None:
        """The pod takes more memory, or fails to get it."""
        pod = self.bound[uid]
        (share,) = pod.placement.shares
        asked, gpu = share.memory_mib, (pod.placement.node, share.gpu)
        lent = self.engine.ledger.table.memory_used[self.gpus.index(gpu)] > CARD
        wants = 0
        if self.now - pod.bound_ns < 20 * S:
            wants = self.random.choice((100, asked // 8, asked // 4))
        elif self.random.random() < (0.12 if lent else 0.01):
            self.hits["a pod grew"] += 1
            wants = min(pod.uses + asked // self.random.choice((2, 10, 10, 10)), asked * 9 // 8)
        there = {one: self.bound[one].uses for one in self.needs(gpu) if one in self.bound}
        there[uid] = max(pod.uses, wants)
        if sum(there.values()) <= CARD - CONTEXT:
            self.bound[uid] = pod._replace(uses=there[uid])
            return
        self.hits["a pod ran out of memory"] += 1
        needs = self.needs(gpu)
        if self.honest and lent:
            grew = any(use > needs[one] for one, use in there.items())
            waited_for = self.leaving | self.refused | self.undecided
            assert grew or waited_for & needs.keys()
        self.gone(uid, out_of_memory=True, peak_mib=pod.uses)

    def look(self) -> None:
        """A refresh: what the exporters say by now."""
        delay = 0 if self.honest else self.random.choice((0, 0, 2, 20, 120))
        past = self.history[-SAMPLES - delay : len(self.history) - delay]
        self.version += 1
        self.closed.clear()
        if not past:
            return
        table = self.engine.ledger.table
        held = list(self.engine.ledger.holdings.values())
        rows = rows_of(table, held)
        ages = np.array([(self.now - at) / S for at, _ in past])
        residents, memory = self._readings(rows, past, ages)
        answer = measure(residents, memory, ages)
        self.warmed = dict(zip(rows.uids, answer.warm.tolist(), strict=True))
        idle = idle_by_uid(table, held, rows, answer.idle_mib)
        self.hits["memory is idle"] += bool(idle)
        self._check_lenders(idle, {one.placement.uid: one for one in held})
        empty = snapshot(self.version, self.now, tuple(self.gpus), self._loads())
        peaks = self.watch.observe(rows.uids, residents, answer)
        fresh_now = np.flatnonzero(answer.freshness == FRESH).tolist()
        self.measured = {self.gpus[row] for row in fresh_now}
        self.tell(SignalsChanged(with_memory_needs(empty, table, answer, idle, peaks)))
        self.undecided = {
            uid
            for row in fresh_now
            if table.short_of(row) > 0
            for uid in self.engine.ledger.occupants(*self.gpus[row])
            if uid not in self.seen
        }
        self._check_borrowers_leave(fresh_now)

    def _loads(self) -> dict[str, Any]:
        """Tells what else exporters know of the cards: nothing at times, or something wrong."""
        random, gpus = self.random, self.gpus
        if random.random() < 0.2:
            return {}
        used = dict.fromkeys(gpus, 0.0)
        for pod in self.bound.values():
            used[pod.placement.node, pod.placement.shares[0].gpu] += pod.uses
        states = [FRESH if self.honest else random.choice((FRESH, FRESH, MISSING)) for _ in gpus]
        fresh = np.array(states, dtype=np.int8)
        free = np.array([CARD - used[gpu] for gpu in gpus])
        busy = np.array([random.choice((0.0, 0.1, 0.2, 0.9)) for _ in gpus])
        return {"memory_free_mib": (free, fresh), "sm_active_ratio": (busy, fresh)}

    def _readings(
        self, rows: ResidentKeys, past: list[tuple[int, dict[str, int]]], ages: np.ndarray
    ) -> tuple[ResidentRows, GpuMemory]:
        """The exporters' samples of pods and of GPUs, spoilt where the world is not honest."""
        table = self.engine.ledger.table
        bound = [self.bound.get(uid) for uid in rows.uids]
        own = np.array(
            [[use.get(uid, np.nan) for _, use in past] for uid in rows.uids], dtype=np.float64
        ).reshape(len(rows.uids), len(past))
        used = np.zeros((table.devices, len(past)))
        np.add.at(used, rows.gpu, np.nan_to_num(own))
        used[used > 0] += CONTEXT // 2
        fresh = np.full(table.devices, freshness_of(ages[-1:], SCRAPE_S)[0], dtype=np.int8)
        if self.honest and not self.knows_pods:
            own[:] = np.nan
        if not self.honest:
            self._spoil(own, used, fresh)
        residents = ResidentRows(
            rows.gpu,
            rows.asked_mib,
            np.array([np.nan if p is None else (self.now - p.bound_ns) / S for p in bound]),
            np.array([self.pods[u].shape.job_class != "latency-critical" for u in rows.uids], bool),
            np.array([self.warmed.get(uid, False) for uid in rows.uids], dtype=bool),
            own,
            rows.expected_mib,
        )
        return residents, GpuMemory(table.device_memory_total, used, fresh)

    def _check_lenders(self, idle: Iterable[str], held: Mapping[str, Holding]) -> None:
        """Only pods that are warm or of a known kind lend; latency-critical ones never."""
        for uid in idle:
            pod = self.bound.get(uid)
            if not held[uid].expected_mib:
                assert pod is not None
                assert self.now - pod.bound_ns >= 60 * S, "a pod lends before it has warmed up"
            assert self.pods[uid].shape.job_class != "latency-critical"

    def _check_borrowers_leave(self, fresh_now: Iterable[int]) -> None:
        """A GPU that is short of memory has no borrower, unless a pod is leaving it already."""
        table = self.engine.ledger.table
        for row in fresh_now:
            there = set(self.engine.ledger.occupants(*self.gpus[row]))
            lent_since = self.gpus[row] in self.closed  # what it is short of is held back then
            if table.short_of(row) > 0 and not there & self.leaving and not lent_since:
                assert not self.borrowers(self.gpus[row]), "a borrower stays though it must go"

    def _spoil(self, own: np.ndarray, used: np.ndarray, fresh: np.ndarray) -> None:
        """Series that vanish, stand still, say nothing or all; GPUs of which nothing is known."""
        random = self.random
        for row in range(len(used)):
            match random.randrange(8):
                case 0:
                    used[row] = 0
                case 1:
                    used[row] = CARD
                case 2:
                    used[row, random.randrange(used.shape[1]) :] = np.nan
                case 3:
                    fresh[row] = MISSING
        for row in range(len(own)):
            match random.randrange(8):
                case 0:
                    own[row] = 0
                case 1:
                    own[row] = CARD
                case 2:
                    own[row] = np.nan
                case 3:
                    own[row] /= 2

    def learn(self) -> None:
        """Counts anew what usually comes."""
        usual = weighted_input(Counter(bare(pod.shape) for pod in self.pods.values()))
        for name in (TYPICAL_PODS, POPULAR_PODS):
            self.tell(PolicyInput(name, usual))

    def evicted(self) -> None:
        """An eviction is answered: the pod ends, or its budget does not let it."""
        uid = self.random.choice(sorted(self.leaving))
        if self.random.random() < 0.3:
            self.hits["an eviction refused"] += 1
            self.leaving.discard(uid)
            self.refused.add(uid)
            self.tell(NotEvicted(uid))
        else:
            self.gone(uid)

    # --- what must hold ---

    def needs(self, gpu: GpuKey) -> dict[str, int]:
        """The engine's expectation of each pod of the GPU."""
        held = [self.engine.ledger.holdings[uid] for uid in self.engine.ledger.occupants(*gpu)]
        return {
            one.placement.uid: one.placement.shares[0].memory_mib - sum(one.idle_mib)
            for one in held
        }

    def check(self) -> None:
        ledger = self.engine.ledger
        if len(self.log) % AUDITED_EVERY == 0:
            lost = "holds a GPU that the node does not have"  # its pods are about to go
            assert [text for text in audit(ledger) if lost not in text] == []
        most = CARD * max(self.limits) // 1000
        for gpu in self.gpus:
            there = ledger.occupants(*gpu)
            shares = [ledger.holdings[uid].placement.shares[0].memory_mib for uid in there]
            assert sum(shares) <= most, "more is promised than declared"
        assert ledger.holdings.keys() == self.bound.keys() | self.flying.keys()

    def _check_bind(self, command: Bind, later: set[str]) -> None:
        (share,) = command.placement.shares
        gpu = command.placement.node, share.gpu
        others = {uid: need for uid, need in self.needs(gpu).items() if uid not in later}
        held = [self.engine.ledger.holdings[uid].placement.shares[0].memory_mib for uid in others]
        beyond = max(0, share.memory_mib - max(0, CARD - sum(held)))
        harvested = sum(one.harvested_mib for one in command.record.harvested)
        assert harvested == beyond, "what is harvested is not on the record"
        if not beyond:
            return
        self.hits["memory is harvested"] += 1
        assert command.pod.shape.job_class != "latency-critical"
        assert self.engine.profiles[command.record.profile].harvests
        assert command.pod.workload not in self.engine.oom_history.known, "it has failed so before"
        assert max(self.limits) > 1000
        assert gpu not in self.closed, "harvested twice between two looks"
        self.closed.add(gpu)
        for_it = self.engine.ledger.holdings[command.pod.uid].expected_mib or share.memory_mib
        if for_it < share.memory_mib:
            self.hits["room for a learnt peak"] += 1
            assert gpu in self.measured, "a learnt peak is gone by where nothing is measured"
            assert for_it >= self.learnt(command.pod), "less than was learnt"
        assert sum(others.values()) + for_it <= CARD - RESERVE, "more is lent than idle"

    def learnt(self, pod: PodRequest) -> int:
        """The most that any pod like it used, of those that completed under our eyes."""
        return max(self.used.get((pod.shape.application or pod.workload, asked(pod)), {0}))

    def _check_eviction(self, command: Evict, gone: set[GpuKey]) -> None:
        uid, why = command.placement.uid, command.record.eviction
        assert why is not None
        gpu = command.placement.node, why.gpu
        self.hits["a borrower goes"] += 1
        assert gpu not in gone, "two at once of one GPU"
        gone.add(gpu)
        ledger = self.engine.ledger
        assert self.leaving.isdisjoint(ledger.occupants(*gpu)), "another is on its way out there"
        needs = self.needs(gpu)
        assert why.need_mib > CARD - RESERVE
        assert why.need_mib >= sum(needs.values())
        assert ledger.table.memory_used[self.gpus.index(gpu)] > CARD
        assert self.borrowers(gpu)[:1] == [uid], "not the borrower that should go"
        self.leaving.add(uid)

    def borrowers(self, gpu: GpuKey) -> list[str]:
        """The borrowers that may be asked to go, the first one first: the rule, read slowly."""
        ledger = self.engine.ledger
        there = sorted(ledger.occupants(*gpu), key=self.place_of)
        promised, found = 0, []
        for place, one in enumerate(there):
            promised += ledger.holdings[one].placement.shares[0].memory_mib
            kind = self.pods[one].shape.job_class
            if promised > CARD and kind != "latency-critical" and one in self.bound:
                found.append(((one in self.refused, kind != "best-effort", -place), one))
        return [one for _, one in sorted(found)]


def step(world: World) -> None:
    """One random thing happens."""
    random = world.random
    kinds = {"add": 8, "answer": 9, "gone": 1, "done": 4, "time": 11, "look": 12, "evicted": 2}
    kinds |= {"nodes": 1, "learn": 1} if world.changes else {}
    match random.choices(list(kinds), list(kinds.values()))[0]:
        case "add" if len(world.pods) < 24:
            world.add()
        case "answer" if world.flying:
            world.answer()
        case "gone" if world.pods:
            world.gone(random.choice(list(world.pods)))
        case "done" if world.bound:
            world.complete(random.choice(list(world.bound)))
        case "time":
            world.pass_time(random.choice((5, 5, 10, 70)))
        case "look":
            world.look()
        case "evicted" if world.leaving:
            world.evicted()
        case "nodes":
            harvest_nodes.change(world)
        case "learn":
            world.learn()

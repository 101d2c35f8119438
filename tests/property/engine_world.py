"""The API's truth and an engine that is told about it: late, twice, and through crashes.

`World` keeps what a cluster would know (nodes, pods, bindings), carries the engine's commands out
or refuses them, and checks after every event what must always hold. The engine decides by a `Way`
of what ships; prices, scores ahead and what is learnt are due tens of times a walk. Some pods have
rules about nodes and about each other, of which `World.rules` knows what the API says, and some a
claim, of which `World.volumes` knows which volume serves it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
from drawn_rules import APPS, NAMESPACE, SHARE, RuleBook, drawn_rules, labelled
from drawn_volumes import VolumeBook
from long_form import AUDITED_EVERY
from msgspec import UNSET
from msgspec.structs import replace
from ways import DEFAULT, Way

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
    PodNominated,
    PodSeenBound,
    PolicyInput,
    Record,
    SignalsChanged,
    TaskFaulted,
    Tick,
    Unschedulable,
    Wake,
)
from weft.core.engine.decision_faults import unless_faulted
from weft.core.engine.nominations import is_kept, kept_uid
from weft.core.engine.oom_history import OomRecord
from weft.core.engine.pricing import FEW_PODS
from weft.core.framework.fragments import TYPICAL_PODS
from weft.core.framework.popularity import POPULAR_PODS, bare, weighted_input
from weft.core.framework.signals import FRESH, MISSING, STALE, snapshot
from weft.core.ledger import audit
from weft.core.ledger.audit import differences
from weft.model import Constraints, Node, Placement, PodRequest, Shape
from weft.model.queue_rules import NOTHING_KEPT, Discipline, HeadOfLine
from weft.model.storage import mounted_by
from weft.testing import node, placement, random_nodes, random_shape, shape

SECOND = 1_000_000_000
SMALL = (
    shape(memory_mib=5000),
    shape(memory_mib=9000, milli=300),
    shape(milli=600),
    shape(gpus=1),
    shape(gpus=2),
    shape(percent=40),
    shape(memory_mib=9000, gpus=2),
    shape(cpu_milli=3000),
)


MEASURED = {"sm_active_ratio": 1.0, "gpu_util_ratio": 1.0, "memory_used_ratio": 1.0}
MEASURED |= {"memory_used_mib": 10_000.0, "memory_free_mib": 10_000.0, "memory_free_mib.last": 8e3}
"""Columns that exporters tell of a GPU, and the amount that 1 stands for."""
STEPS = {"add": 8, "answer": 8, "gone": 4, "time": 4, "repeat": 2, "change": 2, "learn": 1}
STEPS |= {"look": 1, "foreign": 1, "leave": 1, "come": 2, "crash": 1}
STEPS |= {"relabel": 1, "terminate": 1, "resize": 1}
MOST_PODS = 30
Log = list[tuple[Event, int, list[Command]]]
SAY_S = (0, 2, 8, 64)
KEEPING: tuple[Discipline, ...] = ("reserve", "lend", "easy", "conservative", "shortest")


def kept_by(seed: int) -> HeadOfLine:
    """In every other world places are kept, soon, by a discipline that its seed says."""
    soon = HeadOfLine(0, keep_for_ns=20 * SECOND, pods_after_ns=2 * SECOND, at_once=2)
    return replace(soon, discipline=KEEPING[seed // 2 % len(KEEPING)]) if seed % 2 else NOTHING_KEPT


class World:
    """The truth, and `engine`, which hears of it through events. `mistakes`: what is done beside
    deciding breaks off at times."""

    def __init__(
        self,
        nodes: list[Node],
        way: Way = DEFAULT,
        seed: int = 7,
        *,
        mistakes: bool = False,
        log: Log | None = None,
    ) -> None:
        self.way, self.seed, self.mistakes = way, seed, mistakes
        self.nodes = {one.name: one for one in nodes}
        self.pods: dict[str, PodRequest] = {}
        self.bound: dict[str, Placement] = {}
        self.flying: dict[str, Placement] = {}
        self.now = 0
        self.facts = False
        self.hits: Counter[str] = Counter()
        self.told: list[Event] = []  # of GPUs and what usually comes: for the next process, too
        self._made = self._checks = self._broken = self._told = self._signals = 0
        self.first_nodes, self.log = nodes, [] if log is None else log
        self.rules, self.volumes = RuleBook(nodes), VolumeBook()
        self.ended: set[str] = set()  # asked to go for a pod of higher priority
        self.spared: list[str] = []  # asked to go, and needed by nobody at the event's end
        self._graces = Random(seed)
        self.engine = self.start(nodes)
        self.tell(self.volumes.all())

    def start(self, nodes: Iterable[Node] = ()) -> Engine:
        """An engine that knows nothing but these nodes."""
        engine = Engine(
            self.way.profiles(self.seed),
            nodes,
            seed=self.seed,
            head_of_line=kept_by(self.seed),
        )
        if self.mistakes:
            self._make_mistakes(engine)
        return engine

    def _make_mistakes(self, engine: Engine) -> None:
        """Have what is done beside deciding break off, by chance alike in every walk."""
        engine.oom_history.merge({"d/Job/another": OomRecord(1, 500)})  # without any none is asked
        chance = Random(self.seed)
        points = [(engine.assessor, "work_ahead"), (engine.peaks, "news")]
        points += [(engine.oom_history, "goes_first"), (engine.oom_history, "charged")]
        points += [(engine.oom_history, "shape_of"), (engine.peaks, "ran")]
        points += [(policy, "take_table") for policy in engine.policies]
        points += [(policy, "take_input") for policy in engine.policies if policy.inputs]
        for of, method in points:
            setattr(of, method, self._brittle(getattr(of, method), chance))

    def _brittle(self, rightly: Callable[..., Any], chance: Random) -> Callable[..., Any]:
        def brittle(*given: Any) -> Any:
            if chance.random() < 0.3:
                self._broken += 1
                raise ZeroDivisionError("of our own")
            return rightly(*given)

        return brittle

    # --- what happens ----------

    def tell(self, event: Event) -> list[Command]:
        before = self.engine.assessor.forgotten
        commands = self.engine.handle(event, self.now)
        self.log.append((event, self.now, commands))
        self.hits["prices made"] += self.engine.assessor.forgotten - before
        if self.mistakes:
            faults = [command for command in commands if isinstance(command, TaskFaulted)]
            self._told += len(faults)
            assert self._told == self._broken, "a fault is told once, and costs no more"
            self.hits["mistakes"] += len(faults)
            commands = [command for command in commands if not isinstance(command, TaskFaulted)]
        has_more = False
        for command in unless_faulted(commands):
            if isinstance(command, Bind):
                self._fly(command)
                self.hits["bound by it"] += command.record.profile in self.way.names
            elif isinstance(command, Unschedulable):
                assert command.pod.uid not in self.flying
            elif isinstance(command, Evict) and command.record.preempted:
                self._asked_to_go(command)
            elif isinstance(command, Wake):
                has_more = bool(self.engine.assessor.dear)
                assert command.at_ns > self.now or has_more, "a wake in the past"
        self.check()
        while self.spared:
            self.hits["spared"] += 1
            self.tell(NotEvicted(self.spared.pop(), "no pod waits for it any more"))
        if has_more and self._checks % 3 == 0:  # else others come before the Tick that goes on
            self.tell(Tick())
        return commands

    def _asked_to_go(self, command: Evict) -> None:
        """A pod is ended for another one of higher priority: it leaves after its grace."""
        why = command.record.preempted
        assert why
        nominations, own = self.engine.preemption.nominations, command.placement.uid
        awaited = any(own in each.leaving for each in nominations.values())
        if why.uid not in nominations and not awaited:
            # Another's place was given up in the same event, and the pod has it. The live cluster's
            # preemptor looks once more before it ends anybody.
            assert kept_by(self.seed).discipline == "conservative"
            self.spared.append(own)
            return
        assert self.pods[why.uid].priority > self.pods[command.placement.uid].priority
        holds = self.bound.keys() | self.flying.keys()
        assert command.placement.uid in holds, "a pod that holds nothing is ended"
        self.ended.add(command.placement.uid)
        self.hits["ended for another"] += 1

    def graces_end(self) -> None:
        """Some of those who were asked to go have gone."""
        for uid in sorted(self.ended):
            if self._graces.random() < 0.5:
                self.gone(uid)

    def _fly(self, command: Bind) -> None:
        """The binding is on its way; whether it may be, the world knows by its own accounts."""
        uid, node = command.pod.uid, command.placement.node
        assert self.pods[uid] == command.pod, "a pod that is gone or changed is bound"
        assert uid not in self.bound, "a pod is bound twice"
        assert uid not in self.flying, "a pod is bound while its binding is on its way"
        assert not (why := self.rules.broken(uid, node)), f"{uid} on {node} breaks {why}"
        wrong = self.volumes.wrong(uid, self.nodes[node], command.volumes)
        assert not wrong, wrong
        self.flying[uid] = command.placement
        self.rules.put(uid, node)
        self.volumes.chosen[uid] = command.volumes

    def add(self, shape: Shape, profile: str, priority: int = 0, *, aside: Random) -> str:
        """A pod comes; whether it has rules and claims is drawn `aside`."""
        self._made += 1
        uid = f"p{self._made}"
        if self.seed % 4 == 1:  # in some worlds pods say how long they run; none does
            shape = replace(shape, expected_s=SAY_S[self._made % len(SAY_S)])
        spec, labels, kind = drawn_rules(aside) if aside.random() < SHARE else ({}, {}, "")
        self.rules.add(uid, spec, labels)
        if aside.random() < SHARE / 2:
            kind, storage = "claim", self.volumes.drawn(uid, aside)
            shape = replace(shape, constraints=Constraints(storage=storage))
        if kind:
            self.hits[f"pod with {kind}"] += 1
        self.pods[uid] = self.rules.said(
            PodRequest(
                uid,
                uid,
                shape,
                scheduler_name=profile,
                priority=priority,
                created_ns=self.now,
                claims=self.volumes.claims(uid),
            )
        )
        self.tell(PodAdded(self.pods[uid]))
        return uid

    def change(self, uid: str, shape: Shape) -> None:
        """A pod's request is edited while it waits; bound pods and those being bound stay."""
        if uid in self.engine.queue:
            old = self.pods[uid]
            constraints = Constraints(storage=old.shape.constraints.storage)
            shape = replace(shape, constraints=constraints)
            self.pods[uid] = self.rules.said(replace(old, shape=shape, priority=0))
            self.tell(PodAdded(self.pods[uid]))

    def seen(self, uid: str) -> PodSeenBound:
        """The event by which a bound pod is seen."""
        rules = self.pods[uid].shape.constraints.storage
        mounted = mounted_by(rules, NAMESPACE, self.pods[uid].claims)
        pod = self.pods[uid]
        priority = pod.priority if pod.scheduler_name in self.way.pods_names else UNSET
        marks = self.rules.marks(uid)
        return PodSeenBound(self.bound[uid], marks=marks, mounted=mounted, priority=priority)

    def relabel(self, uid: str, labels: dict[str, str]) -> None:
        """A bound pod's labels are edited: it stays, and others' rules see it otherwise."""
        self.rules.api.pods[uid]["metadata"]["labels"] = labels
        self.hits["a bound pod is relabelled"] += 1
        self.tell(self.seen(uid))

    def terminate(self, uid: str) -> None:
        """A bound pod's deletion is asked; it runs on for a while."""
        self.rules.api.pods[uid]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.hits["a bound pod terminates"] += 1
        self.tell(self.seen(uid))

    def resize(self, uid: str, cpu_milli: int) -> None:
        """A bound pod is resized in place; that may be more than its node has."""
        self.facts = True
        self.bound[uid] = replace(self.bound[uid], cpu_milli=cpu_milli)
        self.hits["a bound pod is resized"] += 1
        self.tell(self.seen(uid))

    def repeat(self, uid: str) -> None:
        """The API says again what it said before."""
        if uid in self.bound:
            self.tell(PodBound(uid))
            self.tell(self.seen(uid))
        self.tell(PodAdded(self.pods[uid]))

    def gone(self, uid: str, **how: Any) -> None:
        """The pod ends; if its binding is on its way, the answer comes after."""
        late = self.flying.pop(uid, None)
        self.bound.pop(uid, None)
        self.ended.discard(uid)
        del self.pods[uid], self.rules.api.pods[uid]
        volumes = self.volumes.gone(uid)
        self.tell(PodGone(uid, **how))
        self.tell(PodGone(uid))
        self.tell(volumes)
        if late is not None:
            self.hits["gone while its binding was on its way"] += 1
            self.tell(PodBound(uid))
            self.tell(BindFailed(uid))

    def answer(self, uid: str, how: str) -> None:
        """A binding on its way arrives, is refused, or arrives with its answer lost."""
        if how == "thought refused" and self.pods[uid].claims:
            how = "bound"  # its claims are bound as well: it would be asked about anew
        self.hits[f"binding {how}"] += 1
        there = self.flying.pop(uid)
        if how == "refused":
            self._loses_place(uid)
            self.tell(BindFailed(uid))
            return
        self.bound[uid] = there
        self.tell(self.volumes.bound(uid))
        if how == "seen first":
            self.tell(self.seen(uid))
            self.tell(BindFailed(uid, "timeout"))
        elif how == "thought refused":
            self.bound.pop(uid)
            self._loses_place(uid)
            self.tell(BindFailed(uid, "timeout"))
            # If the engine placed it again meanwhile, that binding is refused: it has a node.
            self.flying.pop(uid, None)
            self.bound[uid] = there
            self.rules.put(uid, there.node)
            self.facts = True
            self.tell(self.seen(uid))
        else:
            self.tell(PodBound(uid))

    def _loses_place(self, uid: str) -> None:
        """The pod's binding failed, or is thought to have."""
        self.rules.put(uid, "")
        self.volumes.gone(uid)

    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND
        self.tell(Tick())

    def foreign(self, name: str, gpu: int) -> None:
        """Somebody else's pod is seen: a fact, even where it overbooks."""
        self._made += 1
        uid = f"f{self._made}"
        self.facts = True
        self.pods[uid] = PodRequest(uid, uid, Shape(), scheduler_name="best-fit")
        self.bound[uid] = placement(uid, name, gpu, memory_mib=4000, milli=200)
        self.rules.add(uid, {}, {"app": APPS[self._made % len(APPS)]})
        self.rules.put(uid, name)
        self.tell(self.seen(uid))

    def learn(self) -> None:
        """Counts anew what usually comes, of the pods that there are."""
        usual = weighted_input(Counter(bare(pod.shape) for pod in self.pods.values()))
        self.inform(*(PolicyInput(name, usual) for name in (TYPICAL_PODS, POPULAR_PODS)))
        self.hits["typical pods learnt"] += 1

    def look(self, random: Random) -> None:
        """The reading GPU telemetry: what exporters tell, or nothing of some of them."""
        gpus = tuple((one.name, gpu.index) for one in self.nodes.values() for gpu in one.gpus)
        self._signals += 1
        columns = {}
        for name, most in MEASURED.items():
            states = [random.choice((FRESH, FRESH, STALE, MISSING)) for _ in gpus]
            values = np.array([random.random() * most for _ in gpus])
            columns[name] = values, np.array(states, dtype=np.int8)
        self.inform(SignalsChanged(snapshot(self._signals, self.now, gpus, columns)))
        self.hits["GPUs looked at"] += 1

    def inform(self, *told: Event) -> None:
        """Tell, and remember it for whoever starts after this one."""
        kinds = {_kind(event) for event in told}
        self.told = [event for event in self.told if _kind(event) not in kinds] + [*told]
        for event in told:
            self.tell(event)

    def node_leaves(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.rules.api.nodes.pop(name, None)
        self.tell(NodesChanged(removed=(name,)))

    def node_comes(self, one: Node) -> None:
        before = self.nodes.get(one.name)
        self.facts |= one != before
        if before is not None and len(before.gpus) != len(one.gpus):
            more = len(one.gpus) > len(before.gpus)
            self.hits["a node gains GPUs" if more else "a node loses GPUs"] += 1
        self.nodes[one.name] = one
        self.rules.put_node(one)
        self.tell(NodesChanged((one,)))

    # --- what must hold ----------

    def check(self) -> None:
        self._checks += 1
        if self._checks % AUDITED_EVERY == 0:
            self._audit()
        waiting = {one.pod.uid for one in self.engine.queue.waiting()}
        kept = set(filter(is_kept, self.engine.ledger.holdings))
        nominations = self.engine.preemption.nominations
        line = self.engine.kept_places
        self.hits["places kept"] += bool(line.kept())
        for_line = {uid for turn in line.kept() if turn.head for uid in line.uids([turn])}
        assert kept - for_line <= set(map(kept_uid, nominations)), "a place is kept for nobody"
        assert nominations.keys() <= waiting, "a place is kept for a pod that does not wait"
        holds = set(self.engine.ledger.holdings) - kept
        assert holds == self.bound.keys() | self.flying.keys()
        assert waiting.isdisjoint(holds)
        assert waiting | holds == self.pods.keys(), "a pod is forgotten, or remembered for ever"
        self._check_nobody_waits_in_vain()

    def _audit(self) -> None:
        sentences = audit(self.engine.ledger)
        facts = (
            "overbooked",
            "holds a GPU that the node does not have",
            "is held together with its MIG instance",
        )
        assert [s for s in sentences if not any(fact in s for fact in facts)] == []
        assert self.facts or not sentences

    def _check_nobody_waits_in_vain(self) -> None:
        """Checks that parked pods fit nowhere, unless one of their kind has been woken and will
        try."""
        resting: dict[tuple[str, Shape], PodRequest] = {}
        with_rules: list[tuple[tuple[str, Shape], PodRequest]] = []
        on_their_way = set()
        for one in self.engine.queue.waiting():
            assert one.state in {"parked", "backoff"}
            kind = one.profile.name, one.shape
            if one.state == "parked" and self._has_rules(one.pod):
                with_rules.append((kind, one.pod))
            elif one.state == "parked":
                resting[kind] = one.pod
            elif one.woken:
                on_their_way.add(kind)
        for (name, asks), pod in resting.items():
            profile = self.engine.profiles[name]
            if (name, asks) in on_their_way:
                continue
            with self.engine.trial([kept_uid(pod.uid)]):  # a policy may rate it as a co-resident
                known = self.engine.assessor.assess(profile, asks)
                if profile.matcher is not None:  # its place may be left to others that wait
                    known = self.engine.assess(profile, pod)
            assert known.counts[0] == 0, f"{asks} fits, but nobody was woken"
        for kind, pod in with_rules:
            if kind not in on_their_way:
                self._check_rules_keep_waiting(*kind, pod)

    def _has_rules(self, pod: PodRequest) -> bool:
        """True if others alike may fit elsewhere than this one: by its rules, or by theirs."""
        return pod.shape.constraints != Constraints() or bool(self.engine.existing.owners)

    def _check_rules_keep_waiting(self, name: str, asks: Shape, pod: PodRequest) -> None:
        """Wherever there is room the API's objects say which rule the pod would break."""
        engine, profile = self.engine, self.engine.profiles[name]
        constraints = pod.shape.constraints
        asks = replace(asks, constraints=constraints)
        with engine.trial([kept_uid(pod.uid)]):  # a place of its own keeps it off nowhere
            known = engine.asked_of(engine.assessor, profile, asks, pod)
            if profile.matcher is not None:
                known = engine.assess(profile, pod)
        assert known.counts[0] == 0, f"{asks} fits, but nobody was woken"
        if constraints.storage or profile.matcher is not None or self._checks % AUDITED_EVERY:
            return
        bare = replace(asks, constraints=Constraints())
        roomy = engine.assessor.assess(profile, bare).codes == 0
        for row in roomy.nonzero()[0].tolist():
            node = engine.ledger.table.nodes[row].name
            assert self._is_kept_off(pod.uid, node), f"{pod.uid} fits on {node}, and rests"

    def _is_kept_off(self, uid: str, node: str) -> bool:
        """True if a rule keeps the pod off the node; those for which places are kept count there
        too, but for affinity to them."""
        kept = {own: each.node for own, each in self.engine.preemption.nominations.items()}
        without = self.rules.broken(uid, node)
        for own, there in kept.items():
            self.rules.put(own, there)
        broken = without or self.rules.broken(uid, node)
        for own in kept:
            self.rules.put(own, "")
        return bool(broken)

    # --- crashes ----------

    def crash(self, random: Random, probe: Shape) -> None:
        """The process ends here; another starts from what the API shows.

        Bindings on their way either arrived or did not, and nobody told the engine.
        """
        self._count_fault_points()
        old = self.engine
        for uid, there in self.flying.items():
            if random.random() < 0.5:
                self.bound[uid] = there
                self.hits["crash before the answer: it was bound"] += 1
            else:
                self.hits["crash before the binding arrived"] += 1
                self._loses_place(uid)
        self.flying = {}
        kept = self._kept()
        old.preemption.nominations.clear()  # decisions are compared without
        fresh = self.start()
        for engine in (fresh, old):
            engine.handle(self.volumes.all(), self.now)
        parts: list[list[Any]] = [list(self.nodes.values()), list(self.bound)]
        for part in parts:
            random.shuffle(part)
        first_nodes = random.random() < 0.5
        for part in parts if first_nodes else reversed(parts):
            for one in part:
                event = NodesChanged((one,)) if isinstance(one, Node) else self.seen(one)
                unless_faulted(_without_tasks(fresh.handle(event, self.now), self.mistakes))
        for uid in [uid for uid in old.ledger.holdings if uid not in self.bound]:
            old.ledger.release(uid)
            old.existing.remove(uid)
        assert differences(old.ledger.table, fresh.ledger.table) == []
        assert old.ledger.holdings.keys() == fresh.ledger.holdings.keys()
        self._decide_alike(old, fresh, probe)
        self.engine = fresh
        self.facts = self.facts or bool(audit(fresh.ledger))
        pending = [uid for uid in self.pods if uid not in self.bound]
        comes = [PodAdded(self.pods[uid]) for uid in random.sample(pending, len(pending))]
        for event in (*kept, *comes):
            # Until all are back, the checks would miss some: tell them apart from the world.
            for command in fresh.handle(event, self.now):
                if isinstance(command, Bind):
                    self._fly(command)
                elif isinstance(command, Evict) and command.record.preempted:
                    self._asked_to_go(command)
        self._told = self._broken  # what it had not told yet went with the old process
        self.check()

    def _kept(self) -> list[PodNominated]:
        """The places that are kept, as the API shows them: of most it was written."""
        kept = list(self.engine.preemption.nominations.values())
        written = [each for each in kept if self._graces.random() < 0.8]
        self.hits["crash with places kept"] += bool(written)
        going = self.ended & self.bound.keys()
        return [
            PodNominated(each.pod, each.node, tuple(sorted(each.leaving & going)))
            for each in written
        ]

    def _decide_alike(self, old: Engine, fresh: Engine, probe: Shape) -> None:
        """Compare their decisions, told the same: prices depend on when they were made last."""
        for uid in [one.pod.uid for one in old.queue.waiting()]:
            old.queue.remove(uid, self.now)  # what is told would wake them
        usual = weighted_input({shape(memory_mib=4_000): 3, shape(gpus=1): 1})
        usually = [PolicyInput(name, usual) for name in (TYPICAL_PODS, POPULAR_PODS)]
        for event in (*self.told, *usually):
            for engine in (old, fresh):
                _without_tasks(engine.handle(event, self.now), self.mistakes)
        if self.mistakes or self._made >= FEW_PODS:
            return  # whether capacity comes back is learnt anew
        for name in self.way.pods_names:
            found = [decision(engine, probe, name, self.now) for engine in (old, fresh)]
            assert found[0] == found[1], name

    def _count_fault_points(self) -> None:
        queue = [one.state for one in self.engine.queue.waiting()]
        for what, is_so in (
            ("pods resting", "backoff" in queue),
            ("pods parked", "parked" in queue),
            ("bindings on their way", bool(self.flying)),
            (
                "pods on absent nodes",
                any(there.node not in self.nodes for there in self.bound.values()),
            ),
        ):
            self.hits[f"crash with {what}"] += is_so


def _kind(event: Event) -> str:
    return event.policy if isinstance(event, PolicyInput) else type(event).__name__


def _without_tasks(commands: list[Command], mistakes: bool) -> list[Command]:
    return [one for one in commands if not (mistakes and isinstance(one, TaskFaulted))]


def decision(engine: Engine, shape: Shape, profile: str, now: int) -> tuple[object, ...]:
    """The engine's decision for a most urgent pod of this shape; it is withdrawn after."""
    most = 1 << 40
    pod = PodRequest(
        "probe",
        "probe",
        shape,
        scheduler_name=profile,
        priority=most,
        queue_priority=most,
        never_preempts=True,
    )
    records: dict[str, Record] = {}
    places: dict[str, Placement] = {}
    for command in engine.handle(PodAdded(pod), now):
        if isinstance(command, Bind | Unschedulable):
            records[command.pod.uid] = command.record
        if isinstance(command, Bind):
            places[command.pod.uid] = command.placement
    held = engine.ledger.holdings.get("probe")
    record = records.get("probe")
    engine.queue.remove("probe", now)
    engine.placed.pop("probe", None)
    engine.ledger.release("probe")
    engine.existing.remove("probe")
    told = record and (record.outcome, record.node, record.shares, record.score, record.counts)
    return held and held.placement, told, places.get("probe")


def random_nodes_of(random: Random, aside: Random) -> list[Node]:
    """A small cluster: plain and alike, or every oddity at once."""
    if random.random() < 0.5:
        found = [node(f"n{i}", gpus=2, cpu_milli=4000) for i in range(random.randint(1, 3))]
    else:
        found = random_nodes(random, 4)
    return [labelled(aside, one) for one in found]


def walk(
    seed: int,
    way: Way = DEFAULT,
    steps: int = 70,
    *,
    mistakes: bool = False,
    hours: float = 0,
    crashes: bool = True,
    log: Log | None = None,
) -> World:
    """A walk, by its seed. `hours`: so long, instead of so many steps; more pods go than come."""
    random, aside = Random(seed), Random(-1 - seed)
    world = World(random_nodes_of(random, aside), way, seed, mistakes=mistakes, log=log)
    kinds = {kind: often for kind, often in STEPS.items() if crashes or kind != "crash"}
    until = hours * 3600 * SECOND
    while world.now < until if hours else steps > 0:
        steps -= 1
        step(world, random, aside, random.choices(list(kinds), list(kinds.values()))[0])
        if hours and len(world.pods) > MOST_PODS:
            for uid in random.sample(list(world.pods), MOST_PODS // 3):
                world.gone(uid)
        if hours:
            del world.log[:]
    return world


def any_shape(random: Random, world: World) -> Shape:
    if random.random() < 0.7:
        return random.choice(SMALL)
    return random_shape(random, list(world.nodes.values()))


def step(world: World, random: Random, aside: Random, kind: str) -> None:
    """One random thing of this kind happens; rules are drawn `aside`."""
    world.graces_end()
    pods = list(world.pods)
    match kind:
        case "add":
            profile = random.choice(world.way.pods_names)
            shape = any_shape(random, world)
            world.add(shape, profile, random.randint(0, 2), aside=aside)
        case "answer" if world.flying:
            ways = ("bound", "bound", "bound", "refused", "seen first", "thought refused")
            world.answer(random.choice(list(world.flying)), random.choice(ways))
        case "gone" if pods:
            how = random.choice(({}, {"completed": True}, {"out_of_memory": True}))
            world.gone(random.choice(pods), **how)
        case "time":
            world.pass_time(random.choice((0, 1, 2, 5, 20)))
        case "repeat" if pods:
            world.repeat(random.choice(pods))
        case "change" if pods:
            world.change(random.choice(pods), any_shape(random, world))
        case "learn":
            world.learn()
        case "look":
            world.look(random)
        case "foreign" if world.nodes:
            world.foreign(random.choice([*world.nodes, "absent"]), random.randint(0, 2))
        case "leave" if len(world.nodes) > 1:
            world.node_leaves(random.choice(list(world.nodes)))
        case "come":
            name = f"n{random.randint(0, 3)}"
            gone = random_nodes(random, 1)[0]
            again = node(name, gpus=random.choice((1, 2, 2, 4)), cpu_milli=4000, rank=gone.rank)
            world.node_comes(labelled(aside, again))
        case "relabel" if world.bound:
            world.relabel(random.choice(list(world.bound)), {"app": aside.choice(APPS)})
        case "terminate" if world.bound:
            world.terminate(random.choice(list(world.bound)))
        case "resize" if world.bound:
            world.resize(random.choice(list(world.bound)), random.choice((0, 500, 3000)))
        case "crash":
            world.crash(random, any_shape(random, world))

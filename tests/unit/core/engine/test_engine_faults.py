"""A decision that breaks off costs one pod its place for now; all is as before, on record, alike
in a replay, and nobody else waits."""

import gc
import itertools
import weakref

import msgspec
import pytest

from weft.core.engine import (
    Bind,
    BindOn,
    BindOnRefused,
    Engine,
    Faulted,
    NodesChanged,
    PodAdded,
    PodGone,
    PodSeenBound,
    SignalsChanged,
    Tick,
    Wake,
)
from weft.core.engine.decision_faults import FAULT_BACKOFF_MOST_NS
from weft.core.framework import Profile, Query
from weft.core.framework.residency import Residencies
from weft.core.framework.signals import snapshot
from weft.core.ledger import Ledger, audit
from weft.core.ledger.audit import differences
from weft.core.ledger.table import Ints
from weft.core.policies.packing import BestFit
from weft.core.record import replay
from weft.core.record.file import DecisionLine, Header, PolicyUse, ProfileUse, records_of
from weft.model import Code, Placement, PodRequest
from weft.testing import node, placement, pod

SECOND = 1_000_000_000
POISON = "poison"


class Brittle(BestFit):
    """Breaks off at one step for pods of 666 MiB."""

    name = "brittle"

    def __init__(self, *, at: str = "score_nodes") -> None:
        self.at = at

    def _perhaps(self, step: str, memory_mib: int) -> None:
        if step == self.at and memory_mib == 666:
            raise OverflowError(f"Python int too large, says {object()!r}")

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        self._perhaps("queue_key", pod.shape.gpu_requests[0].memory.value)
        return super().queue_key(pod)

    def score_nodes(self, query: Query) -> Ints:
        self._perhaps("score_nodes", query.demand.needs[0].gpu_request.memory.value)
        return super().score_nodes(query)

    def choose_node(self, rows: Ints, key: str) -> int:
        self._perhaps("choose_node", 666 if POISON in key else 0)
        return 0


def engine_with(at: str) -> Engine:
    return Engine([Profile("weft", [Brittle(at=at)])], [node("a", gpus=2)])


@pytest.fixture
def breaks_once_reserved(monkeypatch):
    """An account kept of pods with a place breaks off for the poisonous one."""
    add = Residencies.add

    def refuses(self, placement, at_ns):
        if placement.uid == POISON:
            raise OverflowError(f"Python int too large, says {object()!r}")
        add(self, placement, at_ns)

    monkeypatch.setattr(Residencies, "add", refuses)


def uids(commands: list[object], kind: type) -> list[str]:
    return [c.pod.uid for c in commands if isinstance(c, kind)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("at", ["score_nodes", "choose_node", "once reserved"])
def test_whatever_breaks_off_is_undone_and_others_go_on(at, request):
    if at == "once reserved":
        request.getfixturevalue("breaks_once_reserved")
    engine, fresh = engine_with(at), engine_with(at)
    commands = engine.handle(PodAdded(pod(POISON, memory_mib=666)), 1)
    (fault,) = [c for c in commands if isinstance(c, Faulted)]
    assert fault.record.outcome == "faulted"
    whose = "" if at == "once reserved" else f"policy brittle, {at}: "
    assert fault.record.fault.startswith(
        f"deciding for this pod failed: {whose}OverflowError: Python int too large, says <object"
    )
    assert "0x…" in fault.record.fault, "the same in every process"
    assert not engine.ledger.holdings
    assert not engine.placed
    assert POISON in engine.queue
    assert differences(engine.ledger.table, fresh.ledger.table) == []
    assert uids(engine.handle(PodAdded(pod("well", memory_mib=500)), 2), Bind) == ["well"]
    assert not audit(engine.ledger)


def test_it_is_tried_again_when_the_cluster_changes_ever_more_seldom():
    engine = engine_with("score_nodes")
    engine.handle(PodAdded(pod(POISON, memory_mib=666)), 0)
    now, tries = 0, []
    for second in range(1, 3_600):
        now = second * SECOND
        seen = PodSeenBound(placement(f"p{second}", "a", 0, memory_mib=1))
        commands = engine.handle(seen, now) + engine.handle(PodGone(f"p{second}"), now)
        tries += [second] if any(isinstance(c, Faulted) for c in commands) else []
    assert tries[:5] == [1, 3, 7, 15, 31]
    assert len(tries) < 22
    assert max(b - a for a, b in itertools.pairwise(tries)) == FAULT_BACKOFF_MOST_NS // SECOND
    engine.handle(Tick(), now + 10**13)
    assert not any(isinstance(c, Faulted) for c in engine.handle(Tick(), now + 10**14))
    mended = pod(POISON, memory_mib=665)
    assert uids(engine.handle(PodAdded(mended), now), Bind) == [POISON], "its spec changed"


def test_a_quiet_cluster_does_not_try_it_again():
    engine = engine_with("score_nodes")
    commands = engine.handle(PodAdded(pod(POISON, memory_mib=666)), 0)
    assert not any(isinstance(c, Wake) for c in commands)


def test_those_alike_get_their_turn_where_the_first_of_them_breaks_off():
    """The fault is in one pod's draw, not in their shape."""
    engine = engine_with("choose_node")
    held = [placement(f"h{gpu}", "a", gpu, memory_mib=16_384) for gpu in range(2)]
    for one in held:
        engine.handle(PodSeenBound(one), 0)
    for uid in (POISON, "well"):
        engine.handle(PodAdded(pod(uid, memory_mib=500)), 1)
    assert len(engine.queue) == 2
    commands = engine.handle(PodGone("h0"), 60 * SECOND)
    assert uids(commands, Faulted) == [POISON]
    assert uids(commands, Bind) == ["well"]


def test_one_without_a_place_in_the_queue_waits_until_it_is_changed():
    engine = engine_with("queue_key")
    commands = engine.handle(PodAdded(pod(POISON, memory_mib=666)), 0)
    assert uids(commands, Faulted) == [POISON]
    assert POISON not in engine.queue
    assert uids(engine.handle(PodAdded(pod(POISON, memory_mib=5)), 1), Bind) == [POISON]


def test_what_breaks_off_while_it_is_charged_leaves_no_trace(monkeypatch):
    engine = engine_with("nowhere")
    engine.handle(PodAdded(pod("before", memory_mib=100)), 0)
    charge = Ledger._charge

    def half(self, row, holding, sign):
        if holding.placement.uid == POISON and sign > 0:
            self.table.cpu_free[row] -= 1
            self.table.memory_used[0] += 666
            raise MemoryError("in the middle")
        return charge(self, row, holding, sign)

    monkeypatch.setattr(Ledger, "_charge", half)
    commands = engine.handle(PodAdded(pod(POISON, memory_mib=666)), 1)
    assert uids(commands, Faulted) == [POISON]
    assert list(engine.ledger.holdings) == ["before"]
    assert not audit(engine.ledger)


@pytest.mark.parametrize("at", ["score_nodes", "once reserved"])
def test_kube_scheduler_is_refused_with_a_reason(at, request):
    if at == "once reserved":
        request.getfixturevalue("breaks_once_reserved")
    engine = engine_with(at)
    commands = engine.handle(BindOn(pod(POISON, memory_mib=666), "a", "weft"), 0)
    assert uids(commands, Faulted) == [POISON]
    (refused,) = [c for c in commands if isinstance(c, BindOnRefused)]
    assert refused.code is Code.FAULT
    assert not engine.ledger.holdings
    assert not audit(engine.ledger)


def test_it_is_on_record_and_breaks_off_alike_in_a_replay():
    header = Header([ProfileUse("weft", [PolicyUse("brittle", options={"at": "choose_node"})])])
    engine = header.engine(lambda name, **options: Brittle(**options))
    events = [
        NodesChanged((node("a", gpus=1),)),
        PodAdded(pod("x", memory_mib=5)),
        PodAdded(pod(POISON, memory_mib=666)),
        PodAdded(pod("y", memory_mib=5)),
    ]
    lines = []
    for at, event in enumerate(events):
        line = DecisionLine(at, event, records_of(engine.handle(event, at)))
        lines.append(msgspec.json.decode(msgspec.json.encode(line), type=DecisionLine))
    assert [r.outcome for line in lines for r in line.records] == ["placed", "faulted", "placed"]
    verdict = replay(header, lines, lambda name, **options: Brittle(**options))
    assert verdict.identical
    assert verdict.decisions == 3


def test_signals_that_cannot_be_read_are_none_and_the_next_are_read(monkeypatch):
    engine = engine_with("nowhere")
    engine.handle(PodAdded(pod("p", memory_mib=5)), 0)
    observe = type(engine.harvest).observe
    monkeypatch.setattr(type(engine.harvest), "observe", lambda *_: 1 // 0)
    commands = engine.handle(SignalsChanged(snapshot(1, 0, [("a", 0)], {})), 1)
    (fault,) = [c for c in commands if isinstance(c, Faulted)]
    assert fault.pod is None
    assert fault.record.fault.startswith("taking in SignalsChanged failed: ZeroDivisionError")
    assert engine.signals.version == 0
    monkeypatch.setattr(type(engine.harvest), "observe", observe)
    engine.handle(SignalsChanged(snapshot(2, 0, [("a", 0)], {})), 2)
    assert engine.signals.version == 2
    assert not audit(engine.ledger)


def test_a_fault_in_what_is_true_of_the_cluster_is_not_passed_over(monkeypatch):
    """A pod that is bound and not charged would be given away: the process starts anew."""
    engine = engine_with("nowhere")

    def broken(self: Ledger, placement: Placement) -> bool:
        raise OverflowError

    monkeypatch.setattr(Ledger, "adopt", broken)
    with pytest.raises(OverflowError):
        engine.handle(PodSeenBound(placement("p", "a", 0, memory_mib=1)), 0)


@pytest.mark.parametrize("at", ["queue_key", "score_nodes", "choose_node"])
def test_what_broke_off_is_not_kept(at: str) -> None:
    """Its traceback has the arrays of all nodes."""
    engine = engine_with(at)
    commands = engine.handle(PodAdded(pod(POISON, memory_mib=666)), 0)
    (error,) = (weakref.ref(each.error) for each in commands if isinstance(each, Faulted))
    del commands
    gc.collect()
    assert error() is None

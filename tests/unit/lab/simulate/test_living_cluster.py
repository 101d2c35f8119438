"""The demo's cluster: lives the same by any clock, and shows what a demo has to show."""

from collections import Counter
from itertools import pairwise

import pytest

from weft.core.engine.nominations import is_kept
from weft.core.explain.gpu_facts import gpu_states
from weft.core.ledger import audit
from weft.core.policies.catalog import built_in
from weft.lab.simulate.living import (
    GANG_SIZES,
    GANGS,
    GRACE_S,
    MEASURED_EVERY_S,
    WORKLOADS,
    ClusterEvent,
    LivingCluster,
)

NAMESPACES = {kind.namespace for kind in WORKLOADS}
BEGAN_NS, SECOND_NS = 1_790_000_000 * 10**9, 10**9


def cluster(seed: int = 1) -> LivingCluster:
    return LivingCluster(built_in().create("auto"), BEGAN_NS, seed)


def lent_mib(lived: LivingCluster) -> Counter[int]:
    """Memory promised beyond each GPU's own, by device row, MiB."""
    table = lived.engine.ledger.table
    pairs = enumerate(zip(table.memory_used, table.device_memory_total.tolist(), strict=True))
    return Counter({gpu: used - total for gpu, (used, total) in pairs if used > total})


def priority(pod: str) -> int:
    """The priority of a pod NAMESPACE/NAME, by its kind."""
    kinds = {kind.name: kind.priority for kind in (*WORKLOADS, *GANGS)}
    return kinds[pod.partition("/")[2].rpartition("-")[0]]


def test_it_lives_the_same_in_steps_of_any_length() -> None:
    once, often = cluster(), cluster()
    began = once.events()
    once.live_until(BEGAN_NS + 30 * SECOND_NS)
    for tenth in range(1, 301):
        often.live_until(BEGAN_NS + tenth * SECOND_NS // 10)
    assert once.events() == often.events()
    assert once.engine.ledger.holdings == often.engine.ledger.holdings
    assert cluster(2).events() != began


def test_it_has_200_gpus_is_nearly_full_and_pods_wait() -> None:
    lived = cluster()
    table = lived.engine.ledger.table
    assert table.devices == 200
    lived.live_until(BEGAN_NS + 120 * SECOND_NS)
    assert sum(table.milli_used) > 0.75 * 200_000
    assert len(lived.engine.queue) > 0


def test_a_node_fails_and_returns_and_its_pods_come_anew() -> None:
    lived = cluster()
    for second in range(21):
        lived.live_until(BEGAN_NS + second * SECOND_NS)
    failed = [event for event in lived.events() if event.kind == "node failed"]
    assert len(failed) == 1
    table = lived.engine.ledger.table
    assert [n.name for n in table.nodes if not n.schedulable] == [failed[0].node]
    assert not list(lived.engine.ledger.pods_on(failed[0].node))
    lived.live_until(BEGAN_NS + 50 * SECOND_NS)
    back = [event.node for event in lived.events() if event.kind == "node is back"]
    assert back == [failed[0].node]
    assert all(node.schedulable for node in lived.engine.ledger.table.nodes)


def test_a_gangs_pods_get_places_together_or_wait() -> None:
    lived, waited = cluster(), 0
    for second in range(300):
        lived.live_until(BEGAN_NS + second * SECOND_NS)
        queued = [w.pod for w in lived.engine.queue.waiting() if w.pod.gang]
        waited += bool(queued)
        for name, count in Counter(str(pod.gang) for pod in queued).items():
            kind = name.partition("/")[2].rpartition("-")[0]
            assert count == GANG_SIZES[kind], name
    assert waited


def test_pods_of_lower_priority_are_preempted_leave_after_their_grace_and_come_anew() -> None:
    lived, last, seen = cluster(), 0, []
    for second in range(240):
        lived.live_until(BEGAN_NS + second * SECOND_NS)
        seen += [event for event in lived.events() if event.number > last]
        last = seen[-1].number
    preempted = [event for event in seen if event.kind == "preempted"]
    assert preempted
    for event in preempted:
        ended = [e for e in seen if e.pod == event.pod and e.kind == "ended"]
        assert [e.at_ns - event.at_ns for e in ended] == [GRACE_S * SECOND_NS]
        winner = event.text.removeprefix("for ").partition(",")[0]
        assert priority(winner) > priority(event.pod)


@pytest.mark.parametrize("seed", [1, 3])
def test_memory_is_lent_and_taken_back_when_its_lender_grows(seed: int) -> None:
    """Each pod from which memory is taken back had borrowed it, and ends after its grace."""
    lived, last = cluster(seed), 0
    seen, lent = list[ClusterEvent](), list[Counter[int]]()
    for second in range(180):
        lived.live_until(BEGAN_NS + second * SECOND_NS)
        assert second % MEASURED_EVERY_S or audit(lived.engine.ledger) == []
        lent.append(lent_mib(lived))
        seen += [event for event in lived.events() if event.number > last]
        last = seen[-1].number
    sums = [each.total() for each in lent]
    assert any(now > before for before, now in pairwise(sums))
    assert any(now < before for before, now in pairwise(sums))
    assert {gpu for each in lent for gpu in each} - {*lent[-1]}
    borrowed = {event.pod: event for event in seen if event.kind == "borrows"}
    for event in borrowed.values():  # by NAMESPACE/NAME names are hidden from who may not see them
        lenders = event.text.partition(" MiB that ")[2].partition(" left idle on GPU ")[0]
        assert all(lender.partition("/")[0] in NAMESPACES for lender in lenders.split(", "))
    taken = [e for e in seen if e.kind == "taken back" and e.at_ns < BEGAN_NS + 176 * SECOND_NS]
    assert [event for event in taken if event.at_ns > BEGAN_NS]
    for event in taken:
        assert event.node == borrowed[event.pod].node
        ended = [e for e in seen if e.pod == event.pod and e.kind == "ended"]
        assert [e.at_ns - event.at_ns for e in ended] == [GRACE_S * SECOND_NS]
    assert any(" grew" in event.text for event in taken)


def test_gpus_with_pods_are_measured_and_those_of_a_failed_node_are_not() -> None:
    lived, celsius = cluster(), set[int]()
    lived.live_until(BEGAN_NS + 2 * SECOND_NS)
    table = lived.engine.ledger.table
    lived.fail(table.nodes[7])
    lived.live_until(BEGAN_NS + (2 + MEASURED_EVERY_S) * SECOND_NS)
    for gpu, state in enumerate(gpu_states(lived.engine)):
        row = int(table.device_node[gpu])
        if row == 7:
            assert (state.used_mib, state.used_percent, state.celsius) == (None, None, None)
            continue
        assert state.used_mib is not None
        assert state.used_percent is not None
        assert state.celsius is not None
        assert 0 <= state.used_mib < table.device_memory_total[gpu]
        assert 0 <= state.used_percent <= 100
        celsius.add(state.celsius)
    assert min(celsius) < 45
    assert max(celsius) > 75


def test_a_node_fails_on_which_a_place_is_kept() -> None:
    """The demo broke off with the place taken for a pod."""
    lived, kept, second = cluster(), list[str](), 0
    while not kept:
        second += 1
        lived.live_until(BEGAN_NS + second * SECOND_NS)
        holdings = lived.engine.ledger.holdings.items()
        kept = [held.placement.node for uid, held in holdings if is_kept(uid)]
    table = lived.engine.ledger.table
    lived.fail(table.nodes[table.row_of[kept[0]]])
    assert kept[0] not in {held.placement.node for held in lived.engine.ledger.holdings.values()}

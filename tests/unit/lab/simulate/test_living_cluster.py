"""The demo's cluster: lives the same by any clock, and shows what a demo has to show."""

from collections import Counter

from weft.core.engine.nominations import is_kept
from weft.core.policies.catalog import built_in
from weft.lab.simulate.living import GANG_SIZES, GANGS, GRACE_S, WORKLOADS, LivingCluster

BEGAN_NS, SECOND_NS = 1_790_000_000 * 10**9, 10**9


def cluster(seed: int = 1) -> LivingCluster:
    return LivingCluster(built_in().create("least-stranding"), BEGAN_NS, seed)


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

"""The pod that is tried next, against a list that is searched as a whole each time."""

from random import Random

from engine_talk import SECOND
from msgspec.structs import replace

from weft.core.engine.parked import FreedNode
from weft.core.engine.queue import ActivePods, Queue, WaitingPod
from weft.core.framework import Demand, Policy, Profile
from weft.core.ledger import Ledger
from weft.core.policies.kube_knots import SmallestFirst
from weft.testing import node, pod

PROFILES = [Profile("weft", [Policy()]), Profile("small", [SmallestFirst()])]


class Slowly:
    """The rule as `active_pods.py` begins with, in its words."""

    def __init__(self) -> None:
        self.pods: list[WaitingPod] = []
        self.work: dict[str, int] = {}
        self.by_turns = False

    def push(self, waiting: WaitingPod) -> None:
        namespace = waiting.pod.namespace
        there = {other.pod.namespace for other in self.pods}
        if self.by_turns and namespace not in there:
            least = min((self.work.get(other, 0) for other in there), default=0)
            self.work[namespace] = max(self.work.get(namespace, 0), least)
        self.pods.append(waiting)

    def pop(self) -> WaitingPod | None:
        """Takes, of the pods that may be next in each profile, by priority, then work, then age."""
        heads = []
        for profile in PROFILES:
            mine = [one for one in self.pods if one.profile is profile]
            if mine and not self.by_turns:
                heads.append(min(mine, key=lambda one: one.key))
            elif mine:
                rank = min(one.rank for one in mine)
                for namespace in {one.pod.namespace for one in mine}:
                    theirs = [
                        one for one in mine if (one.rank, one.pod.namespace) == (rank, namespace)
                    ]
                    heads += [min(theirs, key=lambda one: one.key)] if theirs else []
        first = min(heads, key=self._place, default=None)
        if first is not None:
            self.pods.remove(first)
        return first

    def _place(self, one: WaitingPod) -> tuple[int, ...]:
        work = self.work.get(one.pod.namespace, 0) if self.by_turns else 0
        return (one.rank[1], work, one.pod.created_ns, one.key[-1])


def some_pod(dice: Random, number: int) -> WaitingPod:
    asks = pod(
        f"p{number}",
        memory_mib=dice.randint(1, 4) * 100,
        priority=dice.choice([0, 0, 0, 7]),
        created_ns=dice.randint(0, 50),
    )
    asks = replace(asks, namespace=dice.choice("aaaaabc"))
    return WaitingPod(asks, dice.choice(PROFILES), number)


def test_whoever_is_next_is_next_by_the_rule():
    turns = 0
    for seed in range(40):
        dice, quick, slow = Random(seed), ActivePods(), Slowly()
        for number in range(300):
            if dice.random() < 0.6:
                one = some_pod(dice, number)
                quick.push(one)
                slow.push(one)
            for _ in range(dice.choice([0, 0, 1, 3])):
                one, other = quick.pop(), slow.pop()
                assert one is other, (seed, number)
                if one is not None and other is not None:
                    one.state, looks = "gone", dice.randint(1, 500)
                    quick.worked(one, looks)
                    slow.work[other.pod.namespace] = slow.work.get(other.pod.namespace, 0) + looks
            assert bool(quick) == bool(slow.pods)
            if dice.random() < 0.1 or not slow.pods:
                slow.by_turns = bool(slow.pods)
                quick.take_turns(by_turns=slow.by_turns)
                if not slow.by_turns:
                    slow.work = {}
            turns += slow.by_turns
    assert turns > 2_000


def test_a_node_that_is_free_for_some_wakes_one_of_these_though_others_alike_come_first() -> None:
    ledger, profile, queue = Ledger([node("a", gpus=1)]), PROFILES[0], Queue()
    for uid in ("first", "second", "third"):
        queue.add(pod(uid, gpus=1), profile, 0)
    while (tried := queue.pop()) is not None:
        shape = tried.pod.shape
        queue.park(tried, shape, Demand(shape, ledger.table), 0)
    free = FreedNode.on(ledger, 0)
    nobody = free._replace(for_whom=lambda _: False, by_pod=True)
    queue.wake_for_freed(nobody, 60 * SECOND)
    assert queue.pop() is None
    some = free._replace(for_whom=lambda waiting: waiting.pod.uid != "first", by_pod=True)
    queue.wake_for_freed(some, 60 * SECOND)
    woken = queue.pop()
    assert woken is not None
    assert woken.pod.uid == "second"
    queue.wake_for_freed(free, 60 * SECOND)
    assert (woken := queue.pop()) is not None
    assert woken.pod.uid == "first"

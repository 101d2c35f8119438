"""Policies with prices are told whether capacity comes back, and have prices made in time."""

from weft.core.engine import (
    Bind,
    BindFailed,
    Engine,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
)
from weft.core.engine.pricing import FEW_PODS
from weft.core.framework import Policy, Profile
from weft.core.framework.policy import PricesEvery
from weft.model import Node, Placement, PodRequest
from weft.testing import node, shape

EVERY = 5


class Told(Policy):
    """Remembers what it was told before each price list."""

    name = "told"
    prices_every = PricesEvery(EVERY, 600.0)

    def __init__(self) -> None:
        self.parts: list[float] = []

    def take_turnover(self, part: float) -> None:
        self.parts.append(part)


class World:
    """An engine with one such policy; pods ask for one core each and are bound at once."""

    def __init__(self, nodes: list[Node] | None = None, held: int = 0) -> None:
        self.policy, self.came = Told(), 0
        cluster = [node("a", gpus=8, cpu_milli=500_000)] if nodes is None else nodes
        self.engine = Engine([Profile("weft", [self.policy])], cluster)
        for number in range(held):
            placement = Placement(f"old{number}", cluster[0].name, (), cpu_milli=1000)
            self.engine.handle(PodSeenBound(placement), 0)

    def come(self, pods: int) -> None:
        for _ in range(pods):
            self.came += 1
            pod = PodRequest(str(self.came), f"p{self.came}", shape(cpu_milli=1000))
            assert any(isinstance(each, Bind) for each in self.engine.handle(PodAdded(pod), 0))
            self.engine.handle(PodBound(pod.uid), 0)

    def go(self, *uids: object) -> None:
        for uid in uids:
            self.engine.handle(PodGone(str(uid)), 0)

    @property
    def last(self) -> float:
        return self.policy.parts[-1]


def test_of_few_pods_nothing_is_concluded() -> None:
    world = World()
    world.come(FEW_PODS - 1)
    assert set(world.policy.parts) == {1.0}


def test_where_nobody_leaves_nothing_comes_back() -> None:
    world = World()
    world.come(FEW_PODS + EVERY)
    assert world.last == 0.0


def test_where_each_pod_takes_the_place_of_another_everything_comes_back() -> None:
    world = World()
    world.come(FEW_PODS + EVERY)
    for uid in range(1, 800):
        world.go(uid)
        world.come(1)
    assert world.last > 0.95


def test_what_is_held_at_the_start_counts_as_having_taken_others_place() -> None:
    """As after a restart; pods that come without any that goes then say otherwise."""
    world = World(held=100)
    world.come(FEW_PODS)
    assert 0.3 < world.last < 0.36  # 100 of about 300


def test_a_cluster_that_empties_gives_back_no_more_than_it_had() -> None:
    world = World(held=100)
    world.come(FEW_PODS)
    world.go(*range(1, FEW_PODS), *(f"old{number}" for number in range(100)))
    world.come(EVERY)
    assert world.last == 1.0


def test_a_reservation_that_comes_to_nothing_gives_nothing_back() -> None:
    world = World()
    world.come(FEW_PODS + EVERY)
    for number in range(4 * EVERY):
        pod = PodRequest(f"x{number}", f"x{number}", shape(cpu_milli=1000))
        world.engine.handle(PodAdded(pod), 0)
        world.engine.handle(BindFailed(pod.uid), 0)
        world.go(pod.uid)
    assert world.last == 0.0


def test_nodes_without_gpus_say_nothing() -> None:
    world = World([node("cpu", gpus=0, cpu_milli=900_000), node("gpu", gpus=1, cpu_milli=10)])
    world.come(FEW_PODS)
    world.go(*range(1, 150))
    world.come(3 * EVERY)
    assert world.last == 0.0


def test_while_a_small_cluster_fills_prices_are_made_early() -> None:
    """200 pods would fill it; where as much comes as goes, nothing is out of date."""
    policy = Told()
    policy.prices_every = PricesEvery(200, 600.0, gpu_part=1 / 4)
    engine = Engine([Profile("weft", [policy])], [node("a", gpus=8, cpu_milli=500_000)])

    def come(first: int, last: int) -> int:
        before = len(policy.parts)
        for number in range(first, last):
            engine.handle(PodAdded(PodRequest(str(number), "p", shape(milli=100))), 0)
            engine.handle(PodBound(str(number)), 0)
            if number >= 40:
                engine.handle(PodGone(str(number - 40)), 0)
        return len(policy.parts) - before

    engine.handle(PodAdded(PodRequest("first", "p", shape())), 0)
    assert come(0, 40) == 1  # seen at the 30th pod
    assert come(40, 150) == 0

"""The engine's answer to "where does it fit?" is the one that trying everything gives.

Random small clusters, random shapes, random pods coming and going: after each change the kept
(mended) answers must be those of a fresh start, and both those of the slow reference.
"""

from collections.abc import Iterator, Sequence
from random import Random

import msgspec
import numpy as np
import pytest
from long_form import few_or_many

from fakes.reference import ReferenceLedger
from fakes.reference_fit import assignments, charged_mib, fewest_gpus, fitting_nodes
from weft.core.engine.assessment import Assessor
from weft.core.engine.deciding import shares_on
from weft.core.framework import NEVER, Demand, Policy, Profile, Query
from weft.core.framework.policy import PlacementOptions
from weft.core.ledger import Ledger, RequestLimits, audit
from weft.core.ledger.table import Bools, Ints
from weft.model import ClosedNode, Code, Constraints, Node, Placement, Shape, Taint, Toleration
from weft.testing import random_nodes, random_shape

CLUSTERS = few_or_many(25, 320)
ROUNDS = 3
SHAPES = 3


class Leaving(Policy):
    """Scores nodes and devices by what is left: anything that changes with every pod will do."""

    name = "leaving"

    def score_nodes(self, query: Query) -> Ints:
        return query.cpu_free // 100 + query.milli_free

    def score_devices(self, query: Query) -> Ints | None:
        return None if query.need is None else query.device_memory_free


class Plain(Policy):
    """No opinion at all."""

    name = "plain"


class Rating(Policy):
    """Rates whole assignments: most memory left on the fullest device."""

    name = "rating"

    def rate_options(self, options: PlacementOptions) -> Ints:
        return np.where(options.there, options.memory_free, 1 << 40).min(axis=1)


class EvenOnly(Policy):
    """A filter on devices, to see that every way of placing asks it."""

    name = "even-only"

    def filter_devices(self, query: Query) -> Bools:
        return np.asarray(query.device_local % 2 == 0)


PROFILES = {
    "plain": [Plain()],
    "leaving": [Leaving()],
    "rating": [Rating()],
    "two scorers": [Leaving(), type("Other", (Leaving,), {"name": "other"})()],
}


class World:
    """The two ledgers side by side, with one engine-side assessor that lives through it all."""

    def __init__(self, random: Random, nodes: Sequence[Node], policies: Sequence[Policy]) -> None:
        self.random, self.nodes = random, nodes
        permille = random.choice((1000, 1000, 1000, 1500))
        self.live = Ledger(nodes, RequestLimits(permille))
        self.slow = ReferenceLedger(nodes, permille)
        self.profile = Profile("test", policies)
        self.kept = Assessor(self.live)
        self.pods = 0

    def check(self, shape: Shape) -> None:
        """Kept answers are a fresh start's, and mark the reference's nodes."""
        kept = self.kept.assess(self.profile, shape)
        fresh = Assessor(self.live).assess(self.profile, shape)
        assert kept.codes.tolist() == fresh.codes.tolist(), shape
        assert kept.counts == fresh.counts, shape
        assert kept.total.tolist() == fresh.total.tolist(), shape
        fits = [self.live.table.nodes[row].name for row in np.flatnonzero(kept.codes == 0)]
        assert sorted(fits) == fitting_nodes(self.slow, shape), shape
        assert (kept.total != NEVER).tolist() == (kept.codes == 0).tolist()
        assert sum(kept.counts) == len(self.nodes)

    def place(self, shape: Shape, accepts: Shape | None = None) -> None:
        """Put a pod on a random node that fits; the ledgers must both take it.

        `accepts` says which GPUs it may have, where the policies narrow that.
        """
        known = self.kept.assess(self.profile, shape)
        rows = np.flatnonzero(known.codes == 0).tolist()
        if not rows:
            return
        row = self.random.choice(rows)
        node = self.nodes_by_row(row)
        self.pods += 1
        uid = f"pod-{self.pods}"
        shares = shares_on(self.live.table, row, known, self.profile, uid)
        placement = Placement(uid, node, shares, shape.cpu_milli, shape.memory_mib, shape.extended)
        self.check_shares(accepts or shape, placement)
        assert self.live.reserve(placement), (shape, placement)
        assert self.slow.reserve(placement), (shape, placement)

    def check_shares(self, shape: Shape, placement: Placement) -> None:
        """Each claim has its count of distinct GPUs with its memory; a split one the fewest."""
        account = self.slow.account(placement.node)
        chosen = []
        for index, gpu_request in enumerate(shape.gpu_requests):
            mine = [share for share in placement.shares if share.gpu_request == index]
            assert len({share.gpu for share in mine}) == len(mine) >= gpu_request.count
            if gpu_request.split:
                assert sum(share.memory_mib for share in mine) == gpu_request.memory.value
                if len(shape.gpu_requests) == 1:
                    assert len(mine) == fewest_gpus(account, shape)
                continue
            assert len(mine) == gpu_request.count
            for share in mine:
                entry = account.gpus[share.gpu]
                assert share.memory_mib == charged_mib(entry, gpu_request)
                assert share.milli == (1000 if gpu_request.whole else gpu_request.milli)
                assert share.uuid == entry.gpu.uuid
            chosen.append(tuple(share.gpu for share in sorted(mine, key=lambda s: s.gpu)))
        assert len(placement.shares) == len({(s.gpu_request, s.gpu) for s in placement.shares})
        possible = {tuple(map(frozenset, way)) for way in assignments(account, shape)}
        assert tuple(map(frozenset, chosen)) in possible

    def nodes_by_row(self, row: int) -> str:
        return self.live.table.nodes[row].name

    def release(self) -> None:
        uid = self.random.choice(sorted(self.live.holdings))
        self.live.release(uid)
        self.slow.release(uid)


def worlds(profile: str, many: int, *, most: int = 5, mig: bool = True) -> Iterator[World]:
    for seed in range(many):
        random = Random(f"{profile}/{seed}")
        nodes = random_nodes(random, most, mig=mig)
        yield World(random, nodes, PROFILES[profile])


def anywhere(world: World) -> Shape:
    """A random shape that names no node (see the test of those that do)."""
    shape = random_shape(world.random, list(world.nodes))
    return msgspec.structs.replace(shape, node_name="")


def live_through(world: World, rounds: int = ROUNDS) -> None:
    shapes = [anywhere(world) for _ in range(SHAPES)]
    for _ in range(rounds):
        for shape in shapes:
            world.check(shape)
        for shape in shapes:
            world.place(shape)
        if world.live.holdings and world.random.random() < 0.5:
            world.release()
    for shape in shapes:
        world.check(shape)
    assert audit(world.live) == []


@pytest.mark.parametrize("profile", PROFILES)
def test_the_engine_finds_exactly_the_nodes_that_fit(profile: str) -> None:
    for world in worlds(profile, CLUSTERS // len(PROFILES)):
        live_through(world)


def test_mending_a_few_of_many_nodes_is_a_fresh_start() -> None:
    """With 12 nodes most changes touch less than a quarter: answers are mended row by row."""
    for seed in range(few_or_many(6, 30)):
        random = Random(f"mend/{seed}")
        nodes = random_nodes(random, 1)
        while len(nodes) < 12:
            nodes.append(random_nodes(random, 1)[0])
        nodes = [_renamed(node, f"n{i}") for i, node in enumerate(nodes)]
        live_through(World(random, nodes, PROFILES["leaving"]), rounds=4)


def test_a_node_named_by_the_pod_must_still_fit() -> None:
    for world in worlds("plain", few_or_many(60, 200)):
        shape = random_shape(world.random, list(world.nodes))
        named = world.random.choice(world.nodes).name
        world.check(msgspec.structs.replace(shape, node_name=named))


def test_a_device_filter_is_asked_however_claims_are_placed() -> None:
    """Refusing odd devices is what a rule against their UUIDs is, searched, rated or greedy."""
    for name in ("plain", "leaving", "rating"):
        for world in worlds(name, few_or_many(30, 100)):
            world.profile = Profile("filtered", [*PROFILES[name], EvenOnly()])
            odd = [gpu.uuid for node in world.nodes for gpu in node.gpus if gpu.index % 2]
            for _ in range(SHAPES):
                shape = anywhere(world)
                rule = msgspec.structs.replace(
                    shape.devices, not_uuids=(*shape.devices.not_uuids, *odd)
                )
                known = world.kept.assess(world.profile, shape)
                fits = [world.live.table.nodes[i].name for i in np.flatnonzero(known.codes == 0)]
                stricter = msgspec.structs.replace(shape, devices=rule)
                if shape.gpu_requests:
                    assert sorted(fits) == fitting_nodes(world.slow, stricter), shape
                world.place(shape, stricter)


def test_nodes_may_come_and_go_between_questions() -> None:
    for world in worlds("leaving", few_or_many(25, 60)):
        shape = anywhere(world)
        world.check(shape)
        more = [_renamed(node, f"m{i}") for i, node in enumerate(random_nodes(world.random, 3))]
        for ledger in (world.live, world.slow):
            ledger.set_nodes(more, [world.nodes[0].name])
        world.nodes = world.live.table.nodes
        world.check(shape)


def test_nodes_may_be_closed_between_questions() -> None:
    """Without a new layout the answers are a fresh start's, and taints keep off who minds them."""
    taint = Taint("gpu", "NoSchedule")
    tolerant = Constraints(tolerations=(Toleration("gpu", "Exists"),))
    for world in worlds("leaving", few_or_many(25, 60)):
        live, shape = world.live, anywhere(world)
        minds_not = msgspec.structs.replace(shape, constraints=tolerant)
        shapes, generation = (shape, minds_not), live.generation
        for one in shapes:
            world.check(one)
        tainted, gone = (world.random.choice(world.nodes) for _ in "ab")
        live.close([ClosedNode(tainted.name, (taint,), tainted.schedulable), ClosedNode("nobody")])
        world.check(minds_not)
        code = world.kept.assess(world.profile, shape).codes[live.table.row_of[tainted.name]]
        assert code == (Code.TAINT if tainted.schedulable else Code.UNSCHEDULABLE)
        live.close([ClosedNode(gone.name, schedulable=False)])
        world.slow.set_nodes(node for node in live.table.nodes if node.name == gone.name)
        world.check(minds_not)
        assert live.generation == generation
        anew = Assessor(Ledger(live.table.nodes, live.limits))
        for one in shapes:
            kept = world.kept.assess(world.profile, one)
            assert kept.codes.tolist() == anew.assess(world.profile, one).codes.tolist()


def test_a_shape_that_fits_nothing_has_a_code_on_every_node() -> None:
    for world in worlds("plain", 40):
        shape = random_shape(world.random, list(world.nodes))
        shape = Shape(gpu_requests=shape.gpu_requests, cpu_milli=10**9)
        known = world.kept.assess(world.profile, shape)
        assert (known.codes != 0).all()
        assert known.counts[0] == 0
        assert Demand(shape, world.live.table).cpu_milli == 10**9


def _renamed(node: Node, name: str) -> Node:
    return msgspec.structs.replace(node, name=name)

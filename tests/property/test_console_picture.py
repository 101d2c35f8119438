"""The console's picture is what the ledger and `weft explain` say, and deltas lose nothing."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from long_form import few_or_many
from msgspec.structs import replace
from test_snapshot import from_file, random_story

from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.snapshot.state import queue_report
from weft.console.cluster_sources import SnapshotSource
from weft.console.deltas import PictureDelta, applied, between
from weft.console.picture import (
    IDLE_STEP_MIB,
    Picture,
    PictureMaker,
    PodFacts,
    ShownWaiting,
    UsualShapes,
    gpu_key,
    grouping_labels,
)
from weft.console.sources import LivingSource
from weft.console.waiting import WaitingReasons
from weft.core.engine import (
    Engine,
    Evict,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    SignalsChanged,
)
from weft.core.engine.team_queues import charge_of
from weft.core.explain.of_engine import explanation_of
from weft.core.explain.smallest_change import SuggestedChange
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, MISSING, STALE, snapshot
from weft.core.framework.stranded import stranded_gpus
from weft.core.ledger import Holding, RequestLimits
from weft.core.policies.catalog import built_in
from weft.lab.simulate.living import LivingCluster
from weft.model import Placement, PodRequest, Share
from weft.model.queue_rules import NO_QUEUES, QueueAmounts, QueueRules, QueueTerms
from weft.testing import node as node_of
from weft.testing import random_node, random_nodes, random_shape

TEAMS = (
    QueueTerms("x", guarantee=QueueAmounts(gpu_milli=700)),
    QueueTerms("y", 2, guarantee=QueueAmounts(memory_mib=12_000)),
)
STATES = few_or_many(8, 200)
SNAPSHOTS = range(few_or_many(4, 100))
DELTAS = few_or_many(100, 10_000)
BEGAN_NS = 1_790_000_000 * 10**9


class RandomStory:
    """An engine to which random things happen."""

    def __init__(self, seed: int, rules: QueueRules = NO_QUEUES) -> None:
        self.chance = random.Random(seed)
        self.nodes = random_nodes(self.chance, most=5)
        policy = self.chance.choice(("least-stranding", "fgd", "best-fit"))
        profile = Profile("weft", [built_in().create(policy)])
        self.engine = Engine([profile], self.nodes, keep_top=2, queues=rules)
        self.now, self.count = BEGAN_NS, 0
        self.pods: dict[str, PodRequest] = {}

    def step(self) -> None:
        self.now += 10**9
        what = self.chance.random()
        if what < 0.6 or not self.pods:
            self.count += 1
            uid = f"u{self.count}"
            shape = random_shape(self.chance, self.nodes)
            queue = self.chance.choice(("x", "y", "z"))
            self.pods[uid] = PodRequest(
                uid,
                f"p{self.count}",
                shape,
                namespace=f"team-{self.count % 3}",
                created_ns=self.now,
                queue=queue,
            )
            self.tell(PodAdded(self.pods[uid]))
        elif what < 0.9:
            uid = self.chance.choice(sorted(self.pods))
            del self.pods[uid]
            self.tell(PodGone(uid))
        else:
            new = random_node(self.chance, f"n{self.chance.randrange(6)}")
            self.nodes = [node for node in self.nodes if node.name != new.name] + [new]
            self.tell(NodesChanged((new,)))

    def tell(self, event: Any) -> None:
        for command in self.engine.handle(event, self.now):
            if type(command).__name__ == "Bind" and self.chance.random() < 0.8:
                self.engine.handle(PodBound(command.pod.uid), self.now)

    def picture(self, slice_s: float = 0.0) -> Picture:
        waiting = WaitingReasons(self.engine, slice_s)
        return PictureMaker(self.engine).picture(
            self.now / 10**9,
            lambda uid: PodFacts.of_placed(self.engine.placed[uid]),
            waiting.rows(entry.pod for entry in self.engine.queue.waiting()),
        )


def check_against_ledger(picture: Picture, engine: Engine) -> None:
    """Each cell is the sum over holdings, each pod its holding, each node and GPU is there once."""
    table, holdings = engine.ledger.table, engine.ledger.holdings
    assert sorted(picture.nodes) == sorted(node.name for node in table.nodes)
    assert picture.gpus.keys() == {gpu_key(n.name, g.index) for n in table.nodes for g in n.gpus}
    promised, idle = sums_of(holdings), Counter[tuple[str, int]]()
    for holding in holdings.values():
        for share, mib in zip(holding.placement.shares, holding.idle_mib, strict=False):
            idle[holding.placement.node, share.gpu] += mib
    for row, node in enumerate(table.nodes):
        cordoned = any("node.kubernetes.io/unschedulable" in taint.key for taint in node.taints)
        assert picture.nodes[node.name].closed is (not table.schedulable[row] or cordoned)
        assert picture.nodes[node.name].cpu_free_milli == table.cpu_free[row]
        for device, gpu in enumerate(node.gpus, start=table.start[row]):
            shown = picture.gpus[gpu_key(node.name, gpu.index)]
            assert (shown.memory_mib, shown.milli) == (gpu.memory_mib, gpu.milli)
            assert (shown.promised_mib, shown.promised_milli, shown.pods) == promised[
                node.name, gpu.index
            ]
            assert shown.free_mib == table.device_memory_free[device]
            assert shown.free_milli == table.device_milli_free[device]
            assert shown.lent_mib == max(0, shown.promised_mib - gpu.memory_mib)
            assert shown.idle_mib == idle[node.name, gpu.index]
    check_queues(picture, engine)
    assert picture.pods.keys() == holdings.keys()
    for uid, pod in picture.pods.items():
        placement = holdings[uid].placement
        assert pod.node == placement.node
        assert pod.kept is uid.startswith("kept-for/")
        charge = charge_of(placement, table.nodes[table.row_of[placement.node]])
        assert pod.gpu_milli == charge.gpu_milli
        assert pod.binding is (holdings[uid].state == "reserved" and not pod.kept)
        shares = [(share.gpu, share.memory_mib, share.milli) for share in placement.shares]
        assert [(s.gpu, s.memory_mib, s.milli) for s in pod.shares] == shares
        idle_mib = [share.idle_mib for share in pod.shares]
        told = [mib // IDLE_STEP_MIB * IDLE_STEP_MIB for mib in holdings[uid].idle_mib]
        assert idle_mib == told + [0] * (len(idle_mib) - len(told))
    check_borrowed(picture, engine)


def check_borrowed(picture: Picture, engine: Engine) -> None:
    """On each GPU the pods borrow what is promised beyond it, those bound last first."""
    table, borrowed = engine.ledger.table, Counter[tuple[str, int, str]]()
    for uid, pod in picture.pods.items():
        for share in pod.shares:
            assert 0 <= share.borrowed_mib <= share.memory_mib
            borrowed[pod.node, share.gpu, uid] += share.borrowed_mib
    for row, node in enumerate(table.nodes):
        for device, gpu in enumerate(node.gpus, start=table.start[row]):
            left = max(0, table.memory_used[device] - table.limit_of(device))
            for holding in reversed(engine.harvest.in_order(node.name, gpu.index)):
                on_it = [s for s in holding.placement.shares if s.gpu == gpu.index]
                part = min(left, sum(share.memory_mib for share in on_it))
                left -= part
                assert borrowed.pop((node.name, gpu.index, holding.placement.uid)) == part
            assert left == 0
    assert not any(borrowed.values())  # besides, of GPUs that are gone


def check_queues(picture: Picture, engine: Engine) -> None:
    """Each queue is the sum of its pods' charges, and of those that wait in it."""
    table, placed, waits = engine.ledger.table, Counter[str](), Counter[str]()
    milli, mib, gpus = Counter[str](), Counter[str](), Counter[str]()
    for uid, pod in picture.pods.items():
        if pod.queue and not pod.kept:
            placement = engine.ledger.holdings[uid].placement
            charge = charge_of(placement, table.nodes[table.row_of[placement.node]])
            placed[pod.queue] += 1
            milli[pod.queue] += charge.gpu_milli
            mib[pod.queue] += charge.memory_mib
    for row in picture.waiting.values():
        if row.queue:
            waits[row.queue] += 1
            gpus[row.queue] += row.gpus
    for name, queue in picture.queues.items():
        assert (queue.queue, queue.pods, queue.waiting) == (name, placed[name], waits[name])
        assert (round(queue.gpus * 1000), queue.gpu_memory_mib) == (milli[name], mib[name])
        assert queue.waiting_gpus == gpus[name]
        assert 0 <= queue.borrowed_gpus <= queue.gpus
    assert {*placed, *waits} <= picture.queues.keys()


def sums_of(holdings: Mapping[str, Holding]) -> Mapping[tuple[str, int], tuple[int, int, int]]:
    mib, milli, pods = Counter[Any](), Counter[Any](), Counter[Any]()
    for holding in holdings.values():
        for share in holding.placement.shares:
            mib[holding.placement.node, share.gpu] += share.memory_mib
            milli[holding.placement.node, share.gpu] += share.milli
        for gpu in {share.gpu for share in holding.placement.shares}:
            pods[holding.placement.node, gpu] += 1

    class Sums(dict[tuple[str, int], tuple[int, int, int]]):
        def __missing__(self, gpu: tuple[str, int]) -> tuple[int, int, int]:
            return mib[gpu], milli[gpu], pods[gpu]

    return Sums()


def assert_changes(row: ShownWaiting, explained: Sequence[SuggestedChange]) -> None:
    """The row has the first change that ends no pod, and the first that does."""
    kept = [change.text for change in explained if not change.free]
    ends = [change.text for change in explained if change.free]
    assert (row.change, row.ends) == ("".join(kept[:1]), "".join(ends[:1]))
    assert row.changes == len(explained)


@pytest.mark.parametrize("seed", range(STATES))
def test_a_random_states_picture_is_the_ledgers(seed: int) -> None:
    story = RandomStory(seed)
    for _ in range(25):
        story.step()
    picture = story.picture(slice_s=30.0)
    check_against_ledger(picture, story.engine)
    queued = {entry.pod.uid for entry in story.engine.queue.waiting()}
    assert picture.waiting.keys() == queued
    for uid, row in picture.waiting.items():
        explained = explanation_of(story.engine, uid)
        assert explained is not None
        if not story.pods[uid].shape.constraints.unsupported:
            assert row.reason == explained.reason
        assert_changes(row, explained.changes)


@pytest.mark.parametrize("seed", range(few_or_many(1, 20)))
def test_a_demos_picture_is_its_ledgers_at_any_time(seed: int) -> None:
    cluster = LivingCluster(built_in().create("auto"), BEGAN_NS, seed)
    now_s = BEGAN_NS / 10**9
    source = LivingSource(cluster, "demo", clock=lambda: now_s)
    chance = random.Random(seed)
    for _ in range(8):
        now_s += chance.uniform(0.1, 20)
        picture = source.picture()
        check_against_ledger(picture, cluster.engine)
        for uid, row in picture.waiting.items():
            explained = explanation_of(cluster.engine, uid)
            assert explained is not None
            assert row.reason in (explained.reason, *explained.notes)


@pytest.mark.parametrize("seed", range(few_or_many(20, 200)))
def test_who_lends_and_borrows_is_what_the_engine_evicts_by(seed: int) -> None:
    """Pods are bound in any order beyond their GPUs, and their measured needs change."""
    chance, pods, evictions = random.Random(seed), dict[str, Placement](), 0
    limits = RequestLimits.declared(harvest_permille=2500)
    policy = built_in().create("auto")
    nodes = [node_of("a", gpus=2, memory_mib=10_000), node_of("b", gpus=1, memory_mib=10_000)]
    engine = Engine([Profile("weft", [policy])], nodes, limits=limits)
    gpus = [("a", 0), ("a", 1), ("b", 0)]
    maker, fresh = PictureMaker(engine), np.full(3, FRESH, np.int8)
    for number in range(1, 30):
        now = BEGAN_NS + number * 10**9
        if len(pods) > 5 and chance.random() < 0.4:
            gone = chance.choice(sorted(pods))
            del pods[gone]
            engine.handle(PodGone(gone), now)
        else:
            uid, (name, _) = f"u{number}", chance.choice(gpus)
            indices = chance.choices(range(2 if name == "a" else 1), k=chance.choice((1, 1, 2)))
            shares = tuple(
                Share(at, gpu, chance.randrange(1, 5_000), 10) for at, gpu in enumerate(indices)
            )
            pods[uid] = Placement(uid, name, shares)
            bound_ns = BEGAN_NS + chance.randrange(30) * 10**9
            engine.handle(PodSeenBound(pods[uid], bound_ns=bound_ns), now)
        idle = {
            uid: tuple(chance.randrange(1 + share.memory_mib) for share in placement.shares)
            for uid, placement in pods.items()
            if chance.random() < 0.6
        }
        need = {"memory_need_mib": (np.zeros(3), fresh)}
        measured = SignalsChanged(snapshot(number, now, gpus, need, idle_mib=idle))
        evicted = [c for c in engine.handle(measured, now) if isinstance(c, Evict)]
        picture = maker.picture(0.0, lambda uid: PodFacts("a", uid))
        check_against_ledger(picture, engine)
        for uid, placement in pods.items():
            measured = idle.get(uid, (0,) * len(placement.shares))
            for share, mib in zip(picture.pods[uid].shares, measured, strict=True):
                assert mib - IDLE_STEP_MIB < share.idle_mib <= mib
        for command in evicted:
            eviction, evictions = command.record.eviction, evictions + 1
            assert eviction is not None
            of_gpu = [
                s for s in picture.pods[command.placement.uid].shares if s.gpu == eviction.gpu
            ]
            assert sum(share.borrowed_mib for share in of_gpu) == eviction.borrowed_mib > 0
    assert evictions


@pytest.mark.parametrize("seed", SNAPSHOTS)
def test_a_snapshots_picture_says_what_explain_says(seed: int) -> None:
    state = from_file(random_story(seed).snapshot)
    picture = SnapshotSource(state, "x.json").picture()
    check_against_ledger(picture, state.engine)
    explain = Explainer(state.live, state.parts.guard, None, clock=lambda: 0.0).explain
    for row in picture.waiting.values():
        explained = asyncio.run(explain(row.namespace, row.name))
        assert explained is not None
        assert explained.uid == row.uid
        assert row.reason in (explained.reason, explained.text, *explained.notes)
        if explained.state == "pending":
            assert_changes(row, explained.changes)
    report = queue_report(state)
    assert (list(picture.queues.values()), picture.queue_order) == (report.queues, report.order)
    requests, unreadable = state.pending()
    assert len(picture.waiting) == len(requests) + len(unreadable)


def test_after_many_random_deltas_the_picture_equals_one_made_afresh() -> None:
    made = 0
    for seed in range(1000):
        story, shown = RandomStory(seed), Picture(0.0)
        for _ in range(60):
            for _ in range(story.chance.choice((0, 1, 1, 2, 5))):
                story.step()
            fresh = story.picture()
            sent = msgspec.json.encode(between(shown, fresh))
            shown = applied(shown, msgspec.json.decode(sent, type=PictureDelta))
            assert shown == fresh
            made += 1
        if made >= DELTAS:
            return


@pytest.mark.parametrize(
    "rules", [QueueRules(), QueueRules(queues=TEAMS), QueueRules("fair", TEAMS)]
)
@pytest.mark.parametrize("seed", range(few_or_many(3, 60)))
def test_a_picture_made_by_what_changed_equals_one_made_afresh(
    seed: int, rules: QueueRules
) -> None:
    """Pods of several queues come, go and change their queue; nodes change, measurements come."""
    story = RandomStory(seed, rules)
    chance, engine, maker = story.chance, story.engine, PictureMaker(story.engine)
    queues: dict[str, str] = {}

    def facts_of(uid: str) -> PodFacts:
        return PodFacts("a", uid, queue=queues.get(uid, ""))

    for number in range(60):
        for _ in range(chance.randrange(4)):
            story.step()
        for uid, placed in engine.placed.items():
            queues.setdefault(uid, placed.pod.team_queue)
        if not rules.count and queues and chance.random() < 0.2:
            queues[chance.choice(sorted(queues))] = chance.choice(("x", "y", ""))
        if chance.random() < 0.3:
            gpus = [(n.name, gpu.index) for n in engine.ledger.table.nodes for gpu in n.gpus]
            used = np.array([float(chance.randrange(3)) for _ in gpus])
            columns = {"memory_used_mib": (used, np.full(len(gpus), FRESH, np.int8))}
            idle = {uid: (chance.randrange(9_000),) for uid in queues if chance.random() < 0.5}
            signals = snapshot(number + 1, story.now, gpus, columns, idle_mib=idle)
            story.tell(SignalsChanged(signals))
        picture = maker.picture(float(number), facts_of)
        assert picture == PictureMaker(engine).picture(float(number), facts_of)
        assert [*picture.queues] == [*PictureMaker(engine).picture(0.0, facts_of).queues]


@pytest.mark.parametrize("seed", range(few_or_many(8, 80)))
def test_what_is_stranded_and_measured_is_as_elsewhere(seed: int) -> None:
    story = RandomStory(seed)
    for _ in range(25):
        story.step()
    table = story.engine.ledger.table
    gpus = [(node.name, gpu.index) for node in table.nodes for gpu in node.gpus]
    used, ran = np.arange(len(gpus)) * 100.0, np.full(len(gpus), 0.37)
    fresh = np.array([story.chance.choice((MISSING, STALE, FRESH)) for _ in gpus], np.int8)
    columns = {"memory_used_mib": (used, fresh), "gpu_util_ratio": (ran, fresh)}
    story.tell(SignalsChanged(snapshot(1, story.now, gpus, columns)))
    usual = UsualShapes(lambda: [pod.shape for pod in story.pods.values()]).at(0.0)
    picture = PictureMaker(story.engine).picture(0.0, lambda uid: PodFacts("a", uid), usual=usual)
    check_against_ledger(picture, story.engine)
    for at, gpu in enumerate(gpus):
        shown = picture.gpus[gpu_key(*gpu)]
        known = (100 * at, 37) if fresh[at] else (None, None)
        assert (shown.used_mib, shown.used_percent) == known
    if not usual:
        return
    found = stranded_gpus(table, usual)
    for row, node in enumerate(table.nodes):
        at_node = picture.nodes[node.name]
        assert at_node.idle_milli == found.idle[row]
        assert at_node.stranded_milli == found.by[:, row].sum()


def test_nodes_are_grouped_by_labels_of_a_few_values() -> None:
    nodes = [
        replace(
            node_of(f"n{at}", gpus=1), labels={"host": f"n{at}", "pool": "ab"[at % 2], "os": "l"}
        )
        for at in range(8)
    ]
    assert grouping_labels(nodes) == ["pool"]
    engine = Engine([Profile("weft", [built_in().create("fgd")])], nodes)
    picture = PictureMaker(engine).picture(0.0, lambda uid: PodFacts("a", uid))
    assert picture.nodes["n3"].labels == {"pool": "b"}


def test_a_delta_of_equal_pictures_is_empty() -> None:
    story = RandomStory(1)
    story.step()
    empty = PictureDelta(story.now / 10**9, queue_order="priority")
    assert between(story.picture(), story.picture()) == empty

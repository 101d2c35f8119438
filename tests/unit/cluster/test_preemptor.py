"""Preemption on a cluster: condition, DELETE, nominatedNodeName; budgets, and victims that stay."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from led_cluster import led
from live_world import Json, World, api, client_of, gpus, living, node, pod, until
from msgspec.structs import replace

from fakes.api_faults import Fault
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock, run
from weft.cluster.eviction import preemptor
from weft.core.engine import Bind, BindOn, NotEvicted, PodAdded
from weft.core.engine.nominations import REFUSED_NS
from weft.core.framework import Profile
from weft.core.policies.fgd import Fgd
from weft.kube.bind import AlreadyBound
from weft.kube.client import ApiClient
from weft.kube.clock import Clock
from weft.kube.eviction import evict
from weft.kube.pods import Pod
from weft.model.queue_rules import MoveRules

EVICTION = "/api/v1/namespaces/d/pods/low/eviction"


def profile(*, law: bool = False) -> Profile:
    return Profile("weft", [Fgd()], preempts=True, budgets_are_law=law)


class Preempting(World):
    """A cluster whose profile preempts."""

    def __init__(self, server: FakeApiServer, client: ApiClient, *, law: bool = False) -> None:
        super().__init__(server, client, Fgd())
        self.parts = led(client, [profile(law=law)])
        self.live = self.parts.live
        self.live.on_notice.append(self.notices.append)
        self.mark: Fault | None = None

    def add(self, name: str, priority: int, memory_mib: int = 15_000, **more: Any) -> None:
        """A pod comes."""
        asked = pod(name, memory_mib, priority=priority, **more)
        asked["metadata"]["labels"] = {"app": name}
        self.server.add("pods", asked)

    def add_of(self, kind: str, name: str, movable: str = "true") -> None:
        """A pod of 10,000 MiB and priority 5 comes, of such a controller; it says whether it may be
        moved."""
        asked = pod(name, 10_000, priority=5)
        owner = {"kind": kind, "name": "web", "uid": "u-web", "controller": True}
        says = {"weft.dev/movable": movable}
        asked["metadata"] |= {"ownerReferences": [owner], "annotations": says}
        self.server.add("pods", asked)

    async def bound(self, name: str) -> str:
        """The node that the pod gets."""
        found: str = await until(lambda: self.shown(name)["spec"].get("nodeName", ""))
        await until(lambda: (p := self.live.pod("d", name)) and p.spec.node_name)
        return found

    def shown(self, name: str) -> Json:
        """The pod as the API has it."""
        found: Json = self.server.get("pods", name, "d")
        return found

    def conditions(self, name: str) -> dict[str, str]:
        """Reasons by type."""
        conditions = self.shown(name).get("status", {}).get("conditions", [])
        return {each["type"]: each.get("reason", "") for each in conditions}

    def kept(self, name: str) -> str:
        """The pod's nominated node."""
        found: str = self.shown(name).get("status", {}).get("nominatedNodeName") or ""
        return found

    def end(self, name: str) -> None:
        """The kubelet is done with it."""
        self.server.remove("pods", name, "d")


@asynccontextmanager
async def world(
    *nodes: Json, law: bool = False, clock: Clock | None = None
) -> AsyncIterator[Preempting]:
    async with api(*(nodes or (node(count=1),))) as server, client_of(server, clock) as client:
        made = Preempting(server, client, law=law)
        async with living(made):
            yield made


def budget(app: str, allowed: int) -> Json:
    return {
        "metadata": {"name": app, "namespace": "d"},
        "spec": {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": allowed},
        "status": {"disruptionsAllowed": allowed},
    }


async def test_a_victim_gets_its_condition_and_goes_and_the_node_is_kept() -> None:
    async with world() as made:
        made.add("low", 1)
        await made.bound("low")
        made.add("high", 9)
        await until(lambda: made.deleting("low"))
        assert made.conditions("low")["DisruptionTarget"] == "PreemptionByScheduler"
        await until(lambda: made.kept("high") == "n")
        (text,) = await until(lambda: made.told("Preempted"))
        assert text == "preempted by d/high (priority 9; this pod has 1) on node n"
        made.end("low")
        assert await made.bound("high") == "n"
        assert made.parts.preemptor.counts["ended"] == 1


async def test_a_pod_that_never_preempts_waits() -> None:
    async with world() as made:
        made.add("low", 1)
        await made.bound("low")
        made.add("high", 9, preemptionPolicy="Never")
        queue = made.live.engine.queue
        await until(lambda: (waits := queue.get(made.uid("high"))) and waits.state == "parked")
        assert not made.deleting("low")
        assert not made.live.engine.preemption.nominations


async def test_a_pod_of_another_scheduler_is_not_ended() -> None:
    async with world() as made:
        made.add("foreign", 1, schedulerName="other", nodeName="n")
        await until(lambda: made.uid("foreign") in made.live.engine.ledger.holdings)
        assert made.uid("foreign") not in made.live.engine.preemption.standings


async def test_a_budget_is_spared_where_another_pod_may_go() -> None:
    async with world(node("a", 1), node("b", 1)) as made:
        made.server.add("poddisruptionbudgets", budget("guarded", 0))
        await until(lambda: made.live.engine.preemption.budgets)
        made.add("guarded", 1)
        await made.bound("guarded")
        made.add("other", 5)
        await made.bound("other")
        made.add("high", 9)
        await until(lambda: made.deleting("other"))
        assert not made.deleting("guarded")


async def test_where_budgets_are_law_the_eviction_api_is_asked() -> None:
    async with world(law=True) as made:
        made.add("low", 1)
        await made.bound("low")
        made.add("high", 9)
        await until(lambda: made.deleting("low"))
        assert made.server.requests.get("POST pods/eviction", 1) == 1
        made.end("low")
        assert await made.bound("high") == "n"


async def test_where_a_budget_that_is_law_blocks_a_victim_another_is_chosen() -> None:
    async with world(node("a", 1), node("b", 1), law=True) as made:
        made.add("low", 1)
        await made.bound("low")
        made.add("other", 5)
        await made.bound("other")
        made.server.fault("status", method="POST", path=EVICTION, code=429, times=9)
        made.add("high", 9)
        await until(lambda: made.deleting("other"))
        assert not made.deleting("low")
        assert made.parts.preemptor.counts["blocked"] == 1
        assert made.kept("high") == made.shown("other")["spec"]["nodeName"]


@pytest.mark.parametrize("lost", ["lose-request", "lose-answer", "status-after"])
async def test_an_eviction_that_is_lost_on_its_way_is_asked_again(lost: str) -> None:
    async with world(law=True) as made:
        made.add("low", 1)
        await made.bound("low")
        fault = made.server.fault(lost, method="POST", path=EVICTION)
        fault.code = 504
        made.add("high", 9)
        await until(lambda: made.deleting("low"))
        await until(lambda: made.parts.preemptor.counts["ended"])


async def test_an_eviction_at_the_same_time_as_others_write_is_asked_again() -> None:
    """No pod that is gone: it was waited for until its grace was over."""
    async with world(law=True) as made:
        made.add("low", 1)
        await made.bound("low")
        made.server.fault("status", method="POST", path=EVICTION, code=409)
        made.add("high", 9)
        await until(lambda: made.deleting("low"))
        assert made.parts.preemptor.counts["failed"] == 0


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_victim_that_others_write_to_at_the_same_time_is_ended_all_the_same(
    method: str,
) -> None:
    async with world() as made:
        made.add("low", 1)
        await made.bound("low")
        made.server.fault("status", method=method, path="/pods/low", code=409, times=2)
        made.add("high", 9)
        await until(lambda: made.deleting("low"))


async def test_nobody_asks_again_where_another_pod_has_the_name() -> None:
    async with world() as made:
        uid = "00000000-0000-0000-0000-000000000000"
        made.add("low", 1)
        await made.bound("low")
        answer = await evict(made.client, "d", "low", uid)
        assert (answer.outcome, answer.is_conflict) == ("gone", False)
        assert not made.deleting("low")


async def test_a_victim_whose_eviction_was_never_heard_is_asked_again_later() -> None:
    """No victim that stays: nobody knows that it was asked."""
    async with world(law=True) as made:
        made.add("low", 1)
        await made.bound("low")
        for _ in range(preemptor.TRIES):
            made.server.fault("lose-request", method="POST", path=EVICTION)
        made.add("high", 9)
        await until(lambda: made.parts.preemptor.counts["failed"])
        preemption = made.live.engine.preemption
        assert preemption.due(time.monotonic_ns() + 2 * REFUSED_NS)
        assert preemption.may_end(made.uid("low"))


async def test_a_victim_that_stays_is_named_and_another_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemptor, "LATE_S", 0.05)
    async with world(node("a", 1), node("b", 1)) as made:
        made.add("stays", 1, terminationGracePeriodSeconds=0)
        await made.bound("stays")
        made.server.update("pods", "stays", {"metadata": {"finalizers": ["example.com/held"]}}, "d")
        made.add("other", 2)
        await made.bound("other")
        made.add("high", 9)
        await until(lambda: made.deleting("stays"))
        await until(lambda: made.told("PreemptionLate"))
        await until(lambda: made.deleting("other"))
        assert made.parts.preemptor.counts["late"] == 1


async def test_the_next_process_keeps_the_node_too() -> None:
    async with world() as made:
        made.add("low", 1, 9_000)
        await made.bound("low")
        made.add("high", 9, 12_000)
        await until(lambda: made.kept("high") == "n")
        await until(lambda: made.deleting("low"))
        await made.live.stop()
        made.parts = led(made.client, [profile()])
        made.live = made.parts.live
        await made.live.start()
        await made.live.lead(afresh=False, term=4)
        nominations = made.live.engine.preemption.nominations
        assert nominations[made.uid("high")].leaving == {made.uid("low")}
        made.add("small", 1, 5_000)
        await until(lambda: made.live.engine.queue.get(made.uid("small")))
        made.end("low")
        assert await made.bound("high") == "n"
        assert not made.shown("small")["spec"].get("nodeName")


async def test_a_refused_delete_is_told_and_nobody_waits_for_it() -> None:
    async with world() as made:
        made.add("low", 1)
        await made.bound("low")
        made.server.fault("status", path="pods/low", method="DELETE", code=403, times=9)
        told: list[NotEvicted] = []
        decide = made.live.decide

        def hear(event: Any, now: int) -> Any:
            if isinstance(event, NotEvicted):
                told.append(event)
            return decide(event, now)

        made.live.decide = hear
        made.add("high", 9)
        await until(lambda: told)
        await until(lambda: not made.live.engine.preemption.nominations)
        assert told[0].uid == made.uid("low")
        await asyncio.sleep(0)
        assert not made.deleting("low")


@asynccontextmanager
async def room_on_b(kind: str = "ReplicaSet", movable: str = "true") -> AsyncIterator[Preempting]:
    """Pod web-1 is on node a; node b, whose card has 12,000 MiB, came later."""
    async with world(node("a", 1)) as made:
        made.add_of(kind, "web-1", movable)
        await made.bound("web-1")
        small = node("b", 1)
        small["metadata"]["annotations"] |= gpus(1, 12_000)
        made.server.add("nodes", small)
        await until(lambda: "b" in made.live.engine.ledger.table.row_of)
        yield made


async def test_a_pod_that_may_move_is_evicted_and_made_anew_where_there_is_room() -> None:
    async with room_on_b() as made:
        made.add("high", 9, 14_000)
        await until(lambda: made.deleting("web-1"))
        (text,) = await until(lambda: made.told("Moved"))
        assert (
            text == "moved for d/high (priority 9; this pod has 5); there is room for it on node b"
        )
        assert made.conditions("web-1")["DisruptionTarget"] == "PreemptionByScheduler"
        assert made.server.requests.get("POST pods/eviction", 0) == 1
        await until(lambda: made.kept("high") == "a")
        made.end("web-1")
        made.add_of("ReplicaSet", "web-2")
        assert (await made.bound("high"), await made.bound("web-2")) == ("a", "b")
        assert made.parts.preemptor.counts["moved"] == 1
        assert made.parts.preemptor.counts["ended"] == 0
        assert not made.told("Preempted")


@pytest.mark.parametrize(
    ("kind", "movable"), [("ReplicaSet", "false"), ("ReplicaSet", "maybe"), ("DaemonSet", "true")]
)
async def test_a_pod_that_does_not_say_so_or_comes_back_to_its_node_is_ended(
    kind: str, movable: str
) -> None:
    async with room_on_b(kind, movable) as made:
        made.add("high", 9, 14_000)
        await until(lambda: made.told("Preempted"))
        assert made.server.requests.get("POST pods/eviction", 0) == 0
        assert not made.live.engine.preemption.movable


async def test_the_next_process_knows_who_may_move_and_who_says_so_since() -> None:
    async with room_on_b(movable="false") as made:
        says = {"metadata": {"annotations": {"weft.dev/movable": "true"}}}
        made.server.update("pods", "web-1", says, "d")
        await until(lambda: made.live.engine.preemption.movable)
        await made.live.stop()
        made.parts = led(made.client, [profile()])
        made.live = made.parts.live
        await made.live.start()
        assert [*made.live.engine.preemption.movable] == [made.uid("web-1")]


SOON = MoveRules(after_ns=1_000_000)


@asynccontextmanager
async def two_cards_and_one(*, marked: bool = True) -> AsyncIterator[Preempting]:
    """Nobody preempts, and pods are moved for those that wait. Pod web-1 is on one of node a's two
    cards; node b, with one, came later. It is asked to go; not `marked`: that is not written yet,
    and waits at `made.mark`."""
    async with api(node("a", 2)) as server, client_of(server, LoopClock()) as client:
        made = Preempting(server, client)
        made.parts = led(client, [nobody_preempts()], moves=SOON)
        made.live = made.parts.live
        made.live.on_notice.append(made.notices.append)
        async with living(made):
            made.add_of("ReplicaSet", "web-1")
            await made.bound("web-1")
            server.add("nodes", node("b", 1))
            await until(lambda: "b" in made.live.engine.ledger.table.row_of)
            asks = {"weft.dev/gpu-count": "2", "weft.dev/gpu-memory": "14000"}
            large = pod("large", priority=5)
            large["spec"]["containers"][0]["resources"]["limits"] = asks
            if not marked:
                made.mark = server.fault("delay", method="PATCH", path="/web-1/status")
            server.add("pods", large)
            if made.mark is None:
                await until(lambda: made.deleting("web-1"))
            else:
                await made.mark.struck.wait()
            yield made


def nobody_preempts() -> Profile:
    return Profile("weft", [Fgd()], preempts=False)


def test_a_pod_moves_for_one_of_several_gpus_that_waits() -> None:
    """When the other one is searched for first, it has not waited for as much as web-1 would lose;
    moves are searched for one pod every 30 s at most."""

    async def story() -> None:
        began_s = asyncio.get_running_loop().time()
        async with two_cards_and_one() as made:
            assert 30 < asyncio.get_running_loop().time() - began_s < 31
            (text,) = await until(lambda: made.told("Moved"))
            assert (
                text
                == "moved for d/large (priority 5; this pod has 5); there is room for it on node b"
            )
            assert made.server.requests.get("POST pods/eviction", 0) == 1
            assert made.server.requests.get("DELETE pods", 0) == 0
            await until(lambda: made.kept("large") == "a")
            made.end("web-1")
            made.add_of("ReplicaSet", "web-2")
            assert (await made.bound("large"), await made.bound("web-2")) == ("a", "b")

    run(story())


def test_a_pod_whose_new_place_is_taken_before_it_goes_keeps_its_own() -> None:
    """Once there is room for it again it is moved after all."""

    async def story() -> None:
        async with two_cards_and_one(marked=False) as made:
            made.add("foreign", 5, schedulerName="other", nodeName="b")
            holdings = made.live.engine.ledger.holdings
            await until(lambda: made.uid("foreign") in holdings)
            assert made.mark
            made.mark.gate.set()
            await until(lambda: not made.live.engine.preemption.nominations)
            await asyncio.sleep(600)
            assert made.server.requests.get("POST pods/eviction", 0) == 0
            assert made.uid("web-1") in holdings
            assert made.parts.preemptor.counts["moved"] == 0
            made.server.add("nodes", node("c", 1))
            await until(lambda: made.deleting("web-1"))
            made.end("web-1")
            made.add_of("ReplicaSet", "web-2")
            assert (await made.bound("large"), await made.bound("web-2")) == ("a", "c")

    run(story())


def test_a_pod_moves_all_the_same_where_other_room_is_left_for_it() -> None:
    async def story() -> None:
        async with two_cards_and_one(marked=False) as made:
            made.server.add("nodes", node("c", 1))
            await until(lambda: "c" in made.live.engine.ledger.table.row_of)
            made.add("foreign", 5, schedulerName="other", nodeName="b")
            await until(lambda: made.uid("foreign") in made.live.engine.ledger.holdings)
            assert made.mark
            made.mark.gate.set()
            await until(lambda: made.deleting("web-1"))
            made.end("web-1")
            made.add_of("ReplicaSet", "web-2")
            assert (await made.bound("large"), await made.bound("web-2")) == ("a", "c")

    run(story())


def test_the_next_process_keeps_the_node_for_the_pod_that_waited() -> None:
    async def story() -> None:
        async with two_cards_and_one() as made:
            await until(lambda: made.kept("large") == "a")
            await made.live.stop()
            made.parts = led(made.client, [nobody_preempts()], moves=SOON)
            made.live = made.parts.live
            await made.live.start()
            await made.live.lead(afresh=False, term=4)
            nominations = made.live.engine.preemption.nominations
            assert nominations[made.uid("large")].leaving == {made.uid("web-1")}
            made.add_of("ReplicaSet", "web-2")
            assert await made.bound("web-2") == "b"
            made.end("web-1")
            assert await made.bound("large") == "a"

    run(story())


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", "/low/status"), ("DELETE", "/low"), ("PATCH", "/high/status")],
    ids=["mark", "end", "nomination"],
)
@pytest.mark.parametrize("lost", ["lose-request", "lose-answer"])
async def test_what_is_lost_on_its_way_is_asked_again(method: str, path: str, lost: str) -> None:
    async with world() as made:
        made.add("low", 1)
        await made.bound("low")
        made.server.fault(lost, method=method, path=f"/api/v1/namespaces/d/pods{path}")
        made.add("high", 9)
        await until(lambda: made.deleting("low"))
        await until(lambda: made.kept("high") == "n")
        assert made.conditions("low")["DisruptionTarget"] == "PreemptionByScheduler"


async def test_a_victim_whose_end_was_never_heard_is_asked_again_later() -> None:
    """No victim that stays: nobody knows that it was asked."""
    async with world() as made:
        made.add("low", 1)
        await made.bound("low")
        for _ in range(preemptor.TRIES):
            made.server.fault("lose-request", method="DELETE", path="/api/v1/namespaces/d/pods/low")
        made.add("high", 9)
        await until(lambda: made.parts.preemptor.counts["failed"])
        preemption = made.live.engine.preemption
        assert preemption.due(time.monotonic_ns() + 2 * REFUSED_NS)
        assert preemption.may_end(made.uid("low"))


async def test_a_victim_that_no_watch_has_shown_yet_is_asked_again_later() -> None:
    """Its place was decided, and nobody has to wait for ever for its end."""
    async with world() as made:
        unseen = made.live.parse(msgspec.convert(pod("unseen", 15_000, priority=1), Pod))
        unseen = replace(unseen, uid="unseen")
        engine = made.live.engine
        engine.handle(PodAdded(unseen), 0)
        assert "unseen" in engine.ledger.holdings
        made.add("high", 9)
        await until(lambda: engine.preemption.due(time.monotonic_ns() + 2 * REFUSED_NS))
        assert engine.preemption.may_end("unseen")


async def ends_while_its_binding_is_under_way(made: World) -> Fault:
    """A pod is to end for another one; its own Binding is held up, at the gate of this fault."""
    late = made.server.fault("delay", method="POST", path="/low/binding")
    made.add("low", 1)
    await late.struck.wait()
    made.add("high", 9)
    uid, preemption = made.uid("low"), made.live.engine.preemption
    await until(lambda: uid in preemption.going)
    return late


def test_a_victim_is_ended_as_soon_as_its_own_binding_has_its_answer() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with world(clock=LoopClock()) as made:
            late = await ends_while_its_binding_is_under_way(made)
            await asyncio.sleep(1)
            assert "DisruptionTarget" not in made.conditions("low")
            answered_s = loop.time()
            late.gate.set()
            await until(lambda: made.deleting("low"))
            assert loop.time() - answered_s < 0.02

    run(story())


def test_a_victim_whose_place_another_scheduler_took_meanwhile_is_not_ended() -> None:
    """Its Binding fails, as another scheduler's came first: what that one placed is nobody's to
    end here."""

    async def story() -> None:
        async with world(clock=LoopClock()) as made:
            late = made.server.fault("delay", method="POST", path="/low/binding")
            made.add("low", 1, schedulerName="default-scheduler")
            low = await until(lambda: made.live.pod("d", "low"))
            (asked,) = made.live.handle(BindOn(made.live.parse_asked(low), "n", "weft"))
            assert isinstance(asked, Bind)
            binding = asyncio.create_task(made.live.bind(asked))
            await late.struck.wait()
            made.add("high", 9)
            uid, preemption = made.uid("low"), made.live.engine.preemption
            await until(lambda: uid in preemption.going)
            made.server.update("pods", "low", {"spec": {"nodeName": "n"}}, "d")
            late.gate.set()
            await until(lambda: uid not in preemption.going)
            assert isinstance(await binding, AlreadyBound)
            await asyncio.sleep(100)
            assert "DisruptionTarget" not in made.conditions("low")
            assert not made.deleting("low")

    run(story())


def test_a_victim_that_is_deleted_before_its_binding_has_its_answer_is_nobodys_to_end() -> None:
    async def story() -> None:
        async with world(clock=LoopClock()) as made:
            late = await ends_while_its_binding_is_under_way(made)
            made.end("low")
            late.gate.set()
            assert await made.bound("high") == "n"
            assert not made.parts.preemptor._tasks

    run(story())

"""ResourceClaims on a live cluster: what is allocated is held, whoever allocated it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from live_world import World, anew, living, node, pod, refusals, until
from long_form import few_or_many

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from fakes.claims import MIB, claim, device, result, slice_of
from weft.core.policies.fgd import Fgd

Json = dict[str, Any]


@asynccontextmanager
async def world(*objects: Json, nodes: tuple[Json, ...] = ()) -> AsyncIterator[World]:
    """A leading cluster on a server with claims; slices and claims are told by their fields."""
    async with FakeApiServer(has_claims=True) as server, client_of(server) as client:
        for one in nodes or (with_uuids(),):
            server.add("nodes", one)
        for each in objects:
            put(server, each)
        made = World(server, client, Fgd())
        async with living(made):
            yield made


def put(server: FakeApiServer, body: Json) -> Json:
    kind = "resourceslices" if "driver" in body["spec"] else "resourceclaims"
    return server.add(kind, body)


def with_uuids(name: str = "n", count: int = 2) -> Json:
    """A node whose agent's annotation names cards by index and UUID."""
    cards = ", ".join(
        f'{{"index": {i}, "memory_mib": 16000, "uuid": "GPU-gpu-{i}"}}' for i in range(count)
    )
    body = node(name, count)
    body["metadata"]["annotations"]["weft.dev/inventory"] = f'{{"gpus": [{cards}]}}'
    return body


def slices(count: int = 2, **how: Any) -> Json:
    return slice_of("n", [device(f"gpu-{i}", **how) for i in range(count)])


def used(made: World, gpu: int, name: str = "n") -> tuple[int, int]:
    """MiB and thousandths of this card that are held."""
    table = made.live.engine.ledger.table
    row = table.device_row(table.row_of[name], gpu)
    return int(table.memory_used[row]), int(table.milli_used[row])


async def placed(made: World, name: str, memory_mib: int) -> int:
    """Creates the pod and waits for its binding; the card that it was given."""
    made.server.add("pods", pod(name, memory_mib))
    await until(lambda: made.server.get("pods", name, "d")["spec"].get("nodeName"))
    decided = await until(lambda: made.live.pods.decided(made.uid(name)))
    return decided.shares[0].gpu


async def test_an_allocated_claim_keeps_its_card() -> None:
    async with world(slices(), claim("other", result("gpu-1"))) as made:
        assert used(made, 1) == (16_000, 1000)

        assert await placed(made, "a", 10_000) == 0
        refused = refusals(made)
        made.server.add("pods", pod("b", 10_000))
        await until(lambda: "b" in refused)


async def test_a_claim_that_is_released_frees_its_card() -> None:
    async with world(slices(), claim("x", result("gpu-0")), claim("y", result("gpu-1"))) as made:
        refused = refusals(made)
        made.server.add("pods", pod("a", 10_000))
        await until(lambda: "a" in refused)

        made.server.update("resourceclaims", "y", {"status": {"allocation": None}}, "d")

        await until(lambda: made.server.get("pods", "a", "d")["spec"].get("nodeName"))
        assert made.live.pods.decided(made.uid("a")).shares[0].gpu == 1
        made.server.remove("resourceclaims", "x", "d")
        await until(lambda: used(made, 0) == (0, 0))


async def test_a_claim_is_charged_what_it_consumes() -> None:
    shared = slice_of("n", [device(f"gpu-{i}", cores=100) for i in range(2)])
    part = claim("part", result("gpu-0", memory_mib=4_000, cores=25))
    async with world(shared, part) as made:
        assert used(made, 0) == (4_000, 250)

        put(made.server, claim("more", result("gpu-0", memory_mib=1_000, cores=0)))

        await until(lambda: used(made, 0) == (5_000, 250))


@pytest.mark.parametrize(
    ("consumed", "held"),
    [
        ({"memory": "0"}, (16_000, 1000)),
        ({"memory": "0", "cores": "25"}, (16_000, 250)),
        ({"memory": "0", "shares": "1"}, (4_000, 250)),
        ({"memory": "0", "shares": "3"}, (12_000, 750)),
        ({"memory": str(1_000 * MIB), "shares": "1"}, (1_000, 0)),
        ({"shares": "5"}, (16_000, 1000)),
        ({"shares": "many"}, (16_000, 1000)),
    ],
)
async def test_who_consumes_no_memory_has_no_limit_but_its_part_of_the_shares(
    consumed: Json, held: tuple[int, int]
) -> None:
    """As NVIDIA's driver publishes cards with `consumableShares: unlimited`, or 4."""
    card = device("gpu-0", cores=100)
    card["capacity"]["shares"] = {"value": "4"}
    part = result("gpu-0", consumedCapacity=consumed)
    async with world(slice_of("n", [card]), claim("x", part)) as made:
        assert used(made, 0) == held


async def test_who_consumed_all_of_a_card_has_all_though_its_node_says_less() -> None:
    shared = slice_of("n", [device("gpu-0", memory_mib=16_384, cores=100)])
    async with world(shared, claim("x", result("gpu-0", memory_mib=16_384, cores=50))) as made:
        assert used(made, 0) == (16_000, 500)


async def test_a_restart_finds_the_same() -> None:
    held = claim("x", result("gpu-1")), claim("lost", result("gpu-9"))
    async with world(slices(3), *held, nodes=(with_uuids(count=3),)) as made:
        await until(lambda: used(made, 2) == (16_000, 1000))
        before = made.live.engine.ledger.holdings

        await anew(made)

        assert made.live.engine.ledger.holdings == before
        assert await placed(made, "a", 10_000) == 0


async def test_a_claim_whose_device_is_in_no_slice_takes_the_last_idle_card() -> None:
    async with world(slices(), claim("x", result("gpu-7"))) as made:
        assert used(made, 1) == (16_000, 1000)
        (problem,) = made.live.pods.claims.problems.values()
        assert "gpu-7 is in no complete ResourceSlice" in problem
        (assumed,) = made.live.pods.claims.assumed.values()
        assert "the last idle cards of its node are charged to it" in assumed


async def test_its_slice_comes_later() -> None:
    async with world(claim("x", result("gpu-0"))) as made:
        assert used(made, 1) == (16_000, 1000)

        put(made.server, slices())

        await until(lambda: used(made, 0) == (16_000, 1000))
        assert used(made, 1) == (0, 0)
        assert not made.live.pods.claims.problems
        assert not made.live.pods.claims.assumed


async def test_a_claim_stays_on_its_card_while_its_slices_are_away() -> None:
    async with world(slices(), claim("x", result("gpu-0"))) as made:
        put(made.server, claim("y", result("gpu-5")))
        await until(lambda: used(made, 1) == (16_000, 1000))

        made.server.remove("resourceslices", "gpu.example.com-n-0")

        await until(lambda: len(made.live.pods.claims.problems) == 2)
        assert used(made, 0) == (16_000, 1000)
        assert used(made, 1) == (16_000, 1000)


async def test_where_the_last_allocation_was_says_nothing_of_the_next() -> None:
    async with world(slices(3), claim("x", result("gpu-0")), nodes=(with_uuids(count=3),)) as made:
        assert used(made, 0) == (16_000, 1000)

        change = {"status": {"allocation": {"devices": {"results": [result("gpu-7")]}}}}
        made.server.update("resourceclaims", "x", change, "d")

        await until(lambda: used(made, 2) == (16_000, 1000))
        assert used(made, 0) == (0, 0)


async def test_a_node_whose_cards_only_slices_show() -> None:
    bare = node()
    del bare["metadata"]["annotations"]["weft.dev/inventory"]
    async with world(slices(), claim("x", result("gpu-0")), nodes=(bare,)) as made:
        gpus = made.live.nodes.nodes["n"].gpus
        assert [(gpu.index, gpu.uuid, gpu.memory_mib) for gpu in gpus] == [
            (0, "GPU-gpu-0", 16_000),
            (1, "GPU-gpu-1", 16_000),
        ]
        assert used(made, 0) == (16_000, 1000)
        assert await placed(made, "a", 10_000) == 1


async def test_a_pod_whose_extended_resource_is_a_claim_is_charged_once() -> None:
    async with world(slices()) as made:
        asks = {"limits": {"nvidia.com/gpu": "1"}}
        body = pod("p", scheduler="default-scheduler")
        body["spec"] = {"nodeName": "n", "containers": [{"name": "c", "resources": asks}]}
        mapping = {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "r"}
        backed = {"resourceClaimName": "p-extended", "requestMappings": [mapping]}
        body["status"] = {"extendedResourceClaimStatus": backed}
        made.server.add("pods", body)
        await until(lambda: used(made, 1) == (16_000, 1000))  # a guess, without its claim

        put(made.server, claim("p-extended", result("gpu-0")))

        await until(lambda: used(made, 0) == (16_000, 1000))
        assert used(made, 1) == (0, 0)
        made.server.remove("resourceclaims", "p-extended", "d")
        await until(lambda: used(made, 1) == (16_000, 1000))
        assert used(made, 0) == (0, 0)


async def test_nobody_is_evicted_for_a_claim() -> None:
    async with world(slices()) as made:
        assert await placed(made, "a", 10_000) == 0
        assert await placed(made, "b", 10_000) == 1

        put(made.server, claim("late", result("gpu-0")))

        (text,) = await until(lambda: made.told("Overbooked"))
        assert "10,000 MiB" in text
        assert "claim d/late" in text
        await made.live._stream.idle()
        assert not made.deleting("a")


async def test_admin_access_and_other_devices_hold_nothing() -> None:
    nic = {"name": "nic-0", "attributes": {"pciAddress": {"string": "0000:01:00.0"}}}
    net = slice_of("n", [nic], driver="net.example.com")
    looks_on = claim("monitor", result("gpu-0", adminAccess=True))
    card = claim("net", result("nic-0", driver="net.example.com"))
    async with world(slices(), net, looks_on, card) as made:
        assert used(made, 0) == used(made, 1) == (0, 0)
        assert not made.live.pods.claims.problems


async def test_a_server_without_claims_is_asked_once() -> None:
    async with FakeApiServer() as server, client_of(server) as client:
        server.add("nodes", with_uuids())
        made = World(server, client, Fgd())
        async with living(made):
            assert [feed.resource.name for feed in made.live.feeds] == [
                "namespaces",
                "nodes",
                "configmaps",
                "storageclasses",
                "csidrivers",
                "csistoragecapacities",
                "persistentvolumes",
                "persistentvolumeclaims",
                "csinodes",
                "volumeattachments",
                "pods",
            ]


async def test_who_may_not_list_claims_is_told_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeApiServer(has_claims=True) as server, client_of(server) as client:
        server.access.denied.add(("watch", "resourceclaims"))
        server.add("nodes", with_uuids())
        put(server, claim("x", result("gpu-0")))
        made = World(server, client, Fgd())
        async with living(made):
            assert not server.watches("resourceclaims")
            assert used(made, 0) == (0, 0)
    (text,) = [r.getMessage() for r in caplog.records if "ResourceClaims" in r.getMessage()]
    assert "no permission to watch resourceclaims" in text


async def test_a_partition_that_a_claim_holds_keeps_its_card_from_others() -> None:
    bare = node()
    del bare["metadata"]["annotations"]["weft.dev/inventory"]
    uses = {"consumesCounters": [{"counterSet": "set-0", "counters": {}}]}
    whole, part = device("gpu-0", **uses), device("gpu-0-mig-1g-0", memory_mib=2_000, **uses)
    shown = slice_of("n", [whole, part, device("gpu-1")])
    async with world(shown, claim("x", result("gpu-0-mig-1g-0")), nodes=(bare,)) as made:
        assert used(made, 2) == (2_000, 1000)

        assert await placed(made, "a", 1_000) == 1
        refused = refusals(made)
        made.server.add("pods", pod("b", 16_000))
        await until(lambda: "b" in refused)
        made.server.remove("resourceclaims", "x", "d")
        await until(lambda: made.server.get("pods", "b", "d")["spec"].get("nodeName"))
        assert made.live.pods.decided(made.uid("b")).shares[0].gpu == 0


async def test_a_partition_on_a_node_whose_agent_shows_its_card_takes_its_part_of_it() -> None:
    uses = {"consumesCounters": [{"counterSet": "set-0", "counters": {}}]}
    part = device("gpu-0-mig-1g-0", "MIG-1", memory_mib=2_000, **uses)
    shown = slice_of("n", [device("gpu-0", **uses), part, device("gpu-1")])
    async with world(shown, claim("x", result("gpu-0-mig-1g-0"))) as made:
        assert used(made, 0) == (2_000, 125)


async def test_a_gpu_of_no_one_node_is_named_and_charged_nowhere() -> None:
    network = slice_of("n", [device("gpu-0", "GPU-far")], pool="rack")
    network["spec"].pop("nodeName")
    network["spec"]["allNodes"] = True
    held = claim("x", result("gpu-0", pool="rack"), node="")
    async with world(network, held) as made:
        (problem,) = made.live.pods.claims.problems.values()
        device_name = "gpu.example.com/rack/gpu-0"
        assert problem == f"device {device_name} is not tied to one node, and the claim names none"
        assert used(made, 0) == used(made, 1) == (0, 0)


async def test_a_claim_that_names_its_node_by_its_pool_alone_is_charged_once_that_is_there() -> (
    None
):
    held = claim("x", result("gpu-7", "late"), node="")
    async with world(held) as made:
        assert used(made, 0) == used(made, 1) == (0, 0)

        made.server.add("nodes", with_uuids("late"))

        await until(lambda: "late" in made.live.nodes.nodes)
        await until(lambda: used(made, 1, "late") == (16_000, 1000))


async def test_another_driver_says_later_which_card_a_device_is() -> None:
    """One driver tells only the address: by its place it would be GPU 0."""
    at = {"pciBusID": {"string": "0000:3b:00.0"}}
    passed = slice_of("n", [{**device("vfio-0"), "attributes": at}], driver="gpu.b.example.com")
    held = claim("x", result("vfio-0", driver="gpu.b.example.com"))
    async with world(passed, held) as made:
        assert used(made, 0) == (16_000, 1000)

        put(made.server, slice_of("n", [device("gpu-1", attributes=at)]))

        await until(lambda: used(made, 1) == (16_000, 1000))
        assert used(made, 0) == (0, 0)


async def test_a_partition_of_unknown_size_keeps_all_of_its_card() -> None:
    of_card = {"parentUUID": {"string": "GPU-gpu-0"}, "type": {"string": "mig"}}
    part = {"name": "part", "attributes": of_card}
    shown = slice_of("n", [device("gpu-0"), part, device("gpu-1")])
    async with world(shown, claim("x", result("part"))) as made:
        assert used(made, 0) == (16_000, 1000)


async def test_a_partition_that_is_not_cut_yet_is_no_other_with_its_index() -> None:
    """The agent shows an instance of GPU 1 by the index that the slices give one of GPU 0."""
    uses = {"consumesCounters": [{"counterSet": "set-0", "counters": {}}]}
    kind = {"attributes": {"type": {"string": "mig"}, "parentUUID": {"string": "GPU-gpu-0"}}}
    part = {**device("gpu-0-mig-0", memory_mib=2_000, **uses), **kind}
    shown = slice_of("n", [device("gpu-0", **uses), part, device("gpu-1")])
    one = with_uuids()
    marks = one["metadata"]["annotations"]
    instance = ', {"index": 2, "memory_mib": 2000, "uuid": "MIG-1", "parent": 1}]'
    marks["weft.dev/inventory"] = marks["weft.dev/inventory"].replace("]", instance)
    async with world(shown, claim("x", result("gpu-0-mig-0")), nodes=(one,)) as made:
        assert (used(made, 0), used(made, 2)) == ((2_000, 125), (0, 0))


async def test_of_ten_thousand_claims_each_is_charged_and_each_wrong_one_counted() -> None:
    """A tenth of them is in no slice; the process starts, and places a pod."""
    count, nodes, cards = few_or_many(2_000, 10_000), few_or_many(40, 200), 8
    async with FakeApiServer(has_claims=True) as server, client_of(server) as client:
        for number in range(nodes):
            name = f"n{number}"
            bare = node(name)
            del bare["metadata"]["annotations"]["weft.dev/inventory"]
            server.add("nodes", bare)
            devices = [device(f"gpu-{i}", f"GPU-{name}-{i}", cores=100) for i in range(cards)]
            server.add("resourceslices", slice_of(name, devices))
        for number in range(count):
            place, on = divmod(number, nodes)
            which = place % cards if number % 10 else 99
            held = result(f"gpu-{which}", f"n{on}", memory_mib=100, cores=0)
            put(server, claim(f"c{number}", held, node=f"n{on}"))
        made = World(server, client, Fgd())
        async with living(made):
            await until(lambda: made.live.pods.claims.holders == count)
            assert len(made.live.engine.ledger.holdings) == count
            assert len(made.live.pods.claims.problems) == count // 10
            known, anywhere = count * 9 // 10, cards * count // 10
            assert sum(made.live.engine.ledger.table.memory_used) == 100 * (known + anywhere)
            made.server.add("pods", pod("p", 1_000))
            await until(lambda: made.server.get("pods", "p", "d")["spec"].get("nodeName"))

"""Bad input of drivers and other systems: counted by kind, named, charged; and Weft goes on."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import test_live_koordinator as koordinator
import test_live_volcano as volcano
from kai_world import keeper, sharing
from live_world import CARD_MIB, World, living, until
from live_world import node as any_node
from live_world import pod as shared
from test_live_kai import with_uuids

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from fakes.claims import claim, device, result, slice_of
from weft.cluster.reading.reading import HowToRead
from weft.cluster.reading.status import StatusWish, status_of
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.core.policies.fgd import Fgd
from weft.model.bad_input import KINDS, BadInputKind

Json = dict[str, Any]
Put = Callable[[FakeApiServer], None]
ONE = slice_of("n", [device("gpu-0", "GPU-0", CARD_MIB, cores=100)])


class Case(NamedTuple):
    """Bad input: what puts it on the server, and a part of what `weft status` says of it."""

    kind: BadInputKind
    put: Put
    said: str


def added(resource: str, *objects: Json) -> Put:
    def put(server: FakeApiServer) -> None:
        for each in objects:
            server.add(resource, each)

    return put


def mixed_generations(server: FakeApiServer) -> None:
    more = slice_of("n", [device("gpu-1", "GPU-1", CARD_MIB)], generation=2, count=2, part=1)
    for each in (ONE, more):
        server.add("resourceslices", each)


def claims(*made: Json) -> Put:
    def put(server: FakeApiServer) -> None:
        server.add("resourceslices", ONE)
        for each in made:
            server.add("resourceclaims", each)

    return put


def devices(*pods: Json) -> Put:
    def put(server: FakeApiServer) -> None:
        server.add("devices", koordinator.device())
        for each in pods:
            server.add("pods", each)

    return put


def forbidden(server: FakeApiServer) -> None:
    server.access.denied |= {("watch", "devices.scheduling.koordinator.sh"), ("watch", "devices")}
    server.fault("status", method="GET", path="koordinator.sh/v1alpha1/devices", code=403, times=99)


def dead_node(server: FakeApiServer) -> None:
    server.add("nodes", any_node("dead", ready="Unknown"))
    server.add("pods", keeper("g", "GPU-9", node="dead"))


GONE = [{"resource": "pods", "name": "gone", "uid": "gone"}]
SAME = slice_of("n", [device("other", "GPU-0", CARD_MIB)], pool="second")
BOTH = sharing("both", "g", gpu_fraction="0.5", gpu_memory="1000")
MORE = {koordinator.CORE: "20", koordinator.RATIO: "20"}
CASES = [
    Case("pool-incomplete", mixed_generations, "1 of 2 slices of generation 2"),
    Case("uuid-twice", added("resourceslices", ONE, SAME), "2 devices of gpu.example.com have the"),
    Case(
        "device-in-no-slice",
        claims(claim("x", result("gpu-9"))),
        "gpu-9 is in no complete ResourceSlice",
    ),
    Case(
        "device-on-no-card",
        added(
            "resourceslices",
            slice_of("n", [device("gpu-7", "GPU-7", CARD_MIB)]),
        ),
        "gpu-7 is not among the GPUs of node n",
    ),
    Case(
        "consumed-beyond-capacity",
        claims(claim("x", result("gpu-0", memory_mib=CARD_MIB + 5, cores=1))),
        "16,005 MiB were consumed of 16,000 MiB",
    ),
    Case(
        "claim-without-pod",
        claims(claim("x", result("gpu-0"), reservedFor=GONE)),
        "d/x: still allocated for pods that are gone",
    ),
    Case(
        "reservation-without-group", added("pods", keeper("", "GPU-1")), "no label runai-gpu-group"
    ),
    Case("reservation-on-dead-node", dead_node, "keeper-g on dead"),
    Case(
        "mark-unreadable",
        added("pods", volcano.bound("p", volcano.SOME, ids='{"NVIDIA":[{"uuid":"GPU-0"}]}')),
        "is not as Volcano writes it",
    ),
    Case(
        "mark-names-unknown-card",
        devices(koordinator.bound("p", {koordinator.SHARE: 50}, (7, {koordinator.CORE: "50"}))),
        "names minor 7: its node's Device object has no GPU of that minor number",
    ),
    Case("device-object-missing", added("pods", koordinator.HALF), "Device object is not known"),
    Case(
        "amounts-contradict",
        devices(koordinator.bound("p", {koordinator.SHARE: 50}, (0, MORE))),
        "the pod asks for 8,000 MiB and 50 %",
    ),
    Case("amounts-contradict", added("pods", keeper("g", "GPU-1"), BOTH), "keep one of the two"),
    Case("rights-missing", forbidden, "no permission to list devices.scheduling.koordinator.sh"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
async def test_it_is_counted_and_named_and_weft_goes_on(case: Case) -> None:
    async with (
        FakeApiServer(has_claims=True, has_devices=True) as server,
        client_of(server) as client,
    ):
        server.add("nodes", with_uuids())
        case.put(server)
        if case.kind == "device-on-no-card":
            server.add("resourceclaims", claim("x", result("gpu-7")))
        made = World(server, client, Fgd())
        async with living(made):
            await until(lambda: counted(made)[case.kind] == 1)
            others = {kind: n for kind, n in counted(made).items() if n and kind != case.kind}
            assert not others
            server.add("nodes", with_uuids("free"))
            server.add("pods", shared("ours", CARD_MIB))
            await until(lambda: server.get("pods", "ours", "d")["spec"].get("nodeName"))
            wish = StatusWish("weft-system", "weft", frozenset({"weft"}), HowToRead())
            found = await status_of(client, wish)
            assert any(case.said in finding.text for finding in found.findings), found.findings


def test_the_page_on_metrics_explains_each_kind() -> None:
    page = Path(__file__).parents[3] / "docs/reference/metrics.md"
    table = page.read_text().partition("### Kinds of bad input")[2].partition("## The agent")[0]
    named = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert tuple(re.findall(r"`([a-z-]+)`", " ".join(named))) == KINDS
    assert {case.kind for case in CASES} == set(KINDS)


async def test_where_all_is_well_each_kind_is_0() -> None:
    async with (
        FakeApiServer(has_claims=True, has_devices=True) as server,
        client_of(server) as client,
    ):
        server.add("nodes", with_uuids())
        claims(claim("x", result("gpu-0", memory_mib=2_000, cores=1)))(server)
        devices(koordinator.HALF, keeper("g", "GPU-1"), sharing("s", "g", gpu_fraction="0.5"))(
            server
        )
        made = World(server, client, Fgd())
        async with living(made):
            assert counted(made) == dict.fromkeys(KINDS, 0)


async def test_what_is_put_right_is_counted_no_more() -> None:
    async with FakeApiServer(has_claims=True) as server, client_of(server) as client:
        server.add("nodes", with_uuids())
        server.add("resourceclaims", claim("x", result("gpu-0")))
        server.add("pods", volcano.bound("p", volcano.SOME, ids=json.dumps({})))
        made = World(server, client, Fgd())
        async with living(made):
            wrong = ("device-in-no-slice", "mark-unreadable")
            await until(lambda: [counted(made)[kind] for kind in wrong] == [1, 1])
            server.add("resourceslices", ONE)
            server.remove("pods", "p", "ml")
            await until(lambda: not any(counted(made).values()))


def counted(made: World) -> dict[str, int]:
    """weft_bad_input as it is scraped, by kind."""
    families = {family.name: family for family in SchedulerMetrics(made.parts).collect()}
    return {s.labels["kind"]: int(s.value) for s in families["weft_bad_input"].samples}

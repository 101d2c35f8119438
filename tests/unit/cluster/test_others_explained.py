"""Explain says who holds a GPU where that is not Weft's doing: live and of a snapshot alike."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import test_live_koordinator as koordinator
import test_live_volcano as volcano
from kai_world import keeper, sharing
from live_world import CARD_MIB, World, living, refusals, until
from live_world import pod as shared
from test_live_kai import with_uuids

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from fakes.claims import claim, device, result, slice_of
from weft.cli.snapshot_files import open_snapshot
from weft.cluster.config.form import Configuration
from weft.cluster.scheduler.explain_service import Explainer, SearchOptions
from weft.cluster.snapshot.anonymous import anonymous
from weft.cluster.snapshot.capture import captured, snapshot_of
from weft.cluster.snapshot.file import encode, write
from weft.cluster.snapshot.form import ClusterSnapshot
from weft.core.explain.explanation import Explanation
from weft.core.explain.renderer import lines_of
from weft.core.policies.fgd import Fgd

Json = dict[str, Any]
PATIENT = SearchOptions(budget_s=60)
STRANGER = {
    "metadata": {"name": "plain", "namespace": "ml"},
    "spec": {
        "nodeName": "n",
        "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    },
}
KAI = [keeper("g", "GPU-2"), sharing("train-0", "g", gpu_fraction="0.4")]
VOLCANO = [volcano.bound("train-1", volcano.SOME, ids="GPU-0,NVIDIA,3000,0:")]
SLICE = slice_of("n", [device(f"gpu-{i}", f"GPU-{i}", CARD_MIB) for i in range(3)])


@asynccontextmanager
async def world(*pods: Json, claims: tuple[Json, ...] = ()) -> AsyncIterator[World]:
    """One node of three cards, and a pod of Weft's that asks for more than is free of any."""
    async with (
        FakeApiServer(has_claims=True, has_devices=True) as server,
        client_of(server) as client,
    ):
        server.add("nodes", with_uuids())
        server.add("devices", koordinator.device())
        server.add("resourceslices", SLICE)
        for each in pods:
            server.add("pods", each)
        for each in claims:
            server.add("resourceclaims", each)
        made = World(server, client, Fgd())
        async with living(made):
            yield made


async def pending(made: World) -> Explanation:
    """The explanation of a pod that fits nowhere while others have a part of each card."""
    refused = refusals(made)
    made.server.add("pods", shared("ours", CARD_MIB))
    await until(lambda: "ours" in refused)
    return await explained(made, "d", "ours")


async def explained(made: World, namespace: str, name: str) -> Explanation:
    explainer = Explainer(made.live, made.parts.guard, None, PATIENT)
    found = await explainer.explain(namespace, name)
    assert found is not None
    return found


def said(found: Explanation) -> list[str]:
    lines = lines_of(found)
    start = lines.index("  not placed by Weft:") + 1
    return [line[6:] for line in lines[start:] if line.startswith("    - n GPU")]


async def test_each_holder_is_named_with_what_names_its_gpu() -> None:
    held = claim("big", result("gpu-1"))
    async with world(*KAI, *VOLCANO, claims=(held,)) as made:
        found = await pending(made)

        assert said(found) == [
            "n GPU 0: 3,000 MiB held by Volcano's ml/train-1, by volcano.sh/vgpu-ids-new",
            "n GPU 1: all held by ResourceClaim d/big, allocated by driver gpu.example.com",
            "n GPU 2: 40 % held by KAI's ml/train-0, by its reservation pod",
        ]
        parts = {
            share.name: (share.memory_mib, share.milli, share.percent) for share in found.others
        }
        assert parts == {
            "train-1": (3_000, 0, 18.8),
            "big": (CARD_MIB, 1000, 100.0),
            "train-0": (6_400, 0, 40.0),
        }
        assert [share.kind for share in found.others] == ["pod", "claim", "pod"]
        assert [share.system for share in found.others] == ["volcano", "gpu.example.com", "kai"]


async def test_koordinators_pod_and_its_part_of_the_cores() -> None:
    amounts = {koordinator.CORE: "50", koordinator.MEMORY: "8000Mi"}
    asks = {koordinator.CORE: 50, koordinator.MEMORY: 8_000 * 2**20}
    by_bytes = koordinator.bound("b", asks, (0, amounts))
    by_percent = koordinator.HALF
    async with world(by_bytes, by_percent) as made:
        (whole,) = {share.evidence for share in (await explained(made, "ml", "b")).others}
        assert whole == koordinator.ALLOCATED
        assert said(await explained(made, "ml", "half")) == [
            "n GPU 2: 8,000 MiB and 50 % of its cores held by Koordinator's ml/b, "
            f"by {koordinator.ALLOCATED}",
            "n GPU 2: 50 % and 50 % of its cores held by Koordinator's ml/half, "
            f"by {koordinator.ALLOCATED}",
        ]


async def test_whose_gpu_nobody_names_may_hold_it() -> None:
    lost = claim("lost", result("gpu-9"))
    unmarked = volcano.bound("some", volcano.SOME)
    async with world(STRANGER, unmarked, claims=(lost,)) as made:
        found = await pending(made)

        assert all(not share.is_sure for share in found.others)
        first, second, *rest = said(found)
        assert first.startswith(
            "n GPU 0, 1, 2: 3,000 MiB may be held by Volcano's ml/some: it does"
        )
        assert second.startswith("n GPU 1: all may be held by ml/plain (schedulerName default-sch")
        assert rest == [
            "n GPU 2: all may be held by ResourceClaim d/lost: "
            "device gpu.example.com/n/gpu-9 is in no complete ResourceSlice"
        ]


async def test_beside_a_bound_pod_only_its_own_gpus_are_told_of() -> None:
    async with world(*KAI, *VOLCANO) as made:
        made.server.add("pods", shared("small", 10_000))
        await until(lambda: made.server.get("pods", "small", "d")["spec"].get("nodeName"))
        (gpu,) = {share.gpu for share in (await explained(made, "d", "small")).shares}
        others = (await explained(made, "d", "small")).others
        assert {share.gpu for share in others} <= {gpu}
        assert "small" not in {share.name for share in others}


async def test_a_pod_with_a_claim_is_told_what_the_claim_holds() -> None:
    plain = {
        "metadata": {"name": "user", "namespace": "d"},
        "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
    }
    async with world(plain) as made:
        user = {"resource": "pods", "name": "user", "uid": made.uid("user")}
        made.server.add("resourceclaims", claim("big", result("gpu-1"), reservedFor=[user]))
        await until(lambda: made.live.pods.claims.holders)
        assert [line.split(",")[0] for line in said(await explained(made, "d", "user"))] == [
            "n GPU 1: all held by ResourceClaim d/big"
        ]


async def test_of_many_nodes_the_first_are_shown_and_it_says_that_there_are_more() -> None:
    async with world() as made:
        for number in range(3):
            made.server.add("pods", shared(f"p{number}", CARD_MIB))
        await until(lambda: sum(made.live.engine.ledger.table.memory_used) == 3 * CARD_MIB)
        for number in range(20):
            name = f"v{number:02}"
            one = volcano.bound(f"on-{name}", volcano.SOME, ids="GPU-0,NVIDIA,3000,0:")
            one["spec"]["nodeName"] = name
            made.server.add("pods", one)
            await until(lambda name=name: made.live.pods.on_node(name))
            made.server.add("nodes", with_uuids(name, 1))
        held = 3 * CARD_MIB + 20 * 3_000
        await until(lambda: sum(made.live.engine.ledger.table.memory_used) == held)
        found = await pending(made)
        assert [share.name for share in found.others] == [f"on-v{n:02}" for n in range(16)]
        assert found.others_left_out
        assert "    - and more on nodes not listed here" in lines_of(found)


async def test_where_all_is_wefts_nothing_is_said() -> None:
    async with world() as made:
        for name in ("a", "b", "c"):
            made.server.add("pods", shared(name, 12_000))
            await until(
                lambda name=name: made.server.get("pods", name, "d")["spec"].get("nodeName")
            )
        found = await pending(made)
        assert (found.others, found.others_left_out) == ((), False)
        assert "not placed by Weft" not in "\n".join(lines_of(found))


async def test_of_a_snapshot_the_same_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft.cli.decisions import explain_pod
    from weft.cli.output import ListOutput

    lost = claim("lost", result("gpu-9"))
    async with world(*KAI, *VOLCANO, koordinator.HALF, STRANGER, claims=(lost,)) as made:
        found = await pending(made)
        taken = await captured(made.client, Configuration())
        path = tmp_path / "s.json"
        write(snapshot_of(taken, Configuration(), made.client.clock.wall()), path)

    def ask(output: ListOutput) -> str:
        explain_pod("d/ours", snapshot=path, output=output)
        return capsys.readouterr().out

    shown = json.loads(await asyncio.to_thread(ask, ListOutput.json))
    assert len(shown["others"]) == len(found.others) == 5
    assert [each["text"] for each in shown["others"]] == [share.text for share in found.others]
    text = await asyncio.to_thread(ask, ListOutput.table)
    assert all(f"- {line}" in text for line in said(found))


async def test_an_anonymous_snapshot_has_the_same_shares(tmp_path: Path) -> None:
    async with world(*KAI, *VOLCANO, koordinator.HALF) as made:
        taken = await captured(made.client, Configuration())
        named = snapshot_of(taken, Configuration(), made.client.clock.wall())
        used = list(made.live.engine.ledger.table.memory_used)

    def charged(snapshot: ClusterSnapshot) -> list[int]:
        write(snapshot, tmp_path / "s.json")
        return list(open_snapshot(tmp_path / "s.json").engine.ledger.table.memory_used)

    assert used == [3_000, 0, CARD_MIB * 9 // 10]
    hidden = anonymous(named)
    assert [await asyncio.to_thread(charged, each) for each in (named, hidden)] == [used, used]
    body = encode(hidden).decode()
    assert not re.findall(r'GPU-\d\b|"n"|train-0', body)

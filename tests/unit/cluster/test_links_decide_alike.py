"""Pods of several GPUs get the same GPUs live, in the simulator, and through the extender."""

import json
from typing import Any

import msgspec
import pytest
from extender_world import WEFT, StubCluster, args
from live_world import node as api_node
from live_world import until, world

from fakes.gpu_links import bridged_pairs, dgx_1, pcie_switches
from weft.cluster.extender.service import Extender
from weft.core.policies.packing import BestFit
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.dialects.node_links import links_text
from weft.dialects.registry import parse_pod
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.scenario import Scenario
from weft.model import Node
from weft.model.annotations import GPU_LINKS, PLACEMENT
from weft.model.gpu_links import GpuLinks

Gpus = list[int]
WISHES = ("", "required", "", "none", "required", "")


def _node(links: GpuLinks) -> dict[str, Any]:
    made = api_node("n", 8)
    made["metadata"]["annotations"][GPU_LINKS] = links_text(links)
    return made


def _read(made: dict[str, Any]) -> Node:
    return inventory(msgspec.convert(made, KubeNode, strict=False))[0]


def _pods(sizes: Gpus) -> list[dict[str, Any]]:
    """A pod each, of so many whole cards; every other one wishes something of links."""
    pods = []
    for number, (gpus, wish) in enumerate(zip(sizes, WISHES, strict=False)):
        limits = {"weft.dev/gpu-memory": "16000", "weft.dev/gpu-count": str(gpus)}
        marks = {"weft.dev/topology": wish} if wish else {}
        meta = {"name": f"p{number}", "namespace": "ns", "uid": f"u-p{number}"}
        pods.append(
            {
                "metadata": {**meta, "annotations": marks, "resourceVersion": "1"},
                "spec": {
                    "schedulerName": "weft",
                    "containers": [{"name": "c", "resources": {"limits": limits}}],
                },
                "status": {"phase": "Pending"},
            }
        )
    return pods


async def _live(made: dict[str, Any], pods: list[dict[str, Any]]) -> list[Gpus]:
    found = []
    async with world(made, policy=BestFit()) as there:
        for one in pods:
            there.server.add("pods", one, "ns")
            name = one["metadata"]["name"]
            await until(lambda name=name: _shares(there.server, name) is not None)
            found.append(_shares(there.server, name) or [])
    return found


def _shares(server: Any, name: str) -> Gpus | None:
    marks = server.get("pods", name, "ns")["metadata"].get("annotations") or {}
    if PLACEMENT not in marks:
        return None
    return sorted(share[1] for share in json.loads(marks[PLACEMENT])["shares"])


def _simulated(made: dict[str, Any], pods: list[dict[str, Any]]) -> list[Gpus]:
    requests = [
        parse_pod(msgspec.convert(one, Pod, strict=False), DialectSettings()) for one in pods
    ]
    trace = [TracePod(one.name, one.shape, 1, 1000, request=one) for one in requests]
    held: dict[str, Gpus] = {}

    def read(engine: Any, name_of: Any) -> None:
        for uid, holding in engine.ledger.holdings.items():
            held[name_of(uid)] = sorted(share.gpu for share in holding.placement.shares)

    order = Arrivals(1, list(range(len(trace))), [0])
    run_inflation(Scenario([_read(made)], trace), BestFit(), order, timing=False, on_holdings=read)
    return [held[one.name] for one in requests]


async def _extended(made: dict[str, Any], pods: list[dict[str, Any]]) -> list[Gpus]:
    cluster = StubCluster([_read(made)])
    extender = Extender(cluster)  # type: ignore[arg-type]
    for one in pods:
        assert json.loads(extender.filter(WEFT, args(one, ["n"])).body)["NodeNames"] == ["n"]
        meta = one["metadata"]
        asked = {"PodName": meta["name"], "PodNamespace": "ns", "PodUID": meta["uid"], "Node": "n"}
        answer = await extender.bind(WEFT, msgspec.json.encode(asked))
        assert json.loads(answer.body) == {"Error": ""}
    places = [command.placement for command in cluster.bound]
    return [sorted(share.gpu for share in place.shares) for place in places]


@pytest.mark.parametrize("links", [dgx_1(), bridged_pairs(), pcie_switches(8, 2)])
async def test_the_same_gpus_live_simulated_and_through_the_extender(links: GpuLinks) -> None:
    made, chosen = _node(links), []
    for sizes in ([1, 2, 2, 2], [1, 2, 1, 1, 2], [2, 4, 1, 1]):
        pods = _pods(sizes)
        live = await _live(made, pods)
        assert _simulated(made, pods) == live
        assert await _extended(made, pods) == live
        chosen += live
    assert any(gpus != list(range(gpus[0], gpus[0] + len(gpus))) for gpus in chosen)

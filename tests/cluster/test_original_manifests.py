"""Manifests of all five systems, as their users have them, on the real API server.

Those of the extenders go through the real kube-scheduler: configured by `weft extender config`, and
as the originals' own documents say, on the originals' ports. Those with a schedulerName go to Weft.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import Object, Objects
from original_agents import (
    GPU_MEM,
    GpushareDevicePlugin,
    elastic_agent,
    inspect,
    kubectl_inspect,
    total,
)
from original_manifests import (
    ALNAIR,
    COSCHEML,
    ELASTIC,
    GENIUS,
    GPUSHARE,
    GPUSHARE_MIB,
    KUBEKNOTS,
    PLAIN,
    pods_of,
)
from weft_process import ALONE, EXTENDER, all_bound, audited, extender_config, resources, weft

from weft.core.ledger import Ledger
from weft.dialects.dialect import DialectSettings

CARDS, CARD_MIB = 4, 16_384
ALL = "---\n".join((ELASTIC, GPUSHARE, PLAIN, ALNAIR, GENIUS, KUBEKNOTS))
MIB = DialectSettings(gpushare_unit="MiB")


def entry(url: str, **more: object) -> Object:
    """An extender as the originals' documents configure it, in today's spelling."""
    return {
        "profiles": [{"schedulerName": "default-scheduler"}],
        "extenders": [
            {
                "urlPrefix": url,
                "filterVerb": "filter",
                "bindVerb": "bind",
                "enableHTTPS": False,
                "nodeCacheCapable": True,
                "ignorable": False,
                **more,
            }
        ],
    }


ELASTIC_CONFIG = entry(
    "http://127.0.0.1:39999/scheduler",
    prioritizeVerb="priorities",
    weight=1,
    managedResources=[
        {"name": "elasticgpu.io/gpu-memory"},
        {"name": "elasticgpu.io/gpu-core"},
    ],
)
# Its NodePort 32766 leads to 12345; Co-scheML's documents have the same.
GPUSHARE_CONFIG = entry(
    "http://127.0.0.1:12345/gpushare-scheduler",
    managedResources=[{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
)


def create_nodes(plane: ControlPlane, **changes: str) -> list[str]:
    """Three nodes with every system's device plugin; their names."""
    names = [f"node-{index}" for index in range(3)]
    for name in names:
        plane.create_fake_node(
            name,
            resources(CARDS, CARD_MIB) | changes,
            labels={
                "nvidia.com/gpu.count": str(CARDS),
                "nvidia.com/gpu.memory": str(CARD_MIB),
                "nvidia.com/gpu.product": "NVIDIA-GeForce-GTX-1070-Ti",
            },
        )
    return names


def bind_all(plane: ControlPlane, namespace: str, text: str) -> dict[str, Object]:
    """Create the pods of these manifests, unchanged; all have a node; by name."""
    pods = pods_of(text)
    plane.create_pods(namespace, pods)
    plane.api.wait_for(all_bound(len(pods)), "Pod", namespace, timeout_s=40)
    return {one["metadata"]["name"]: one for one in plane.api.list("Pod", namespace)}


def gpus_of(ledger: Ledger, one: Object) -> list[int]:
    """The indexes of a pod's GPUs in the ledger, in the order of its containers' claims."""
    shares = ledger.holdings[one["metadata"]["uid"]].placement.shares
    return [share.gpu for share in sorted(shares, key=lambda share: share.gpu_request)]


def second_card_was_needed(ledger: Ledger, node: str) -> bool:
    """True if no pod on one of the node's two cards would fit what is left of the other.

    How many pods a node gets is kube-scheduler's choice, and pods never leave here: what is left
    now was left when a pod came.
    """
    table, start = ledger.table, ledger.table.start[ledger.table.row_of[node]]
    left = {card: int(table.device_memory_free[start + card]) for card in range(CARDS)}
    shares = [
        share
        for held in ledger.holdings.values()
        if held.placement.node == node
        for share in held.placement.shares
    ]
    return any(
        all(share.memory_mib > left[first] for share in shares if share.gpu != first)
        for first in left
    )


def elastic_pods_are_right(ledger: Ledger, pods: dict[str, Object]) -> None:
    """Elastic's agent reads from the pods what the ledger holds."""
    for name in ("sharing-0", "sharing-1", "cores", "two-containers", "cards-0"):
        one = pods[name]
        found = [gpu for c in one["spec"]["containers"] for gpu in elastic_agent(one, c)]
        assert found == gpus_of(ledger, one), name
    assert len(gpus_of(ledger, pods["two-containers"])) == 2
    assert len(set(gpus_of(ledger, pods["cards-0"]))) == 2


def gpushare_pods_are_right(
    plane: ControlPlane, namespace: str, names: list[str], ledger: Ledger, pods: Objects
) -> None:
    """Its device plugin finds each pod, and in it the card that the ledger holds."""
    by_name = {one["metadata"]["name"]: one for one in pods}
    found = set()
    for node in names:
        plugin = GpushareDevicePlugin(plane.api, namespace, node)
        for one in plugin.candidates():
            taken = plugin.allocate(total(one, GPU_MEM))
            found.add(taken.pod)
            assert [int(taken.gpu)] == gpus_of(ledger, by_name[taken.pod])
    assert found == by_name.keys()


def test_all_of_them_at_once_with_wefts_configuration(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    names = create_nodes(control_plane)
    with weft(control_plane, tmp_path, ALONE, *EXTENDER) as process:
        control_plane.start_scheduler(extender_config(process.url, "elastic,gpushare,nvidia"))
        pods = bind_all(control_plane, namespace, ALL)
        ledger = audited(control_plane, namespace)
        assert len(ledger.holdings) == len(pods)
        elastic_pods_are_right(ledger, pods)
        shared = [one for one in pods.values() if total(one, GPU_MEM)]
        assert len(shared) == 5
        gpushare_pods_are_right(control_plane, namespace, names, ledger, shared)
        held = {name: ledger.holdings[one["metadata"]["uid"]] for name, one in pods.items()}
        memory = {n: sum(s.memory_mib for s in h.placement.shares) for n, h in held.items()}
        assert memory["mobilenet-0"] == 872
        assert memory["ssd-0"] == 6994
        assert memory["labelled"] == 2000
        assert memory["in-all"] == 5000
        assert memory["no-label"] == 0
        assert memory["cost"] == 4 * 1024
        assert memory["performance-0"] == 10 * 1024
        assert memory["default-resnet-0"] == CARD_MIB

        def told(events: Objects) -> bool:
            about = {e["involvedObject"]["name"] for e in events if e["reason"] == "Scheduled"}
            return about >= pods.keys()

        control_plane.api.wait_for(told, "Event", namespace, timeout_s=10)


@pytest.fixture
def original_ports(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[None]:
    """Weft where the originals' extenders are."""
    with weft(control_plane, tmp_path, ALONE, *EXTENDER, "--original-ports") as process:
        process.until("39999")
        process.until("12345")
        yield


def test_elastics_own_configuration(
    control_plane: ControlPlane, namespace: str, original_ports: None
) -> None:
    create_nodes(control_plane)
    control_plane.start_scheduler(ELASTIC_CONFIG)
    pods = bind_all(control_plane, namespace, ELASTIC)
    ledger = audited(control_plane, namespace)
    elastic_pods_are_right(ledger, pods)


def test_elastics_other_spelling(
    control_plane: ControlPlane, namespace: str, original_ports: None
) -> None:
    """Its last scheduler reads elasticgpu.com, whatever its documents say."""
    units = {"gpu-core": 100 * CARDS, "gpu-memory": CARD_MIB * CARDS}
    names = {f"elasticgpu.com/{name}": str(count) for name, count in units.items()}
    create_nodes(control_plane, **names)
    configuration = json.loads(json.dumps(ELASTIC_CONFIG).replace(".io/gpu", ".com/gpu"))
    control_plane.start_scheduler(configuration)
    pods = bind_all(control_plane, namespace, ELASTIC.replace(".io/gpu", ".com/gpu"))
    elastic_pods_are_right(audited(control_plane, namespace), pods)


def test_gpushares_own_configuration(
    control_plane: ControlPlane, namespace: str, original_ports: None
) -> None:
    """Best fit, as the original: what is created first fills the first card."""
    names = create_nodes(control_plane)
    control_plane.start_scheduler(GPUSHARE_CONFIG)
    pods = bind_all(control_plane, namespace, GPUSHARE)
    ledger = audited(control_plane, namespace)
    for node in names:
        counted = kubectl_inspect(control_plane.api, namespace, node)
        assert counted == inspect("http://127.0.0.1:12345", node)
        assert second_card_was_needed(ledger, node), "a pod would fit the first"
    gpushare_pods_are_right(control_plane, namespace, names, ledger, [*pods.values()])


@pytest.mark.parametrize("text", [GPUSHARE_MIB, COSCHEML], ids=["gpushare", "coscheml"])
def test_units_of_mib(
    control_plane: ControlPlane, namespace: str, original_ports: None, text: str
) -> None:
    """Nodes whose device plugin counts MiB, as in gpushare's first days and for Co-scheML."""
    names = create_nodes(control_plane, **{"aliyun.com/gpu-mem": str(CARDS * CARD_MIB)})
    control_plane.start_scheduler(GPUSHARE_CONFIG)
    pods = bind_all(control_plane, namespace, text)
    ledger = audited(control_plane, namespace, MIB)
    for one in pods.values():
        (share,) = ledger.holdings[one["metadata"]["uid"]].placement.shares
        assert share.memory_mib == total(one, GPU_MEM)
    gpushare_pods_are_right(control_plane, namespace, names, ledger, [*pods.values()])

"""The original agents and device plugins, on pods that Weft has bound: each finds its own marks,
and in them exactly the GPUs that Weft's ledger says. In both forms, by the real API server.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import Object, Objects
from original_agents import (
    ELASTIC_CORE,
    ELASTIC_MEMORY,
    GPU_MEM,
    VGPU_MEMORY,
    AlnairDevicePlugin,
    GpushareDevicePlugin,
    elastic_agent,
    elastic_scheduler_restarts,
    inspect,
    kubectl_inspect,
    limit,
    pending_on,
    total,
)
from weft_process import (
    ALONE,
    CARD_MIB,
    CARDS,
    EXTENDER,
    Weft,
    all_bound,
    audited,
    extender_config,
    nodes,
    pod,
    resources,
    sigkill,
    weft,
)

from weft.core.ledger import Ledger

NODES = 2
NAMES = [f"node-{index}" for index in range(NODES)]
CARD_GIB = CARD_MIB // 1024


@pytest.fixture(params=["alone", "extender"])
def scheduler(request: pytest.FixtureRequest) -> str:
    """Which schedulerName pods have: Weft's own, or that of the real kube-scheduler."""
    return "weft" if request.param == "alone" else "default-scheduler"


@pytest.fixture
def running(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, scheduler: str
) -> Iterator[Weft]:
    """Weft in both forms; kube-scheduler too, where pods are its."""
    nodes(control_plane, NODES)
    with weft(control_plane, tmp_path, ALONE, *EXTENDER) as process:
        if scheduler == "default-scheduler":
            control_plane.start_scheduler(extender_config(process.url, "elastic,gpushare"))
        yield process


def bind_all(plane: ControlPlane, namespace: str, pods: Objects) -> dict[str, Object]:
    """Create these, wait until all that there are have a node; the pods by name."""
    there = len(plane.api.list("Pod", namespace))
    plane.create_pods(namespace, pods)
    plane.api.wait_for(all_bound(there + len(pods)), "Pod", namespace, timeout_s=40)
    return {one["metadata"]["name"]: one for one in plane.api.list("Pod", namespace)}


def gpus_of(ledger: Ledger, one: Object) -> list[int]:
    """The indexes of a pod's GPUs in the ledger, in the order of its containers' claims."""
    shares = ledger.holdings[one["metadata"]["uid"]].placement.shares
    return [share.gpu for share in sorted(shares, key=lambda share: share.gpu_request)]


def in_order(pods: Objects) -> Objects:
    """As the kubelet came to know them: by when they were bound."""
    return sorted(pods, key=lambda one: int(one["metadata"]["resourceVersion"]))


# --- Elastic GPU ---------------------------------------------------------------------------------


def elastic_pod(name: str, scheduler: str, *containers: tuple[int, int]) -> Object:
    """A pod whose containers ask for (percent of cores, MiB)."""
    found = pod(name, scheduler, {})
    found["spec"]["containers"] = [
        {
            "name": f"c{index}",
            "image": "none",
            "resources": {
                "limits": {
                    key: str(value)
                    for key, value in ((ELASTIC_CORE, core), (ELASTIC_MEMORY, mib))
                    if value
                }
            },
        }
        for index, (core, mib) in enumerate(containers)
    ]
    return found


def test_elastics_agent_finds_each_containers_gpus(
    control_plane: ControlPlane, namespace: str, running: Weft, scheduler: str
) -> None:
    """And its scheduler, if it came back, would count as Weft does."""
    wanted = [
        elastic_pod("memory", scheduler, (0, 256)),
        elastic_pod("two", scheduler, (20, 3000), (40, 1000)),
        elastic_pod("cores", scheduler, (30, 0)),
        elastic_pod("card", scheduler, (100, 0)),
        elastic_pod("big", scheduler, (0, 12_000)),
    ]
    pods = bind_all(control_plane, namespace, wanted)
    ledger = audited(control_plane, namespace)
    for one in pods.values():
        found = [gpu for c in one["spec"]["containers"] for gpu in elastic_agent(one, c)]
        assert found == gpus_of(ledger, one), one["metadata"]["name"]
    for row, name in enumerate(NAMES):
        counted = elastic_scheduler_restarts(control_plane.api, namespace, name, CARDS, CARD_MIB)
        used = ledger.table.milli_used, ledger.table.memory_used
        ours = [
            (100 - used[0][device] // 10, CARD_MIB - used[1][device])
            for device in range(row * CARDS, (row + 1) * CARDS)
        ]
        assert counted == ours, name


def test_elastics_agent_finds_two_whole_cards(
    control_plane: ControlPlane, namespace: str, running: Weft, scheduler: str
) -> None:
    wanted = [elastic_pod("cards", scheduler, (200, 0), (0, 0), (30, 0))]
    wanted[0]["spec"]["containers"].pop()  # a container without a GPU is no container of the plugin
    pods = bind_all(control_plane, namespace, wanted)
    (container, beside) = pods["cards"]["spec"]["containers"]
    assert elastic_agent(pods["cards"], container) == [0, 1]
    assert not limit(beside, ELASTIC_CORE)


# --- gpushare ------------------------------------------------------------------------------------

SIZES = (1, 2, 3, 4, 5, 2, 1, 4, 3, 3)


def allocate_all(plane: ControlPlane, namespace: str, ledger: Ledger) -> int:
    """As the kubelets would, pod by pod; how many. Every request finds a pod of its size, no pod is
    found twice, and the index is the one in the ledger.
    """
    taken = []
    for name in NAMES:
        plugin = GpushareDevicePlugin(plane.api, namespace, name)
        by_name = {p["metadata"]["name"]: p for p in plugin.candidates()}
        for one in in_order(list(by_name.values())):
            found = plugin.allocate(total(one, GPU_MEM))
            taken.append(found.pod)
            assert [int(found.gpu)] == gpus_of(ledger, by_name[found.pod])
            assert total(by_name[found.pod], GPU_MEM) == total(one, GPU_MEM)
        assert plugin.candidates() == []
    assert len(set(taken)) == len(taken)
    return len(taken)


def test_gpushares_plugin_finds_every_pod_and_its_card(
    control_plane: ControlPlane, namespace: str, running: Weft, scheduler: str, tmp_path: Path
) -> None:
    """The plugin then marks the pods assigned. Weft goes on, also a new one, and fills what is
    left."""
    first = [pod(f"p-{i}", scheduler, {GPU_MEM: size}) for i, size in enumerate(SIZES)]
    pods = bind_all(control_plane, namespace, first)
    before = audited(control_plane, namespace)
    for one in pods.values():
        marks = one["metadata"]["annotations"]
        assert marks["ALIYUN_COM_GPU_MEM_DEV"] == str(CARD_GIB)
        assert re.fullmatch(r"\d{19}", marks["ALIYUN_COM_GPU_MEM_ASSUME_TIME"])
    assert allocate_all(control_plane, namespace, before) == len(SIZES)

    left = NODES * CARDS * CARD_GIB - sum(SIZES)
    half = [pod(f"q-{i}", scheduler, {GPU_MEM: 1}) for i in range(left // 2)]
    bind_all(control_plane, namespace, half)
    assert allocate_all(control_plane, namespace, audited(control_plane, namespace)) == len(half)
    for name in NAMES:
        counted = kubectl_inspect(control_plane.api, namespace, name)
        assert counted == inspect(running.url, name)
    port = running.url.rpartition(":")[2]
    sigkill(running)
    options = (ALONE, "--extender-port", port, "--extender-address", "127.0.0.1")
    with weft(control_plane, tmp_path, *options) as again:
        rest = [pod(f"r-{i}", scheduler, {GPU_MEM: 1}) for i in range(left - left // 2)]
        bind_all(control_plane, namespace, rest)
        after = audited(control_plane, namespace)
        assert list(after.table.memory_used) == [CARD_MIB] * (NODES * CARDS)
        for name in NAMES:
            full = dict.fromkeys(range(CARDS), CARD_GIB)
            assert kubectl_inspect(control_plane.api, namespace, name) == full
            assert inspect(again.url, name) == full
    for uid, held in before.holdings.items():
        assert after.holdings[uid] == held


# --- Alnair --------------------------------------------------------------------------------------


def test_alnairs_plugin_finds_every_pod(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Several pods wait on a node. The plugin chooses cards itself; it comes to the same."""
    uuids = {name: [f"GPU-{name}-{card}" for card in range(CARDS)] for name in NAMES}
    for name in NAMES:
        control_plane.create_fake_node(
            name,
            resources(),
            annotations={
                "ai.centaurus.io/physical-gpu-count": str(CARDS),
                "ai.centaurus.io/physical-gpu-uuids": ",".join(uuids[name]),
                "ai.centaurus.io/vitual-gpu-count": ",".join([str(CARD_GIB)] * CARDS),
            },
        )
    sizes = (4, 4, 2, 8, 6, 8)
    wanted = [
        pod(f"p-{i}", "alnair-cost-saving", {VGPU_MEMORY: size, "alnair/vgpu-compute": 10})
        for i, size in enumerate(sizes)
    ]
    with weft(control_plane, tmp_path, ALONE):
        for one in wanted:  # one after another: who is first is then certain
            bind_all(control_plane, namespace, [one])
        ledger = audited(control_plane, namespace)
        assert sum(len(pending_on(control_plane.api, namespace, name)) > 1 for name in NAMES) >= 1
        found: Counter[str] = Counter()
        for name in NAMES:
            plugin = AlnairDevicePlugin(control_plane.api, namespace, name, uuids[name], CARD_GIB)
            for one in in_order(pending_on(control_plane.api, namespace, name)):
                taken = plugin.allocate(total(one, VGPU_MEMORY))
                found[taken.pod] += 1
                (share,) = ledger.holdings[one["metadata"]["uid"]].placement.shares
                assert (taken.pod, taken.gpu) == (one["metadata"]["name"], share.uuid)
        assert found == Counter(one["metadata"]["name"] for one in wanted)
        after = audited(control_plane, namespace)
        assert after.holdings == ledger.holdings

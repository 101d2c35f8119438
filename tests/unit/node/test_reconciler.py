"""The kubelet's account of devices and the promises to pods are held against each other."""

from weft.model import ObjectMeta, PodManifest
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
)
from weft.model.manifest import ManifestContainer, ManifestResources, PodSpec, PodStatus
from weft.node.agent.node_pods import NodePod
from weft.node.agent.reconciler import (
    ANOTHERS_GPU,
    NO_RECORD,
    OTHER_AMOUNT,
    UNCOUNTED,
    ListedContainer,
    Reconciler,
    differences,
)

MEM, NVIDIA = "aliyun.com/gpu-mem", "nvidia.com/gpu"
OWN, UUIDS = frozenset((MEM,)), ("GPU-0", "GPU-1")


def a_pod(units: int = 4, *, record: bool = True, phase: str = "Running") -> NodePod:
    resources = ManifestResources(limits={MEM: units})
    meta = ObjectMeta(name="p", namespace="d", uid="u")
    spec = PodSpec(containers=[ManifestContainer("main", resources=resources)])
    pod = PodManifest(meta, spec, PodStatus(phase))
    card = DeliveredCard(0, "GPU-0", 4096, 0, 16_160, 1000)
    part = DeliveredContainer((DeliveredShare(0, "GPU-0", 4096, 0),))
    made = DeliveryRecord("u", "n", "gpushare", (card,), {"main": part})
    return NodePod("u", pod, "share", made if record else None)


def held(**ids: list[str]) -> ListedContainer:
    names = {"own": MEM, "nvidia": NVIDIA}
    return ListedContainer("d", "p", "main", {names[key]: value for key, value in ids.items()})


FOUR = ["0-1", "0-2", "1-3", "1-4"]


def kinds(pod: NodePod, listed: ListedContainer) -> list[str]:
    return [found.kind for found in differences([listed], [pod], OWN, UUIDS)]


def test_what_agrees() -> None:
    assert kinds(a_pod(), held(own=FOUR)) == []
    assert kinds(a_pod(), held(own=FOUR, nvidia=["GPU-0"])) == []  # its own GPU
    assert kinds(a_pod(), held(own=FOUR, nvidia=["GPU-7::1"])) == []  # of no GPU here
    assert kinds(a_pod(phase="Pending"), held()) == []
    assert kinds(a_pod(phase="Failed"), held(own=["0-1"])) == []
    unknown = ListedContainer("d", "other", "main", {MEM: FOUR})
    assert differences([unknown], [a_pod()], OWN, UUIDS) == []


def test_what_differs() -> None:
    assert kinds(a_pod(record=False), held(own=FOUR)) == [NO_RECORD]
    assert kinds(a_pod(), held(own=FOUR[:3])) == [OTHER_AMOUNT]
    assert kinds(a_pod(), held()) == [UNCOUNTED]
    for device_id in ("GPU-1", "GPU-1::3", "GPU-1_12", "GPU-1-_-4"):
        assert kinds(a_pod(), held(own=FOUR, nvidia=[device_id])) == [ANOTHERS_GPU]


class Listed:
    def __init__(self) -> None:
        self.now: list[ListedContainer] = []

    async def containers(self) -> list[ListedContainer]:
        return self.now


class Pods:
    def __init__(self, *pods: NodePod) -> None:
        self.pods = {pod.uid: pod for pod in pods}


async def test_only_who_has_anothers_gpu_is_evicted_and_all_is_told_once() -> None:
    told: list[str] = []
    evicted: list[str] = []
    listed = Listed()
    reconciler = Reconciler(
        Pods(a_pod()),
        listed,
        lambda: OWN,
        lambda: UUIDS,
        lambda pod, reason, text: told.append(text),
        lambda pod, text: evicted.append(pod.name),
    )
    listed.now = [held(own=FOUR[:3])]
    assert await reconciler.look() == []  # seen once: perhaps somebody was heard late
    for _ in range(3):
        await reconciler.look()
    assert len(told) == 1
    assert "holds 3 aliyun.com/gpu-mem and asks for 4" in told[0]
    assert evicted == []
    listed.now = [held(own=FOUR, nvidia=["GPU-1"])]
    for _ in range(3):
        await reconciler.look()
    assert evicted == ["p"]
    assert reconciler.counts[ANOTHERS_GPU] == 1
    assert reconciler.counts[OTHER_AMOUNT] == 1

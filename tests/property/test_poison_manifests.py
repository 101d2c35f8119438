"""Whatever manifest is accepted is decided, by what ships and by every policy, and a healthy pod is
bound meanwhile.

Random pods in the words of every system, with hostile numbers, on nodes partly used, MIG nodes of
64 devices among them, that join, leave and lose GPUs while prices are made. The short form bounds
the work that is counted; `make test-faults` plays more and larger ones, and looks at the clock too.
"""

import time
from random import Random
from typing import Any

import msgspec
import pytest
from long_form import few_or_many
from msgspec.structs import replace
from ways import WAYS, Way, soon

from weft.cluster.state.pod_reader import read, read_bound
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    NodesChanged,
    PodAdded,
    PodGone,
    PodSeenBound,
    Tick,
    Wake,
)
from weft.core.engine.decision_faults import Faulted, unless_faulted
from weft.core.ledger import audit
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.model import BadInputError, Constraints, Node, PodRequest, Taint, Toleration
from weft.testing import node, placement, pod, shape

Json = dict[str, Any]
MOST_CONTAINERS, MOST_NODES = 300, 6
TURN_LOOKS, MOST_LOOKS = 20_000, 120_000
"""Looks after which an event is over, and those that its last decision may take: of 256 containers,
or of 64 GPUs one by one."""
LONG_CONTAINERS, LONG_NODES, LONG_TURN_S = 5_000, 200, 1.0
"""The bar is 50 ms on a quiet machine; tests run beside others."""

WORDS = (
    "elasticgpu.io/gpu-memory",
    "elasticgpu.io/gpu-core",
    "elasticgpu.com/gpu-memory",
    "nano-gpu/gpu-percent",
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "alnair/vgpu-memory",
    "alnair/vgpu-compute",
    "weft.dev/gpu-memory",
    "weft.dev/gpu-cores",
    "weft.dev/gpu-count",
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)
BESIDE = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/r{}", "rdma/hca")
USUAL = ("1", "2", "10", "100", "500", "{}")
HOSTILE = (
    "0",
    "1000",
    "999999",
    "1000000",
    "2147483648",
    "9.2e12",
    "4503599627370496",
    "9223372036854775807",
    "9E",
    "1e30",
    "500m",
    "1Ki",
    "2000000",
    "7Pi",
)
LABELS = (
    "genius/gpu-number",
    "genius/gpu-memory-each",
    "genius/gpu-memory-total",
    "genius/gpu-model",
    "GPU_MEM_REQ",
    "genius/priority",
)
MARKS = (
    "weft.dev/class",
    "weft.dev/application",
    "weft.dev/gpu-model",
    "nvidia.com/use-gpuuuid",
    "weft.dev/expected-duration",
    "weft.dev/slo-ms",
    "weft.dev/isolation",
)
SAID = ("latency-critical", "best-effort", "cnn", "A100", "x" * 300, "99999999999", "2h", "40", "")


HEALTHY = "for-the-healthy"
WELL = replace(
    shape(memory_mib=10), constraints=Constraints(tolerations=(Toleration(HEALTHY, "Exists"),))
)


def number(dice: Random, at: int, hostile: float = 0.15) -> str:
    some = HOSTILE if dice.random() < hostile else USUAL
    return dice.choice(some).format(100 + at)


def container(dice: Random, at: int, words: tuple[str, ...], hostile: float) -> Json:
    asked = {word: number(dice, at, hostile) for word in words if dice.random() < 0.9}
    asked |= {name.format(at): number(dice, at, hostile) for name in BESIDE if dice.random() < 0.1}
    restart = dice.choice([None, None, "Always"])
    return {"name": f"c{at}", "resources": {"limits": asked}, "restartPolicy": restart}


def manifest(dice: Random, name: str, most: int) -> Json:
    """A pod in one system's words, mostly; alike in all containers, or a little different."""
    words = tuple(dice.sample(WORDS, dice.choice([0, 1, 1, 1, 1, 1, 2])))
    counts = [1, 1, 2, 3, 4, 9, 17, most // 4, most]
    hostile = dice.choice([0.0, 0.0, 0.1])
    made = [container(dice, at, words, hostile) for at in range(dice.choice(counts))]
    inits = dice.choice([0, 0, 0, len(made) // 2])
    labels = {one: number(dice, 0) for one in LABELS if dice.random() < 0.06}
    marks = {one: dice.choice(SAID) for one in MARKS if dice.random() < 0.15}
    spec: Json = {
        "containers": made[inits:],
        "initContainers": made[:inits],
        "schedulerName": "weft",
    }
    if dice.random() < 0.1:
        spec["resources"] = {"requests": {"cpu": number(dice, 0), "memory": number(dice, 0)}}
    if dice.random() < 0.1:
        spec["overhead"] = {"cpu": number(dice, 0), "memory": number(dice, 0)}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels, "annotations": marks},
        "spec": spec,
    }


def accepted(made: Json) -> PodRequest | None:
    """The request; None where it is refused, which is an answer too. Bound, it is always read."""
    told = msgspec.convert(made, Pod)
    try:
        request = read(told, DialectSettings(), VolumeView())
    except BadInputError:
        return None
    assert read_bound(told, DialectSettings()).shape.gpu_requests == request.shape.gpu_requests
    return request


def cluster(dice: Random, most: int) -> list[Node]:
    found = [replace(node("roomy", gpus=1), taints=(Taint(HEALTHY, "NoSchedule"),))]
    for at in range(dice.randint(1, most)):
        gpus, mig = dice.choice([(8, 0), (8, 7), (4, 7), (2, 3), (4, 0), (0, 0)])
        size = dice.choice([16_384, 16_384, 81_920])
        found.append(
            node(
                f"n{at}",
                gpus=gpus,
                mig=mig,
                memory_mib=size,
                model="A100",
                extended={"pods": 200, "rdma/hca": 500},
            )
        )
    return found


class Story:
    """One engine, and the most that one `handle` took."""

    def __init__(self, dice: Random, way: Way, nodes: list[Node]) -> None:
        profiles = way.made()
        for profile in profiles:
            for policy in profile.policies:
                soon(policy)
        self.engine = Engine(profiles, nodes, turn_looks=TURN_LOOKS)
        self._others = nodes[1:]
        self.now, self.worst_s, self.worst_looks = 0, 0.0, 0
        for one in nodes[1:]:
            for gpu in one.gpus:
                if dice.random() < 0.4 and gpu.parent is None:
                    there = placement(
                        f"h-{one.name}-{gpu.index}",
                        one.name,
                        gpu.index,
                        memory_mib=dice.randint(0, 9_000),
                        milli=dice.choice([0, 300]),
                    )
                    self.engine.handle(PodSeenBound(there), 0)

    def tell(self, event: Event) -> list[Command]:
        self.now += 1_000_000_000
        commands = found = self._handle(event)
        while any(isinstance(c, Wake) and c.at_ns <= self.now for c in commands):
            commands = self._handle(Tick())
            found = found + commands
        return found

    def _handle(self, event: Event) -> list[Command]:
        looked, began = self.engine.assessor.looked, time.process_time()
        commands = unless_faulted(self.engine.handle(event, self.now))
        self.worst_s = max(self.worst_s, time.process_time() - began)
        self.worst_looks = max(self.worst_looks, self.engine.assessor.looked - looked)
        return commands

    def change_a_node(self, dice: Random) -> None:
        """One but the roomy one leaves, is back, or is back with fewer GPUs."""
        one = dice.choice(self._others)
        half = replace(one, gpus=tuple(gpu for gpu in one.gpus if gpu.index % 2 == 0))
        fewer = half if not any(gpu.parent is not None for gpu in one.gpus) else one
        changes = NodesChanged(removed=(one.name,)), NodesChanged((one,)), NodesChanged((fewer,))
        self.tell(dice.choice(changes))

    def play(self, dice: Random, pods: int, most_containers: int) -> int:
        """So many manifests; how many were accepted."""
        count = 0
        for at in range(pods):
            request = accepted(manifest(dice, f"p{at}", most_containers))
            if request is not None:
                count += 1
                self.tell(PodAdded(request))
            well = pod(f"well{at}", asks=WELL)
            bound = [c.pod.uid for c in self.tell(PodAdded(well)) if isinstance(c, Bind)]
            assert well.uid in bound, "a healthy neighbour is bound meanwhile"
            self.tell(PodGone(well.uid))
            if request is not None and dice.random() < 0.5:
                self.tell(PodGone(request.uid))
            if dice.random() < 0.3:
                self.change_a_node(dice)
        lost = "holds a GPU that the node does not have"
        assert [text for text in audit(self.engine.ledger) if lost not in text] == []
        return count


@pytest.mark.parametrize("way", WAYS)
def test_what_is_accepted_is_decided(way: str) -> None:
    dice = Random(way)
    story = Story(dice, WAYS[way], cluster(dice, MOST_NODES))
    assert story.play(dice, few_or_many(12, 20), MOST_CONTAINERS) > few_or_many(0, 2)
    assert story.worst_looks < TURN_LOOKS + MOST_LOOKS


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", WAYS)
def test_what_is_accepted_is_decided_in_time(way: str, seed: int) -> None:
    dice = Random(f"{way}/{seed}")
    story = Story(dice, WAYS[way], cluster(dice, LONG_NODES if seed % 2 else MOST_NODES))
    assert story.play(dice, 40, LONG_CONTAINERS) > 5
    assert story.worst_s < LONG_TURN_S


def test_a_mistake_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(0)
    story = Story(dice, WAYS["best-fit"], cluster(dice, 1))
    monkeypatch.setattr(story.engine.assessor, "assess", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        story.tell(PodAdded(pod("p", memory_mib=1)))
    assert any(isinstance(c, Faulted) for c in story.engine.handle(PodAdded(pod("q")), 10**12))

"""A pod's whole way: manifest → request → decision → marks → (crash) → the same ledger again."""

import msgspec
import pytest

from weft.cli.policies import registry
from weft.core.engine import Bind, Engine, NodesChanged, PodAdded, PodBound
from weft.core.framework import Profile
from weft.core.ledger import Ledger, audit
from weft.core.ledger.audit import differences
from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod, read_placement, write
from weft.model import Gpu, Node, PodManifest, PodRequest

NODES = (
    Node(
        "big",
        tuple(Gpu(i, 32_510, "Tesla V100", f"GPU-big-{i}") for i in range(4)),
        64_000,
        512_000,
    ),
    Node(
        "small",
        tuple(Gpu(i, 16_160, "Tesla T4", f"GPU-small-{i}") for i in range(2)),
        16_000,
        64_000,
    ),
    Node("cpu", (), 64_000, 512_000),
)


def asks(*pairs: tuple[str, int | str], name: str = "main") -> dict[str, object]:
    return {"name": name, "resources": {"limits": dict(pairs), "requests": dict(pairs)}}


SAMPLES: dict[str, dict[str, object]] = {
    "elastic-shared": {
        "containers": [
            asks(("elasticgpu.io/gpu-core", 20), ("elasticgpu.io/gpu-memory", 3000), name="a"),
            asks(("elasticgpu.io/gpu-core", 40), ("elasticgpu.io/gpu-memory", 256), name="b"),
            {"name": "sidecar"},
        ]
    },
    "elastic-whole": {"containers": [asks(("elasticgpu.com/gpu-core", 200))]},
    "nano": {"containers": [asks(("nano-gpu/gpu-percent", 30))]},
    "gpushare": {
        "containers": [
            asks(("aliyun.com/gpu-mem", 3), name="a"),
            asks(("aliyun.com/gpu-mem", 2), name="b"),
        ]
    },
    "alnair": {
        "schedulerName": "alnair-cost-saving",
        "containers": [asks(("alnair/vgpu-memory", 8), ("alnair/vgpu-compute", 50))],
    },
    "hami": {
        "containers": [
            asks(("nvidia.com/gpu", 2), ("nvidia.com/gpumem", 3000), ("nvidia.com/gpucores", 30))
        ]
    },
    "nvidia": {"containers": [asks(("nvidia.com/gpu", 2))]},
    "weft": {
        "containers": [asks(("weft.dev/gpu-memory", "4Gi"), ("weft.dev/gpu-cores", 25))],
        "initContainers": [asks(("weft.dev/gpu-memory", "6Gi"), name="warm")],
    },
    "genius": {"schedulerName": "genius-scheduler", "containers": [{"name": "main"}]},
    "genius-total": {"schedulerName": "genius-scheduler", "containers": [{"name": "main"}]},
    "kubeknots": {"schedulerName": "custom-scheduler", "containers": [{"name": "main"}]},
    "plain": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]},
}
LABELS = {
    "genius": {
        "genius/gpu-number": "2",
        "genius/gpu-memory-each": "4000",
        "genius/gpu-model": "v1.0",
        "genius/priority": "5",
    },
    "genius-total": {"genius/gpu-memory-total": "40000"},
    "kubeknots": {"GPU_MEM_REQ": "1000"},
}


def manifest(name: str) -> PodManifest:
    raw = {
        "metadata": {
            "name": name,
            "namespace": "lab",
            "uid": f"uid-{name}",
            "labels": LABELS.get(name, {}),
        },
        "spec": SAMPLES[name],
    }
    return msgspec.convert(raw, PodManifest)


def bound(pod: PodManifest, node: str, annotations: dict[str, str]) -> PodManifest:
    """The pod as the API shows it after the Binding."""
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name=node),
    )


@pytest.mark.parametrize("policy", registry().names())
def test_a_crash_loses_nothing_whatever_the_policy(policy: str) -> None:
    """Every dialect's pod on one ledger; then only the API's objects are left: enough."""
    settings = DialectSettings()
    engine = Engine([Profile("weft", [registry().create(policy)])])
    engine.handle(NodesChanged(NODES), 0)
    api: list[PodManifest] = []
    requests: dict[str, PodRequest] = {}
    for at, name in enumerate(SAMPLES):
        pod = manifest(name)
        request = requests[name] = parse_pod(pod, settings)
        outcome = engine.handle(PodAdded(request), at)[0]
        if not isinstance(outcome, Bind):
            continue  # exclusive and whole-card policies run out of cards
        engine.handle(PodBound(request.uid), at)
        node = next(node for node in NODES if node.name == outcome.placement.node)
        marks = write(request, outcome.placement, node, at)
        api.append(bound(pod, node.name, marks.annotations))
    assert len(api) >= 4
    assert audit(engine.ledger) == []

    rebuilt = Ledger(NODES)
    for pod in api:
        node = next(node for node in NODES if node.name == pod.spec.node_name)
        placement = read_placement(pod, node, settings)
        assert placement is not None, pod.metadata.name
        rebuilt.adopt(placement)
    assert differences(engine.ledger.table, rebuilt.table) == []
    assert audit(rebuilt) == []


def test_the_genius_pod_gets_the_model_and_cards_it_asked_for() -> None:
    engine = Engine([Profile("weft", [registry().create("first-fit")])])
    engine.handle(NodesChanged(NODES), 0)
    outcome = engine.handle(PodAdded(parse_pod(manifest("genius"), DialectSettings())), 0)[0]
    assert isinstance(outcome, Bind)
    assert outcome.placement.node == "big"
    assert [share.memory_mib for share in outcome.placement.shares] == [4000, 4000]
    assert len({share.gpu for share in outcome.placement.shares}) == 2


def test_a_memory_total_is_split_over_the_fewest_cards() -> None:
    engine = Engine([Profile("weft", [registry().create("first-fit")])])
    engine.handle(NodesChanged(NODES), 0)
    outcome = engine.handle(PodAdded(parse_pod(manifest("genius-total"), DialectSettings())), 0)[0]
    assert isinstance(outcome, Bind)
    assert sum(share.memory_mib for share in outcome.placement.shares) == 40_000
    assert len(outcome.placement.shares) == 2

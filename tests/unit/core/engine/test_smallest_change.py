"""Counterfactuals by hand: what would have to change, in words and in values."""

from collections import deque
from typing import Any

import msgspec
from engine_talk import bind, engine_of, one_card

from weft.core.engine import Engine, PodAdded, PodSeenBound, VolumesChanged
from weft.core.explain.smallest_change import ChangeSearch, SmallestChange, changes
from weft.core.policies.spreading import Exclusive
from weft.model import (
    Constraints,
    FreeVolume,
    GpuMemoryRequest,
    GpuRequest,
    InterPodRules,
    NodeStorage,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Requirement,
    SpreadRule,
    StorageCapacity,
    StorageClass,
    StorageRules,
    Term,
    UnboundClaim,
)
from weft.testing import node, placement, pod, shape


def by_axis(engine: Engine, asked: PodRequest) -> dict[str, SmallestChange]:
    return {change.axis: change for change in changes(engine, asked)}


def texts(engine: Engine, asked: PodRequest) -> dict[str, str]:
    return {axis: change.text for axis, change in by_axis(engine, asked).items()}


def test_less_memory_or_the_end_of_the_smallest_pod_that_helps() -> None:
    engine = engine_of(one_card("a"), one_card("b"))
    bind(engine, pod("tiny", memory_mib=100, node_name="a"))
    bind(engine, pod("mid", memory_mib=8000, node_name="a"))
    bind(engine, pod("big", memory_mib=14_000, node_name="b"))
    assert texts(engine, pod("p", memory_mib=10_000)) == {
        "memory": "request at most 8,284 MiB of GPU memory instead of 10,000",
        "free": "free a GPU 0: end pod default/mid (UID mid)",
    }


def test_fewer_cores_for_a_share_and_for_a_whole_card() -> None:
    engine = engine_of(one_card("a"))
    bind(engine, pod("x", milli=700, memory_mib=100))
    share = by_axis(engine, pod("p", milli=500))["cores"]
    assert share.text == "request at most 30 % of a GPU's cores instead of 50 %"
    whole = by_axis(engine, pod("p", gpus=1))["cores"]
    assert whole.text == "request at most 30 % of a GPU's cores and memory instead of 100 %"
    assert whole.shape is not None
    assert whole.shape.gpu_requests == (GpuRequest(1, GpuMemoryRequest("percent", 30), 300),)


def test_a_whole_card_s_least_memory_survives_the_change_of_its_cores() -> None:
    """A card of 20,000 MiB is wanted: a part of a smaller card is no answer to that."""
    engine = engine_of(one_card("small"), node("large", gpus=1, memory_mib=40_000))
    bind(engine, pod("x", milli=500, memory_mib=10_000, node_name="large"))
    asked = pod(
        "p", gpu_requests=(GpuRequest(1, GpuMemoryRequest("mib", 20_000), 1000, whole=True),)
    )
    change = by_axis(engine, asked)["cores"]
    assert change.text == "request at most 50 % of a GPU's cores instead of 100 %"
    assert change.shape is not None
    assert change.shape.gpu_requests == (GpuRequest(1, GpuMemoryRequest("mib", 20_000), 500),)


def test_fewer_gpus() -> None:
    engine = engine_of(node("a", gpus=3))
    assert texts(engine, pod("p", gpus=8))["count"] == "request at most 3 GPUs instead of 8"


def test_another_model() -> None:
    engine = engine_of(node("a", gpus=1, model="T4"), node("b", gpus=1, model="V100"), node("c"))
    bind(engine, pod("x", gpus=1, node_name="b"))
    assert texts(engine, pod("p", gpus=1, models=("V100",))) == {
        "model": "accept the GPU model T4",
        "free": "free b GPU 0: end pod default/x (UID x)",
    }
    change = by_axis(engine, pod("p", gpus=1, models=("V100",)))["model"]
    assert change.shape is not None
    assert change.shape.devices.models == ("T4",)


def test_no_single_model_but_several_together() -> None:
    engine = engine_of(node("a", gpus=2, model=["T4", "V100"]))
    assert texts(engine, pod("p", gpus=2, models=("A100",))) == {"model": "accept any GPU model"}
    assert texts(engine_of(node("a", gpus=1)), pod("p", gpus=1, models=("A100",))) == {
        "model": "accept the GPU model (unnamed)"
    }


def test_less_of_the_host() -> None:
    engine = engine_of(one_card("a", cpu_milli=1500, host_memory_mib=2000))
    assert texts(engine, pod("p", gpus=1, cpu_milli=2000)) == {
        "cpu": "request at most 1,500 m of CPU instead of 2,000"
    }
    assert by_axis(engine, pod("p", gpus=1, host_memory_mib=4000))["memory"].text == (
        "request at most 2,000 MiB of host memory instead of 4,000"
    )


def test_a_host_that_is_full_asks_for_nothing_at_all() -> None:
    engine = engine_of(one_card("a", cpu_milli=0))
    assert texts(engine, pod("p", gpus=1, cpu_milli=1)) == {
        "cpu": "request at most 0 m of CPU instead of 1"
    }


def test_the_end_of_a_pod_without_a_gpu_and_of_one_by_others() -> None:
    engine = engine_of(one_card("a", cpu_milli=1000))
    engine.handle(PodSeenBound(placement("theirs", "a", cpu_milli=900)), 0)
    assert texts(engine, pod("p", gpus=1, cpu_milli=1000))["free"] == "free a: end pod UID theirs"


def test_a_crowded_gpu_is_freed_where_no_single_pod_s_end_helps() -> None:
    engine = engine_of(node("a", gpus=2))
    for gpu, pods in ((0, 3), (1, 2)):
        for index in range(pods):
            uid = f"g{gpu}-{index}"
            engine.handle(PodSeenBound(placement(uid, "a", gpu, memory_mib=5000)), 0)
    change = by_axis(engine, pod("p", gpus=1))["free"]
    assert change.text == "free a GPU 1: end its 2 pods"
    assert change.free == ("g1-0", "g1-1")


def test_none_is_a_legal_answer() -> None:
    engine = engine_of(node("a"))
    assert changes(engine, pod("p", gpus=1)) == []
    assert changes(engine_of(), pod("p", cpu_milli=1)) == []


def test_percent_and_units_keep_their_words() -> None:
    engine = engine_of(one_card("a"))
    bind(engine, pod("x", percent=60))
    assert texts(engine, pod("p", percent=50))["memory"] == (
        "request at most 40 % of a card of GPU memory instead of 50"
    )
    units = GpuRequest(memory=GpuMemoryRequest("units", 9, unit_mib=1024))
    assert texts(engine, pod("p", gpu_requests=(units,)))["memory"] == (
        "request at most 6 units of GPU memory instead of 9"
    )


def test_under_an_exclusive_policy_less_is_no_help() -> None:
    engine = engine_of(one_card("a"), policies=(Exclusive(),))
    bind(engine, pod("x", memory_mib=1))
    assert texts(engine, pod("p", memory_mib=5, milli=500)) == {
        "free": "free a GPU 0: end pod default/x (UID x)"
    }


def test_asking_changes_no_decision() -> None:
    engine, other = engine_of(one_card("a")), engine_of(one_card("a"))
    for one in (engine, other):
        bind(one, pod("x", memory_mib=9000))
        one.handle(PodAdded(pod("p", memory_mib=9000)), 0)
    assert changes(engine, pod("p", memory_mib=9000))
    assert bind(engine, pod("q", memory_mib=7000)) == bind(other, pod("q", memory_mib=7000)) == "a"
    assert list(engine.ledger.holdings) == list(other.ledger.holdings)


def test_a_search_between_whose_steps_the_world_changes_tells_what_is_still_true() -> None:
    engine = engine_of(one_card("a", memory_mib=16_000), one_card("b", memory_mib=16_000))
    for name in "ab":
        engine.handle(PodSeenBound(placement(name, name, 0, memory_mib=10_000)), 0)
    pod = PodRequest("p", "p", shape(memory_mib=8_000))
    search = ChangeSearch(engine, engine.profile_of(pod), pod)
    for _ in search.steps():
        if search.found:
            break
    assert [change.text for change in search.confirmed()] == [
        "request at most 6,000 MiB of GPU memory instead of 8,000"
    ]
    for name in "ab":
        engine.handle(PodSeenBound(placement(f"{name}2", name, 0, memory_mib=1)), 0)
    assert search.confirmed() == []
    assert not search.ended


def test_pods_of_a_lower_rank_are_tried_first_and_dead_nodes_not_at_all() -> None:
    dead = msgspec.structs.replace(one_card("c"), schedulable=False)
    engine = engine_of(one_card("a"), one_card("b"), dead)
    for name, mib in (("a", 12_000), ("b", 11_000), ("c", 1)):
        engine.handle(PodSeenBound(placement(name, name, 0, memory_mib=mib)), 0)
    asked = shape(memory_mib=10_000)
    profile = engine.profiles["weft"]
    for rank, want in ((lambda uid: 0, "b"), (lambda uid: int(uid != "a"), "a")):
        search = ChangeSearch(
            engine, profile, PodRequest("p", "p", asked), rank, lambda uid: f"ns/{uid}"
        )
        deque(search.steps(), maxlen=0)
        assert search.ended
        (freed,) = (change for change in search.found if change.axis == "free")
        assert freed.free == (want,)
        assert f"end pod ns/{want} (UID {want})" in freed.text


def extending(asks: PodRequest, extended: dict[str, int]) -> PodRequest:
    changed = msgspec.structs.replace(asks.shape, extended=tuple(sorted(extended.items())))
    return msgspec.structs.replace(asks, shape=changed)


def plugged(memory_mib: int, *, count: int = 1, name: str = "p") -> PodRequest:
    """A pod that asks so much of each GPU with a resource that the kubelet counts."""
    gpu_requests = (GpuRequest(count, GpuMemoryRequest("mib", memory_mib)),)
    asked = {"elasticgpu.io/gpu-memory": memory_mib * count, "pods": 1}
    return extending(pod(name, gpu_requests=gpu_requests), asked)


def test_less_of_the_resource_where_the_node_advertises_no_more() -> None:
    """The card has room, the kubelet would refuse: what the pod asks of both is one number."""
    advertised = {"elasticgpu.io/gpu-memory": 10_000, "pods": 10}
    engine = engine_of(node("a", gpus=1, memory_mib=16_000, extended=advertised))
    bind(engine, plugged(4_000))
    change = by_axis(engine, plugged(8_000, name="q"))["extended"]
    assert change.text == "request at most 6,000 of elasticgpu.io/gpu-memory instead of 8,000"
    assert change.shape is not None
    assert change.shape.gpu_requests == (GpuRequest(1, GpuMemoryRequest("mib", 6_000)),)
    assert dict(change.shape.extended) == {"elasticgpu.io/gpu-memory": 6_000, "pods": 1}


def test_less_of_the_resource_is_less_memory_too_where_both_lack() -> None:
    advertised = {"elasticgpu.io/gpu-memory": 10_000, "pods": 10}
    engine = engine_of(node("a", gpus=2, memory_mib=3_000, extended=advertised))
    found = texts(engine, plugged(6_000, count=2))
    assert (
        found["extended"] == "request at most 6,000 of elasticgpu.io/gpu-memory instead of 12,000"
    )
    assert "memory" not in found  # of the cards alone is not enough


def test_less_of_a_resource_beside_the_gpus_leaves_their_memory_alone() -> None:
    engine = engine_of(node("a", gpus=1, memory_mib=16_000, extended={"rdma/hca": 2}))
    asked = extending(pod("p", memory_mib=8_000), {"rdma/hca": 3})
    change = by_axis(engine, asked)["extended"]
    assert change.text == "request at most 2 of rdma/hca instead of 3"
    assert change.shape is not None
    assert change.shape.gpu_requests == asked.shape.gpu_requests
    engine = engine_of(node("a", gpus=1, memory_mib=16_000))
    assert texts(engine, asked)["extended"] == "request at most 0 of rdma/hca instead of 3"


def test_nothing_is_offered_of_what_does_not_lack() -> None:
    engine = engine_of(node("a", gpus=1, memory_mib=4_000, extended={"rdma/hca": 4}))
    found = texts(engine, extending(pod("p", memory_mib=8_000), {"rdma/hca": 3}))
    assert set(found) == {"memory"}


# --- rules about other pods ---

WEB = PodSelector(("ml",), (Requirement("app", "In", ("web",)),))


def zoned(*zones: str, without: str = "") -> Engine:
    """A node of four cards in each of these zones; in one `without` none."""
    nodes = [
        msgspec.structs.replace(
            node(f"n{number}", gpus=0 if zone == without else 4), labels={"zone": zone}
        )
        for number, zone in enumerate(zones)
    ]
    return engine_of(*nodes)


def there(engine: Engine, uid: str, on: str, *, marks: PodMarks | None = None) -> None:
    marks = marks or PodMarks("ml", {"app": "web"})
    share = placement(uid, on, 0, memory_mib=100, milli=10)
    engine.handle(PodSeenBound(share, marks=marks), 0)


def ruled(rules: InterPodRules) -> PodRequest:
    asked = pod("asked", memory_mib=100)
    held = msgspec.structs.replace(asked.shape, constraints=Constraints(pods=rules))
    return msgspec.structs.replace(asked, shape=held, namespace="ml", labels={"app": "web"})


def test_the_least_skew_that_would_do() -> None:
    engine = zoned("a", "b", without="b")
    for number in range(3):
        there(engine, f"w{number}", "n0")
    rule = SpreadRule("zone", 1, WEB, counts_itself=True)
    change = by_axis(engine, ruled(InterPodRules(spread=(rule,))))["spread"]
    assert change.text == "let maxSkew of the spread by zone be 4 instead of 1"
    assert change.shape is not None
    wider = msgspec.structs.replace(rule, max_skew=4)
    assert change.shape.constraints.pods == InterPodRules(spread=(wider,))


def test_a_spread_by_a_label_that_no_node_has_is_not_mended_by_any_skew() -> None:
    engine = zoned("a")
    assert not texts(engine, ruled(InterPodRules(spread=(SpreadRule("rack", 1, WEB),))))


def test_a_term_that_is_preferred_instead() -> None:
    engine = zoned("a", "b")
    there(engine, "w0", "n0")
    there(engine, "w1", "n1")
    away = InterPodRules(anti_affinity=(PodTerm("zone", WEB),))
    said = texts(engine, ruled(away))
    assert said["pod-anti-affinity"] == (
        "prefer, not require, to be away from pods with app=web in ml, by zone"
    )
    db = PodSelector(("ml",), (Requirement("app", "In", ("db",)),))
    near = InterPodRules(affinity=(PodTerm("zone", db),))
    assert texts(engine, ruled(near)) == {
        "pod-affinity": "prefer, not require, to be near pods with app=db in ml, by zone"
    }


def test_the_end_of_the_pod_that_keeps_others_away() -> None:
    engine = zoned("a")
    there(engine, "w0", "n0", marks=PodMarks("ml", {}, (PodTerm("zone", WEB),)))
    said = texts(engine, ruled(InterPodRules()))
    assert said == {"free": "free n0 GPU 0: end pod UID w0"}


def test_nothing_is_offered_of_rules_that_are_not_why() -> None:
    engine = zoned("a")
    there(engine, "w0", "n0")
    away = InterPodRules(anti_affinity=(PodTerm("zone", WEB),))
    asked = ruled(away)
    big = msgspec.structs.replace(asked.shape, cpu_milli=10**9)
    asked = msgspec.structs.replace(asked, shape=big)
    assert not texts(engine, asked), "two changes would be needed"


# --- volumes ---

GIB = 1 << 30
CLAIM = UnboundClaim("fast", 10 * GIB, ("ReadWriteOnce",))


def with_claim(name: str, claim: UnboundClaim = CLAIM) -> PodRequest:
    constraints = Constraints(storage=StorageRules((claim,)))
    asked = pod(name, memory_mib=100)
    shape = msgspec.structs.replace(asked.shape, constraints=constraints)
    return msgspec.structs.replace(asked, shape=shape, claims=("data",))


def with_volumes(*volumes: FreeVolume, **more: Any) -> Engine:
    engine = engine_of(one_card("a"), one_card("b"))
    engine.handle(VolumesChanged(volumes, **more), 0)
    return engine


def free(name: str, gib: int, on: str = "") -> FreeVolume:
    terms = (Term((), (Requirement("metadata.name", "In", (on,)),)),) if on else None
    return FreeVolume(name, "fast", gib * GIB, ("ReadWriteOnce",), terms=terms)


def test_a_claim_of_the_size_of_the_largest_volume_that_would_do() -> None:
    engine = with_volumes(free("v1", 1), free("v4", 4, "a"), free("v6", 6, "gone"))
    change = by_axis(engine, with_claim("p"))["volume"]
    assert change.text == "let PersistentVolumeClaim data request at most 4Gi instead of 10Gi"
    assert change.shape is not None
    assert change.shape.constraints.storage == StorageRules(
        (msgspec.structs.replace(CLAIM, size_bytes=4 * GIB),)
    )


def test_a_claim_of_the_size_that_is_left() -> None:
    made = StorageClass("fast", "csi", counts_capacity=True)
    left = StorageCapacity("left", "fast", 3 * GIB + 1, ())
    engine = with_volumes(classes=(made,), capacities=(left,))
    said = texts(engine, with_claim("p"))["volume"]
    assert (
        said
        == f"let PersistentVolumeClaim data request at most {3 * GIB + 1} bytes instead of 10Gi"
    )


def test_a_claim_of_another_class() -> None:
    classes = (StorageClass("fast"), StorageClass("slow", "csi"), StorageClass("none"))
    engine = with_volumes(classes=classes)
    said = texts(engine, with_claim("p"))
    assert said == {"volume": "let PersistentVolumeClaim data request class slow instead of fast"}


def test_a_claim_that_has_its_node_or_volume_stays_as_it_is() -> None:
    engine = with_volumes(free("v1", 1), classes=(StorageClass("slow", "csi"),))
    for own in ({"selected_node": "gone"}, {"reserved": "lost"}):
        claim = msgspec.structs.replace(CLAIM, **own)
        assert texts(engine, with_claim("p", claim)) == {}


def test_the_end_of_the_pod_that_has_the_last_volume_that_a_node_can_have() -> None:
    made = StorageClass("fast", "csi")
    nodes = (NodeStorage("a", {"csi": 1}), NodeStorage("b", {"csi": 0}))
    engine = with_volumes(classes=(made,), nodes=nodes)
    first = msgspec.structs.replace(CLAIM, driver="csi")
    bind(engine, with_claim("first", first))
    other = msgspec.structs.replace(with_claim("p", first), claims=("other",))
    assert texts(engine, other) == {"free": "free a GPU 0: end pod default/first (UID first)"}

"""Gauges of teams' queues: those that are configured, and all others as one."""

from msgspec.structs import replace

from weft.cluster.scheduler.usage_gauges import QueueGauges
from weft.core.engine import Engine, PodAdded, PodBound
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.model import PodRequest
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
from weft.testing import node, pod

VISION = QueueTerms(
    "vision",
    guarantee=QueueAmounts(gpu_milli=1_000),
    limits=QueueAmounts(gpu_milli=1_500, memory_mib=40_000, models=(("A100", 1_000),)),
)


def engine_of(rules: QueueRules) -> Engine:
    nodes = [node("a", gpus=2, model="NVIDIA A100", memory_mib=16_000)]
    return Engine([Profile("weft", [BestFit()])], nodes, queues=rules)


def of(team: str, name: str, memory_mib: int = 8_000) -> PodRequest:
    return replace(pod(name, memory_mib=memory_mib, milli=250), queue=team)


def told(engine: Engine) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        metric.name: {tuple(each.labels.values()): each.value for each in metric.samples}
        for metric in QueueGauges(engine).collect()
    }


def test_configured_queues_and_all_others_as_one() -> None:
    engine = engine_of(QueueRules("fair", (VISION, QueueTerms("speech"))))
    for each in (of("vision", "v0"), of("typo", "t0", 4_000), of("else", "e0", 4_000)):
        engine.handle(PodAdded(each), 0)
        engine.handle(PodBound(each.uid), 0)
    for each in (of("vision", "v1", 16_000), of("vision", "v2", 16_000), of("typo", "t1", 20_000)):
        engine.handle(PodAdded(each), 0)
    assert told(engine) == {
        "weft_queue_held": {
            ("vision", "gpus"): 0.5,
            ("vision", "gpuMemoryMiB"): 8_000,
            ("vision", "gpuCores"): 25,
            ("vision", "models[A100]"): 0.5,
            ("speech", "gpus"): 0,
            ("speech", "gpuMemoryMiB"): 0,
            ("speech", "gpuCores"): 0,
            ("other", "gpus"): 0.5,
            ("other", "gpuMemoryMiB"): 8_000,
            ("other", "gpuCores"): 50,
        },
        "weft_queue_guarantee": {("vision", "gpus"): 1},
        "weft_queue_limit": {
            ("vision", "gpus"): 1.5,
            ("vision", "gpuMemoryMiB"): 40_000,
            ("vision", "models[A100]"): 1,
        },
        "weft_queue_borrowed": {("vision",): 0, ("speech",): 0, ("other",): 0.5},
        "weft_queue_pods": {
            ("vision", "placed"): 1,
            ("vision", "waiting"): 2,
            ("speech", "placed"): 0,
            ("speech", "waiting"): 0,
            ("other", "placed"): 2,
            ("other", "waiting"): 1,
        },
    }


def test_a_thousand_names_that_pods_invent_are_one_series() -> None:
    engine = engine_of(QueueRules("fair", (VISION,)))
    for number in range(1_000):
        engine.handle(PodAdded(of(f"invented-{number}", f"p{number}", 1_000)), 0)
    gauges = told(engine)
    assert {queue for queue, _ in gauges["weft_queue_pods"]} == {"vision", "other"}
    assert sum(gauges["weft_queue_pods"].values()) == 1_000


def test_a_queue_of_that_name_is_told_from_the_others() -> None:
    engine = engine_of(QueueRules("fair", (QueueTerms("other"),)))
    engine.handle(PodAdded(of("other", "mine")), 0)
    engine.handle(PodAdded(of("else", "theirs")), 0)
    pods = told(engine)["weft_queue_pods"]
    assert (pods["other", "placed"], pods["other queues", "placed"]) == (1, 1)


def test_nothing_is_told_where_no_queue_is_configured_or_nothing_hangs_on_them() -> None:
    for rules in (QueueRules(), QueueRules("fair"), QueueRules("priority", (QueueTerms("a"),))):
        assert told(engine_of(rules)) == {}

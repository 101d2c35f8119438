"""Metrics say what happened: read by Prometheus' own parser, held against the cluster."""

import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from scheduler_world import add_node, add_pod, world

from weft.cluster.control.typical_pods import LEAST_PODS, TypicalInput
from weft.cluster.extender.server import ExtenderMetrics
from weft.cluster.scheduler.ledger_gauges import StrandedGauges
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.cluster.scheduler.usage_gauges import QueueGauges
from weft.core.engine import Engine
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.model.queue_rules import QueueRules, QueueTerms

DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference"


def three_attempts_were_counted(found: Mapping[tuple[str, ...], float]) -> None:
    profile = "profile=weft"
    attempts = "scheduler_schedule_attempts_total"
    assert found[attempts, profile, "result=scheduled"] == 3
    assert found[attempts, profile, "result=unschedulable"] >= 1
    took = "scheduler_scheduling_attempt_duration_seconds"
    assert found[f"{took}_count", profile, "result=scheduled"] == 3
    assert 0 < found[f"{took}_sum", profile, "result=scheduled"] < 10


async def test_what_happened_is_what_is_told() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        add_node(cluster.server, "plain", gpus=0)
        for number in range(3):
            add_pod(cluster.server, f"p{number}", 4_000)
        add_pod(cluster.server, "large", 20_000)
        add_pod(cluster.server, "gated", 4_000, schedulingGates=[{"name": "g"}])
        add_pod(cluster.server, "bad", "much")
        await cluster.live.start()
        assert (await cluster.samples())["leader_election_master_status", "name=weft"] == 0
        await cluster.live.lead(afresh=False)
        await cluster.until(lambda: all(cluster.bound(f"p{n}") for n in range(3)))
        found = await cluster.samples()
        three_attempts_were_counted(found)
        assert found["scheduler_pod_scheduling_sli_duration_seconds_count", "attempts=1"] == 3
        assert found["scheduler_pod_scheduling_attempts_sum",] == 3
        assert found["scheduler_pending_pods", "queue=unschedulable"] == 1
        assert found["scheduler_pending_pods", "queue=gated"] == 1
        assert found["scheduler_pending_pods", "queue=active"] == 0
        assert found["scheduler_cache_size", "type=nodes"] == 2
        assert found["scheduler_cache_size", "type=pods"] == 3
        assert found["leader_election_master_status", "name=weft"] == 1
        assert found["weft_binds_total", "outcome=Bound"] == 3
        assert found["weft_bind_version_retries_total",] == 0
        reviews = 2  # whether it may list and watch namespaces
        assert found["rest_client_requests_total", "code=201", "method=POST"] == 3 + reviews
        assert found["weft_watch_lists_total", "resource=pods"] == 1
        assert found["weft_ready",] == 1
        assert found["weft_pods_bad",] == 1
        assert found["weft_pod_faults_total",] == 0
        assert found["weft_ledger_gpus", "node=n"] == 2
        assert found["weft_ledger_gpu_memory_capacity_mib", "node=n"] == 32_000
        assert found["weft_ledger_gpu_memory_used_mib", "node=n"] == 12_000
        assert found["weft_ledger_gpu_holdings", "node=n"] == 3
        assert found["weft_ledger_gpus_idle", "node=n"] == 1
        assert found["weft_namespace_gpus_held", "namespace=d"] == 12_000 / 16_000
        assert not [key for key in found if "node=plain" in key]
        assert not [key for key in found if key[0].endswith("_created")]
        cluster.server.remove("pods", "p0", "d")
        cluster.server.remove("pods", "large", "d")
        await cluster.until(lambda: len(cluster.live.pods.pods) == 4)
        found = await cluster.samples()
        assert found["weft_ledger_gpu_memory_used_mib", "node=n"] == 8_000
        assert found["scheduler_pending_pods", "queue=unschedulable"] == 0
        assert not cluster.metrics._first, "pods that are gone are forgotten"


async def test_a_bind_that_is_refused_is_an_error_and_tried_again() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        add_pod(cluster.server, "p", 4_000)
        cluster.server.fault("status", path="/binding", method="POST", code=400)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p"))
        found = await cluster.samples()
        attempts = "scheduler_schedule_attempts_total"
        assert found[attempts, "profile=weft", "result=error"] == 1
        assert found[attempts, "profile=weft", "result=scheduled"] == 1
        assert found["weft_binds_total", "outcome=Refused"] == 1
        assert found["scheduler_pod_scheduling_sli_duration_seconds_count", "attempts=2"] == 1
        waited = found["scheduler_pod_scheduling_sli_duration_seconds_sum", "attempts=2"]
        assert 1 <= waited < 60, "the back-off of a second is part of it"


async def test_single_gpus_are_told_only_where_that_is_asked_for() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        add_pod(cluster.server, "p", 4_000)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p"))
        assert not [key for key in await cluster.samples() if "gpu=0" in key]
        cluster.pages.collectors[:] = [SchedulerMetrics(cluster.parts, per_gpu=True)]
        found = await cluster.samples()
        used = [found["weft_ledger_one_gpu_memory_used_mib", f"gpu={g}", "node=n"] for g in (0, 1)]
        assert sorted(used) == [0, 4_000]


async def test_one_page_tells_of_both_hosts() -> None:
    async with world() as cluster:
        extender = ExtenderMetrics()
        extender.answered("/weft", "filter", "ok", 0.003)
        cluster.pages.collectors.append(extender)
        found = await cluster.samples()
        labels = ("path=/weft", "result=ok", "verb=filter")
        assert found["weft_extender_requests_total", *labels] == 1
        assert "weft_ready" in {key[0] for key in found}


async def test_every_metric_is_in_the_reference_and_the_other_way_round() -> None:
    async with world() as cluster:
        stranded = StrandedGauges(cluster.live, TypicalInput(cluster.live))
        metrics = SchedulerMetrics(cluster.parts, per_gpu=True)
        fair = QueueRules("fair", (QueueTerms("team"),))
        queues = QueueGauges(Engine([Profile("weft", [BestFit()])], queues=fair))
        cluster.pages.collectors[:] = [metrics, stranded, queues]
        _, text = await cluster.get("/metrics")
        told = {
            family.name + ("_total" if family.type == "counter" else "")
            for family in text_string_to_metric_families(text)
        }
        page, _, _ = (DOCS / "metrics.md").read_text().partition("## How fast pods go")
        named = set(re.findall(r"^\| `([a-z_]+)`", page, flags=re.MULTILINE))
        assert told == {name for name in named if not name.startswith("weft_agent_")}


async def test_pending_pods_are_counted_by_reason_with_the_age_of_the_oldest() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        add_node(cluster.server, "plain", gpus=0)
        for name, mib in (("large", 20_000), ("larger", 30_000), ("small", 4_000)):
            add_pod(cluster.server, name, mib)
        add_pod(cluster.server, "bad", "much")
        add_pod(cluster.server, "gated", 4_000, schedulingGates=[{"name": "g"}])
        await cluster.live.start()
        assert not [key for key in await cluster.samples() if "weft_pending_pods" in key[0]]
        await cluster.live.lead(afresh=False)
        await cluster.until(lambda: cluster.bound("small"))
        found = await cluster.samples()
        pods = {key[1]: value for key, value in found.items() if key[0] == "weft_pending_pods"}
        assert pods == {"reason=GPU_TOO_SMALL": 2, "reason=CONTRADICTORY": 1}
        for reason in pods:
            assert found["weft_pending_pods_oldest_seconds", reason] > 0
        cluster.server.remove("pods", "large", "d")
        cluster.server.remove("pods", "bad", "d")
        await cluster.until(lambda: len(cluster.live.pods.pods) == 3)
        found = await cluster.samples()
        assert found["weft_pending_pods", "reason=GPU_TOO_SMALL"] == 1
        assert ("weft_pending_pods", "reason=CONTRADICTORY") not in found


async def test_gpus_out_of_service_and_nodes_with_an_agent_are_told() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        add_node(cluster.server, "plain", gpus=0)
        unhealthy = {"metadata": {"name": "unhealthy-gpu-n", "namespace": "kube-system"}}
        cluster.server.add("configmaps", unhealthy | {"data": {"gpus": "1"}})
        await cluster.live.start()
        found = await cluster.samples()
        assert found["weft_ledger_gpus_out_of_service", "node=n"] == 1
        assert found["weft_node_agent", "node=n"] == 1
        assert not [key for key in found if "node=plain" in key]


async def test_idle_gpus_are_told_by_what_strands_them_once_enough_pods_are_there() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        await cluster.lead()
        typical = TypicalInput(cluster.live)
        gauges = StrandedGauges(cluster.live, typical)
        cluster.pages.collectors.append(gauges)
        await typical.count()
        await gauges.look()
        assert not [
            key for key in await cluster.samples() if key[0].startswith("weft_gpus_stranded")
        ]
        for number in range(LEAST_PODS):
            add_pod(cluster.server, f"p{number}", 12_000)
        await cluster.until(lambda: cluster.bound("p0") and cluster.bound("p1"))
        await cluster.until(lambda: len(cluster.live.pods.pods) == LEAST_PODS)
        await typical.count()
        await gauges.look()
        found = await cluster.samples()
        assert found["weft_gpus_usable",] == 0
        assert found["weft_gpus_stranded", "by=shares"] == 0.5  # a quarter of each of two cards
        assert found["weft_gpus_stranded", "by=cpu"] == 0

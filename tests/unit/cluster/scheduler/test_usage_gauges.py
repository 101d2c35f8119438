"""Gauges of what pods hold of GPUs, leave idle and lend: whole sums, few series."""

import random
from collections import defaultdict
from typing import Any

import pytest
from scheduler_world import add_node, add_pod, world

from fakes.claims import claim, device, result, slice_of
from weft.cluster.config.form import UsageSettings
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.cluster.scheduler.usage_gauges import UsageGauges
from weft.core.engine import NodesChanged
from weft.core.record.lent_and_stranded import LentMemory
from weft.model import Gpu, Node, Placement, Share
from weft.model.queue_rules import QueueRules, QueueTerms
from weft.model.usage_groups import OTHERS

Samples = dict[tuple[str, ...], float]


def told(gauges: UsageGauges) -> Samples:
    return {
        (one.name, *one.labels.values()): one.value
        for metric in gauges.collect()
        for one in metric.samples
    }


async def test_each_cards_larger_part_counts() -> None:
    cards = tuple(Gpu(index, 40_000) for index in range(3))
    instances = (Gpu(3, 10_000, parent=2), Gpu(4, 5_000, parent=2))
    held = {
        "a": (Share(0, 0, 10_000, 100),),  # a quarter, by memory
        "b": (Share(0, 0, 4_000, 500),),  # a half, by cores
        "c": (Share(0, 1, 40_000, 1_000),),
        "d": (Share(0, 3, 10_000, 1_000),),  # a quarter of its card
        "e": (),
    }
    async with world() as cluster:
        engine, gauges = cluster.live.engine, UsageGauges(cluster.live)
        engine.handle(NodesChanged((Node("n", (*cards, *instances)),)), 0)
        for uid, shares in held.items():
            engine.ledger.adopt(Placement(uid, "n", shares))
        engine.ledger.adopt(Placement("f", "gone", (Share(0, 0, 1, 1),)))
        assert told(gauges)["weft_namespace_gpus_held", ""] == 2
        assert told(gauges)["weft_namespace_gpu_memory_held_mib", ""] == 64_000
        engine.ledger.release("c")
        assert told(gauges)["weft_namespace_gpus_held", ""] == 1


async def test_what_is_held_is_told_by_model() -> None:
    cards = (Gpu(0, 40_000, model="A100"), Gpu(1, 16_000, model="T4"))
    held = {
        "a": (Share(0, 0, 10_000, 100), Share(0, 1, 16_000, 1_000)),
        "b": (Share(0, 0, 4_000, 500),),
        "c": (Share(0, 7, 1_000, 250),),  # which the node does not show
    }
    async with world() as cluster:
        gauges = UsageGauges(cluster.live)
        cluster.live.engine.handle(NodesChanged((Node("n", cards),)), 0)
        for uid, shares in held.items():
            cluster.live.engine.ledger.adopt(Placement(uid, "n", shares))
        found = told(gauges)
    metric = "weft_namespace_gpus_held_by_model"
    assert {key[2]: value for key, value in found.items() if key[0] == metric} == {
        "A100": 0.75,
        "T4": 1,
        "(unknown model)": 0.25,
    }
    assert found["weft_namespace_gpus_held", ""] == 2


def owned(kind: str, name: str, **labels: str) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": name, "controller": True}
    return {"ownerReferences": [owner], "labels": labels}


async def test_workloads_and_labels_are_told_by_name() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        for number, mib in enumerate((4_000, 8_000)):
            meta = owned("Job", "train", team="red", tier="a")
            add_pod(cluster.server, f"train-{number}", mib, meta=meta)
        meta = owned("ReplicaSet", "serve-7d9", team="blue")
        meta["labels"]["pod-template-hash"] = "7d9"
        add_pod(cluster.server, "serve-7d9-x", 2_000, meta=meta)
        add_pod(cluster.server, "bare", 2_000)
        await cluster.lead()
        names = ("train-0", "train-1", "serve-7d9-x", "bare")
        await cluster.until(lambda: all(map(cluster.bound, names)))
        usage = UsageSettings(labels=("team", "team", "none"))
        cluster.pages.collectors[:] = [SchedulerMetrics(cluster.parts, usage=usage)]
        found = await cluster.samples()
    workloads = {"d/Job/train": 0.75, "d/Deployment/serve": 0.125, "d/(no owner)": 0.125}
    for name, gpus in workloads.items():
        assert found["weft_workload_gpus_held", f"workload={name}"] == gpus
        mib = found["weft_workload_gpu_memory_held_mib", f"workload={name}"]
        assert mib == 16_000 * gpus
    labels = {("team", "red"): 0.75, ("team", "blue"): 0.125, ("team", "(no label)"): 0.125}
    for (label, value), gpus in {**labels, ("none", "(no label)"): 1.0}.items():
        assert found["weft_label_gpus_held", f"label={label}", f"value={value}"] == gpus
    assert not [key for key in found if "label=tier" in key]
    assert found["weft_namespace_gpus_held", "namespace=d"] == 1


@pytest.mark.parametrize("most", [0, 1, 2, 3])
async def test_only_those_that_hold_most_are_told_by_name_and_sums_are_whole(most: int) -> None:
    sizes = {"one": 6_000, "two": 4_000, "three": 2_000}
    async with world() as cluster:
        add_node(cluster.server, "n")
        for name, mib in sizes.items():
            add_pod(cluster.server, name, mib, meta=owned("Job", name, team=name))
        await cluster.lead()
        await cluster.until(lambda: all(map(cluster.bound, sizes)))
        gauges = UsageGauges(cluster.live, UsageSettings(("team",), most))
        before, after = told(gauges), told(gauges)
    assert before == after, "what is kept from one scrape to the next changes nothing"
    named = [*sizes][:most]
    others = [OTHERS] if most < 3 else []
    for metric, total in (("gpus_held", 0.75), ("gpu_memory_held_mib", 12_000)):
        workloads = {key[1]: v for key, v in before.items() if key[0] == f"weft_workload_{metric}"}
        assert {*workloads} == {*(f"d/Job/{name}" for name in named), *others}
        assert sum(workloads.values()) == total
        values = {key[2]: v for key, v in before.items() if key[0] == f"weft_label_{metric}"}
        assert {*values} == {*named, *others}
        assert sum(values.values()) == total
        assert before[f"weft_namespace_{metric}", "d"] == total


@pytest.mark.parametrize("seed", range(4))
async def test_sums_agree_by_every_grouping(seed: int) -> None:
    """Pods of several namespaces, jobs and teams leave memory idle, which others hold."""
    chance = random.Random(seed)
    queues = QueueRules("fair", (QueueTerms("d"), QueueTerms("speech")))
    async with world(queues=queues) as cluster:
        for name in ("n0", "n1"):
            add_node(cluster.server, name)
        names = [f"p{number}" for number in range(8)]
        for name in names:
            meta = owned("Job", chance.choice("ab"), **chance.choice(({"team": "red"}, {})))
            meta["namespace"] = chance.choice(("d", "ml"))
            meta["labels"] |= chance.choice(({"weft.dev/queue": "speech"}, {}))
            add_pod(cluster.server, name, chance.randrange(1_000, 4_000), meta=meta)
        await cluster.lead()
        await cluster.until(lambda: len(cluster.live.engine.ledger.holdings) == len(names))
        ledger = cluster.live.engine.ledger
        gauges = UsageGauges(cluster.live, UsageSettings(("team",), chance.choice((1, 2, 1_000))))
        told(gauges)
        for number, node in enumerate(chance.choices(("n0", "n1"), k=4)):  # by other schedulers
            mib = chance.randrange(4_000, 16_000)
            share = Share(0, chance.randrange(2), mib, 100)
            ledger.adopt(Placement(f"other-{number}", node, (share,)))
        idle = {uid: (chance.randrange(3_000),) for uid in ledger.holdings if chance.random() < 0.7}
        ledger.set_idle(idle)
        found = told(gauges)
        lent = LentMemory(cluster.live.engine)
        loans = [lent.of(node, uid) for node in ("n0", "n1") for uid in lent.look(node)]
    totals = {
        "held": sum(s.memory_mib for h in ledger.holdings.values() for s in h.placement.shares),
        "idle": sum(sum(holding.idle_mib) for holding in ledger.holdings.values()),
        "lent": sum(loan.lent_mib for loan in loans),
        "borrowed": sum(loan.borrowed_mib for loan in loans),
    }
    assert totals["lent"] or seed
    assert totals["borrowed"] == lent.total_mib >= totals["lent"]
    sums = defaultdict[str, float](float)
    for (name, *_), value in found.items():
        sums[name] += value
    for by in ("namespace", "workload", "label", "queue"):
        for what, total in totals.items():
            assert sums[f"weft_{by}_gpu_memory_{what}_mib"] == total, (by, what)
        assert sums[f"weft_{by}_gpus_held"] == pytest.approx(sums["weft_namespace_gpus_held"])
        by_model = sums[f"weft_{by}_gpus_held_by_model"]
        assert by_model == pytest.approx(sums["weft_namespace_gpus_held"])


def of_queue(found: Samples, queue: str) -> tuple[float, dict[str, float]]:
    """The GPUs that a queue holds, and the same by model."""
    by_model = {
        key[2]: value
        for key, value in found.items()
        if key[:2] == ("weft_queue_gpus_held_by_model", queue)
    }
    return found["weft_queue_gpus_held", queue], by_model


async def test_a_queue_holds_the_same_with_and_without_models() -> None:
    """A claim counts for its namespace's queue, and nothing does on a node that is gone."""
    async with world(queues=QueueRules("fair", (QueueTerms("d"), QueueTerms("idle")))) as cluster:
        cluster.server.has_claims = True
        cluster.server.add("resourceslices", slice_of("n", [device("gpu-0"), device("gpu-1")]))
        cluster.server.add("resourceclaims", claim("x", result("gpu-1")))
        add_node(cluster.server, "n", model="A100")
        await cluster.lead()
        assert of_queue(told(UsageGauges(cluster.live)), "d") == (1, {"A100": 1})
        add_pod(cluster.server, "half", 8_000)
        await cluster.until(lambda: cluster.bound("half"))
        gauges = UsageGauges(cluster.live)
        found = told(gauges)
        assert of_queue(found, "d") == (1.5, {"A100": 1.5})
        assert of_queue(found, "idle") == (0, {})
        assert of_queue(found, "other") == (0, {})
        assert found["weft_queue_gpu_memory_held_mib", "d"] == 24_000

        cluster.server.remove("nodes", "n")
        ledger = cluster.live.engine.ledger
        await cluster.until(lambda: "n" not in ledger.table.row_of)
        assert ledger.holdings
        assert of_queue(told(gauges), "d") == (0, {})

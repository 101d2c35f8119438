"""`weft explain pod` of a live cluster: the metrics behind a decision, and without them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import numpy as np
from scheduler_world import World, add_node, add_pod, world

from weft.cluster.scheduler.explain_client import live_explanation
from weft.cluster.scheduler.explain_service import Explainer
from weft.core.engine import SignalsChanged
from weft.core.explain.renderer import lines_of
from weft.core.framework.signals import FRESH, STALE, snapshot
from weft.core.policies.auto import Auto
from weft.core.policies.load_aware import LoadAware

GPUS = [("a", 0), ("b", 0)]


def measured(cluster: World, version: int, sm: list[float], age: int = FRESH) -> None:
    """The GPUs of a and b are looked at, now."""
    ages = np.full(2, age, dtype=np.int8)
    columns = {"sm_active_ratio": (np.array(sm), ages), "dram_active_ratio": (np.array(sm), ages)}
    at_ns = int(cluster.live.client.clock.monotonic() * 1e9)
    cluster.live.handle(SignalsChanged(snapshot(version, at_ns, GPUS, columns)))


async def text_of(cluster: World, name: str) -> str:
    status, body = await cluster.get(f"/explain/pods/d/{name}")
    assert status == 200
    return "\n".join(lines_of(live_explanation(body.encode())))


@asynccontextmanager
async def on_cluster() -> AsyncIterator[World]:
    async with world(policy=LoadAware()) as cluster:
        for name in ("a", "b"):
            add_node(cluster.server, name, gpus=1)
        await cluster.lead()
        yield cluster


async def test_a_bound_pod_tells_what_was_measured_when_it_was_placed() -> None:
    async with on_cluster() as cluster:
        measured(cluster, 1, [0.5, 0.125], STALE)
        add_pod(cluster.server, "p", 1_000)
        await cluster.until(lambda: cluster.bound("p"))
        measured(cluster, 2, [0.25, 0.99])
        found = await cluster.explain("p")
        assert found.node == "b"
        assert found.metrics is not None
        (gpu,) = found.metrics.gpus
        values = {one.column: (one.value, one.age) for one in gpu.readings}
        assert values["sm_active_ratio"] == (0.125, "STALE"), "as it was then"
        assert 0 <= found.metrics.looked_s < 30
        assert found.metrics.without is not None
        assert found.metrics.without.node == "a"
        text = await text_of(cluster, "p")
        assert "metrics of GPU 0, read " in text
        assert (
            "s before the decision: sm_active_ratio 0.125 STALE, dram_active_ratio 0.125 STALE"
            in text
        )
        assert "without metrics, decided again now: a, GPU 0" in text
        assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


async def test_parts_of_a_bound_pods_score_are_said_to_be_of_now() -> None:
    """Others came since: the parts are not those of the score that it was chosen with."""
    async with world(policy=Auto()) as cluster:
        add_node(cluster.server, "a", gpus=1)
        await cluster.lead()
        add_pod(cluster.server, "p", 1_000)
        await cluster.until(lambda: cluster.bound("p"))
        add_pod(cluster.server, "q", 9_000)
        await cluster.until(lambda: cluster.bound("q"))
        score = (await cluster.explain("p")).score
        lines = (await text_of(cluster, "p")).splitlines()
        at = lines.index(
            f"  parts of its score computed now; the score at the decision was {score:,}:"
        )
        assert "leaves 38 % of GPU 0" in lines[at + 1]


async def test_a_pending_pod_tells_which_gpus_metrics_keep_it_off() -> None:
    async with on_cluster() as cluster:
        for name in ("p", "q"):
            add_pod(cluster.server, name, 9_000)
            await cluster.until(lambda name=name: cluster.bound(name))
        measured(cluster, 1, [0.91, 0.95])
        uid = add_pod(cluster.server, "waits", 1_000)
        await cluster.until(lambda: uid in cluster.live.engine.queue)
        observed = cluster.live.engine.assessor.observed
        found = await cluster.explain("waits")
        assert (found.state, found.text) == ("pending", "fits nowhere")
        assert found.metrics is not None
        assert found.metrics.kept_out_gpus == 2
        text = await text_of(cluster, "waits")
        assert "metrics keep it off 2 GPUs that would take it:" in text
        assert "a GPU 0: sm_active_ratio 0.91, dram_active_ratio 0.91" in text
        assert "without metrics: a, GPU 0" in text
        assert cluster.live.engine.assessor.observed is observed


async def test_what_happens_while_metrics_are_looked_past_is_told() -> None:
    async with on_cluster() as cluster:
        for name in ("p", "q"):
            add_pod(cluster.server, name, 9_000)
            await cluster.until(lambda name=name: cluster.bound(name))  # type: ignore[misc]
        measured(cluster, 1, [0.91, 0.95])
        uid = add_pod(cluster.server, "waits", 1_000)
        await cluster.until(lambda: uid in cluster.live.engine.queue)
        times = iter(range(1_000))

        def clock() -> float:
            if next(times) == 1:  # the first step is over
                measured(cluster, 2, [0.91, 0.2])
            return 0.0

        found = await Explainer(cluster.live, cluster.parts.guard, None, clock=clock).explain(
            "d", "waits"
        )
        assert found is not None
        assert (found.state, found.node) in {("binding", "b"), ("bound", "b")}
        assert found.metrics is not None
        assert found.metrics.without is not None
        assert found.metrics.without.node == "a"
        (gpu,) = found.metrics.gpus
        assert gpu.readings[0].value == 0.2


async def test_a_pod_placed_before_anybody_looked_has_no_old_readings() -> None:
    async with on_cluster() as cluster:
        add_pod(cluster.server, "p", 1_000)
        await cluster.until(lambda: cluster.bound("p"))
        measured(cluster, 1, [0.5, 0.125])
        found = await cluster.explain("p")
        assert found.metrics is not None
        assert found.metrics.gpus == ()
        text = await text_of(cluster, "p")
        assert "metrics of GPU" not in text
        assert "without metrics, decided again now: the same place" in text


async def test_without_a_look_nothing_is_said_of_metrics() -> None:
    async with on_cluster() as cluster:
        add_pod(cluster.server, "p", 1_000)
        await cluster.until(lambda: cluster.bound("p"))
        assert (await cluster.explain("p")).metrics is None
        assert "metrics" not in await text_of(cluster, "p")

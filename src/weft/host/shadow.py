"""A process that only watches: its cluster decides nothing, and compares another scheduler's
choices."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from weft.cluster.config.form import Configuration
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.shadow.comparison import BindingComparison
from weft.cluster.shadow.summary import ShadowSummary, ShadowTotals
from weft.cluster.shadow.watch import ShadowWatch
from weft.cluster.state.nodes import NodeView
from weft.cluster.telemetry.metric_sources import SourceContext, aliases_of, options_of, source_of
from weft.cluster.telemetry.prediction_reload import PredictionReloader
from weft.cluster.telemetry.solo_rates import SoloProfiles
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop, addresses_of, devices_of
from weft.core.framework.registry import Registry
from weft.host.cluster_parts import PredictionsPart, TypicalPodsPart
from weft.host.plan import Hosting, SchedulerPlan, cluster_of, plan_of
from weft.host.shell import Background, Part, cancel, stop_signal
from weft.kube.client import ApiClient


class ShadowListeners(NamedTuple):
    """Callbacks: `ready` once the cluster is read, `seen` for each binding."""

    ready: Callable[[NodeView], None]
    seen: Callable[[BindingComparison], None]


async def watch(
    config: Configuration,
    registry: Registry,
    client: ApiClient,
    listeners: ShadowListeners,
    *,
    where: str = "",
    seconds: float | None = None,
    first: Callable[[], Awaitable[None]],
) -> ShadowSummary:
    """Watch for `seconds`, or until SIGTERM or SIGINT; `WeftError` if that is impossible.

    `first` runs checks once the configuration is read.
    """
    plan = plan_of(config, registry, Hosting(where=where))
    live, totals = cluster_of(plan, client, None).live, ShadowTotals()

    def seen(comparison: BindingComparison) -> None:
        totals.add(comparison)
        listeners.seen(comparison)

    shadow = ShadowWatch(live, seen)
    await first()
    await live.start()
    parts = parts_of(plan, live)
    try:
        for part in parts:
            await part.start()
        listeners.ready(live.nodes)
        began = client.clock.monotonic()
        ends = {asyncio.ensure_future(work) for work in (stop_signal().wait(), live.failed())}
        done, _ = await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await cancel(ends - done)
        for end in done:
            end.result()
        took_s = client.clock.monotonic() - began
        return totals.summary(took_s, shadow.could_place(), shadow.unread)
    finally:
        for part in parts:
            await part.close()
        await live.stop()


def parts_of(plan: SchedulerPlan, live: EngineCluster) -> list[Part]:
    """Build the parts of a scheduler that improve its view and write nothing: predictions, usual
    pods, GPU telemetry."""
    config = plan.config
    solos = SoloProfiles(plan.predictions.solos)
    again_s = config.interference.reload_seconds
    reloader = PredictionReloader(live, plan.files, plan.predictions, again_s, solos, None)
    parts: list[Part] = [PredictionsPart(reloader)] if plan.files.named else []
    parts.append(TypicalPodsPart(TypicalInput(live, config.popularity)))
    around = SourceContext(lambda: addresses_of(live), lambda: devices_of(live), live.client)
    source = source_of(config.telemetry, around)
    if source is not None:
        options, aliases = options_of(config.telemetry, config.limits), aliases_of(config.telemetry)
        loop = TelemetryLoop(live, source, None, options, aliases)
        parts.append(Background("reading GPU telemetry", loop.run, source.close))
    return parts

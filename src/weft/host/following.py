"""Follows a cluster read-only: its state is read and kept up to date, and nothing is decided or
written."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.telemetry.metric_sources import SourceContext, aliases_of, options_of, source_of
from weft.cluster.telemetry.prediction_reload import PredictionReloader
from weft.cluster.telemetry.solo_rates import SoloProfiles
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop, addresses_of, devices_of
from weft.host.cluster_parts import PredictionsPart, TypicalPodsPart
from weft.host.plan import SchedulerPlan
from weft.host.shell import Background, Part


@asynccontextmanager
async def following(plan: SchedulerPlan, live: EngineCluster) -> AsyncIterator[None]:
    """Read the cluster that the plan describes, then keep it up to date until the context ends."""
    await live.start()
    parts = _parts_of(plan, live)
    try:
        for part in parts:
            await part.start()
        yield
    finally:
        for part in parts:
            await part.close()
        await live.stop()


def _parts_of(plan: SchedulerPlan, live: EngineCluster) -> list[Part]:
    """Build the parts of a scheduler that improve its view and write nothing: predictions, typical
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

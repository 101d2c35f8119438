"""Runs a process that only watches: it binds no pod, and compares another scheduler's choices with
those that Weft would make."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from weft.cluster.config.form import Configuration
from weft.cluster.shadow.comparison import BindingComparison
from weft.cluster.shadow.summary import ShadowSummary, ShadowTotals
from weft.cluster.shadow.watch import ShadowWatch
from weft.cluster.state.nodes import NodeView
from weft.core.framework.registry import Registry
from weft.host.following import following
from weft.host.plan import Hosting, cluster_of, plan_of
from weft.host.shell import cancel, stop_signal
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
    """Watch for `seconds`, or until SIGTERM or SIGINT, and return a summary; `WeftError` if that is
    impossible.

    `first` runs checks once the configuration is read.
    """
    plan = plan_of(config, registry, Hosting(where=where))
    live, totals = cluster_of(plan, client, None).live, ShadowTotals()

    def seen(comparison: BindingComparison) -> None:
        totals.add(comparison)
        listeners.seen(comparison)

    shadow = ShadowWatch(live, seen)
    await first()
    async with following(plan, live):
        listeners.ready(live.nodes)
        began = client.clock.monotonic()
        ends = {asyncio.ensure_future(work) for work in (stop_signal().wait(), live.failed())}
        done, _ = await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await cancel(ends - done)
        for end in done:
            end.result()
        took_s = client.clock.monotonic() - began
        return totals.summary(took_s, shadow.could_place(), shadow.unread)

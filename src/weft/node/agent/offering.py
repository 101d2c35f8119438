"""Offers the node's shares for delivery by name, as long as the container runtime asks the agent
about containers.

A newly started agent writes nothing at first: its predecessor's offer still holds. A runtime that
restarts or is upgraded returns soon. A runtime that stays away may have NRI disabled in its
configuration, and would start every container without its share: then the offer is withdrawn, and
the node's resources with it (`Accounting`), so that no more pods come.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import weft
from weft.model.agent_offer import BY_NAME, MOST_TOLD, AgentOffer
from weft.node.agent.discovery import Discovery
from weft.node.agent.fail_closed import FailClosed
from weft.node.agent.isolation import NodeIsolation
from weft.node.nri.plugin import NriPlugin

log = logging.getLogger("weft.agent")

GONE_S = 120.0
"""Seconds without the runtime after which the offer is withdrawn: longer than an upgrade of the
runtime takes, including unpacking its packages."""
_LOOK_S = 1.0


class Configuring(Protocol):
    """Configures the runtime to fail closed; `ContainerdConfiguring` implements it."""

    drop_in: Path | None
    problem: str


def offer_of(
    plugin: NriPlugin,
    isolation: NodeIsolation,
    closed: FailClosed,
    configuring: Configuring | None = None,
) -> AgentOffer | None:
    """Return what this node offers through the plugin; None until the plugin has registered and the
    fail-closed trial is over."""
    if not plugin.registrations or closed.trial is None:
        return None
    because, drop_in = closed.open_because, configuring.drop_in if configuring else None
    if because and configuring is not None and configuring.problem:
        because = f"{because}; {configuring.problem}"
    return AgentOffer(
        weft.__version__,
        BY_NAME,
        isolation.offered(),
        fail_closed=closed.holds,
        compares_records=True,
        open_because=because[:MOST_TOLD],
        runtime=plugin.runtime,
        drop_in=str(drop_in or ""),
    )


class Connecting(Protocol):
    """A plugin that knows whether the container runtime is `connected`; `NriPlugin` implements
    it."""

    connected: bool


class RuntimeAbsence:
    """A part of the agent that sets `gone` to True when the runtime has not been connected for
    `gone_s` seconds. `listeners` are called when `gone` changes; `seen` is set when it is first
    True."""

    def __init__(self, plugin: Connecting, gone_s: float = GONE_S) -> None:
        self.gone = False
        self.seen = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []
        self._plugin, self._gone_s = plugin, gone_s

    async def run(self) -> None:
        """Check every second, until cancelled, if the runtime is connected, and set `gone`."""
        away_s = 0.0  # counted, not measured: while this process was stopped it saw nothing
        while True:
            away_s = 0.0 if self._plugin.connected else away_s + _LOOK_S
            self._become(away_s >= self._gone_s)
            await asyncio.sleep(_LOOK_S)

    def _become(self, gone: bool) -> None:
        if gone == self.gone:
            return
        self.gone = gone
        if gone:
            self.seen.set()
            log.error(
                "the container runtime has not asked about containers for %d s: this node offers "
                "no shares until it does; run weft doctor on the node to find out why",
                self._gone_s,
            )
        else:
            log.info("the container runtime asks about containers again: this node offers shares")
        for listen in self.listeners:
            listen()


class Registering(Protocol):
    """A part that delivers once it is registered: `NriPlugin` or `DevicePluginPart`."""

    registered: asyncio.Event
    listeners: list[Callable[[], None]]


class Offering:
    """A part of the agent that starts discovery after the first registration, or once `absence`
    finds the runtime gone, and makes discovery write again after each later change."""

    def __init__(
        self, plugin: Registering, discovery: Discovery, absence: RuntimeAbsence | None = None
    ) -> None:
        self._plugin, self._discovery, self._absence = plugin, discovery, absence
        plugin.listeners.append(discovery.nudge)
        if absence is not None:
            absence.listeners.append(discovery.nudge)

    async def run(self) -> None:
        """Wait for the first registration or absence, then run discovery until cancelled."""
        events = [self._plugin.registered]
        events += [self._absence.seen] if self._absence is not None else []
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        await self._discovery.run()

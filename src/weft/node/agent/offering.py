"""Offers the node's shares by name, once the container runtime asks about them.

An agent that just started says nothing before: what its predecessor wrote still holds.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import weft
from weft.model.agent_offer import BY_NAME, AgentOffer
from weft.node.agent.discovery import Discovery
from weft.node.agent.isolation import NodeIsolation
from weft.node.nri.plugin import NriPlugin


def offer_of(plugin: NriPlugin, isolation: NodeIsolation) -> AgentOffer | None:
    """The offer through this plugin; None before it registered.

    A runtime that has validators can also be told to wait for a plugin (its default validator, in
    containerd's configuration).
    """
    if not plugin.registrations:
        return None
    return AgentOffer(weft.__version__, BY_NAME, isolation.offered(), fail_closed=plugin.validates)


class Registering(Protocol):
    """A part that delivers, once it is registered: `NriPlugin` or `DevicePluginPart`."""

    registered: asyncio.Event
    listeners: list[Callable[[], None]]


class Offering:
    """An `AgentPart`: discovery, from the first registration on and anew after each other one."""

    def __init__(self, plugin: Registering, discovery: Discovery) -> None:
        self._plugin, self._discovery = plugin, discovery
        plugin.listeners.append(discovery.nudge)

    async def run(self) -> None:
        """Until cancelled."""
        await self._plugin.registered.wait()
        await self._discovery.run()

"""Finds out whether this node's container runtime fails closed, by a trial after each registration.

Closed means: no container of a pod that requires the agent starts while the agent is away. The
runtime's version does not tell, because its validator is off by default. A runtime reads its
configuration only at its start; then the agent registers again, and the trial is repeated. If the
trial could not be made, the runtime counts as open, and the trial is repeated later. The agent
offers nothing before the first trial.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol

from weft.model.runtimes import how_to_close

log = logging.getLogger("weft.agent")

_AGAIN_S = 0.5  # a starting runtime registers plugins shortly before it serves its own socket
_MOST_AGAIN_S = 300.0


class ClosedTrial(NamedTuple):
    """The outcome: `closed` (the container was refused, as its required plugin was away), `open`
    (the container was created), or `unknown`; `text` explains it."""

    outcome: Literal["closed", "open", "unknown"]
    text: str


class RuntimeTold(Protocol):
    """The registered plugin, with the runtime's name and version; `NriPlugin` implements it."""

    runtime: str
    validates: bool
    registered: asyncio.Event
    listeners: list[Callable[[], None]]


class FailClosed:
    """A part of the agent, and a `Registering`: `registered` is set and `listeners` are called
    after each trial. `trial` is the last trial, None before the first; `trials` counts them."""

    def __init__(self, plugin: RuntimeTold, try_: Callable[[], Awaitable[ClosedTrial]]) -> None:
        self.trial: ClosedTrial | None = None
        self.trials = 0
        self.registered = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []
        self._plugin, self._try = plugin, try_
        self._due = asyncio.Event()
        plugin.listeners.append(self._due.set)

    @property
    def holds(self) -> bool:
        """True while no container that requires the agent starts without it."""
        closed = self.trial is not None and self.trial.outcome == "closed"
        return closed and self._plugin.validates

    @property
    def open_because(self) -> str:
        """Why the runtime does not fail closed; "" if it does, or before the first trial."""
        if self.holds or self.trial is None:
            return ""
        if self.trial.outcome == "closed":
            return "the runtime does not let plugins validate containers"
        return self.trial.text

    async def run(self) -> None:
        """Make a trial after each registration with the runtime, until cancelled."""
        if self._plugin.registered.is_set():
            self._due.set()
        again_s = _AGAIN_S
        while True:
            unknown = self.trial is not None and self.trial.outcome == "unknown"
            try:
                async with asyncio.timeout(again_s if unknown else None):
                    await self._due.wait()
                again_s = _AGAIN_S
            except TimeoutError:
                again_s = min(2 * again_s, _MOST_AGAIN_S)
            self._due.clear()
            self._take(await self._try())

    def _take(self, trial: ClosedTrial) -> None:
        before, self.trial = self.trial, trial
        self.trials += 1
        if trial != before and not self.holds:
            log.warning(
                "containers may start without their shares while the agent is away: %s; %s",
                self.open_because,
                how_to_close(self._plugin.runtime),
            )
        elif trial != before:
            log.info("tested: no container that requires the agent starts without it")
        self.registered.set()
        for listen in self.listeners:
            listen()

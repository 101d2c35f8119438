"""The NRI plugin: registers with the container runtime, answers about each container, reconnects.

connect ──▶ RegisterPlugin ──▶ Configure ──▶ Synchronize ──▶ CreateContainer, events ──▶ ended
  ▲                     (the plugin's events)  (what exists)                                │
  └────────────────────────── within a second, for ever ◀───────────────────────────────────┘

The plugin also validates. A runtime goes on without a plugin that dies or is late while it answers
about a container; but it creates no container that a validator could not check. So the creation of
a container fails, and is retried, if the plugin was killed in between. Runtimes without validators
(before NRI 0.10) reject a plugin that wants to validate, which then registers without validation.
If a runtime's version is known to have validators, a rejection only means that the runtime is
stopping: the plugin still validates.
"""

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
from google.protobuf.message import DecodeError, Message

from weft.model.annotations import ASKED
from weft.model.runtimes import has_validators
from weft.node.nri import nri_pb2 as nri
from weft.node.nri.connection import (
    DEADLINE_EXCEEDED,
    INVALID_ARGUMENT,
    UNIMPLEMENTED,
    Call,
    CallError,
    RuntimeConnection,
)
from weft.node.nri.frames import BrokenFrameError
from weft.node.nri.marks import PLUGIN

log = logging.getLogger("weft.agent")

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"

_POD_EVENTS = {
    "RunPodSandbox": nri.RUN_POD_SANDBOX,
    "StopPodSandbox": nri.STOP_POD_SANDBOX,
    "RemovePodSandbox": nri.REMOVE_POD_SANDBOX,
}
_MOST_SYNCHRONIZED = 100_000
_MOST_REJECTIONS = 2


def _mask(*events: "nri.Event") -> int:
    return sum(1 << (event - 1) for event in events)


_EVENTS = _mask(
    nri.RUN_POD_SANDBOX, nri.STOP_POD_SANDBOX, nri.REMOVE_POD_SANDBOX, nri.CREATE_CONTAINER
)
_CREATIONS = _mask(nri.CREATE_CONTAINER)
_VALIDATE = _mask(nri.VALIDATE_CONTAINER_ADJUSTMENT)


class RuntimeHooks(Protocol):
    """Decides what the plugin answers about containers. `CallError` refuses a container."""

    async def synchronize(
        self, pods: list[nri.PodSandbox], containers: list[nri.Container]
    ) -> None:
        """Receive all existing pods and containers; called first after each registration."""
        ...

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment:
        """Return the changes to a container that is being created."""
        ...

    def validate(
        self, pod: nri.PodSandbox, container: nri.Container, adjust: nri.ContainerAdjustment
    ) -> str:
        """Return why the container must not be created as all plugins adjusted it; "" to accept."""
        ...

    def pod_event(self, event: int, pod: nri.PodSandbox) -> None:
        """Note that a pod's sandbox was started, stopped or removed."""
        ...


class PluginOptions(msgspec.Struct, frozen=True):
    """`name`, `index`: identify the plugin and its order among plugins. `first_delay_s`,
    `most_delay_s`: first and longest delay between attempts to connect. `register_s`: timeout of
    the registration. `patience`: the fraction of the runtime's own timeout after which a container
    is refused: the runtime would ignore a later answer, and drop the plugin.

    `mark`: an annotation added to each container answered for, which a later plugin checks
    (`node/supervisor/supervisor.py`); "" for none. `creations_only`: receive only creations of
    containers.
    """

    name: str = PLUGIN
    index: str = "60"
    first_delay_s: float = 0.05
    most_delay_s: float = 0.8
    register_s: float = 5.0
    patience: float = 0.7
    mark: str = ""
    creations_only: bool = False


class NriPlugin:
    """Stays registered with the runtime; run `run()` as a task. `connected` is True while the
    runtime asks about its containers.

    `registrations` and `losses` count connections gained and lost; `problem` says why the last
    attempt failed ("" while connected). `times` are the durations of answers about containers.
    `registered` is set by the first registration; `listeners` are called after each registration.
    """

    def __init__(
        self, socket: Path, hooks: RuntimeHooks, options: PluginOptions | None = None
    ) -> None:
        self.options = options or PluginOptions()
        self.connected = False
        self.registrations = self.losses = 0
        self.problem = ""
        self.runtime = ""
        self.validates = not self.options.creations_only
        self.times = HookTimes()
        self.registered = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []
        self._socket, self._hooks = socket, hooks
        self._timeout_s = 2.0
        self._configured = self._synchronized = False
        self._rejections = 0
        self._pods: list[nri.PodSandbox] = []
        self._containers: list[nri.Container] = []

    async def run(self) -> None:
        """Stay connected until cancelled."""
        delay_s = self.options.first_delay_s
        while True:
            try:
                problem = await self._connect()
            except (OSError, BrokenFrameError, CallError) as error:
                problem = str(error) or type(error).__name__
            if self._synchronized:
                delay_s = self.options.first_delay_s
            self._lost(problem)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, self.options.most_delay_s)

    async def _connect(self) -> str:
        """Hold one connection from beginning to end; return why it ended."""
        self._configured = self._synchronized = False
        self._pods, self._containers = [], []
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        connection = RuntimeConnection(reader, writer, self._answer)
        reading = asyncio.create_task(connection.run())
        try:
            options = self.options
            request = nri.RegisterPluginRequest(
                plugin_name=options.name, plugin_idx=options.index
            ).SerializeToString()
            await connection.call(RUNTIME_SERVICE, "RegisterPlugin", request, options.register_s)
            await reading
            return "the runtime closed the connection"
        finally:
            self.connected = False
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _lost(self, problem: str) -> None:
        if self._synchronized:
            self.losses += 1
        self._rejections = (
            self._rejections + 1 if self._configured and not self._synchronized else 0
        )
        sure = self.options.creations_only or has_validators(self.runtime)
        if self._rejections >= _MOST_REJECTIONS and not sure:
            # A single rejection may come from a runtime that is stopping.
            self._rejections = 0
            self.validates = not self.validates
            without = "with" if self.validates else "without"
            problem = f"{problem} after Configure; trying {without} validation"
        if problem != self.problem:
            log.warning("container runtime at %s: %s", self._socket, problem)
        self.problem = problem

    async def _answer(self, call: Call) -> bytes:
        if call.service != PLUGIN_SERVICE:
            raise CallError(f"service {call.service[:80]} is not served", UNIMPLEMENTED)
        limit_s = (call.timeout_s or self._timeout_s) * self.options.patience
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._by_method(call)
        except DecodeError as error:
            raise CallError(f"{call.method}: {error}", INVALID_ARGUMENT) from None
        except TimeoutError:
            raise CallError(
                f"{call.method}: no answer in time; try again", DEADLINE_EXCEEDED
            ) from None
        return answer.SerializeToString()

    async def _by_method(self, call: Call) -> Message:
        match call.method:
            case "CreateContainer":
                return await self._create(call.payload)
            case "ValidateContainerAdjustment":
                asked = nri.ValidateContainerAdjustmentRequest.FromString(call.payload)
                why = self._hooks.validate(asked.pod, asked.container, asked.adjust)
                return nri.ValidateContainerAdjustmentResponse(reject=bool(why), reason=why)
            case "StateChange":
                change = nri.StateChangeEvent.FromString(call.payload)
                self._hooks.pod_event(change.event, change.pod)
            case "RunPodSandbox" | "StopPodSandbox" | "RemovePodSandbox":
                event = nri.PodEvent.FromString(call.payload)
                self._hooks.pod_event(_POD_EVENTS[call.method], event.pod)
            case "Configure":
                return self._configure(nri.ConfigureRequest.FromString(call.payload))
            case "Synchronize":
                return await self._synchronize(nri.SynchronizeRequest.FromString(call.payload))
            case "Shutdown":
                log.info("the container runtime shuts down")
            case _:
                raise CallError(f"method {call.method[:80]} is not served", UNIMPLEMENTED)
        return nri.Empty()

    async def _create(self, payload: bytes) -> Message:
        began_s = time.perf_counter()
        try:
            asked = nri.CreateContainerRequest.FromString(payload)
            adjust = await self._hooks.create_container(asked.pod, asked.container)
            if self.options.mark:
                adjust.annotations[ASKED] = self.options.mark
            return nri.CreateContainerResponse(adjust=adjust)
        finally:
            self.times.add(time.perf_counter() - began_s)

    def _configure(self, asked: nri.ConfigureRequest) -> Message:
        self.runtime = f"{asked.runtime_name} {asked.runtime_version}".strip()
        if asked.request_timeout > 0:
            self._timeout_s = asked.request_timeout / 1000
        self._configured = True
        if self.options.creations_only:
            return nri.ConfigureResponse(events=_CREATIONS)
        self.validates = self.validates or has_validators(self.runtime)
        return nri.ConfigureResponse(events=_EVENTS | (_VALIDATE if self.validates else 0))

    async def _synchronize(self, asked: nri.SynchronizeRequest) -> Message:
        self._pods += asked.pods
        self._containers += asked.containers
        if len(self._pods) + len(self._containers) > _MOST_SYNCHRONIZED:
            raise CallError(f"more than {_MOST_SYNCHRONIZED:,} pods and containers")
        if not asked.more:
            await self._hooks.synchronize(self._pods, self._containers)
            self._pods, self._containers = [], []
            self._registered()
        return nri.SynchronizeResponse(more=asked.more)

    def _registered(self) -> None:
        self.connected = self._synchronized = True
        self.registrations += 1
        self.problem = ""
        kind = "is asked about and validates" if self.validates else "is asked about"
        self.registered.set()
        for listen in self.listeners:
            listen()
        log.info("registered with %s: the agent %s each container", self.runtime, kind)


# --- durations ------------------------------------------------------------------------------------


BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0)


class HookTimes:
    """Durations of answers, counted by upper bound (`BOUNDS_S`); the last count is of those longer
    than all bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Add the duration of one answer, in seconds."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper bound, as Prometheus expects them."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets

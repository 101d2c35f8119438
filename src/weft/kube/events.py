"""Writes Kubernetes events without floods: repeated events are counted, changing ones delayed.

For one object and reason there is at most one write in `interval_s`: the first event is written at
once; the same text again increments a counter (a *series*); another text waits, and only the latest
is kept. Writing is best effort: events that cannot be written are counted and dropped.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.clock import Clock, rfc3339_micro
from weft.kube.codec import EVENTS
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError
from weft.kube.structs import ObjectReference

log = logging.getLogger("weft.kube")

# Limits of events.k8s.io/v1 (NoteLengthLimit, ReasonLengthLimit, ActionLengthLimit)
NOTE_BYTES = 1024
REASON_CHARACTERS = 128
_LOOKS_AGAIN_S = 0.05


class Note(msgspec.Struct, frozen=True, gc=False):
    """An event to write about an object; `reason` is one CamelCase word, `note` a sentence."""

    regarding: ObjectReference
    reason: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"
    action: str = "Scheduling"


class EventOptions(msgspec.Struct, frozen=True):
    """Settings of events, with reasons.

    `interval_s`: seconds between writes for one object and reason; people read events in minutes.
    `remembered`: most pairs of object and reason; the least recent are dropped. `waiting`: most
    queued writes; further writes are dropped. `gives_way_s`: how long events wait for more urgent
    writes (`EventWriter.busy`). `in_flight`: parallel writes; if there were only one at a time, a
    burst of bindings would get its events minutes later.
    """

    interval_s: float = 60
    remembered: int = 10_000
    waiting: int = 20_000
    gives_way_s: float = 3
    in_flight: int = 16


class Create(msgspec.Struct, frozen=True, gc=False):
    """A write of a new event, under this name."""

    name: str
    note: Note


class Count(msgspec.Struct, frozen=True, gc=False):
    """A write that says how often the event of this name has happened: `count` times in all."""

    name: str
    note: Note
    count: int


Write = Create | Count
_Key = tuple[str, str, str, str]  # an object's uid, namespace and name; the reason


class _Series(msgspec.Struct):
    """The events of one object and reason: the last written, and the one that waits (`pending`)."""

    name: str
    text: str
    written_at: float
    count: int = 1
    pending: Note | None = None


class Aggregator:
    """Decides which events to write and when. Pure: time is passed in, in seconds."""

    def __init__(self, options: EventOptions) -> None:
        self._options = options
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._waiting: set[_Key] = set()
        self._next = 0

    def add(self, note: Note, now: float) -> Write | None:
        """Take a note; return the write to do at once, None if it must wait."""
        about = note.regarding
        key = (about.uid, about.namespace, about.name, note.reason)
        series = self._series.get(key)
        if series is None:
            name = self._name(note)
            self._series[key] = _Series(name, note.note, now)
            while len(self._series) > self._options.remembered:
                oldest, _ = self._series.popitem(last=False)
                self._waiting.discard(oldest)
            return Create(name, note)
        self._series.move_to_end(key)
        if series.text == note.note:
            series.count += 1
        series.pending = note
        if now - series.written_at >= self._options.interval_s:
            return self._write(key, series, now)
        self._waiting.add(key)
        return None

    def due(self, now: float) -> list[Write]:
        """Return the writes of events that have waited long enough."""
        interval_s = self._options.interval_s
        waiting = [(key, self._series[key]) for key in self._waiting]
        ready = [(key, series) for key, series in waiting if now - series.written_at >= interval_s]
        return [self._write(key, series, now) for key, series in ready]

    def _write(self, key: _Key, series: _Series, now: float) -> Write:
        note = series.pending
        assert note is not None
        self._waiting.discard(key)
        series.pending, series.written_at = None, now
        if note.note == series.text:
            return Count(series.name, note, series.count)
        series.name, series.text = self._name(note), note.note
        series.count = 1
        return Create(series.name, note)

    def _name(self, note: Note) -> str:
        self._next += 1
        return f"{note.regarding.name or 'weft'}.{self._next:x}"


class EventWriter:
    """Writes events. `run` it as a task; `emit` never waits and never raises.

    `controller` is `weft.dev/scheduler` or the like, `instance` names this process. `dropped`
    counts events that were not written. `busy` returns whether more urgent writes are going on.
    """

    def __init__(
        self,
        client: ApiClient,
        controller: str,
        instance: str,
        busy: Callable[[], bool],
        options: EventOptions | None = None,
    ) -> None:
        self.options = options or EventOptions()
        self.dropped = 0
        self.written = 0
        self._busy = busy
        self._client = client
        self._controller = controller
        self._instance = instance[:REASON_CHARACTERS]
        self._aggregator = Aggregator(self.options)
        self._queue: asyncio.Queue[Write] = asyncio.Queue(self.options.waiting)
        self._failing = ""
        self._held_since: float | None = None
        self._started = f"{int(client.clock.wall().timestamp() * 1e6):x}"

    def emit(self, note: Note) -> None:
        """Have an event written as soon as `interval_s` allows."""
        write = self._aggregator.add(note, self._client.clock.monotonic())
        if write is not None:
            self._enqueue([write])

    async def run(self) -> None:
        """Write queued events until cancelled."""
        workers = [asyncio.create_task(self._write_all()) for _ in range(self.options.in_flight)]
        try:
            while True:
                await self._client.clock.sleep(self.options.interval_s / 4)
                self._enqueue(self._aggregator.due(self._client.clock.monotonic()))
        finally:
            for worker in workers:
                worker.cancel()

    async def drained(self) -> None:
        """Return when all queued writes are done or dropped; events that wait for the end of
        `interval_s` are not queued yet."""
        await self._queue.join()

    def _enqueue(self, writes: Sequence[Write]) -> None:
        for write in writes:
            try:
                self._queue.put_nowait(write)
            except asyncio.QueueFull:
                self.dropped += 1

    async def _write_all(self) -> None:
        while True:
            write = await self._queue.get()
            try:
                await self._give_way()
                await self._write(write)
                self.written += 1
                self._failing = ""
            except (ApiError, LostError, NotSentError) as error:
                self.dropped += 1
                if not self._failing:
                    log.warning("writing events failed: %s", error)
                self._failing = str(error)
            except Exception as error:  # a bug in one event costs only that event
                self.dropped += 1
                if not self._failing:
                    log.exception("writing an event failed")
                self._failing = repr(error)
            finally:
                self._queue.task_done()

    async def _give_way(self) -> None:
        """Let a burst of bindings go first, for at most `gives_way_s` seconds."""
        clock = self._client.clock
        while self._busy():
            if self._held_since is None:
                self._held_since = clock.monotonic()
            if clock.monotonic() - self._held_since >= self.options.gives_way_s:
                return
            await clock.sleep(_LOOKS_AGAIN_S)
        self._held_since = None

    async def _write(self, write: Write) -> None:
        # Cluster-wide objects have their events in `default`.
        namespace = write.note.regarding.namespace or "default"
        name = _object_name(write.name, self._started)
        if isinstance(write, Count):
            at = rfc3339_micro(self._client.clock.wall())
            series = {"count": max(2, write.count), "lastObservedTime": at}
            path, body = EVENTS.of(namespace, name), msgspec.json.encode({"series": series})
            try:
                await self._client.call("PATCH", path, body, content_type=MERGE_PATCH, attempts=2)
                return
            except NotFoundError:
                pass  # events live for an hour: create it again
        event = msgspec.json.encode(self._event(write.note, namespace, name, self._client.clock))
        await self._client.call("POST", EVENTS.of(namespace), event, attempts=2)

    def _event(self, note: Note, namespace: str, name: str, clock: Clock) -> dict[str, object]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": rfc3339_micro(clock.wall()),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "regarding": note.regarding,
            "reason": note.reason[:REASON_CHARACTERS],
            "action": note.action[:REASON_CHARACTERS],
            "note": shortened(note.note, NOTE_BYTES),
            "type": note.type,
        }


def shortened(text: str, most_bytes: int) -> str:
    """Shorten to at most this many bytes of UTF-8, with `…` at the end if something is cut."""
    raw = text.encode()
    if len(raw) <= most_bytes:
        return text
    return raw[: most_bytes - 3].decode("utf-8", "ignore") + "…"


def _object_name(name: str, started: str) -> str:
    """Return an event name that no other process has used or will use."""
    base, _, number = name.rpartition(".")
    return f"{base[:200]}.{started}{number.rjust(4, '0')}"

"""List-watch: yields every change of one kind of object, without gaps, for ever.

     ┌──▶ LIST in pages ──▶ WATCH from its version ──▶ events and bookmarks move the version on
     │                        ▲          │
     │                        └──────────┤ ended, cut, silent too long: resume where it was
     └───────────────────────────────────┘ 410, or failed too often in a row: list again

`WatchPlan`, which has no network, decides the next step; the loop carries it out. Only the consumer
ends the loop: if the API server is down, it is retried with growing delays.

`KnownObjects` has the objects as last seen. It turns a new list into the changes since then (so
that no deletion is missed while there was no watch), and watch events into changes.

    list ──▶ KnownObjects.replace ──▶ Added, Modified, Deleted … Synced
    watch ─▶ KnownObjects.apply ────▶ Added, Modified, Deleted

Invariants: every object that was Added is Deleted before another of its name is Added; each version
of an object is reported once.

List-watches of several resources are merged into one stream of changes, handled in order:

    ListWatch ──pump──┐
    ListWatch ──pump──┼──▶ one queue ──▶ one consumer ──▶ take(change), after()
    ListWatch ──pump──┘
           on_batch(changes), before the batch is queued: for urgent changes

A pump may be ended at any time: its list-watch's known objects and its queued changes always agree.
Long work on the event loop pauses regularly, so that lease renewals, watches and answers go on.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import ObjectPage, Resource, SkippedObjects, WatchEvent
from weft.kube.errors import ApiError, ExpiredError, LostError, NotSentError
from weft.kube.structs import KubeObject
from weft.model import BadInputError, ObjectMeta

log = logging.getLogger("weft.kube")

T = TypeVar("T", bound=KubeObject)
Key = tuple[str, str]

SHORT_S = 1.0  # as in client-go: a shorter watch without events counts as failed


class WatchOptions(msgspec.Struct, frozen=True):
    """Settings of a list-watch, with reasons.

    `page_size`: objects in one answer; larger pages slow down the server, smaller ones the start.
    `timeout_s`: after 1 to 2 times this long the server ends the watch and it is resumed, so that
    watches spread over API servers again after one was restarted.
    `inactivity_s`: a watch without data for this long is dead: API servers send a bookmark about
    every minute.
    `first_delay_s`, `most_delay_s`: back-off between failures.
    `failures_to_list`: after this many failures in a row, list again: the version may be unknown to
    an API server that was restored from a backup.
    """

    page_size: int = 500
    timeout_s: float = 290
    inactivity_s: float = 120
    first_delay_s: float = 0.2
    most_delay_s: float = 30
    failures_to_list: int = 5


class WatchStep(NamedTuple):
    """The next step: after `delay_s`, list again or resume the watch at `version`."""

    step: Literal["list", "watch"]
    version: str = ""
    delay_s: float = 0


class WatchPlan:
    """A list-watch's state and its next step. Pure: no clock, no network."""

    def __init__(self, options: WatchOptions, backoff: Backoff) -> None:
        self._options = options
        self._backoff = backoff
        self.version = ""
        self.lists = 0
        self.resumes = 0

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._backoff.failures

    def listed(self, version: str) -> None:
        """Note a complete list of this version."""
        self.version = version
        self.lists += 1
        self._backoff.reset()

    def progress(self, version: str) -> None:
        """Note that the watch has reported everything up to this version."""
        self.version = version or self.version
        if self._backoff.failures:
            self._backoff.reset()

    def ended(self, lasted_s: float, any_event: bool) -> WatchStep:
        """Note that the watch ended normally, and return the next step. A watch that ended at once
        without an event counts as failed."""
        self.resumes += 1
        delay = 0.0 if any_event or lasted_s >= SHORT_S else self._backoff.next_s()
        return WatchStep("watch", self.version, delay)

    def failed(self, error: Exception) -> WatchStep:
        """Note that the list or watch failed; return the next step."""
        if isinstance(error, ExpiredError):
            # At once, but never in a tight loop: the next list may expire as well.
            delay = self._backoff.next_s() if self._backoff.failures else 0.0
            self._backoff.failures += delay == 0
            self.version = ""
            return WatchStep("list", delay_s=delay)
        asked = error.retry_after_s if isinstance(error, ApiError) else 0
        delay = max(self._backoff.next_s(), asked)
        if not self.version or self._backoff.failures >= self._options.failures_to_list:
            return WatchStep("list", delay_s=delay)
        self.resumes += 1
        return WatchStep("watch", self.version, delay)


class Added(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object that is new to the watch."""

    object: T


class Modified(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object as it is now, and as it was."""

    object: T
    old: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object that is gone, as it was last known."""

    object: T


class Synced(msgspec.Struct, frozen=True, gc=False):
    """A complete list of this version has been reported; `again` is False only for the first list.
    `asked_s` is when the list was requested (the client's monotonic clock)."""

    version: str
    again: bool = False
    asked_s: float = 0.0


Change = Added[T] | Modified[T] | Deleted[T] | Synced


class KnownObjects(Generic[T]):
    """The objects of one list-watch, by namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[Key, T] = {}
        self._synced = False

    def replace(self, pages: Iterable[ObjectPage[T]], asked_s: float = 0.0) -> list[Change[T]]:
        """Return the changes that lead from the known objects to this list, and `Synced`.

        Objects that could not be read stay as they were known, unless their UID has changed.
        """
        changes: list[Change[T]] = []
        seen: set[Key] = set()
        version = ""
        for page in pages:
            version = page.version
            for listed in page.items:
                seen.add(_key(listed.metadata))
                changes += self._put(listed)
            for meta in page.unreadable:
                seen.add(_key(meta))
                changes += self._unreadable(meta)
        for key in [key for key in self.objects if key not in seen]:
            changes.append(Deleted(self.objects.pop(key)))
        changes.append(Synced(version, self._synced, asked_s))
        self._synced = True
        return changes

    def apply(self, event: WatchEvent[T]) -> list[Change[T]]:
        """Return the changes that one watch event makes."""
        if event.type == "DELETED":
            known = self.objects.pop(_key(event.meta), None)
            if known is None:
                return []
            same = event.object is not None and known.metadata.uid == event.meta.uid
            return [Deleted(event.object if same and event.object is not None else known)]
        if event.object is not None:
            return self._put(event.object)
        return self._unreadable(event.meta)

    def _put(self, listed: T) -> list[Change[T]]:
        key = _key(listed.metadata)
        known = self.objects.get(key)
        self.objects[key] = listed
        if known is None:
            return [Added(listed)]
        if known.metadata.uid != listed.metadata.uid:
            return [Deleted(known), Added(listed)]
        if known.metadata.resource_version == listed.metadata.resource_version:
            self.objects[key] = known
            return []
        return [Modified(listed, known)]

    def _unreadable(self, meta: ObjectMeta) -> list[Change[T]]:
        """Return the deletion of a known object if an unreadable object of its name has another
        UID."""
        known = self.objects.get(_key(meta))
        if known is None or known.metadata.uid == meta.uid:
            return []
        del self.objects[_key(meta)]
        return [Deleted(known)]


def _key(meta: ObjectMeta) -> Key:
    return meta.namespace, meta.name


class LineSplitter:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._rest += chunk
            return []
        whole = bytes(self._rest) + chunk[:end]
        self._rest = bytearray(chunk[end + 1 :])
        return [line for line in whole.split(b"\n") if line.strip()]


class ListWatch(Generic[T]):
    """Yields all changes to the objects of one resource, in batches; see `batches`.

    `namespace` "" is all namespaces. `selectors` are `labelSelector` and `fieldSelector`.
    `last_contact` is when the API server last answered (the client's monotonic clock); `last_error`
    is why it does not answer now, "" if it does.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: Resource[T],
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        options: WatchOptions | None = None,
        skips: SkippedObjects | None = None,
    ) -> None:
        self.options = options or WatchOptions()
        self.skips = skips or SkippedObjects()
        backoff = Backoff(self.options.first_delay_s, self.options.most_delay_s, client.rng)
        self.plan = WatchPlan(self.options, backoff)
        self.known: KnownObjects[T] = KnownObjects()
        self.last_contact = 0.0
        self.last_error = ""
        self._client = client
        self._resource = resource
        self._path = resource.of(namespace)
        self._selectors = dict(selectors or {})

    async def batches(self) -> AsyncIterator[list[Change[T]]]:
        """Yield changes as they come, never an empty batch; the first batch is the whole list and
        ends in Synced.

        Close the iterator to stop.
        """
        then = WatchStep("list")
        while True:
            if then.delay_s:
                await self._client.clock.sleep(then.delay_s)
            try:
                if then.step == "list":
                    asked_s = self._client.clock.monotonic()
                    pages = await self._list()
                    changes = self.known.replace(pages, asked_s)
                    self.plan.listed(pages[-1].version)
                    yield changes
                began, any_event = self._client.clock.monotonic(), False
                async for batch in self._watch():
                    any_event = True
                    yield batch
                then = self.plan.ended(self._client.clock.monotonic() - began, any_event)
            except (ApiError, LostError, NotSentError, BadInputError, msgspec.DecodeError) as error:
                self._note(error)
                then = self.plan.failed(error)

    async def _list(self) -> list[ObjectPage[T]]:
        pages: list[ObjectPage[T]] = []
        query = {**self._selectors, "limit": str(self.options.page_size)}
        while not pages or pages[-1].next:
            if pages:
                query["continue"] = pages[-1].next
            body = await self._client.call("GET", self._path, query=query)
            pages.append(self._resource.decode_page(body, self.skips))
            self._heard()
            await asyncio.sleep(0)  # decoding a page takes long: let other tasks run
        return pages

    async def _watch(self) -> AsyncIterator[list[Change[T]]]:
        patience = self.options.timeout_s * (1 + self._client.rng.random())
        query = {
            **self._selectors,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.plan.version,
            "timeoutSeconds": str(int(patience)),
        }
        lines = LineSplitter()
        async with self._client.stream(self._path, query, self.options.inactivity_s) as content:
            self._heard()
            while chunk := await content.readany():
                self._heard()
                batch: list[Change[T]] = []
                failure: ApiError | None = None
                for line in lines.feed(chunk):
                    event = self._resource.decode_line(line, self.skips)
                    failure = event.error
                    if failure is not None:
                        break
                    batch += self._take(event)
                if batch:
                    yield batch
                if failure is not None:
                    raise failure

    def _take(self, event: WatchEvent[T]) -> list[Change[T]]:
        if event.type == "":
            return []
        changes = [] if event.type == "BOOKMARK" else self.known.apply(event)
        self.plan.progress(event.meta.resource_version)
        return changes

    def _heard(self) -> None:
        self.last_contact = self._client.clock.monotonic()
        self.last_error = ""

    def _note(self, error: Exception) -> None:
        text = str(error)
        if text != self.last_error and not isinstance(error, ExpiredError):
            log.warning("watch of %s: %s", self._resource.name, text)
        self.last_error = text


# --- several list-watches, one stream ------------------------------------------------------------

Apply = Callable[[Change[T]], None]
OnBatch = Callable[[list[Change[T]]], None]
OnSynced = Callable[[Synced], None]
Piece = TypeVar("Piece")
SLICE_S, MOST = 0.005, 20
"""Seconds, and pieces of work, after which other tasks may run; a piece that has begun is finished
first."""


async def in_turns(
    pieces: Iterable[Piece], take: Callable[[Piece], None], clock: Callable[[], float]
) -> None:
    """Call `take` with one piece of work after the other; let other tasks run after `SLICE_S`
    seconds by `clock`, or `MOST` pieces."""
    began, taken = clock(), 0
    for piece in pieces:
        take(piece)
        taken += 1
        if taken >= MOST or clock() - began >= SLICE_S:
            await asyncio.sleep(0)
            began, taken = clock(), 0


class WatchFeed(Generic[T]):
    """Watches one resource for a stream. `on_batch` is called with each batch as soon as it
    arrives. The stream's consumer later calls `take` with each change, in order, and `after` at the
    end of each batch. `on_synced` is called once all changes of a complete list have been taken.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: Resource[T],
        take: Apply[T] | None,
        after: Callable[[], None],
        namespace: str = "",
        on_batch: OnBatch[T] | None = None,
        on_synced: OnSynced | None = None,
    ) -> None:
        self.resource, self.take, self.after = resource, take, after
        self.on_batch, self.on_synced = on_batch, on_synced
        self.synced = asyncio.Event()
        self.watch: ListWatch[T] = ListWatch(client, resource, namespace=namespace)
        self.clock = client.clock
        self._client, self._namespace = client, namespace

    def list_again(self) -> None:
        """Replace the list-watch by one that begins with a list and knows the same objects."""
        known = self.watch.known
        self.watch = ListWatch(
            self._client, self.resource, namespace=self._namespace, skips=self.watch.skips
        )
        self.watch.known = known
        self.synced.clear()


class ChangeStream:
    """All feeds of a process, and the one task (the consumer) that handles their changes."""

    def __init__(self) -> None:
        self.feeds: list[WatchFeed[Any]] = []
        self._queue: asyncio.Queue[tuple[WatchFeed[Any], list[Change[Any]], Synced | None]]
        self._queue = asyncio.Queue()
        self._pumps: dict[WatchFeed[Any], asyncio.Task[None]] = {}
        self._consumer: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[None]

    async def start(self, *feeds: WatchFeed[Any]) -> None:
        """Start these feeds; return once the consumer has taken all existing objects."""
        if self._consumer is None:
            self._failure = asyncio.get_running_loop().create_future()
            self._consumer = self._endless(self._consume())
        for feed in feeds:
            self.feeds.append(feed)
            self._pumps[feed] = self._endless(self._pump(feed))
        await self._synced(feeds)

    async def follow(self, feed: WatchFeed[Any], at_most_s: float) -> None:
        """Start a feed that may never get an answer, such as for lack of rights; return once all
        existing objects have been taken, or after `at_most_s` seconds."""
        self._pumps[feed] = self._endless(self._pump(feed))
        synced = asyncio.create_task(feed.synced.wait())
        limit = asyncio.create_task(feed.clock.sleep(at_most_s))
        try:
            await self._or_failure({synced, limit})
        finally:
            synced.cancel()
            limit.cancel()

    async def list_again(self) -> None:
        """List all resources again; return once the consumer has taken the differences."""
        feeds = tuple(self.feeds)  # others may start meanwhile, and list by themselves
        for feed in feeds:
            self._pumps[feed].cancel()
            await asyncio.gather(self._pumps[feed], return_exceptions=True)
        await self.idle()
        for feed in feeds:
            feed.list_again()
            self._pumps[feed] = self._endless(self._pump(feed))
        await self._synced(feeds)

    def nudge(self, feed: WatchFeed[Any]) -> None:
        """Have the consumer call the feed's `after` once more, after the changes queued so far."""
        self._queue.put_nowait((feed, [], None))

    async def idle(self) -> None:
        """Return once the consumer has taken all changes queued so far."""
        waiting = asyncio.create_task(self._queue.join())
        await self._or_failure({waiting})

    async def failed(self) -> None:
        """Wait until the consumer, a list-watch or a task reported by `fail` has failed, and raise
        its error."""
        await self._or_failure(set())

    def fail(self, error: BaseException) -> None:
        """Record the failure of another endless task; all that wait on this stream raise its
        error."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def stop(self) -> None:
        """End all feeds and the task that takes in their changes."""
        tasks = [*self._pumps.values(), *([self._consumer] if self._consumer else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _synced(self, feeds: "list[WatchFeed[Any]] | tuple[WatchFeed[Any], ...]") -> None:
        waiting = [asyncio.create_task(feed.synced.wait()) for feed in feeds]
        for task in waiting:
            await self._or_failure({task})

    async def _or_failure(self, waiting: set[asyncio.Task[Any]]) -> None:
        """Wait for one of these tasks, or raise the error that ended a task that should never
        end."""
        await asyncio.wait({*waiting, self._failure}, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            for task in waiting:
                task.cancel()
            self._failure.result()

    def _endless(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Return a task for work that must not end before it is cancelled; if it fails, its error
        is raised for all who wait for this stream."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.fail(task.exception() or RuntimeError("a list-watch ended by itself"))

    async def _pump(self, feed: WatchFeed[Any]) -> None:
        async for batch in feed.watch.batches():
            last = batch[-1]
            synced = last if isinstance(last, Synced) else None
            changes = batch[:-1] if synced else batch
            if feed.on_batch is not None:
                feed.on_batch(changes)
            self._queue.put_nowait((feed, changes, synced))

    async def _consume(self) -> None:
        while True:
            feed, changes, synced = await self._queue.get()
            if feed.take is not None:
                await in_turns(changes, feed.take, feed.clock.monotonic)
            feed.after()
            if synced is not None:
                if feed.on_synced is not None:
                    feed.on_synced(synced)
                feed.synced.set()
            self._queue.task_done()

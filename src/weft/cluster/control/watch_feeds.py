"""List-watches of several resources, made one stream of changes that is taken in in order.

    ListWatch ──pump──┐
    ListWatch ──pump──┼──▶ one queue ──▶ one consumer ──▶ take(change), after()
    ListWatch ──pump──┘
           on_batch(changes), before it is queued: for what cannot wait

A pump may be ended at any time: what its list-watch knows and what it has queued always agree.
Long work on the event loop lets others have their turn: lease renewals, watches, answers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.structs import KubeObject
from weft.kube.watch import Change, ListWatch, Synced

T = TypeVar("T", bound=KubeObject)
Apply = Callable[[Change[T]], None]
OnBatch = Callable[[list[Change[T]]], None]
OnSynced = Callable[[Synced], None]
SLICE_S, MOST = 0.005, 20
"""Longest time, seconds, and most pieces of work until other tasks have their turn; the piece under
way is finished first."""


class LoopTurns:
    """Turns of other tasks during long work, timed by `clock`: `await turns.end()` after each piece
    of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began, self._pieces = clock(), 0

    async def end(self) -> None:
        """Note that one piece of work is done; give other tasks a turn if it is time."""
        self._pieces += 1
        if self._pieces >= MOST or self._clock() - self._began >= SLICE_S:
            await asyncio.sleep(0)
            self._began, self._pieces = self._clock(), 0


class WatchFeed(Generic[T]):
    """One resource. `on_batch` is called with each batch the moment it is there; `take` with each
    change in its turn, by the stream's consumer, which may have much before it, and `after` when
    all of a batch were. `on_synced` is called when a whole list has been taken in.
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
        """A list-watch that begins with a list, and knows what the last one knew."""
        known = self.watch.known
        self.watch = ListWatch(
            self._client, self.resource, namespace=self._namespace, skips=self.watch.skips
        )
        self.watch.known = known
        self.synced.clear()


class ChangeStream:
    """All feeds of a process, and the one task that takes in what they bring."""

    def __init__(self) -> None:
        self.feeds: list[WatchFeed[Any]] = []
        self._queue: asyncio.Queue[tuple[WatchFeed[Any], list[Change[Any]], Synced | None]]
        self._queue = asyncio.Queue()
        self._pumps: dict[WatchFeed[Any], asyncio.Task[None]] = {}
        self._consumer: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[None]

    async def start(self, *feeds: WatchFeed[Any]) -> None:
        """Start these feeds; returns when all that there is has been taken in."""
        if self._consumer is None:
            self._failure = asyncio.get_running_loop().create_future()
            self._consumer = self._endless(self._consume())
        for feed in feeds:
            self.feeds.append(feed)
            self._pumps[feed] = self._endless(self._pump(feed))
        await self._synced(feeds)

    async def follow(self, feed: WatchFeed[Any], at_most_s: float) -> None:
        """Start a feed that may never bring anything, as where its rights are lacking; returns when
        all that there is has been taken in, or after so long."""
        self._pumps[feed] = self._endless(self._pump(feed))
        synced = asyncio.create_task(feed.synced.wait())
        limit = asyncio.create_task(feed.clock.sleep(at_most_s))
        try:
            await self._or_failure({synced, limit})
        finally:
            synced.cancel()
            limit.cancel()

    async def list_again(self) -> None:
        """List everything afresh; returns when the differences have been taken in."""
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
        """Have the feed's `after` called once more, in its turn."""
        self._queue.put_nowait((feed, [], None))

    async def idle(self) -> None:
        """Return when all that came so far has been taken in."""
        waiting = asyncio.create_task(self._queue.join())
        await self._or_failure({waiting})

    async def failed(self) -> None:
        """Return never, but raise what ended the consumer or a pump, if anything does."""
        await self._or_failure(set())

    def fail(self, error: BaseException) -> None:
        """Note that another endless task failed: raise its error for everyone who waits here."""
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
        """Wait for one of these, or raise what ended a task that should never end."""
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
                turns = LoopTurns(feed.clock.monotonic)
                for change in changes:
                    feed.take(change)
                    await turns.end()
            feed.after()
            if synced is not None:
                if feed.on_synced is not None:
                    feed.on_synced(synced)
                feed.synced.set()
            self._queue.task_done()

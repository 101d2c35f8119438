"""List-watch: yields every change of one kind of object, without gaps, for ever.

     ┌──▶ LIST in pages ──▶ WATCH from its version ──▶ events and bookmarks move the version on
     │                        ▲          │
     │                        └──────────┤ ended, cut, silent too long: resume where it was
     └───────────────────────────────────┘ 410, or failed too often in a row: list again

`WatchPlan`, which has no network, decides the next step; the loop carries it out. Only the consumer
ends the loop: if the API server is down, it is retried with growing delays.

`KnownObjects` has the objects as last seen. It turns a fresh list into the changes since then (so
that no deletion is lost while the watch was away), and watch events into changes.

    list ──▶ KnownObjects.replace ──▶ Added, Modified, Deleted … Synced
    watch ─▶ KnownObjects.apply ────▶ Added, Modified, Deleted

Invariants: every object that was Added is Deleted before another of its name is Added; each version
of an object is reported once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Generic, Literal, NamedTuple, TypeVar

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
    """Everything up to this version has been reported; `again` after the first time. `asked_s` is
    when the list was requested (the client's monotonic clock)."""

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

        Objects that could not be read stay as they were known.
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

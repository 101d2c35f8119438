"""Follows kinds of objects that the API server may lack, or may forbid this process to read.

    checked at the start ──▶ served and readable ──▶ followed, before nodes and pods
                        └──▶ otherwise ──▶ checked again every few minutes

This costs one request for each kind at the start, and then one every few minutes for all kinds
together. A missing right to read a kind is logged once.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from weft.cluster.rights import BUDGETS as BUDGET_RIGHTS
from weft.cluster.rights import DEVICES as DEVICE_RIGHTS
from weft.cluster.rights import GROUPS as GROUP_RIGHTS
from weft.cluster.rights import NAMESPACES as NAMESPACE_RIGHTS
from weft.cluster.state.groups import GROUP_KINDS
from weft.cluster.state.koordinator_devices import DEVICES
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.nominated import BudgetView
from weft.cluster.state.pods import PodView
from weft.core.engine import BudgetsChanged
from weft.dialects.group_objects import KubePodGroup
from weft.kube.access import ResourceRight
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import NAMESPACES, MetaOnly, Resource
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.eviction import DISRUPTION_BUDGETS
from weft.kube.preflight import lacking_of, served_versions, serves
from weft.kube.watch import Change, ChangeStream, Synced, WatchFeed

log = logging.getLogger("weft.cluster")

LOOKS_EVERY_S = 300.0
"""The mean time between two checks; each interval varies by up to a fifth, so that replicas that
started together do not check together."""
_FIRST_DELAY_S, _MOST_DELAY_S = 0.2, 10.0
_UNANSWERED = (ApiError, LostError, NotSentError, ValueError)
_NO_DEVICES = (
    "the GPUs of Koordinator's pods are unknown, so the most that they may hold is charged: no "
    "permission to {}"
)
_NO_NAMESPACES = (
    "pods with a namespaceSelector stay pending, and anti-affinity with a namespaceSelector "
    "applies to all namespaces: no permission to {}"
)
_NO_GROUPS = "pods of groups that PodGroups define stay pending: no permission to {}"
_NO_BUDGETS = "pods are preempted regardless of PodDisruptionBudgets: no permission to {}"
_CORE = "/api/"


class OptionalKinds(NamedTuple):
    """Kinds of one API version that are followed together, by the feeds that `feeds` creates.

    `lacking_text` is logged if rights are missing, with the missing rights in place of {}. Kinds
    with the same `objects` are versions of the same objects: only the first that is served is
    followed.
    """

    kinds: Sequence[Resource[Any]]
    rights: Sequence[ResourceRight]
    lacking_text: str
    feeds: Callable[[], list[WatchFeed[Any]]]
    objects: str = ""

    @property
    def version(self) -> str:
        """The group and version, such as `resource.k8s.io/v1`; `v1` for the kinds that every API
        server has."""
        return self.kinds[0].path.removeprefix("/apis/").removeprefix(_CORE)

    @property
    def is_core(self) -> bool:
        """True if every API server has these kinds."""
        return self.kinds[0].path.startswith(_CORE)


class OptionalFeeds:
    """Starts the feeds of optional kinds on `stream`. `unreadable` lists, by version, the missing
    rights to kinds that the API server has."""

    def __init__(
        self, client: ApiClient, stream: ChangeStream, kinds: Sequence[OptionalKinds]
    ) -> None:
        self.unreadable: dict[str, list[ResourceRight]] = {}
        self._client, self._stream = client, stream
        self._waiting = list(kinds)
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow the kinds that are available; returns once all their objects have been read.
        Retries until the API server answers, as it must be known which kinds it has."""
        backoff = Backoff(_FIRST_DELAY_S, _MOST_DELAY_S, self._client.rng)
        followed: list[OptionalKinds] = []
        for each in self._waiting:
            while not _are_among(each, followed):
                try:
                    followed += [each] if await self._may_follow(each) else []
                    break
                except _UNANSWERED as error:
                    name = each.kinds[-1].name
                    log.warning("cannot tell yet whether the API server has %s: %s", name, error)
                await self._client.clock.sleep(backoff.next_s())
        await self._follow(followed)
        if self._waiting:
            self._looking = asyncio.create_task(self._look_again())
            self._looking.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Stop checking for further kinds."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _follow(self, kinds: Sequence[OptionalKinds]) -> None:
        left = [each for each in self._waiting if each not in kinds]
        self._waiting = [each for each in left if not _are_among(each, kinds)]
        await self._stream.start(*(feed for each in kinds for feed in each.feeds()))

    async def _may_follow(self, asked: OptionalKinds) -> bool:
        """Return True if the API server has these kinds, and lets this process list and watch
        them."""
        if not asked.is_core and not await serves(self._client, asked.kinds):
            self.unreadable.pop(asked.version, None)
            return False
        lacking = await lacking_of(self._client, asked.rights)
        if lacking and asked.version not in self.unreadable:
            log.warning(asked.lacking_text.format(", ".join(map(str, lacking))))
        if lacking:
            self.unreadable[asked.version] = lacking
        else:
            self.unreadable.pop(asked.version, None)
        return not lacking

    async def _look_again(self) -> None:
        """Follow kinds that become available or readable later."""
        client = self._client
        while self._waiting:
            await client.clock.sleep(LOOKS_EVERY_S * (0.8 + 0.4 * client.rng.random()))
            try:
                served = await served_versions(client)
                there = [e for e in self._waiting if e.is_core or e.version in served]
                now = list[OptionalKinds]()
                for each in there:
                    if not _are_among(each, now) and await self._may_follow(each):
                        now.append(each)
            except _UNANSWERED as error:
                log.debug("cannot list the API server's APIs: %s", error)
                continue
            for each in now:
                log.info("%s is now served and will be watched", each.version)
            if now:
                await self._follow(now)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stream.fail(error)


def _are_among(kinds: OptionalKinds, followed: Sequence[OptionalKinds]) -> bool:
    """Return True if another version of these objects is followed."""
    return bool(kinds.objects) and any(each.objects == kinds.objects for each in followed)


def device_kinds(client: ApiClient, nodes: NodeView, after: Callable[[], None]) -> OptionalKinds:
    """Return the `OptionalKinds` of Koordinator's Devices, which exist if their CRD is
    installed."""

    def feeds() -> list[WatchFeed[Any]]:
        return [WatchFeed(client, DEVICES, nodes.take_device, after)]

    return OptionalKinds((DEVICES,), DEVICE_RIGHTS, _NO_DEVICES, feeds)


def namespace_kinds(
    client: ApiClient, stream: ChangeStream, pods: PodView, tell: Callable[[], None]
) -> OptionalKinds:
    """Return the `OptionalKinds` of namespaces, which this process may lack the right to read.
    `tell` reports a batch of the pods whose selected namespaces or group changed; it is called
    until none are left."""

    def take(change: Change[MetaOnly]) -> None:
        pods.namespaces.take(change)
        pods.groups.take_namespace(change)

    def after() -> None:
        tell()
        if pods.has_moved:
            stream.nudge(feed)

    def listed(_: Synced) -> None:
        pods.namespaces.listed()
        after()

    feed = WatchFeed(client, NAMESPACES, take, after, on_synced=listed)
    return OptionalKinds((NAMESPACES,), NAMESPACE_RIGHTS, _NO_NAMESPACES, lambda: [feed])


def budget_kinds(client: ApiClient, tell: Callable[[BudgetsChanged], object]) -> OptionalKinds:
    """Return the `OptionalKinds` of disruption budgets; `tell` is called with the changed ones."""
    view = BudgetView()

    def after() -> None:
        if (news := view.news()) is not None:
            tell(news)

    def feeds() -> list[WatchFeed[Any]]:
        return [WatchFeed(client, DISRUPTION_BUDGETS, view.take, after)]

    return OptionalKinds((DISRUPTION_BUDGETS,), BUDGET_RIGHTS, _NO_BUDGETS, feeds)


def group_kinds(
    client: ApiClient, stream: ChangeStream, pods: PodView, tell: Callable[[], None]
) -> list[OptionalKinds]:
    """Return the `OptionalKinds` of each system's PodGroups, in every version that may be served.
    `tell` reports a batch of the pods whose group changed; it is called until none are left."""

    def of(system: str, kind: Resource[KubePodGroup]) -> OptionalKinds:
        def after() -> None:
            tell()
            if pods.has_moved:
                stream.nudge(feed)

        def listed(_: Synced) -> None:
            pods.groups.follow(system, kind)
            after()

        take = partial(pods.groups.take, system)
        feed = WatchFeed(client, kind, take, after, on_synced=listed)
        rights = GROUP_RIGHTS[system]
        return OptionalKinds((kind,), rights, _NO_GROUPS, lambda: [feed], objects=system)

    return [of(system, kind) for system, kinds in GROUP_KINDS.items() for kind in kinds]

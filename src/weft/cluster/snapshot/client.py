"""An API client that answers lists from a snapshot; its watches never report a change."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from weft.cluster.snapshot.file import lean
from weft.cluster.snapshot.form import KINDS, OLDER, OPTIONAL, ClusterSnapshot
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE
from weft.kube.access import OWN_REVIEWS
from weft.kube.budgets import DISRUPTION_BUDGETS
from weft.kube.client import JSON, ApiClient, Endpoint, FixedCredentials
from weft.kube.codec import CONFIG_MAPS, LEASES
from weft.kube.errors import NotFoundError
from weft.kube.structs import ApiStatus
from weft.model import BadInputError


class MomentClock:
    """A clock that stands still at the time of a snapshot."""

    def __init__(self, taken_at: str) -> None:
        try:
            self._at = datetime.datetime.fromisoformat(taken_at)
        except ValueError:
            self._at = datetime.datetime.fromtimestamp(0, datetime.UTC)
        if self._at.tzinfo is None:
            self._at = self._at.replace(tzinfo=datetime.UTC)

    def monotonic(self) -> float:
        """Return the snapshot's time in seconds since 1970."""
        return self._at.timestamp()

    def wall(self) -> datetime.datetime:
        """Return the snapshot's time, UTC."""
        return self._at

    async def sleep(self, seconds: float) -> None:
        """Sleep as asyncio does; the clock does not advance."""
        await asyncio.sleep(seconds)


class SnapshotClient(ApiClient):
    """Answers list requests from the snapshot's objects; refuses writes."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        endpoint = Endpoint("http://snapshot.invalid", FixedCredentials())
        super().__init__(endpoint, clock=MomentClock(snapshot.taken_at))
        self._lists: dict[str, Any] = {
            resource.path + "/" + resource.name: getattr(snapshot, field)
            for field, resource in KINDS.values()
        }
        self._served = {
            resources[0].path: [{"name": each.name} for each in resources]
            if any(getattr(snapshot, KINDS[kind][0]) for kind in kinds)
            else None
            for resources, kinds in OPTIONAL
        }
        self._served |= dict.fromkeys(resource.path for resource in OLDER.values())
        budgets = [{"name": DISRUPTION_BUDGETS.name}] if snapshot.disruption_budgets else None
        self._served[DISRUPTION_BUDGETS.path] = budgets
        self._unread = snapshot.unread
        self._lists[CONFIG_MAPS.of(UNHEALTHY_NAMESPACE)] = snapshot.config_maps

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_s: float = 0,
        attempts: int = 0,
        urgent: bool = False,
    ) -> bytes:
        """Return the complete list at this path; `BadInputError` for any other request."""
        if path in self._served:
            if (served := self._served[path]) is None:
                raise NotFoundError(ApiStatus(code=404, message=f"the snapshot has none of {path}"))
            return msgspec.json.encode({"resources": served})
        if path == OWN_REVIEWS:  # kinds in the snapshot may be read
            is_there = "Namespace" not in self._unread or b'"namespaces"' not in body
            return msgspec.json.encode({"status": {"allowed": is_there}})
        objects = self._lists.get(path) if method == "GET" else None
        if path.startswith(LEASES.path) and path.endswith(f"/{LEASES.name}"):
            objects = ()  # agents' heartbeats are not kept: no node is judged by them
        if objects is None:
            raise BadInputError("the snapshot", f"has no answer to {method} {path}: ask a cluster")
        return msgspec.json.encode({"items": lean(objects)})

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Wait forever, because a snapshot never changes."""
        await asyncio.Event().wait()
        yield aiohttp.StreamReader(None, 1)  # type: ignore[arg-type]

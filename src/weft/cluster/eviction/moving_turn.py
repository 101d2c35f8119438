"""Lets one process at a time move pods: it holds the Lease `kube-system/weft-defrag` meanwhile.

Two processes that moved pods at once would each count on places that the other's pods take. If the
holder has died, its Lease is waited for, at most ten seconds; a live holder is not waited for."""

import asyncio
import threading

import msgspec

from weft.kube.client import ApiClient
from weft.kube.codec import LEASES
from weft.kube.errors import ConflictError
from weft.kube.lease import Elector, LeaseOptions

MOVING = LeaseOptions(name="weft-defrag")
LEASE = f"{MOVING.namespace}/{MOVING.name}"
_LOOKS_EVERY_S = 0.1


class MovingTurn:
    """The right to move pods. `hold` takes and keeps it on one thread's loop, while another thread
    reads `why_not` before each eviction. `settled` is set once it is known which process has the
    right, or, by the caller, if no process will get it."""

    def __init__(self, identity: str) -> None:
        self.settled = threading.Event()
        self._identity = identity
        self._refused = ""
        self._elector: Elector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()

    @property
    def why_not(self) -> str:
        """Reason why no pod may be moved now; "" if this process may move pods."""
        if self._refused or (self._elector is not None and self._elector.leading):
            return self._refused
        return f"the lease {LEASE} was lost; another process may be moving pods now"

    async def hold(self, client: ApiClient) -> None:
        """Take the Lease, unless another process holds it; renew it until `end`.

        Raises the client's errors if the Lease cannot be created."""
        self._loop, elector = asyncio.get_running_loop(), Elector(client, self._identity, MOVING)
        self._elector = elector
        await _make_sure_of_lease(client)
        self._refused = await self._take(elector)
        self.settled.set()
        if not self._refused:
            await self._renew(elector)

    def end(self) -> None:
        """Give up the right, so that the next process may move pods."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._over.set)

    async def _take(self, elector: Elector) -> str:
        """Take the Lease; return why it could not be taken, "" on success."""
        taking = asyncio.create_task(elector.acquire())
        try:
            while not (await asyncio.wait({taking}, timeout=_LOOKS_EVERY_S))[0]:
                if elector.other:
                    return f"{elector.other} moves pods now (lease {LEASE}); wait until it is done"
                if elector.failing:
                    return f"the lease {LEASE} can't be had: {elector.failing}"
        finally:
            taking.cancel()
        return ""

    async def _renew(self, elector: Elector) -> None:
        """Renew the lease until it is lost or no longer needed, then release it."""
        holding, over = asyncio.create_task(elector.hold()), asyncio.create_task(self._over.wait())
        await asyncio.wait({holding, over}, return_when=asyncio.FIRST_COMPLETED)
        for task in (holding, over):
            task.cancel()
        await elector.release()


async def _make_sure_of_lease(client: ApiClient) -> None:
    """Create the Lease, without a holder, if it is missing: taking a missing Lease would take
    longer."""
    meta = {"name": MOVING.name, "namespace": MOVING.namespace}
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    body = msgspec.json.encode({**kind, "metadata": meta, "spec": {"holderIdentity": ""}})
    try:
        await client.create(LEASES, MOVING.namespace, body)
    except ConflictError:
        return  # it is there

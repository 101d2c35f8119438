"""Moves one pod: evicts it, and waits until the pod that replaces it is placed.

The scheduler places the new pod without any instruction from here. The old pod's place becomes free
once the pod is gone; its successor is the only new pod of the same controller."""

import asyncio
import threading
from typing import NamedTuple

import msgspec

from weft.kube.client import ApiClient
from weft.kube.codec import LEASES, PODS
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError
from weft.kube.lease import Elector, LeaseOptions
from weft.kube.pods import Pod
from weft.kube.services import everything

# --- the turn -------------------------------------------------------------------------------------
# Lets one process at a time move pods: it holds the Lease `kube-system/weft-defrag` meanwhile.
#
# Two processes that moved pods at once would each count on places that the other's pods take. If
# the holder has died, its Lease is waited for, at most ten seconds; a live holder is not waited
# for.


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
                    return f"the lease {LEASE} can't be acquired: {elector.failing}"
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


LOOKS_EVERY_S = 0.5
_TOO_MANY = 429


class MovedPod(NamedTuple):
    """Outcome of moving a pod: its `successor` (NAMESPACE/NAME) and that pod's node; `why_not` is
    the reason why the pod was not moved, or why that is unknown, "" if it was moved."""

    successor: str = ""
    node: str = ""
    why_not: str = ""


def owner_of(pod: Pod) -> tuple[str, str]:
    """Return kind and name of the controller that recreates the pod; "" for both if it has none."""
    owners = pod.metadata.owner_references or ()
    controller = next((owner for owner in owners if owner.controller), None)
    return ("", "") if controller is None else (controller.kind, controller.name)


async def move(client: ApiClient, pod: Pod, wait_s: float) -> MovedPod:
    """Evict the pod as disruption budgets allow, and wait at most `wait_s` seconds until its
    successor is placed.

    Raises the client's errors if the API server does not answer at all."""
    before = {sibling.metadata.uid for sibling in await _siblings(client, pod)}
    if pod.metadata.uid not in before:
        return MovedPod(why_not="it no longer exists")
    refused = await _evict(client, pod)
    if refused:
        return MovedPod(why_not=refused)
    until = client.clock.monotonic() + wait_s
    while True:
        now = await _siblings(client, pod)
        came = [sibling for sibling in now if sibling.metadata.uid not in before]
        gone = all(sibling.metadata.uid != pod.metadata.uid for sibling in now)
        if len(came) > 1:
            text = "pods were created by its controller; it is unclear which one replaces it"
            return MovedPod(why_not=f"{len(came)} {text}")
        if gone and came and came[0].spec.node_name:
            return MovedPod(_name(came[0]), came[0].spec.node_name)
        if client.clock.monotonic() >= until:
            return MovedPod(why_not=_late(gone, came, wait_s))
        await client.clock.sleep(LOOKS_EVERY_S)


async def placed_on(client: ApiClient, namespace: str, uid: str, wait_s: float) -> str:
    """Return the node of a pending pod as soon as it is bound; "" if it is gone, or not bound
    within `wait_s` seconds."""
    until = client.clock.monotonic() + wait_s
    while True:
        pods = await everything(client, PODS, namespace)
        pod = next((candidate for candidate in pods if candidate.metadata.uid == uid), None)
        if pod is None or pod.spec.node_name or client.clock.monotonic() >= until:
            return (pod.spec.node_name or "") if pod is not None else ""
        await client.clock.sleep(LOOKS_EVERY_S)


async def _siblings(client: ApiClient, pod: Pod) -> list[Pod]:
    """Return the pods of the same controller that are running or pending."""
    pods = await everything(client, PODS, pod.metadata.namespace)
    return [sibling for sibling in pods if owner_of(sibling) == owner_of(pod) and not sibling.ended]


async def _evict(client: ApiClient, pod: Pod) -> str:
    """Evict the pod; return why it cannot be evicted, "" if it is, or if the answer was lost."""
    meta = pod.metadata
    try:
        await client.evict(meta.namespace, meta.name, meta.uid)
    except NotFoundError:
        return "it no longer exists"
    except LostError:
        return ""  # it may have arrived: whether the pod goes says so
    except ApiError as error:
        if isinstance(error, ConflictError) and error.is_another:
            return "it no longer exists"
        if error.code == _TOO_MANY:
            said = error.status.message or "too many requests"
            return f"a PodDisruptionBudget does not allow its eviction now: {said}"
        return f"the API server refused its eviction: {error}"
    return ""


def _late(gone: bool, came: list[Pod], wait_s: float) -> str:
    if not gone:
        return f"it was evicted but still exists after {wait_s:g} s"
    if not came:
        return f"it was evicted, but not recreated within {wait_s:g} s"
    return f"it ended, and {_name(came[0])} replaced it, but got no node within {wait_s:g} s"


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"

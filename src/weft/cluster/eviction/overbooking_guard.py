"""GPUs that hold more than they have: seen on the watch, told, and where Weft is to blame, mended.

    watch ──▶ touch(node) ──▶ look() ──▶ over, told once ──▶ two of Weft's own? ──▶ evict the later
                                             │
                                             └─▶ someone else's pod: told, charged, never evicted

Rules: only the leader tells and evicts. Only a pod whose placement Weft wrote, and that is as it
was bound, is evicted or makes another go: one whose marks are in doubt may be elsewhere. Evictions
pass through the Eviction API (disruption budgets hold), with the UID as precondition, and only
after every pod of that GPU was read afresh. A pod that is being deleted counts as gone: so never
two where one is enough, and never both. What a smaller node explains is nobody's double booking:
told, not mended.
"""

import asyncio
import datetime
import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from weft.cluster.control.interface import Notice
from weft.cluster.eviction.overbooking import (
    BoundHolder,
    LatecomerPod,
    Overbooked,
    larger_than_its_card,
    overbooked,
    too_late,
)
from weft.cluster.state.bound_share import Doubt, as_bound, placed_by_weft
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.core.engine import Engine
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import PODS
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.pods import Pod
from weft.model import Node
from weft.model.annotations import TERM

log = logging.getLogger("weft.cluster")

Step = Literal["evicted", "again", "left"]
_TOO_MANY = 429


class OverbookingGuardOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `recent_s`: only a pod bound so recently is evicted. A double booking is seen within seconds,
    or by the next leader; what shows up later was rather made by nodes that changed.
    `request_timeout_s`: of an eviction, as a binding's; it leaves only if the lease outlives twice
    that.
    `first_delay_s`, `most_delay_s`: between attempts that a disruption budget or an error stopped.
    """

    recent_s: float = 600
    request_timeout_s: float = 3
    first_delay_s: float = 1
    most_delay_s: float = 60


class OverbookingGuard:
    """Looks after the accounts of one live cluster.

    `over` are the overbooked GPUs by node. `counts`: evictions by what became of them (`evicted`,
    `blocked`, `failed`).
    """

    def __init__(
        self,
        client: ApiClient,
        engine: Engine,
        pods: PodView,
        nodes: NodeView,
        tell: Callable[[Notice], None],
        may_write: Callable[[float], bool] | None,
    ) -> None:
        self.options = OverbookingGuardOptions()
        self.over: dict[str, tuple[Overbooked, ...]] = {}
        self.counts = {"evicted": 0, "blocked": 0, "failed": 0}
        self.leading = False
        self._client, self._engine, self._may_write = client, engine, may_write
        self._pods, self._nodes, self._tell = pods, nodes, tell
        self._touched: set[str] = set()
        self._looked_at = -1
        self._said: dict[str, object] = {}
        self._doubted: dict[str, tuple[Doubt, ...]] = {}
        self._left: dict[str, tuple[frozenset[str], Node]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def overbooked(self) -> int:
        """How many GPUs hold more than they have."""
        return sum(map(len, self.over.values()))

    def touch(self, node: str) -> None:
        """Something on this node changed without the ledger's leave."""
        self._touched.add(node)

    def look(self) -> None:
        """Look at what was touched, and again at what was wrong and changed; tell what is new."""
        names = sorted(self._touched | set(filter(self._changed, self.over)))
        self._touched = set()
        self._looked_at = self._engine.ledger.version
        for name in names:
            found = overbooked(self._engine.ledger, name, self._unsure)
            if found:
                self.over[name] = found
            else:
                self.over.pop(name, None)
                self._left.pop(name, None)
            if self.leading and (found or name in self._said):
                self._report(name, found)
                self._mend(name)
        if self.leading:
            self._report_doubts()

    def _unsure(self, uid: str) -> bool:
        return uid in self._pods.assumed or self._pods.unsure(uid)

    def _changed(self, name: str) -> bool:
        """Whether a node's account changed since the last look."""
        table = self._engine.ledger.table
        row = table.row_of.get(name)
        return row is None or bool(table.changed_at[row] > self._looked_at)

    def lead(self) -> None:
        """This process leads now: what is wrong is told, and mended, from here on."""
        self.leading = True
        self._looked_at = -1
        self.look()

    async def stop(self) -> None:
        """Tell and evict nothing more."""
        self.leading = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- telling ---

    def _report(self, name: str, found: tuple[Overbooked, ...]) -> None:
        strangers: dict[str, list[int]] = {}
        for one in found:
            for uid in one.holders:
                pod = self._pods.by_uid(uid)
                if pod is not None and pod.spec.node_name and not placed_by_weft(pod):
                    strangers.setdefault(uid, []).append(one.gpu)
        state = tuple((one.gpu, one.holders) for one in found)
        if self._said.get(name, ()) == state:
            return
        before = self._said.get(name) or ()
        if not found:
            del self._said[name]
            log.info("node %s: no GPU holds more than it has any more", name)
            return
        self._said[name] = state
        text = "; ".join(map(str, found))
        holders = dict.fromkeys(uid for one in found for uid in one.holders)
        pods = ", ".join(self._name(uid) for uid in holders)
        text = f"{text} ({pods}); nothing more is given away there until that ends"
        log.warning("node %s: %s", name, text)
        self._tell(Notice("Overbooked", text, node=name))
        for uid, gpus in strangers.items():
            if before and self._was_told(before, uid, gpus):
                continue
            which = ", ".join(map(str, gpus))
            assumed = self._pods.assumed.get(uid, "")
            told = (
                f"bound to {name} by someone else than Weft: GPU {which} there may hold more than "
                f"it has. Its share is counted{f' ({assumed})' if assumed else ''} and given to "
                "nobody else until it ends"
            )
            self._tell(Notice("Overbooked", told, pod=self._pods.by_uid(uid)))

    def _report_doubts(self) -> None:
        for uid, doubts in self._pods.doubts.items():
            for doubt in doubts if self._doubted.get(uid) != doubts else ():
                pod = self._pods.by_uid(uid)
                log.warning("pod %s: %s", self._name(uid), doubt.text)
                self._tell(Notice(doubt.reason, doubt.text, pod=pod))
        self._doubted = dict(self._pods.doubts)

    @staticmethod
    def _was_told(before: object, uid: str, gpus: list[int]) -> bool:
        assert isinstance(before, tuple)
        return [gpu for gpu, holders in before if uid in holders] == gpus

    def _name(self, uid: str) -> str:
        pod = self._pods.by_uid(uid)
        return uid if pod is None else f"{pod.metadata.namespace}/{pod.metadata.name}"

    # --- mending ---

    def _mend(self, name: str) -> None:
        """Begin to evict, if Weft's own pods are more than a GPU of this node holds."""
        node, ours = self._nodes.nodes.get(name), self._ours(name)
        if node is None or name in self._tasks or not self._late(node, ours):
            return
        if self._left.get(name) == (frozenset(one.uid for one in ours), node):
            return  # looked at before, and left as it is
        task = self._tasks[name] = asyncio.create_task(self._settle(name))
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def _ours(self, name: str) -> list[BoundHolder]:
        """Weft's own pods on this node that are as it bound them, and not on their way out; when
        bound is not known."""
        found = []
        for held in self._engine.ledger.pods_on(name):
            pod = self._pods.by_uid(held.placement.uid)
            if pod is None or pod.metadata.deletion_timestamp or not held.placement.shares:
                continue
            if as_bound(pod) and pod.metadata.uid not in self._pods.doubts:
                found.append(BoundHolder(pod.metadata.uid, held.placement.shares))
        return found

    def _late(self, node: Node, holders: list[BoundHolder]) -> list[LatecomerPod]:
        return too_late(node, holders, max(self._engine.ledger.limits))

    async def _settle(self, name: str) -> None:
        """Evict who came too late on this node, one at a time, until the rest fits."""
        backoff = Backoff(self.options.first_delay_s, self.options.most_delay_s, self._client.rng)
        while self.leading:
            node, ours = self._nodes.nodes.get(name), self._ours(name)
            if node is None or not self._late(node, ours):
                return
            pause_s = 0.0
            try:
                step = await self._evict_one(node, ours)
            except ApiError as error:
                step, pause_s = "again", error.retry_after_s
                self._note_error(error)
            except (LostError, NotSentError, msgspec.DecodeError) as error:
                step = "again"
                self._note_error(error)
            if step == "left":
                self._left[name] = frozenset(one.uid for one in ours), node
                return
            if step == "again":
                await self._client.clock.sleep(max(pause_s, backoff.next_s()))

    def _note_error(self, error: Exception) -> None:
        self.counts["failed"] += 1
        log.warning("a pod that was bound twice over can't be evicted now: %s", error)

    async def _evict_one(self, node: Node, ours: list[BoundHolder]) -> Step:
        """Read the pods afresh, and evict the first that does not fit beside those before it."""
        pods: dict[str, Pod] = {}
        holders = []
        for one in ours:
            found = await self._read(one)
            if found is not None:
                holder, pods[one.uid] = found
                holders.append(holder)
        late = self._late(node, holders)
        if not late:
            return "again"  # the watch has not shown yet what was read, or a pod is just leaving
        victim, pod = late[0], pods[late[0].uid]
        text = self._why(node, victim)
        excuse = self._excuse(node, holders, victim)
        if excuse:
            self._tell(Notice("DoubleBooked", f"{text}. It is not evicted: {excuse}", pod=pod))
            return "left"
        return await self._evict(pod, text)

    async def _evict(self, pod: Pod, text: str) -> Step:
        meta = pod.metadata
        timeout_s = self.options.request_timeout_s
        if self._may_write is not None and not self._may_write(2 * timeout_s):
            return "again"
        try:
            await self._client.evict(meta.namespace, meta.name, meta.uid, timeout_s)
        except (NotFoundError, ConflictError):
            return "again"  # gone, or another pod of that name: the watch will say so
        except ApiError as error:
            if error.code != _TOO_MANY:
                raise
            self.counts["blocked"] += 1
            why = error.status.message or "the API server says 429"
            blocked = f"{text}. It is to be evicted, but: {why}; tried again"
            self._tell(Notice("EvictionBlocked", blocked, pod=pod))
            await self._client.clock.sleep(error.retry_after_s)
            return "again"
        self.counts["evicted"] += 1
        log.warning("evicted %s/%s: %s", meta.namespace, meta.name, text)
        self._tell(Notice("DoubleBooked", f"evicted: {text}", pod=pod))
        return "evicted"

    async def _read(self, one: BoundHolder) -> tuple[BoundHolder, Pod] | None:
        """The pod as it is now, with when it was bound; None where it holds nothing for long."""
        known = self._pods.by_uid(one.uid)
        if known is None:
            return None
        meta = known.metadata
        try:
            body = await self._client.call("GET", PODS.of(meta.namespace, meta.name))
        except NotFoundError:
            return None
        pod = PODS.decode(body)
        now = pod.metadata
        if now.uid != one.uid or pod.ended or now.deletion_timestamp:
            return None
        if not as_bound(pod) or as_bound(pod) != as_bound(known):
            return None  # it was edited: the watch will say so
        bound_at = pod.bound_at or now.creation_timestamp or ""
        term = (now.annotations or {}).get(TERM, "")
        number = int(term) if term.isdecimal() and len(term) < 18 else 0
        return BoundHolder(one.uid, one.shares, bound_at, number), pod

    def _why(self, node: Node, victim: LatecomerPod) -> str:
        card = next(gpu for gpu in node.gpus if gpu.index == victim.gpu)
        others = ", ".join(self._name(uid) for uid in victim.beside)
        lacking = []
        if victim.lacks_mib:
            lacking.append(f"{victim.lacks_mib:,} of its {card.memory_mib:,} MiB are missing")
        if victim.lacks_milli:
            lacking.append(f"{victim.lacks_milli:,} of its {card.milli:,} thousandths are missing")
        lacks = " and ".join(lacking) or "a card and its MIG instance cannot both be held"
        return (
            f"GPU {victim.gpu} of node {node.name} was given away twice; beside {others}, bound "
            f"before, {lacks}"
        )

    def _excuse(self, node: Node, holders: list[BoundHolder], victim: LatecomerPod) -> str:
        """Why the pod stays all the same; "" if it must go."""
        there = [one for one in holders if one.uid in (victim.uid, *victim.beside)]
        if node.name in self._nodes.shrunk:
            return "its node has shown larger or more GPUs than now"
        if any(larger_than_its_card(node, one.shares) for one in there):
            return "its node must have had larger GPUs when it was placed"
        bound_at = next(one.bound_at for one in holders if one.uid == victim.uid)
        try:
            datetime.datetime.fromisoformat(bound_at)
        except ValueError:
            return "nobody says when it was bound"
        age_s = self._pods.held_ns(victim.uid) / 1e9
        if age_s > self.options.recent_s:
            return f"it was bound {int(age_s // 60)} minutes ago, and has been left running since"
        return ""

"""Watches for overbooked GPUs, reports them, and has the engine decide which pod is evicted.

  watch ──▶ touch(node) ──▶ check() ──▶ over, reported once ─┬─▶ two of Weft's own: read both pods
                                                             │   again ──BindingsRead──▶ engine
                                                             │     ├──Evict──▶ evictor
                                                             │     └──EvictionWaived──▶ reported
                                                             └─▶ another system's pod, or a
                                                                 ResourceClaim: reported and
                                                                 charged, never evicted

Only the leader reports and evicts. A pod is evicted, or is a reason to evict another pod, only if
Weft wrote its placement and the placement is unchanged since the binding: a pod with doubtful
annotations or an assumed share may be on another GPU. A terminating pod counts as gone, so that
never more pods are evicted than needed."""

import asyncio
import logging
from collections.abc import Callable, Collection

import msgspec

from weft.cluster.control.interface import Notice
from weft.cluster.eviction.evictor import DOUBLE, EvictionOutcome, Evictor
from weft.cluster.state.bound_share import UNREADABLE, Doubt, as_bound, placed_by_weft
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pod_facts import bound_ns
from weft.cluster.state.pods import PodView
from weft.core.engine import BindingsRead, Engine, Event, EvictionWaived, PodBinding
from weft.core.engine.overbooking import OverbookedGpu, double_booked, overbooked_gpus
from weft.core.explain.account_sentences import bound_by_others_in_words, overbooked_in_words
from weft.core.explain.sentences import waived_in_words
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import PODS
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError
from weft.model import Node
from weft.model.annotations import TERM
from weft.model.log_fields import about

log = logging.getLogger("weft.cluster")


class OverbookingGuardOptions(msgspec.Struct, frozen=True):
    """Seconds between eviction attempts that a disruption budget or an error stopped: from
    `first_delay_s`, growing up to `most_delay_s`."""

    first_delay_s: float = 1
    most_delay_s: float = 60


class OverbookingGuard:
    """Guard against overbooked GPUs in one live cluster. `over` are the overbooked GPUs by node."""

    def __init__(
        self,
        client: ApiClient,
        engine: Engine,
        pods: PodView,
        nodes: NodeView,
        *,
        notify: Callable[[Notice], None],
        report: Callable[[Event], object],
        evictor: Evictor,
    ) -> None:
        self.options = OverbookingGuardOptions()
        self.over: dict[str, tuple[OverbookedGpu, ...]] = {}
        self.leading = False
        self._client, self._engine = client, engine
        self._pods, self._nodes, self._notify = pods, nodes, notify
        self._report_event, self._evictor = report, evictor
        self._touched: set[str] = set()
        self._looked_at = -1
        self._said: dict[str, object] = {}
        self._doubted: dict[str, tuple[Doubt, ...]] = {}
        self._waived: set[str] = set()
        self._left: dict[str, tuple[frozenset[str], Node]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def overbooked(self) -> int:
        """Number of overbooked GPUs."""
        return sum(map(len, self.over.values()))

    def touch(self, node: str) -> None:
        """Note that charges on this node changed without a check that they fit."""
        self._touched.add(node)

    def check(self) -> None:
        """Check nodes that were touched, and overbooked nodes that changed; report changes."""
        names = sorted(self._touched | set(filter(self._changed, self.over)))
        self._touched = set()
        self._looked_at = self._engine.ledger.version
        for name in names:
            overbooked = overbooked_gpus(self._engine.ledger, name, self._pods.unsure)
            if overbooked:
                self.over[name] = overbooked
            else:
                self.over.pop(name, None)
                self._left.pop(name, None)
            if self.leading and (overbooked or name in self._said):
                self._report(name, overbooked)
                self._mend(name)
        if self.leading:
            self._report_doubts()

    def _changed(self, name: str) -> bool:
        """Return True if what the ledger charges on the node changed since the last check, or if
        the node is gone."""
        table = self._engine.ledger.table
        row = table.row_of.get(name)
        return row is None or bool(table.changed_at[row] > self._looked_at)

    def lead(self) -> None:
        """Begin to lead: report and resolve overbooked GPUs from now on."""
        self.leading = True
        self._looked_at = -1
        self.check()

    async def stop(self) -> None:
        """Stop reporting and evicting."""
        self.leading = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- reporting ---

    def _report(self, name: str, overbooked: tuple[OverbookedGpu, ...]) -> None:
        strangers: dict[str, list[int]] = {}
        for gpu in overbooked:
            for uid in gpu.holders:
                pod = self._pods.by_uid(uid)
                if pod is not None and pod.spec.node_name and not placed_by_weft(pod):
                    strangers.setdefault(uid, []).append(gpu.gpu)
        state = tuple((gpu.gpu, gpu.holders) for gpu in overbooked)
        if self._said.get(name, ()) == state:
            return
        before = self._said.get(name) or ()
        if not overbooked:
            del self._said[name]
            text = "node %s: no GPU is overbooked any more"
            log.info(text, name, extra=about(node=name))
            return
        self._said[name] = state
        holders = dict.fromkeys(uid for gpu in overbooked for uid in gpu.holders)
        text = overbooked_in_words(overbooked, map(self._pods.name_of, holders))
        log.warning("node %s: %s", name, text, extra=about(node=name))
        self._notify(Notice("Overbooked", text, node=name))
        for uid, gpus in strangers.items():
            if before and self._was_told(before, uid, gpus):
                continue
            text = bound_by_others_in_words(name, gpus, self._pods.assumed.get(uid, ""))
            self._notify(Notice("Overbooked", text, pod=self._pods.by_uid(uid)))

    def _report_doubts(self) -> None:
        for uid, doubts in self._pods.doubts.items():
            for doubt in doubts if self._doubted.get(uid) != doubts else ():
                pod = self._pods.by_uid(uid)
                fields = about(pod.metadata, node=pod.spec.node_name) if pod is not None else {}
                log.warning("pod %s: %s", self._pods.name_of(uid), doubt.text, extra=fields)
                self._notify(Notice(doubt.reason, doubt.text, pod=pod))
        self._doubted = dict(self._pods.doubts)

    @staticmethod
    def _was_told(before: object, uid: str, gpus: list[int]) -> bool:
        assert isinstance(before, tuple)
        return [gpu for gpu, holders in before if uid in holders] == gpus

    # --- resolving ---

    def _mend(self, name: str) -> None:
        """Have the engine decide which pod is evicted, if Weft's own pods hold more than a GPU of
        this node has."""
        if name in self._tasks or not self._is_double_booked(name, self._ours(name)):
            return
        task = self._tasks[name] = asyncio.create_task(self._settle(name))
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def _ours(self, name: str) -> frozenset[str]:
        """Return the UIDs of Weft's own pods on this node that are unchanged since Weft bound them,
        and not terminating."""
        ours = set()
        for holding in self._engine.ledger.pods_on(name):
            pod = self._pods.by_uid(holding.placement.uid)
            if pod is None or pod.metadata.deletion_timestamp or not holding.placement.shares:
                continue
            if as_bound(pod) and self._is_sure(pod.metadata.uid):
                ours.add(pod.metadata.uid)
        return frozenset(ours)

    def _is_sure(self, uid: str) -> bool:
        """Return True if the pod certainly holds what it is charged for."""
        doubts = self._pods.doubts.get(uid, ())
        return not self._pods.unsure(uid) and all(each.reason == UNREADABLE for each in doubts)

    def _is_double_booked(self, name: str, ours: frozenset[str]) -> bool:
        """Return True if these pods do not fit next to each other, and the engine has not waived an
        eviction for the same pods and node."""
        node = self._nodes.nodes.get(name)
        if node is None or self._left.get(name) == (ours, node):
            return False
        return bool(double_booked(self._engine.ledger, name, map(PodBinding, ours)))

    async def _settle(self, name: str) -> None:
        """Have the engine decide, one pod at a time, until the remaining pods fit or eviction is
        waived."""
        backoff = Backoff(self.options.first_delay_s, self.options.most_delay_s, self._client.rng)
        while self.leading and self._is_double_booked(name, ours := self._ours(name)):
            node, outcome = self._nodes.nodes[name], EvictionOutcome()
            try:
                outcome = await self._decide(name, ours)
            except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
                if isinstance(error, ApiError):
                    outcome = EvictionOutcome(retry_after_s=error.retry_after_s)
                self._evictor.double_booked_counts["failed"] += 1
                text = "pods of double-booked GPUs cannot be read now: %s"
                log.warning(text, error, extra=about(node=name))
            if name in self._waived:
                self._waived.discard(name)
                self._left[name] = ours, node
            elif not outcome.evicted:
                await self._client.clock.sleep(max(outcome.retry_after_s, backoff.next_s()))

    async def _decide(self, name: str, ours: Collection[str]) -> EvictionOutcome:
        """Read these pods again and let the engine decide which is evicted; return the outcome."""
        bindings = [read for uid in sorted(ours) if (read := await self._read(uid)) is not None]
        shrunk = name in self._nodes.shrunk
        self._report_event(BindingsRead(name, tuple(bindings), shrunk))
        return await self._evictor.outcome_for(ours)

    def waive(self, command: EvictionWaived) -> None:
        """Report why the engine does not evict the pod."""
        place, text = command.placement, waived_in_words(command, self._pods.name_of)
        self._notify(Notice(DOUBLE, text, pod=self._pods.by_uid(place.uid)))
        self._waived.add(place.node)

    async def _read(self, uid: str) -> PodBinding | None:
        """Read the pod again from the API server and return its binding; None if the pod is gone,
        ended, terminating or edited."""
        known = self._pods.by_uid(uid)
        if known is None:
            return None
        meta = known.metadata
        try:
            body = await self._client.call("GET", PODS.of(meta.namespace, meta.name))
        except NotFoundError:
            return None
        pod = PODS.decode(body)
        now = pod.metadata
        if now.uid != uid or pod.ended or now.deletion_timestamp:
            return None
        if not as_bound(pod) or as_bound(pod) != as_bound(known):
            return None  # it was edited: the watch will say so
        term = (now.annotations or {}).get(TERM, "")
        number = int(term) if term.isdecimal() and len(term) < 18 else 0
        return PodBinding(uid, bound_ns(pod), self._pods.held_ns(uid), number)

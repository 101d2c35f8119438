"""Answers `weft explain pod`: why a pod of a live cluster is where it is, or nowhere.

The answer reads the present ledger at one moment between two events. Only two steps take long, and
let events be handled in between: deciding again without metrics (`core/explain/counterfactual.py`),
and the search for changes that would make the pod fit, which ends after a time limit, and whose
results are checked once more before they are reported (`core/explain/smallest_change.py`).
"""

import asyncio
import contextlib
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from weft.cluster.control.interface import ClusterView
from weft.cluster.state.others import others_on
from weft.cluster.state.pod_reader import WAY_OUT
from weft.core.engine.assessment import Assessment
from weft.core.engine.deciding import PlacedPod
from weft.core.engine.overbooking import OverbookedGpu
from weft.core.engine.reasons import FeasibilitySummary, best_nodes, summarise
from weft.core.explain.account_sentences import by_claim_in_words
from weft.core.explain.counterfactual import (
    SECOND_NS,
    AlternativePlacement,
    MetricsRead,
    PlacementQuestion,
    metrics_in_steps,
    values_of,
)
from weft.core.explain.explanation import (
    Explanation,
    ObservedProgress,
    OthersShare,
    ResidentSlowdown,
    State,
    StuckPod,
)
from weft.core.explain.kept_from import gang_now, kept_for, kept_from, node_kept_for
from weft.core.explain.score_parts import best_now, score_in_words
from weft.core.explain.sentences import (
    FOLLOWS,
    GANG_WAITS,
    NOWHERE,
    ROOM_NOW,
    beyond_advertised_in_words,
    bound_by_in_words,
    charged_in_words,
    chosen_in_words,
    closed_in_words,
    decision_notes,
    extender_in_words,
    gang_in_words,
    node_gone_in_words,
    place_in_words,
    preempted_in_words,
    preemption_in_words,
    served_in_words,
    state_in_words,
    stuck_in_words,
)
from weft.core.explain.smallest_change import ChangeSearch, SuggestedChange
from weft.core.framework import Profile
from weft.core.ledger import LedgerTable
from weft.dialects.catalog import RESOURCES
from weft.kube.pods import Pod
from weft.model import BadInputError, Code, PodRequest, Share
from weft.model.log_fields import PodReference

_CANDIDATES = 3
_STUCK = 10
_OVERBOOKED = 3
_OTHERS = 16
_FULL = (Code.GPU_MEMORY, Code.GPU_CORES, Code.GPU_SHARE, Code.NOT_IDLE)


class SearchOptions(msgspec.Struct, frozen=True):
    """Settings of the search for changes that would make a pod fit.

    `slice_s`: how long the search may delay other work at a time, except to finish a trial; it then
    pauses as long. `budget_s`: its total computing time. Trying 20,000 pods would take longer, so
    the smallest are tried first.
    """

    slice_s: float = 0.005
    budget_s: float = 1.0


class OverbookedAccounts(Protocol):
    """The source of overbooked GPUs, by node."""

    over: dict[str, tuple[OverbookedGpu, ...]]


class Explainer:
    """Explains the pods of one live cluster. `clock` times the search, in seconds.

    `progress_of` returns a pod's progress by UID, None if unknown.
    """

    def __init__(
        self,
        live: ClusterView,
        accounts: OverbookedAccounts,
        progress_of: Callable[[str], ObservedProgress | None] | None,
        options: SearchOptions | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._live, self._accounts = live, accounts
        self._progress_of, self._clock = progress_of, clock
        self._options = options or SearchOptions()

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Explain the pod as of now; None if no pod has this name."""
        try:
            explanation = await self._explain(namespace, name)
        except Exception as error:  # an error about one pod must not affect other answers
            explanation = self._broke_off(namespace, name, error)
        if explanation is None or self._progress_of is None:
            return explanation
        progress, residents = self._progress_of(explanation.uid), self._residents(explanation)
        return replace(explanation, progress=progress, residents=residents)

    def _residents(self, explanation: Explanation) -> tuple[ResidentSlowdown, ...]:
        """Return the observed slowdowns of the other pods on the explained pod's GPUs."""
        assert self._progress_of is not None
        found, ledger = dict[str, ResidentSlowdown](), self._live.engine.ledger
        for gpu in dict.fromkeys(share.gpu for share in explanation.shares):
            for uid in ledger.occupants(explanation.node, gpu):
                pod, progress = self._live.pods.by_uid(uid), self._progress_of(uid)
                if uid == explanation.uid or pod is None or progress is None:
                    continue
                if progress.slowdown:
                    meta = pod.metadata
                    found[uid] = ResidentSlowdown(
                        meta.namespace, meta.name, progress.slowdown, progress.source
                    )
        return tuple(found.values())

    def _broke_off(self, namespace: str, name: str, error: Exception) -> Explanation | None:
        why = self._live.faults.answering(PodReference(namespace, name), error)
        pod = self._live.pod(namespace, name)
        return None if pod is None else self._explanation(pod, "faulted", why)

    async def _explain(self, namespace: str, name: str) -> Explanation | None:
        pod = self._live.pod(namespace, name)
        if pod is None:
            return None
        metrics = None
        if self.settled(pod) is None:
            metrics = await self._metrics_if_pending(pod)
            before, pod = pod, self._live.pod(namespace, name)
            if pod is None or pod.metadata.uid != before.metadata.uid:
                return await self._explain(namespace, name)
        settled = self.settled(pod)
        if settled is not None:
            return await self._with_scores(settled)
        try:
            request = self._live.parse(pod)
        except BadInputError as error:
            return self._explanation(pod, "bad", str(error))
        return await self._pending(pod, request, metrics)

    def settled(self, pod: Pod) -> Explanation | None:
        """Return the explanation of a pod for which nothing has to be decided now; None for any
        other pod."""
        uid, spec = pod.metadata.uid, pod.spec
        if pod.ended:
            return self._explanation(pod, "ended", pod.status.phase)
        if spec.node_name or uid in self._live.engine.ledger.holdings:
            return self._bound(pod)
        if pod.metadata.deletion_timestamp:
            return self._explanation(pod, "deleted")
        if not self._live.pods.ours(pod):
            return self._anothers(pod)
        if spec.scheduling_gates:
            gates = ", ".join(gate.name for gate in spec.scheduling_gates)
            return self._explanation(pod, "gated", gates)
        return None

    def _explanation(self, pod: Pod, state: State, why: str = "", **more: Any) -> Explanation:
        meta = pod.metadata
        return Explanation(
            meta.namespace,
            meta.name,
            meta.uid,
            state,
            state_in_words(state, why),
            pod.spec.scheduler_name or "default-scheduler",
            self._live.leadership.here,
            **more,
        )

    # --- pods with a place ---

    def _bound(self, pod: Pod) -> Explanation:
        live, uid = self._live, pod.metadata.uid
        holding = live.engine.ledger.holdings.get(uid)
        placed = live.engine.placed.get(uid)
        node = pod.spec.node_name or (holding.placement.node if holding is not None else "")
        shares = holding.placement.shares if holding is not None else ()
        state: State = "bound" if pod.spec.node_name else "binding"
        at = place_in_words(node, shares, without=", without a GPU")
        others = self._others_beside(pod, node, shares)
        more: dict[str, Any] = {
            "node": node,
            "shares": shares,
            "stuck": self._stuck(uid),
            "others": others,
        }
        if placed is None:
            scheduler = pod.spec.scheduler_name or "default-scheduler"
            text = f"{at}; {bound_by_in_words(scheduler, live.pods.ours(pod))}"
            return self._explanation(pod, state, text, notes=self._notes_on(pod, node), **more)
        record = placed.record
        how = chosen_in_words(record, (policy.name for policy in placed.profile.policies))
        more |= {"profile": record.profile, "score": record.score, "attempt": record.attempt}
        notes = (*decision_notes(record, self._name), *self._notes_on(pod, node))
        return self._explanation(pod, state, f"{at}; {how}", notes=notes, **more)

    async def _with_scores(self, settled: Explanation) -> Explanation:
        """Add the scores of the placement, and the metrics behind it if this process decided it."""
        engine, placed = self._live.engine, self._live.engine.placed.get(settled.uid)
        if settled.state not in ("bound", "binding"):
            return settled
        if placed is None:
            return self._scored_now(settled)
        record = placed.record
        question = PlacementQuestion(
            placed.pod, placed.profile, record.attempt, gone=(settled.uid,)
        )
        return replace(
            settled,
            score_parts=score_in_words(engine, question, record.node, record.shares),
            candidates=record.top or best_now(engine, question, _CANDIDATES),
            rescored=not record.top,
            predicted=record.predicted,
            metrics=await self._metrics_of(placed),
        )

    def _scored_now(self, settled: Explanation) -> Explanation:
        """Add the scores that the place would have now, for a pod placed by Weft whose decision
        this process does not know."""
        engine, pod = self._live.engine, self._live.pods.by_uid(settled.uid)
        if pod is None or not settled.shares or not self._live.pods.ours(pod):
            return settled
        try:
            request = self._live.parse(replace(pod, spec=replace(pod.spec, node_name="")))
        except BadInputError:
            return settled
        asked = PlacementQuestion(request, engine.profile_of(request), 1, gone=(settled.uid,))
        return replace(
            settled,
            score_parts=score_in_words(engine, asked, settled.node, settled.shares),
            candidates=best_now(engine, asked, _CANDIDATES),
            rescored=True,
        )

    async def _metrics_of(self, placed: PlacedPod) -> MetricsRead | None:
        """Return the metrics of the pod's GPUs when it was placed, and how metrics would change
        its placement if it were decided now; None if its profile reads no metrics."""
        record, saw = placed.record, placed.saw
        on = "" if placed.queued else record.node
        asked = PlacementQuestion(placed.pod, placed.profile, record.attempt, on, (record.uid,))
        now = await self._decided_again(
            asked, record.at_ns, AlternativePlacement(record.node, record.shares)
        )
        if now is None or saw is None:
            return None if now is None else replace(now, gpus=())
        gpus = sorted({share.gpu for share in record.shares})
        then = tuple(
            values_of(saw.columns, saw.gpus.get(gpu), now.columns, (record.node, gpu))
            for gpu in gpus
        )
        return replace(now, looked_s=(record.at_ns - saw.looked_ns) / SECOND_NS, gpus=then)

    def _notes_on(self, pod: Pod, node: str) -> tuple[str, ...]:
        live = self._live
        notes = []
        if node not in live.nodes.nodes:
            notes.append(node_gone_in_words(node))
        for said in (live.pods.assumed, live.pods.told):
            if (why := said.get(pod.metadata.uid)) is not None:
                notes.append(f"it {why}")
        notes += [doubt.text for doubt in live.pods.doubts.get(pod.metadata.uid, ())]
        notes += [by_claim_in_words(name) for name in live.pods.claims.of_pod(pod.metadata.uid)]
        if (ended := live.engine.preemption.going.get(pod.metadata.uid)) is not None:
            notes.append(preempted_in_words(ended))
        for over in self._accounts.over.get(node, ()):
            if pod.metadata.uid in over.holders:
                notes.append(f"{node}: {over}")
        with contextlib.suppress(BadInputError):  # another scheduler bound it unread
            notes += live.parse(pod).warnings
        return tuple(notes)

    def _stuck(self, uid: str = "") -> tuple[StuckPod, ...]:
        stuck = self._live.stuck()
        return tuple(pod for pod in stuck if pod.uid == uid) if uid else tuple(stuck[:_STUCK])

    # --- pods without a place ---

    def _anothers(self, pod: Pod) -> Explanation:
        """Explain another scheduler's pod, and what Weft would answer if kube-scheduler asked it as
        an extender."""
        live = self._live
        scheduler = pod.spec.scheduler_name or "default-scheduler"
        served = [name for name in live.engine.profiles if live.pods.ours(_named(pod, name))]
        notes = [served_in_words(served)]
        try:
            request = live.parse_asked(pod)
        except BadInputError as error:
            notes.append(extender_in_words(None, str(error)))
            return self._explanation(pod, "not ours", scheduler, notes=tuple(notes))
        known = live.engine.assess(live.engine.profile_of(request), request)
        summary = summarise(live.engine.ledger.table, known, request.warnings)
        notes.append(extender_in_words(summary))
        notes += _beyond_advertised(live.engine.ledger.table, known, summary)
        return self._explanation(
            pod, "not ours", scheduler, notes=tuple(notes), summary=summary, reason=str(summary)
        )

    async def _metrics_if_pending(self, pod: Pod) -> MetricsRead | None:
        """Return the metrics that would count if the pod were decided now; None if there are none,
        or the pod cannot be read."""
        engine = self._live.engine
        try:
            request = self._live.parse(pod)
        except BadInputError:
            return None
        asked = PlacementQuestion(request, engine.profile_of(request), self._tries(request.uid) + 1)
        now_ns = int(self._live.client.clock.monotonic() * SECOND_NS)
        return await self._decided_again(asked, now_ns, AlternativePlacement())

    def _tries(self, uid: str) -> int:
        waiting = self._live.engine.queue.waiting()
        return next((entry.tries for entry in waiting if entry.pod.uid == uid), 0)

    async def _decided_again(
        self, asked: PlacementQuestion, at_ns: int, place: AlternativePlacement
    ) -> MetricsRead | None:
        """Return the result of `metrics_in_steps`; pause after each step for as long as it took."""
        steps = metrics_in_steps(self._live.engine, asked, at_ns, place)
        while True:
            began = self._clock()
            try:
                next(steps)
            except StopIteration as ended:
                return cast("MetricsRead | None", ended.value)
            await asyncio.sleep(self._clock() - began)

    async def _pending(
        self, pod: Pod, request: PodRequest, metrics: MetricsRead | None
    ) -> Explanation:
        live, engine = self._live, self._live.engine
        profile = engine.profile_of(request)
        known = engine.assess(profile, request)
        summary = summarise(engine.ledger.table, known, request.warnings)
        notes = [] if live.leadership.here else [FOLLOWS]
        more: dict[str, Any] = {
            "profile": profile.name,
            "summary": summary,
            "reason": str(summary),
            "attempt": self._tries(request.uid),
            "metrics": metrics,
        }
        notes += request.warnings
        gang_waits = False
        if request.gang and (members := engine.queue.gangs.of(request.gang)) is not None:
            notes.append(gang_in_words(gang_now(engine, members)))
            gang_waits = not members.has_quorum
        charged = engine.oom_history.charged(request)
        notes += [charged_in_words(charged)] if charged else []
        if request.shape.gpu_requests:
            more["stuck"] = stuck = self._stuck()
            notes += [stuck_in_words(stuck)] if stuck else []
        notes += _beyond_advertised(engine.ledger.table, known, summary)
        unsupported = request.shape.constraints.unsupported
        if unsupported:
            return self._explanation(pod, "unsupported", unsupported, notes=tuple(notes), **more)
        if summary.fits:
            best = tuple(best_nodes(engine.ledger.table, known, profile, _CANDIDATES))
            return self._explanation(
                pod,
                "pending",
                GANG_WAITS if gang_waits else ROOM_NOW,
                candidates=best,
                notes=tuple(notes),
                **more,
            )
        notes += [*kept_for(engine, request), *kept_from(engine, profile, request)]
        notes += self._on_nodes(known)
        others, left_out = await self._others_in_the_way(known)
        changes, searched = await self._changes(profile, request)
        notes += self._on_preemption(request, pod, changes)
        more |= {"changes": changes, "searched": searched, "notes": tuple(notes)}
        more |= {"others": others, "others_left_out": left_out}
        return self._explanation(pod, "pending", NOWHERE, **more)

    def _on_nodes(self, known: Assessment) -> list[str]:
        """Return notes on nodes that need attention: cordoned, not ready, or with overbooked
        GPUs."""
        live, table = self._live, self._live.engine.ledger.table
        with_gpus = (table.gpus > 0) | (not known.demand.needs)
        rows = np.flatnonzero((known.codes == Code.UNSCHEDULABLE) & with_gpus).tolist()
        closed = [table.nodes[row].name for row in rows]
        shown = live.nodes.objects
        cordoned = [name for name in closed if name in shown and shown[name].spec.unschedulable]
        said = closed_in_words(cordoned, [name for name in closed if name not in cordoned])
        full = np.flatnonzero(np.isin(known.codes, _FULL)).tolist()
        over = [
            (name, self._accounts.over.get(name, ()))
            for name in (table.nodes[r].name for r in full)
        ]
        overbooked = [f"{name}: {gpu}" for name, gpus in over for gpu in gpus]
        return [said] * bool(said) + overbooked[:_OVERBOOKED]

    def _others_beside(
        self, pod: Pod, node: str, shares: tuple[Share, ...]
    ) -> tuple[OthersShare, ...]:
        """Return the shares of the bound pod's GPUs, and of its claims' GPUs, that Weft did not
        place."""
        meta, claims = pod.metadata, self._live.pods.claims
        gpus = {share.gpu for share in shares}
        for charge in claims.charges_on(node):
            if any(user.uid == meta.uid for user in charge.claim.status.reserved_for or ()):
                gpus |= {share.gpu for share in charge.shares}
        return tuple(each for each in others_on(self._live.pods, node) if each.gpu in gpus)

    async def _others_in_the_way(self, known: Assessment) -> tuple[tuple[OthersShare, ...], bool]:
        """Return shares that Weft did not place on nodes that are too full, and whether the list is
        incomplete: only the first few are returned, and the search takes a limited time."""
        found: list[OthersShare] = []
        table = self._live.engine.ledger.table
        full = np.flatnonzero(np.isin(known.codes, _FULL)).tolist()
        began, left_s = self._clock(), self._options.budget_s
        for name in [table.nodes[row].name for row in full]:
            if len(found) >= _OTHERS or left_s <= 0:
                return tuple(found), True
            found += others_on(self._live.pods, name)
            if (took_s := self._clock() - began) >= self._options.slice_s:
                left_s -= took_s
                await asyncio.sleep(took_s)
                began = self._clock()
        return tuple(found), False

    async def _changes(
        self, profile: Profile, request: PodRequest
    ) -> tuple[tuple[SuggestedChange, ...], bool]:
        """Search for changes that would make the pod fit, in slices; return them, and True if all
        were tried."""

        def rank(uid: str) -> int:
            return int(self._priority(uid) >= request.priority)

        search = ChangeSearch(self._live.engine, profile, request, rank, self._name)
        steps = search.steps()
        left_s = self._options.budget_s
        while not search.ended and left_s > 0:
            began = self._clock()
            while next(steps, _END) is not _END:
                if self._clock() - began >= self._options.slice_s:
                    break
            took_s = self._clock() - began
            left_s -= took_s
            await asyncio.sleep(took_s)
        changes = (SuggestedChange(made.axis, made.text, made.free) for made in search.confirmed())
        return tuple(changes), search.ended

    def _priority(self, uid: str) -> int:
        pod = self._live.pods.by_uid(uid)
        return (pod.spec.priority or 0) if pod is not None else 0

    def _on_preemption(
        self, request: PodRequest, pod: Pod, changes: tuple[SuggestedChange, ...]
    ) -> list[str]:
        """Return a note on the pods that are preempted for the pod, or would be if its profile
        preempted."""
        engine = self._live.engine
        if (kept := engine.preemption.nominations.get(request.uid)) is not None:
            return [node_kept_for(engine, kept, self._live.pods.name_of)]
        if engine.profile_of(request).preempts:
            return []
        freed = next((change.free for change in changes if change.free), ())
        lower = [uid for uid in freed if self._priority(uid) < request.priority]
        claimed = any(map(self._live.pods.claims.holds, freed))  # claims are never preempted
        others = engine.teams.part and {*map(engine.teams.name_of, freed)} != {request.team_queue}
        never = claimed or others or pod.spec.preemption_policy == "Never"
        if not freed or len(lower) < len(freed) or never:
            return []
        names = (self._name(uid) or f"UID {uid}" for uid in freed)
        return [preemption_in_words(names, request.priority, WAY_OUT)]

    def _name(self, uid: str) -> str:
        known = self._live.pods.by_uid(uid) is not None or self._live.pods.claims.holds(uid)
        return self._live.pods.name_of(uid) if known else ""


_END = object()


def _beyond_advertised(
    table: LedgerTable, known: Assessment, summary: FeasibilitySummary
) -> list[str]:
    """Return notes on GPU resources of which nodes advertise too little, if that keeps the pod from
    fitting."""
    notes = []
    for lacks in summary.reasons:
        if lacks.code != Code.EXTENDED or lacks.unit not in RESOURCES:
            continue
        column, rows = table.extended[lacks.unit], np.flatnonzero(known.codes == Code.EXTENDED)
        best = int(rows[column.take(rows).argmax()])
        node = table.nodes[best]
        left, advertised = int(column[best]), node.extended[lacks.unit]
        notes.append(beyond_advertised_in_words(lacks, left, advertised, node.name))
    return notes


def _named(pod: Pod, scheduler_name: str) -> Pod:
    return replace(pod, spec=replace(pod.spec, scheduler_name=scheduler_name))

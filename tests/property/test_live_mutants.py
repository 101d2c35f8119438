"""The schedules would notice: each of these mistakes, put into the live scheduler, is caught."""

import logging
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec
import pytest
from live_story import schedule
from ways import DEFAULT, FIRST, WAYS

import weft.cluster.state.pods
import weft.kube.bind
from weft.cluster.control.fault_log import FaultLog
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.control.volume_binder import VolumeBinder
from weft.cluster.state.bound_share import BoundShare, held_by
from weft.cluster.state.pods import PodView
from weft.core.constraints import ExistingPods
from weft.core.engine import Bind, BindFailed, Engine, PodGone, head_of_line
from weft.core.engine.assessment import Assessor
from weft.core.engine.decision_faults import SideTasks
from weft.core.engine.kept_places import KeptPlaces, LineTurn
from weft.core.ledger import Ledger
from weft.kube.bind import Binder, BindRequest, Bound, Refused
from weft.kube.client import ApiClient
from weft.kube.errors import ExpiredError
from weft.kube.lease import Elector, LeaseObservation
from weft.kube.watch import ChangeStream, Deleted, KnownObjects, WatchPlan, WatchStep

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


async def _at_once(*_: object, **__: object) -> None:
    """Does nothing, as a forgotten step."""


def a_dropped_reservation(patch: Patch) -> None:
    patch.setattr(Ledger, "reserve", lambda *_: True)


def a_double_release(patch: Patch) -> None:
    once = Ledger._take_away

    def twice(self: Ledger, held: Any) -> None:
        once(self, held)
        self._book(held.placement.node, held, -1)

    patch.setattr(Ledger, "_take_away", twice)


def freed_when_deletion_is_asked(patch: Patch) -> None:
    rightly = PodView._classify

    def classify(self: PodView, pod: Any) -> Any:
        going = pod.metadata.deletion_timestamp
        return self._gone(pod.metadata.uid) if going else rightly(self, pod)

    patch.setattr(PodView, "_classify", classify)


def a_term_that_never_ends(patch: Patch) -> None:
    patch.setattr(Elector, "may_bind", lambda *_: True)


def no_waiting_for_the_old_lease(patch: Patch) -> None:
    patch.setattr(LeaseObservation, "free_in_s", lambda *_: 0.0)


def a_lost_answer_taken_for_a_failure(patch: Patch) -> None:
    async def resolve(*_: object) -> Refused:
        return Refused(0, "")

    patch.setattr(Binder, "resolve", resolve)


def a_lost_answer_taken_for_success(patch: Patch) -> None:
    async def resolve(*_: object) -> Bound:
        return Bound()

    patch.setattr(Binder, "resolve", resolve)


def no_uid_as_precondition(patch: Patch) -> None:
    rightly = weft.kube.bind.encode

    def encode(request: BindRequest, version: str) -> bytes:
        body = msgspec.json.decode(rightly(request, version))
        del body["metadata"]["uid"]
        return msgspec.json.encode(body)

    patch.setattr(weft.kube.bind, "encode", encode)


def no_fence(patch: Patch) -> None:
    patch.setattr(Binder, "_fence", _at_once)


def a_conflict_retried_without_looking_what_changed(patch: Patch) -> None:
    rightly = EngineCluster._request

    def request(self: EngineCluster, command: Bind, version: str) -> BindRequest:
        made = rightly(self, command, version)
        return msgspec.structs.replace(made, unchanged=lambda _: True)

    patch.setattr(EngineCluster, "_request", request)


def the_version_of_the_send_instead_of_the_decision(patch: Patch) -> None:
    rightly = EngineCluster._request

    def request(self: EngineCluster, command: Bind, version: str) -> BindRequest:
        pod = self._pods.by_uid(command.pod.uid)
        now = pod.metadata.resource_version if pod and version else ""
        return rightly(self, command, now)

    patch.setattr(EngineCluster, "_request", request)


def an_extender_bind_without_a_reservation(patch: Patch) -> None:
    rightly = Engine._bind_requested

    def bind_requested(self: Engine, event: Any, now_ns: int, out: list[Any]) -> None:
        held = event.pod.uid in self.ledger.holdings
        rightly(self, event, now_ns, out)
        if not held:
            self.ledger.release(event.pod.uid)

    patch.setattr(Engine, "_bind_requested", bind_requested)


def foreign_pods_charged_nothing(patch: Patch) -> None:
    def held(*given: Any) -> BoundShare:
        found = held_by(*given)
        if not found.why:
            return found
        return BoundShare(msgspec.structs.replace(found.placement, shares=()), found.why)

    patch.setattr(weft.cluster.state.bound_share, "held_by", held)


def deletions_lost_when_listing_again(patch: Patch) -> None:
    rightly = KnownObjects.replace

    def replace(self: KnownObjects[Any], *given: Any) -> list[Any]:
        return [change for change in rightly(self, *given) if not isinstance(change, Deleted)]

    patch.setattr(KnownObjects, "replace", replace)


def an_expired_watch_resumed_without_a_list(patch: Patch) -> None:
    rightly = WatchPlan.failed

    def failed(self: WatchPlan, error: Exception) -> WatchStep:
        then = rightly(self, error)
        return then._replace(step="watch") if isinstance(error, ExpiredError) else then

    patch.setattr(WatchPlan, "failed", failed)


def leading_on_old_lists(patch: Patch) -> None:
    patch.setattr(ChangeStream, "list_again", _at_once)


def a_silent_watch_never_given_up(patch: Patch) -> None:
    rightly = ApiClient.stream
    patch.setattr(ApiClient, "stream", lambda self, path, query, _: rightly(self, path, query, 1e6))


def a_failed_binding_forgotten(patch: Patch) -> None:
    rightly = EngineCluster.handle

    def handle(self: EngineCluster, event: Any) -> list[Any]:
        return [] if isinstance(event, BindFailed) else rightly(self, event)

    patch.setattr(EngineCluster, "handle", handle)


def scores_made_ahead_for_the_nodes_of_before(patch: Patch) -> None:
    def work_ahead(self: Assessor, _: int) -> None:
        while self.dear:
            known = self.dear.pop()
            if self._known.get((known.profile.name, known.shape)) is known:
                self._bring_up(known)

    patch.setattr(Assessor, "work_ahead", work_ahead)


def learning_that_breaks_off(patch: Patch) -> None:
    """Where nothing is left to learn from."""
    rightly = TypicalInput.count

    async def count(self: TypicalInput) -> None:
        if not self._live.pods.unbound():
            raise ZeroDivisionError
        await rightly(self)

    patch.setattr(TypicalInput, "count", count)


def mistakes_beside_deciding_are_raised(patch: Patch) -> None:
    def broke_off(self: SideTasks, task: str, error: Exception) -> None:
        raise error

    patch.setattr(SideTasks, "broke_off", broke_off)


def mistakes_in_gauges_are_raised(patch: Patch) -> None:
    def task(self: FaultLog, task: str, error: Exception) -> None:
        raise error

    patch.setattr(FaultLog, "task", task)


def what_was_there_at_the_start_is_never_freed(patch: Patch) -> None:
    rightly = Engine._gone

    def gone(self: Engine, event: PodGone, *given: Any) -> None:
        if event.uid in self.placed or event.uid not in self.ledger.holdings:
            rightly(self, event, *given)

    patch.setattr(Engine, "_gone", gone)


def a_lost_gpu_is_given_away(patch: Patch) -> None:
    """A node's changed inventory is not taken in."""
    rightly = Ledger.set_nodes

    def set_nodes(self: Ledger, nodes: Any, removed: Any = ()) -> bool:
        known = self.table.row_of
        return rightly(self, [node for node in nodes if node.name not in known], removed)

    patch.setattr(Ledger, "set_nodes", set_nodes)


def gated_pods_wait_too(patch: Patch) -> None:
    def unbound(self: PodView) -> list[Any]:
        pods = self.pods.values()
        return [pod for pod in pods if not pod.spec.node_name and not pod.ended]

    patch.setattr(PodView, "unbound", unbound)


def pods_there_count_for_no_rule(patch: Patch) -> None:
    patch.setattr(ExistingPods, "put", lambda *_: None)


def volumes_are_not_waited_for(patch: Patch) -> None:
    async def bound(self: VolumeBinder, command: Bind) -> str:
        return ""

    patch.setattr(VolumeBinder, "bind", bound)


def a_resize_is_overlooked(patch: Patch) -> None:
    patch.setattr(weft.cluster.state.pods, "as_set_aside", lambda pod: pod)


def a_kept_place_stays_held(patch: Patch) -> None:
    def end(engine: Engine, turn: LineTurn, *_: object) -> None:
        del engine.kept_places.turns[turn.key]

    patch.setattr(head_of_line, "end", end)


def nobody_wakes_when_a_kept_place_is_over(patch: Patch) -> None:
    patch.setattr(KeptPlaces, "next_ns", lambda _, wake_ns, __: wake_ns)


MUTANTS = [
    a_dropped_reservation,
    a_double_release,
    freed_when_deletion_is_asked,
    a_term_that_never_ends,
    no_waiting_for_the_old_lease,
    a_lost_answer_taken_for_a_failure,
    a_lost_answer_taken_for_success,
    no_uid_as_precondition,
    no_fence,
    a_conflict_retried_without_looking_what_changed,
    the_version_of_the_send_instead_of_the_decision,
    an_extender_bind_without_a_reservation,
    foreign_pods_charged_nothing,
    deletions_lost_when_listing_again,
    an_expired_watch_resumed_without_a_list,
    leading_on_old_lists,
    a_silent_watch_never_given_up,
    a_failed_binding_forgotten,
    scores_made_ahead_for_the_nodes_of_before,
    learning_that_breaks_off,
    mistakes_beside_deciding_are_raised,
    mistakes_in_gauges_are_raised,
    what_was_there_at_the_start_is_never_freed,
    a_lost_gpu_is_given_away,
    gated_pods_wait_too,
    pods_there_count_for_no_rule,
    volumes_are_not_waited_for,
    a_resize_is_overlooked,
    a_kept_place_stays_held,
    nobody_wakes_when_a_kept_place_is_over,
]
SHOWN_BY = {"gated_pods_wait_too": WAYS["interference"]}  # by policies that match waiting pods
WITH_MISTAKES = (
    "mistakes_beside_deciding_are_raised",
    "mistakes_in_gauges_are_raised",
)
CAUGHT_SOON = {
    a_dropped_reservation: 0,
    a_double_release: 3,
    freed_when_deletion_is_asked: 20,
    no_waiting_for_the_old_lease: 3,
    scores_made_ahead_for_the_nodes_of_before: 0,
    mistakes_in_gauges_are_raised: 0,
    pods_there_count_for_no_rule: 0,
    volumes_are_not_waited_for: 0,
}
"""At which schedule the short form begins: where they were caught when this was written."""
MOST = 400


def caught_after(name: str, begin: int = 0) -> tuple[int, str]:
    """How many schedules it takes until one fails, and what it says; 0 for never."""
    mutant = next(one for one in MUTANTS if one.__name__ == name)
    logging.disable(logging.CRITICAL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            mutant(patch)
            for seed in range(begin, MOST):
                try:
                    way = SHOWN_BY.get(name, DEFAULT)
                    schedule(FIRST + seed, way, mistakes=name in WITH_MISTAKES)
                except (
                    AssertionError,
                    RuntimeError,
                    KeyError,
                    ValueError,
                    ArithmeticError,
                ) as error:
                    return seed + 1, str(error).splitlines()[0][:100]
    finally:
        logging.disable(logging.NOTSET)
    return 0, ""


@pytest.mark.parametrize("mutant", CAUGHT_SOON, ids=lambda mutant: mutant.__name__)
def test_the_schedules_catch(mutant: Mutant) -> None:
    assert caught_after(mutant.__name__, CAUGHT_SOON[mutant])[0]


@pytest.mark.faults
def test_the_schedules_catch_every_mutant() -> None:
    names = [mutant.__name__ for mutant in MUTANTS]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        found = dict(zip(names, pool.map(caught_after, names), strict=True))
    table = [f"{count:4} {name}: {what}" for name, (count, what) in found.items()]
    print("\nschedules until it is caught\n" + "\n".join(table))  # noqa: T201
    assert [name for name, (count, _) in found.items() if not count] == []

"""FGD's protocol: pods arrive one by one until demand passes capacity; nobody leaves or retries."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from weft.core.engine import Bind, PodAdded, PodBound, PodGone, Unschedulable
from weft.core.record import DecisionsWriter
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.holdings import OnHoldings
from weft.lab.simulate.meter import Meter
from weft.lab.simulate.on_record import PROFILE, Decider
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.scenario import Scenario
from weft.model import PodRequest


def run_inflation(
    scenario: Scenario,
    decider: Decider,
    arrivals: Arrivals,
    *,
    timing: bool = True,
    decisions: DecisionsWriter | None = None,
    progress: Callable[[int], None] | None = None,
    on_holdings: OnHoldings | None = None,
) -> PolicyRun:
    """One policy or profile on one arrival order. A pod that fits nowhere is withdrawn.

    What happens in the scenario's world has happened before the first pod comes. `decisions` takes
    the decisions file. `progress` is called with the number of pods done, every thousand;
    `on_holdings` after the last.
    """
    engine, handle = scenario.start(decider, arrivals, decisions)
    for happens in scenario.world:
        handle(happens.event, 0)
    meter = Meter(engine, scenario.typical(), scenario.capacity_milli)
    asked_milli = 0
    for at, row in enumerate(arrivals.pod_rows):
        pod = scenario.pods[row]
        uid = str(at)
        meter.arrives(pod.total_milli)
        commands = handle(PodAdded(_request(pod, uid)), at)
        outcome = commands[0]
        if isinstance(outcome, Bind):
            handle(PodBound(uid), at)
            asked_milli += pod.total_milli
        else:
            assert isinstance(outcome, Unschedulable)
            handle(PodGone(uid), at)
            meter.refused(outcome.record, at)
        meter.arrived(pod.total_milli, asked_milli)
        if progress is not None and at % 1000 == 999:
            progress(at + 1)
    run = meter.result(decider.name, arrivals.seed, meter.refusals, asked_milli, timing=timing)
    if on_holdings is not None:
        arrived = [scenario.pods[row] for row in arrivals.pod_rows]
        on_holdings(engine, lambda uid: name_of(uid, arrived))
    return run


def name_of(uid: str, arrived: Sequence[TracePod]) -> str:
    """The name of a pod that arrived as the one of this number; others have only their UID."""
    return arrived[int(uid)].name if uid.isdecimal() and int(uid) < len(arrived) else uid


def _request(pod: TracePod, uid: str) -> PodRequest:
    if pod.request is None:
        return PodRequest(uid, pod.name, pod.shape)
    return replace(pod.request, uid=uid, scheduler_name=PROFILE)

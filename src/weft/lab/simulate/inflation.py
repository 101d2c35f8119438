"""FGD's protocol: pods arrive one by one until demand exceeds capacity; none leaves or is retried.

Pods of a gang are placed one by one too, since no pod waits for another."""

from collections.abc import Callable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine import Bind, PodAdded, PodBound, PodGone, Unschedulable, Wake
from weft.core.record import DecisionsWriter
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.event_loop import ARRIVES, PROFILE, Decider, EventLoop
from weft.lab.simulate.holdings import OnHoldings
from weft.lab.simulate.meter import Meter
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
    """Run one policy or profile on one arrival order. A pod that fits nowhere is deleted.

    The scenario's world events all happen before the first pod arrives. `decisions` receives the
    decisions file. `progress` is called after every thousand pods with their number, `on_holdings`
    after the last pod."""
    run = _Inflation(scenario, decider, arrivals, decisions, progress)
    run.run()
    if on_holdings is not None:
        on_holdings(run.engine, lambda uid: name_of(uid, run.pods))
    meter, asked_milli = run.meter, run.asked_milli
    return meter.result(decider.name, arrivals.seed, meter.refusals, asked_milli, timing=timing)


class _Inflation(EventLoop[int]):
    """A run whose clock shows the number of the arriving pod."""

    nobody = 0

    def __init__(
        self,
        scenario: Scenario,
        decider: Decider,
        arrivals: Arrivals,
        decisions: DecisionsWriter | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.pods = [scenario.pods[row] for row in arrivals.pod_rows]
        heap = [(number, ARRIVES, number) for number in range(len(self.pods))]
        if scenario.preempts:  # pods stay for ever, so none is preempted
            scenario = replace(scenario, preempt=False)
        super().__init__(*scenario.start(decider, arrivals, decisions), heap)
        for happens in scenario.world:
            self._handle(happens.event, 0)
        self.meter = Meter(self.engine, scenario.typical(), scenario.capacity_milli)
        self.asked_milli = 0
        self._progress = progress

    def _happens(self, kind: int, key: int) -> None:
        pod = self.pods[key]
        self.meter.arrives(pod.total_milli)
        self.tell(PodAdded(_request(pod, str(key))))
        self.meter.arrived(pod.total_milli, self.asked_milli)
        if self._progress is not None and key % 1000 == 999:
            self._progress(key + 1)

    def _bind(self, command: Bind) -> None:
        self._handle(PodBound(command.pod.uid), self.now)
        self.asked_milli += self.pods[self.now].total_milli

    def _refused(self, command: Unschedulable) -> None:
        self._handle(PodGone(str(self.now)), self.now)
        self.meter.refused(command.record, self.now)

    def _wake(self, command: Wake) -> None:
        """Ignore wake-ups, since no pod is retried."""


def name_of(uid: str, arrived: Sequence[TracePod]) -> str:
    """Return the name of the pod with this number as UID; return any other UID unchanged."""
    return arrived[int(uid)].name if uid.isdecimal() and int(uid) < len(arrived) else uid


def _request(pod: TracePod, uid: str) -> PodRequest:
    if pod.request is None:
        return PodRequest(uid, pod.name, pod.shape)
    return replace(pod.request, uid=uid, scheduler_name=PROFILE, gang=UNSET)

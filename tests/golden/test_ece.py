"""Ferikoglou's published scheduler logs, replayed: every number and decision in them, from ours.

Each log is read check by check. From the series that the log prints, `knots.decide` must find the
logged coefficient of variation, percentile, harvested memory, autocorrelation, regression,
prediction and decision, to the last printed digit. The tests count what they compared: a log
parsed half would not pass.
"""

import gzip
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kube_knots_original import GoHeap
from kube_knots_slowly import (
    PUBLISHED,
    KnotsDecision,
    KnotsRule,
    decide,
    window_start,
)

LEVELS = (0, 50, 100)
CAPACITY = PUBLISHED.capacity_mib
REQUEST = {0: 6994, 50: 10491, 100: 13988}  # MiB: min(6994 · (1 + level), capacity)
COUNTS = {  # values of each kind in each log; cov_unprinted: logged, but of a series that was not
    0: Counter(
        cov=1022,
        cov_unprinted=11,
        percentile=665,
        index=665,
        harvested=665,
        autocorrelation=1013,
        intercept=264,
        slope=264,
        prediction=264,
        decision=1043,
        available=1243,
    ),
    50: Counter(
        cov=1546,
        cov_unprinted=19,
        percentile=594,
        index=594,
        harvested=594,
        autocorrelation=1542,
        intercept=257,
        slope=257,
        prediction=257,
        decision=1570,
        available=1309,
    ),
    100: Counter(
        cov=1820,
        cov_unprinted=6,
        percentile=375,
        index=375,
        harvested=375,
        autocorrelation=1802,
        intercept=768,
        slope=768,
        prediction=768,
        decision=1829,
        available=1328,
    ),
}
ADMITTED = {  # decisions by the rule that admitted
    0: {KnotsRule.REQUESTS: 10, KnotsRule.CORRELATION: 20, KnotsRule.PEAK: 1},
    50: {KnotsRule.REQUESTS: 5, KnotsRule.CORRELATION: 23, KnotsRule.PEAK: 3},
    100: {KnotsRule.REQUESTS: 3, KnotsRule.CORRELATION: 24, KnotsRule.PEAK: 4},
}


@dataclass
class Check:
    """One pod tried, as the log tells it."""

    pod: str
    asked_s: float
    logged: dict[str, str] = field(default_factory=dict)
    free: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    why: KnotsRule = KnotsRule.REFUSED


@dataclass
class Round:
    """The log between two prints of the state: pods tried, and then the state."""

    checks: list[Check] = field(default_factory=list)
    found: list[tuple[int, str]] = field(default_factory=list)  # while check i ran, a pod
    at_s: float = 0.0
    available: int = 0
    running: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)


@dataclass
class Told:
    """The log between rounds: a pod was found or placed, or could not be bound."""

    kind: str
    pod: str
    at_s: float


@dataclass
class Log:
    """A whole run, as it is told."""

    steps: list[Round | Told] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)

    @property
    def rounds(self) -> list[Round]:
        return [step for step in self.steps if isinstance(step, Round)]


VALUE = re.compile(
    r"(?P<cov>COV) += \S+|(?P<index>Index) += \S+|(?P<percentile>80perc-ile) += \S+"
    r"|(?P<harvested>Harvested GPU Available Memory) = \S+"
    r"|(?P<autocorrelation>Autocorrelation of order 10) = \S+"
    r"|(?P<prediction>Free GPU Memory Prediction in 10 sec) = \S+"
)
MODEL = re.compile(r"AR\(1\) Model : y\[i\] = (\S+) \+ (\S+) \* y\[i-1\]")
ADMITS = {
    "CAN be satisfied.": KnotsRule.REQUESTS,
    "CAN be satisfied through CORRELATION BASED PREDICTION.": KnotsRule.CORRELATION,
    "CAN be satisfied through PEAK PREDICTION.": KnotsRule.PEAK,
}


def read(path: Path) -> Log:
    log, now = Log(), Round()
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        stamp, _, said = line.partition("\t")
        if "Failed to bind pod" in line:
            log.steps.append(Told("failed", "", 0.0))
        elif said.startswith("Found a pod"):
            pod, request = re.findall(r"default/(\S+)\] / Assigned Priority : (\d+)", said)[0]
            log.requests[pod] = int(request)
            if now.checks:
                now.found.append((len(now.checks) - 1, pod))
            else:
                log.steps.append(Told("found", pod, seconds(stamp)))
        elif said.startswith("Placed pod"):
            pod = re.findall(r"default/(\S+)\]", said)[0]
            log.steps.append(Told("placed", pod, seconds(stamp)))
        elif said.startswith("Check whether pod"):
            now.checks.append(Check(said.split()[3], seconds(stamp)))
        elif said.startswith("Available GPU Memory"):
            now.available = int(said.split()[4])
        elif said.startswith("Running pods"):
            now.running = said.partition("[")[2].rstrip("] ").split()
        elif said.startswith("Temp List pods"):
            now.rejected = said.partition("[")[2].rstrip("] ").split()
            now.at_s = seconds(stamp)
            log.steps.append(now)
            now = Round()
        elif now.checks:
            read_number(now.checks[-1], said)
    assert not now.checks, "the log ends within a check"
    return log


def read_number(check: Check, said: str) -> None:
    if match := VALUE.match(said):
        check.logged[str(match.lastgroup)] = said.partition("=")[2].split()[0]
    elif match := MODEL.match(said):
        check.logged["intercept"], check.logged["slope"] = match.groups()
    elif said.startswith("Sorted Values"):
        check.used = numbers(said)
    elif said.startswith("Values"):
        check.free = numbers(said)
    elif said.startswith("values :"):
        assert numbers(said) == check.free
    elif (why := ADMITS.get(said.removeprefix("The pod GPU memory request "))) is not None:
        check.why = why


def seconds(stamp: str) -> float:
    """Since midnight; no run passes it."""
    hours, minutes, rest = stamp.split()[1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def numbers(said: str) -> list[float]:
    return [float(word) for word in re.findall(r"\[(.*)\]", said)[0].split()]


def as_logged(verdict: KnotsDecision) -> dict[str, str]:
    """The original's output for these numbers."""
    printed = {
        "cov": verdict.cov,
        "percentile": verdict.percentile,
        "autocorrelation": verdict.autocorrelation,
        "intercept": verdict.intercept,
        "slope": verdict.slope,
    }
    whole = {
        "index": verdict.index,
        "harvested": verdict.harvested_mib,
        "prediction": verdict.predicted_mib,
    }
    said = {kind: f"{value:.6f}" for kind, value in printed.items() if value is not None}
    return said | {kind: str(value) for kind, value in whole.items() if value is not None}


@pytest.fixture(scope="module", params=LEVELS, ids=lambda level: f"overprovisioned-{level}")
def run(request: pytest.FixtureRequest, weft_data: Path) -> tuple[int, Log]:
    level = request.param
    return level, read(weft_data / "ece" / f"overprov_{level}" / "custom-scheduler.log.gz")


@pytest.mark.data
def test_every_logged_number_and_decision(run: tuple[int, Log]) -> None:
    level, log = run
    compared: Counter[str] = Counter()
    admitted: Counter[KnotsRule] = Counter()
    account = Account(log.requests)
    for at in log.steps:
        if not isinstance(at, Round):
            account.told(at)
            continue
        available = account.after_finished(at.running)
        assert at.available == available
        compared["available"] += 1
        for check in at.checks:
            verdict = replay(check, log.requests[check.pod], available)
            found, logged = as_logged(verdict), dict(check.logged)
            if check.used and not check.free:
                # What COV was computed from was not printed; used memory says about what it was.
                assert float(logged["cov"]) < PUBLISHED.steady_below
                kind = "cov" if found["cov"] == logged["cov"] else "cov_unprinted"
                compared[kind] += 1
                del found["cov"], logged["cov"]
            assert (verdict.why, found) == (check.why, logged)
            compared += Counter(logged.keys())
            compared["decision"] += 1
            admitted[check.why] += check.why.admits
    assert set(log.requests.values()) == {REQUEST[level]}
    assert compared == COUNTS[level]
    assert {why: count for why, count in admitted.items() if why.admits} == ADMITTED[level]


class Account:
    """The account of a card: its pods, and the rest; a place takes, a finished pod gives back."""

    def __init__(self, requests: dict[str, int]) -> None:
        self.requests, self.running, self.available_mib = requests, list[str](), CAPACITY

    def told(self, told: Told) -> None:
        if told.kind == "placed":
            self.running.append(told.pod)
            self.available_mib -= self.requests[told.pod]

    def after_finished(self, running: list[str]) -> int:
        """Pods finish in any order, the rest stay in theirs, and nobody starts unplaced."""
        for pod in [pod for pod in self.running if pod not in running]:
            self.running.remove(pod)
            self.available_mib += self.requests[pod]
        assert self.running == running
        return self.available_mib


def replay(check: Check, request_mib: int, available_mib: int) -> KnotsDecision:
    """Decide again from what was printed.

    Only the series that a rule looked at was: free memory where CBP refused, used memory where
    COV was low. The missing one is taken from the other, which it follows but for the instants
    when it changes: the two add up to one MiB less than the card.
    """
    free = check.free or [CAPACITY - 1 - used for used in check.used]
    used = check.used or [CAPACITY - 1 - value for value in check.free]
    return decide(request_mib, available_mib, free, used)


@pytest.mark.data
def test_windows_reach_back_to_the_last_bind_but_at_least_twenty_seconds(
    run: tuple[int, Log],
) -> None:
    """Prometheus answered with every second of the window, or with up to two fewer."""
    _, log = run
    last_bind_s, counted = 0, 0
    for step in log.steps:
        if isinstance(step, Told):
            last_bind_s = int(step.at_s) if step.kind == "placed" else last_bind_s
            continue
        for check in step.checks:
            now_s = int(check.asked_s)
            if samples := len(check.free) or len(check.used):
                window_s = now_s - window_start(now_s, last_bind_s) + 1
                assert window_s - 2 <= samples <= window_s
                counted += 1
    assert counted == sum(
        1 for r in log.rounds for c in r.checks if c.why is not KnotsRule.REQUESTS
    )


class Queue:
    """The original's loop, as far as its order of pods goes.

    It takes the first pod, waits for the API (pods may be found meanwhile), tries it, takes the
    next. Pods refused go back in the order they were tried. The loop begins anew 0.5 s after the
    state was printed, 5 s after a bind.
    """

    def __init__(self) -> None:
        self.heap, self.first, self.begins_s = GoHeap(), "", 0.0
        self.admitted = ""

    def told(self, told: Told) -> None:
        if told.kind == "placed":
            assert told.pod == self.admitted
            self.admitted, self.begins_s = "", told.at_s + 5.0
        elif told.kind == "failed":
            self.heap.push(self.admitted)
            self.admitted = ""
        else:
            if told.at_s > self.begins_s:
                self.take_first()
            self.heap.push(told.pod)

    def take_first(self) -> None:
        if self.heap.items and not self.first:
            self.first = self.heap.pop()

    def round(self, logged: Round) -> int:
        """How many pods were tried."""
        self.take_first()
        self.begins_s = logged.at_s + 0.5
        if not logged.checks:
            return 0
        tried: list[str] = []
        for nth in range(len(logged.checks)):
            tried.append(self.first or self.heap.pop())
            self.first = ""
            for pod in (pod for at, pod in logged.found if at == nth):
                self.heap.push(pod)
        assert tried == [check.pod for check in logged.checks]
        if logged.checks[-1].why.admits:
            self.admitted = tried[-1]
        else:
            assert not self.heap.items, "all pods are tried before it gives up"
        refused = [check.pod for check in logged.checks if not check.why.admits]
        assert refused == logged.rejected
        for pod in refused:
            self.heap.push(pod)
        return len(tried)


@pytest.mark.data
def test_pods_are_tried_and_placed_in_the_logged_order(run: tuple[int, Log]) -> None:
    """All requests of a run are equal, so the order is what the original's heap makes of ties."""
    level, log = run
    queue, tried, placed = Queue(), 0, []
    for step in log.steps:
        if isinstance(step, Round):
            tried += queue.round(step)
        else:
            queue.told(step)
            if step.kind == "placed":
                placed.append(step.pod)
    assert tried == COUNTS[level]["decision"]
    assert sorted(placed) == sorted(log.requests)
    assert len(placed) == 30


@pytest.mark.data
def test_the_one_pod_of_the_second_run_that_peak_prediction_let_in_first(
    weft_data: Path,
) -> None:
    """17:45:30 at 50 %: refused by the 80th percentile, admitted by the forecast."""
    log = read(weft_data / "ece" / "overprov_50" / "custom-scheduler.log.gz")
    first = next(c for r in log.rounds for c in r.checks if c.why is KnotsRule.PEAK)
    verdict = replay(first, log.requests[first.pod], 1_037)
    assert verdict.cov == pytest.approx(0.428321, abs=5e-7)
    assert (verdict.index, verdict.percentile, verdict.harvested_mib) == (65, 27_943.0, 4_567)
    assert verdict.autocorrelation == pytest.approx(0.368701, abs=5e-7)
    assert verdict.intercept == pytest.approx(3751.011275, abs=5e-7)
    assert verdict.slope == pytest.approx(0.721069, abs=5e-7)
    assert verdict.predicted_mib == 15_032

"""A fake GPU to measure on: it plays rates and counters that follow from a declared world.

Nothing is measured and no time passes but the fake's own: it says so in its card. Each workload
uses a share of the card's arithmetic and of its memory's bandwidth; together they get what there
is. Plans, logs, budgets and failures can be tested with it, predictions about real GPUs cannot.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from weft.lab.profiling.gpu_bench import BenchError, BenchGpu, ResidentReport, Stamp
from weft.lab.workloads.catalog import Workload

STEP_S = 0.05


class FakeWorkload(msgspec.Struct, frozen=True):
    """One workload of the fake: rate alone, shares of arithmetic and bandwidth, memory.

    It fails as `fails` says, "" not at all: "load" when it is started, "run" when it is to run,
    "hang" says nothing any more then, "silent" never says anything; "fault" takes all others with
    it when it runs beside one, as under MPS: they fail when they are next to run. `drift` is by how
    much its rate changes each hour.
    """

    rate_per_s: float = 100.0
    compute: float = 0.5
    memory: float = 0.3
    memory_mib: int = 1_000
    fails: str = ""
    drift: float = 0.0


class FakeBench:
    """A `Bench` of a fake. `started` counts starts by workload, `residents` are running."""

    def __init__(
        self,
        world: Mapping[str, FakeWorkload],
        *,
        memory_mib: int = 80_000,
        load_s: float = 8.0,
        warm_s: float = 1.5,
        has_mps: bool = True,
        mps_works: bool = True,
    ) -> None:
        """`has_mps`: its daemon starts; `mps_works`: processes get on with it."""
        self.card = BenchGpu("Fake-GPU", "GPU-fake", memory_mib, "0", "fake", fake=True)
        self.world, self.load_s, self.warm_s = world, load_s, warm_s
        self.has_mps, self.mps_works = has_mps, mps_works
        self.time_s = 1_000.0
        self.started: dict[str, int] = {}
        self.isolation = ""
        self.residents: list[FakeResident] = []

    def now_s(self) -> float:
        """The fake's own time."""
        return self.time_s

    def sleep(self, seconds: float) -> None:
        """Let it pass, in steps in which all that run go on."""
        end = self.time_s + max(seconds, 1e-3)
        while self.time_s < end:
            step = min(STEP_S, end - self.time_s)
            self.time_s += step
            for resident in self.residents:
                resident.pass_time(step)

    @contextmanager
    def isolated(self, isolation: str) -> Iterator[None]:
        """As told; no MPS where `has_mps` is False."""
        if isolation == "mps" and not self.has_mps:
            raise BenchError("this fake has no MPS")
        self.isolation = isolation
        try:
            yield
        finally:
            self.isolation = ""
            assert not self.residents, "residents were left behind"

    def start(self, workload: Workload) -> "FakeResident":
        """Ready in `load_s`; out of memory where the card is full."""
        assert self.isolation, "started outside of `isolated`"
        self.started[workload.name] = self.started.get(workload.name, 0) + 1
        resident = FakeResident(self, workload.name, self.world[workload.name])
        self.residents.append(resident)
        return resident

    def sample(self) -> dict[str, float]:
        """The shares of those that run, as far as the card goes."""
        running = [resident for resident in self.residents if resident.runs]
        return {
            "sm_active_ratio": min(1.0, sum(resident.played.compute for resident in running)),
            "dram_active_ratio": min(1.0, sum(resident.played.memory for resident in running)),
            "power_w": 100.0
            + 500.0 * min(1.0, sum(resident.played.compute for resident in running)),
        }

    def free_mib(self) -> int | None:
        """The memory that nobody holds."""
        return self.card.memory_mib - sum(resident.played.memory_mib for resident in self.residents)

    def held_mib(self, resident: object) -> int:
        """As declared."""
        assert isinstance(resident, FakeResident)
        return resident.played.memory_mib

    def speed(self, resident: "FakeResident") -> float:
        """The rate beside the others, as a part of the rate alone."""
        running = [resident for resident in self.residents if resident.runs]
        sums = (
            sum(other.played.compute for other in running),
            sum(other.played.memory for other in running),
        )
        sliced = 0.95 if self.isolation == "time-slicing" and len(running) > 1 else 1.0
        drift = 1.0 + resident.played.drift * (self.time_s - 1_000.0) / 3_600.0
        return sliced * drift / max(1.0, *sums)


class FakeResident:
    """A `Resident` of a fake GPU."""

    def __init__(self, bench: FakeBench, name: str, played: FakeWorkload) -> None:
        self.bench, self.name, self.played = bench, name, played
        self._said = ResidentReport()
        self._since_s = bench.time_s
        self._done = 0.0
        self.hit = False

    @property
    def runs(self) -> bool:
        """True if it uses the card."""
        return self._said.state in {"warming", "steady"}

    def report(self) -> ResidentReport:
        """Up to now."""
        return msgspec.structs.replace(self._said, stamps=list(self._said.stamps))

    def go(self) -> None:
        """Run."""
        self._said.state, self._said.stamps, self._done = "warming", [], 0.0
        self._since_s = self.bench.time_s

    def _faulty(self) -> bool:
        """True if somebody's fault ends it; all are hit."""
        running = [resident for resident in self.bench.residents if resident.runs]
        if len(running) > 1 and any(resident.played.fails == "fault" for resident in running):
            for resident in self.bench.residents:
                resident.hit = True
        return self.hit

    def pause(self) -> None:
        """Stop."""
        if self._said.state in {"warming", "steady"}:
            self._said.state, self._said.peak_mib = "paused", self.played.memory_mib

    def die(self) -> None:
        """As when somebody kills it."""
        self._said.state, self._said.reason = "failed", "signal 9"

    def end(self) -> None:
        """Gone."""
        self.bench.residents.remove(self)
        self._said.state = "ended"

    def pass_time(self, step_s: float) -> None:
        """Advances it by `step_s`."""
        report, since_s = self._said, self.bench.time_s - self._since_s
        if self.played.fails == "hang" and report.state != "starting":
            return
        if self.played.fails == "silent":
            return
        if report.state == "starting" and since_s >= self.bench.load_s - 1e-9:
            full = (self.bench.free_mib() or 0) < 0
            refused = self.bench.isolation == "mps" and not self.bench.mps_works
            if full or refused or self.played.fails == "load":
                report.state, report.reason = "failed", "out-of-memory" if full else "failed"
                report.text = "played"
            else:
                report.state = "paused"
        elif report.state == "warming" and since_s >= self.bench.warm_s - 1e-9:
            if self.played.fails == "run":
                report.state, report.reason, report.text = "failed", "signal 11", "played"
                return
            if self._faulty():
                report.state, report.reason, report.text = "failed", "failed", "a fault in somebody"
                return
            report.state = "steady"
            report.stamps.append(Stamp(self.bench.time_s, 0))
        elif report.state == "steady":
            self._done += step_s * self.played.rate_per_s * self.bench.speed(self)
            report.stamps.append(Stamp(self.bench.time_s, math.floor(self._done)))

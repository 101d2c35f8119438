"""Measures applications alone and in pairs, one run after another, until all is done or time is up.

    load ─▶ go ─▶ all steady ─▶ one window for all ─▶ pause ─▶ one line in the log

The window opens when every resident (a loaded workload) is past its warm-up, and closes at the same
moment for all. A rate is the iterations within the window, by the timestamps that residents report,
divided by its length. A failed run is logged too; an application that fails alone is not run with
others. Running out of memory counts as a result only if no other resident held GPU memory while
idle: otherwise the idle residents are ended and the run is repeated. Another failure counts only if
the resident was newly started, since an earlier fault may have damaged an older one."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from weft.interference.dataset import OUT_OF_MEMORY, TIME_SLICING, Feature
from weft.lab.profiling.gpu_bench import Bench, BenchError, BenchResident, Stamp, State
from weft.lab.profiling.runlog import (
    Failure,
    LoggedRun,
    PlannedRun,
    RunLog,
    RunLogWriter,
    chosen,
    pairs,
    shuffled,
)
from weft.lab.workloads.catalog import MEMORY_MIB, Workload

# --- pool -----------------------------------------------------------------------------------------
# Keeps workloads loaded, so that each is started once and then resumed for each measurement.
#
# A loaded workload is a resident. Starting PyTorch takes longer than measuring. Paused residents
# only hold memory; when memory is short or there are more than `most_kept` of them, the least
# recently used are ended.


TIMEOUT = "timeout"
AT_ONCE = 6
"""Number of residents started at the same time, as starting mainly uses the CPU."""
USUAL_LOAD_S = 10.0
_LOOK_S = 0.05
_RESERVE_MIB = 1_024

Key = tuple[str, int]


class FailedError(Exception):
    """A loaded workload failed; `failure` has its application and the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.application}: {failure.reason}: {failure.text}")
        self.failure = failure


class ResidentPool:
    """The loaded workloads of one isolation; `close` ends all of them."""

    def __init__(
        self,
        bench: Bench,
        workloads: Mapping[str, Workload],
        load_timeout_s: float = 120,
        most_kept: int = 40,
    ) -> None:
        self._bench, self._workloads = bench, workloads
        self._timeout_s, self._most_kept = load_timeout_s, most_kept
        self._loads: list[float] = []
        self._held_mib: dict[str, int] = {}
        self._kept: dict[Key, BenchResident] = {}  # in the order of their last use

    @property
    def usual_load_s(self) -> float:
        """Median seconds that loading a workload takes."""
        return median(self._loads) if self._loads else USUAL_LOAD_S

    def ready(self, applications: Sequence[str]) -> list[BenchResident]:
        """Return a loaded, paused workload for each application; `FailedError` if one cannot be
        loaded."""
        return self._ready(
            [(name, list(applications[:at]).count(name)) for at, name in enumerate(applications)]
        )

    def missing(self, applications: Sequence[str]) -> int:
        """Return the number of workloads that must be started to run these applications
        together."""
        keys = {(name, list(applications[:at]).count(name)) for at, name in enumerate(applications)}
        return len(keys - self._kept.keys())

    def learn(self, application: str, held_mib: int) -> None:
        """Store the memory that an application holds; without it, the limit of its memory class is
        assumed."""
        if held_mib:
            self._held_mib[application] = max(held_mib, self._held_mib.get(application, 0))

    def warm(self, names: Sequence[str]) -> list[Failure]:
        """Load as many of these workloads as fit into memory, several at a time; return the
        failures."""
        failed: list[Failure] = []
        waiting = [(name, 0) for name in names if (name, 0) not in self._kept]
        while waiting:
            batch: list[Key] = []
            while waiting and len(batch) < AT_ONCE and self._fits([*batch, waiting[0]]):
                batch.append(waiting.pop(0))
            if not batch:
                break
            began = self._bench.now_s()
            for key in batch:
                self._kept[key] = self._bench.start(self._workloads[key[0]])
            for key in batch:
                left_s = began + self._timeout_s - self._bench.now_s()
                try:
                    self.wait_for(self._kept[key], key[0], "paused", max(left_s, 0))
                except FailedError as error:
                    self._end(key)
                    failed.append(error.failure)
            self._loads.append(self._bench.now_s() - began)
        return failed

    def alone(self, applications: Sequence[str]) -> bool:
        """End all loaded workloads of other applications; return True if there were any."""
        spare = [key for key in self._kept if key[0] not in applications]
        self._end_all(spare)
        return bool(spare)

    def forget(self, applications: Sequence[str]) -> None:
        """End all loaded workloads of these applications, after one failed and may have damaged the
        others."""
        self._end_all([key for key in self._kept if key[0] in applications])

    def close(self) -> None:
        """End all loaded workloads."""
        self._end_all(list(self._kept))

    def wait_for(self, resident: BenchResident, name: str, state: State, timeout_s: float) -> None:
        """Wait until the workload reports this state; `FailedError` if it fails or takes too
        long."""
        deadline_s = self._bench.now_s() + timeout_s
        while (report := resident.report()).state != state:
            if report.state in {"failed", "ended"}:
                raise FailedError(Failure(name, report.reason or report.state, report.text))
            if self._bench.now_s() >= deadline_s:
                raise FailedError(Failure(name, TIMEOUT, f"not {state} in {timeout_s:g} s"))
            self._bench.sleep(_LOOK_S)

    def _ready(self, keys: Sequence[Key]) -> list[BenchResident]:
        for key in keys:  # mark loaded ones as used, so that they are not ended to make room
            if key in self._kept:
                self._kept[key] = self._kept.pop(key)
        for key in keys:
            if key not in self._kept:
                self._make_room(key, keys)
                self._kept[key] = self._bench.start(self._workloads[key[0]])
            try:
                self.wait_for(self._kept[key], key[0], "paused", self._timeout_s)
            except FailedError:
                self._end(key)
                raise
        return [self._kept[key] for key in keys]

    def _make_room(self, key: Key, needed: Sequence[Key]) -> None:
        spare = [other for other in self._kept if other not in needed]
        while spare and not self._fits([key]):
            self._end(spare.pop(0))

    def _fits(self, keys: Sequence[Key]) -> bool:
        if len(self._kept) + len(keys) > self._most_kept:
            return False
        free = self._bench.free_mib()
        most_mib = {name: MEMORY_MIB[self._workloads[name].memory] for name, _ in keys}
        needed = sum(self._held_mib.get(name, most_mib[name]) for name, _ in keys)
        return free is None or needed + _RESERVE_MIB <= free

    def _end_all(self, keys: Sequence[Key]) -> None:
        """End these workloads at the same time, as each takes a second or two to release its GPU
        memory."""
        ending = [self._kept.pop(key) for key in keys]
        if ending:
            with ThreadPoolExecutor(len(ending)) as enders:
                list(enders.map(lambda resident: resident.end(), ending))

    def _end(self, key: Key) -> None:
        self._kept.pop(key).end()


LEAST_ITERATIONS = 3
"""Iterations that a window must contain; it stays open longer for slow applications."""
_REST = 0.1
"""Fraction of the budget; if less than this is left, restarting all residents is not worthwhile."""


class CampaignSettings(msgspec.Struct, frozen=True):
    """Settings of a measuring campaign.

    `runs`: repetitions of each application alone and each pair, whose median counts. `window_s`:
    length of a measuring window, enough for ten samples of the counters. `warm_s`: warm-up of
    workloads each time they start running. `sample_s`: seconds between samples. `longest`:
    windows stay open for at most this multiple of `window_s`. `budget_s`: time for everything; 0
    is unlimited."""

    runs: int = 3
    window_s: float = 3.0
    warm_s: float = 1.5
    sample_s: float = 0.25
    longest: float = 4.0
    load_timeout_s: float = 120.0
    budget_s: float = 0.0
    seed: int = 1


class CampaignProgress(NamedTuple):
    """A run that ended, the number of runs left, and the estimated seconds for them."""

    run: LoggedRun
    runs_left: int
    seconds_left: float


class Campaign:
    """A series of measurements on one bench; `tell` is called after every run."""

    def __init__(
        self,
        bench: Bench,
        workloads: Sequence[Workload],
        writer: RunLogWriter,
        settings: CampaignSettings,
        tell: Callable[[CampaignProgress], None],
    ) -> None:
        self._bench, self._writer, self._settings, self._tell = bench, writer, settings, tell
        self._workloads = {workload.name: workload for workload in workloads}
        self._took: list[float] = []

    def run(self, isolations: Sequence[str], log: RunLog) -> bool:
        """Run the measurements that the log lacks with each isolation; return True if all are done.

        If the machine does not support an isolation, `BenchError` is raised after the others are
        measured."""
        budget_s = self._settings.budget_s
        over_s = self._bench.now_s() + budget_s if budget_s else float("inf")
        parts = [_Part(isolation, log) for isolation in isolations]
        failed = None
        for least_s in (0.0, _REST * budget_s):  # time left by one isolation goes to the others
            waiting = [part for part in parts if not part.over]
            for at, part in enumerate(waiting):
                now = self._bench.now_s()
                if over_s - now < least_s:
                    break
                part.open(now + (over_s - now) / (len(waiting) - at))
                try:
                    with self._bench.isolated(part.isolation):
                        part.over = self._part(part)
                except BenchError as error:
                    failed, part.over = failed or error, True
        if failed:
            raise failed
        return all(part.over for part in parts)

    def _part(self, part: "_Part") -> bool:
        """Measure with one isolation: all applications alone, then as many pairs as there is time
        for."""
        settings = self._settings
        pool = ResidentPool(self._bench, self._workloads, settings.load_timeout_s)
        try:
            solos = [(name,) for name in self._workloads]
            if part.missing(solos, settings.runs) or self._open_pairs(part):
                names = part.sound(self._workloads)
                failed = pool.warm(names)
                if part.isolation != TIME_SLICING and len(failed) == len(names):
                    first = FailedError(failed[0])
                    raise BenchError(f"no workload starts with isolation {part.isolation}: {first}")
            everything = [*solos, *pairs(list(self._workloads), settings.seed)]
            ahead = min(part.missing(everything, settings.runs), self._affordable(part))
            self._trials(pool, part, shuffled(solos, part.isolation, 0), ahead)
            while not part.late and (more := self._more_pairs(pool, part)):
                self._repeat(pool, part, more)
            if not part.late:
                self._repeat(pool, part, [])  # without time for pairs, still repeat the solos
            return not part.late and not self._open_pairs(part)
        finally:
            pool.close()

    def _open_pairs(self, part: "_Part") -> list[tuple[str, str]]:
        """Return the pairs that lack runs, the most informative first."""
        order = pairs(part.sound(self._workloads), self._settings.seed)
        runs = self._settings.runs
        return [pair for pair in order if pair not in part.full and part.missing([pair], runs)]

    def _more_pairs(self, pool: ResidentPool, part: "_Part") -> list[tuple[str, str]]:
        """Return as many pairs that lack runs as there is time for, after the solo runs that are
        left."""
        runs = self._settings.runs
        alone = [(name,) for name in part.sound(self._workloads)]
        starting = round(pool.usual_load_s / self._usual_s())

        def cost(pair: tuple[str, str]) -> int:
            """Return the number of runs that the pair lacks; if it is one application twice,
            plus the number of runs that take as long as starting a second copy."""
            return part.missing([pair], runs) + (starting if pair[0] == pair[1] else 0)

        affordable = self._affordable(part) - part.missing(alone, runs)
        return chosen(self._open_pairs(part), cost, affordable)

    def _repeat(self, pool: ResidentPool, part: "_Part", more: list[tuple[str, str]]) -> None:
        """Run all repetitions of the pairs in `more` and of all solos, one repetition after
        another."""
        runs = self._settings.runs
        for number in range(runs):
            part.share(self._bench.now_s(), runs - number)
            alone = [(name,) for name in part.sound(self._workloads)]
            trials = shuffled(alone, part.isolation, number) if number else []
            trials += shuffled(more, part.isolation, number)
            self._trials(pool, part, trials, part.missing([*more, *alone], runs))
            more = [pair for pair in more if part.is_worth(pair)]

    def _affordable(self, part: "_Part") -> int:
        if part.deadline_s == float("inf"):
            return 1 << 40
        return max(0, int((part.deadline_s - self._bench.now_s()) / self._usual_s()))

    def _usual_s(self) -> float:
        """Return the expected seconds per run: the mean of the last 50, at least warm-up plus
        window."""
        settings = self._settings
        least = settings.warm_s + settings.window_s
        return max(float(np.mean(self._took[-50:])) if self._took else 0.0, least)

    def _trials(
        self, pool: ResidentPool, part: "_Part", trials: Sequence[PlannedRun], later: int
    ) -> None:
        """Run those `trials` that are not in the log, until time is up.

        The next run is always one for which the fewest workloads must be loaded, as loading takes
        long."""
        waiting = [trial for trial in trials if trial not in part.done]
        while waiting:
            trial = min(waiting, key=lambda trial: pool.missing(trial.applications))
            waiting.remove(trial)
            if part.broken & set(trial.applications):
                continue
            load_s = pool.usual_load_s * pool.missing(trial.applications)
            if self._bench.now_s() + self._usual_s() + load_s > part.until_s:
                part.late = True
                return
            run = self._measure(pool, trial)
            self._writer.write(run)
            part.done.add(trial)
            part.learn(run)
            self._took.append(run.took_s)
            later -= 1
            left = max(later, len(waiting))
            left_s = min(left * self._usual_s(), part.deadline_s - self._bench.now_s())
            self._tell(CampaignProgress(run, left, left_s))

    def _measure(self, pool: ResidentPool, trial: PlannedRun) -> LoggedRun:
        """Measure one run, and return its result or its failure."""
        began = self._bench.now_s()
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        run = LoggedRun(trial.applications, trial.isolation, trial.repetition, at)
        for last in (False, True):
            reused = pool.missing(trial.applications) < len(trial.applications)
            try:
                run = self._together(pool, run)
            except FailedError as error:
                pool.forget(trial.applications)
                if error.failure.reason == OUT_OF_MEMORY:
                    again = pool.alone(trial.applications)  # it may fit without idle residents
                else:  # a reused resident may suffer from an earlier fault, as under MPS
                    again = reused and error.failure.reason != TIMEOUT
                if again and not last:
                    continue
                run = msgspec.structs.replace(run, failure=error.failure)
            break
        return msgspec.structs.replace(run, took_s=round(self._bench.now_s() - began, 3))

    def _together(self, pool: ResidentPool, run: LoggedRun) -> LoggedRun:
        settings, bench, names = self._settings, self._bench, run.applications
        residents = pool.ready(names)
        for resident in residents:
            resident.go()
        for resident, name in zip(residents, names, strict=True):
            pool.wait_for(resident, name, "steady", 10 * settings.warm_s + 30)
        bench.sample()
        opened, samples = bench.now_s(), []
        while True:
            bench.sleep(settings.sample_s)
            samples.append(bench.sample())
            open_s = bench.now_s() - opened
            for resident, name in zip(residents, names, strict=True):
                pool.wait_for(resident, name, "steady", 0)
            done = min(_between(resident, opened, bench.now_s()) for resident in residents)
            enough = open_s >= settings.window_s and done >= LEAST_ITERATIONS
            if enough or open_s >= settings.longest * settings.window_s:
                break
        closed = bench.now_s()
        rates = [
            self._rate(pool, resident, name, (opened, closed))
            for resident, name in zip(residents, names, strict=True)
        ]
        for resident in residents:
            resident.pause()
        for resident, name in zip(residents, names, strict=True):
            pool.wait_for(resident, name, "paused", 60)
        held = tuple(bench.held_mib(resident) for resident in residents)
        for name, mib in zip(names, held, strict=True):
            pool.learn(name, mib)
        return msgspec.structs.replace(
            run,
            rates=tuple(rates),
            features=features(samples),
            memories_mib=held,
            peaks_mib=tuple(resident.report().peak_mib for resident in residents),
            window_s=round(closed - opened, 3),
            versions=residents[0].report().versions,
        )

    def _rate(
        self, pool: ResidentPool, resident: BenchResident, name: str, window: tuple[float, float]
    ) -> float:
        """Wait until an iteration after the window is reported, and return the iterations per
        second within the window."""
        opened, closed = window
        deadline_s = self._bench.now_s() + self._settings.window_s + 10
        while resident.report().stamps[-1].at_s < closed:
            pool.wait_for(resident, name, "steady", 0)
            if self._bench.now_s() > deadline_s:
                raise FailedError(Failure(name, "timeout", "an iteration takes too long"))
            self._bench.sleep(0.02)
        return rate(resident.report().stamps, opened, closed)


class _Part:
    """Progress in one isolation mode: runs done, applications and pairs that failed, and its
    deadline.

    `late`: its time is over; `over`: nothing is left to do. `broken` applications failed alone;
    `full` pairs ran out of memory, and are not tried again."""

    def __init__(self, isolation: str, log: RunLog) -> None:
        self.isolation = isolation
        self.deadline_s = self.until_s = float("inf")
        self.late = self.over = False
        self.done = {trial for trial in log.done if trial.isolation == isolation}
        self.broken: set[str] = set()
        self.full = {
            run.applications for run in log.runs if run.isolation == isolation and run.does_not_fit
        }

    def open(self, deadline_s: float) -> None:
        """Set the time until which this isolation may be measured."""
        self.deadline_s = self.until_s = deadline_s
        self.late = False

    def learn(self, run: LoggedRun) -> None:
        """Record an application that failed alone, or a pair of applications that does not fit into
        memory."""
        if run.failure is not None and len(run.applications) == 1:
            self.broken.add(run.applications[0])
        elif run.does_not_fit:
            self.full.add(run.applications)

    def share(self, now_s: float, rounds: int) -> None:
        """Give the next of `rounds` repetitions an equal share of the time that is left."""
        self.until_s = now_s + (self.deadline_s - now_s) / rounds

    def sound(self, names: Iterable[str]) -> list[str]:
        """Return those applications in `names` that did not fail alone."""
        return [name for name in names if name not in self.broken]

    def is_worth(self, pair: tuple[str, str]) -> bool:
        """Return True if the pair is worth repeating: it has run once, and fits into memory."""
        return pair not in self.full and PlannedRun(pair, self.isolation, 0) in self.done

    def missing(self, together: Sequence[tuple[str, ...]], runs: int) -> int:
        """Return the number of runs that these combinations lack."""
        return sum(
            PlannedRun(tuple(applications), self.isolation, number) not in self.done
            for applications in together
            for number in range(runs)
        )


def rate(stamps: Sequence[Stamp], opened: float, closed: float) -> float:
    """Return iterations per second between two moments, interpolating between stamps."""
    times = np.array([stamp.at_s for stamp in stamps])
    done = np.array([stamp.iterations for stamp in stamps], dtype=np.float64)
    first, last = np.interp([opened, closed], times, done)
    return float((last - first) / (closed - opened))


def features(samples: Sequence[Mapping[str, float]]) -> dict[str, Feature]:
    """Return mean and 95th percentile of each feature, over the samples that have it."""
    names = sorted({name for sample in samples for name in sample})
    columns = {name: [sample[name] for sample in samples if name in sample] for name in names}
    return {
        name: Feature(round(float(np.mean(column)), 6), round(float(np.quantile(column, 0.95)), 6))
        for name, column in columns.items()
    }


def _between(resident: BenchResident, opened: float, now: float) -> float:
    stamps = resident.report().stamps
    return rate(stamps, opened, now) * (now - opened) if now > opened else 0.0

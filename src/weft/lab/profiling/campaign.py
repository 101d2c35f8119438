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
from typing import NamedTuple

import msgspec
import numpy as np

from weft.interference.dataset import OUT_OF_MEMORY, TIME_SLICING, Feature
from weft.lab.profiling.gpu_bench import Bench, BenchError, BenchResident, Stamp
from weft.lab.profiling.pool import TIMEOUT, FailedError, ResidentPool
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
from weft.lab.workloads.catalog import Workload

LEAST_ITERATIONS = 3
"""Iterations that a window must contain; it stays open longer for slow applications."""
_REST = 0.1
"""Restarting all residents is not worthwhile with less than this fraction of the budget left."""


class CampaignSettings(msgspec.Struct, frozen=True):
    """Settings of a measuring campaign.

    `runs`: repetitions of each solo and pair, whose median counts. `window_s`: long enough for ten
    samples of the counters. `warm_s`: warm-up of workloads each time they start running.
    `sample_s`: seconds between samples. `longest`: windows stay open for at most this multiple of
    `window_s`. `budget_s`: time for everything; 0 is unlimited."""

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
        """Measure with one isolation: all solos, then as many pairs as there is time for."""
        settings = self._settings
        pool = ResidentPool(self._bench, self._workloads, settings.load_timeout_s)
        try:
            solos = [(name,) for name in self._workloads]
            if part.missing(solos, settings.runs) or self._open_pairs(part):
                names = part.sound(self._workloads)
                failed = pool.warm(names)
                if part.isolation != TIME_SLICING and len(failed) == len(names):
                    first = FailedError(failed[0])
                    raise BenchError(f"nothing starts with {part.isolation}: {first}")
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
            """Return the runs that the pair lacks, plus starting a second copy if both are one
            application."""
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
        """Return iterations per second within the window, once an iteration after the window was
        reported."""
        opened, closed = window
        deadline_s = self._bench.now_s() + self._settings.window_s + 10
        while resident.report().stamps[-1].at_s < closed:
            pool.wait_for(resident, name, "steady", 0)
            if self._bench.now_s() > deadline_s:
                raise FailedError(Failure(name, "timeout", "an iteration takes too long"))
            self._bench.sleep(0.02)
        return rate(resident.report().stamps, opened, closed)


class _Part:
    """Progress with one isolation: runs done, applications and pairs that failed, and its deadline.

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

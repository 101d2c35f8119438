"""Keeps workloads loaded, so that each is started once and then resumed for each measurement.

A loaded workload is a resident. Starting PyTorch takes longer than measuring. Paused residents only
hold memory; when memory is short or there are more than `most_kept` of them, the least recently
used are ended."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from weft.lab.profiling.gpu_bench import Bench, BenchResident, State
from weft.lab.profiling.runlog import Failure
from weft.lab.workloads.catalog import MEMORY_MIB, Workload

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

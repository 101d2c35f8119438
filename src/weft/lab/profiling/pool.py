"""The residents that stand ready: started once, told to go and to pause for one run after another.

Starting PyTorch takes longer than measuring. Paused residents take memory and nothing else; where
memory, or `most_kept`, is not enough, those not used for longest end.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from weft.lab.profiling.gpu_bench import Bench, BenchResident, State
from weft.lab.profiling.runlog import Failure
from weft.lab.workloads.catalog import MEMORY_MIB, Workload

TIMEOUT = "timeout"
AT_ONCE = 6
"""How many are started at the same time: starting is mostly the CPU's work."""
USUAL_LOAD_S = 10.0
_LOOK_S = 0.05
_RESERVE_MIB = 1_024

Key = tuple[str, int]


class FailedError(Exception):
    """A resident failed; `failure` says which one and why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.application}: {failure.reason}: {failure.text}")
        self.failure = failure


class ResidentPool:
    """See the module. Use it within one isolation; `close` ends all."""

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
        """The usual seconds until a resident stands ready."""
        return median(self._loads) if self._loads else USUAL_LOAD_S

    def ready(self, applications: Sequence[str]) -> list[BenchResident]:
        """A paused resident for each of these; `FailedError` where one cannot be had."""
        return self._ready(
            [(name, list(applications[:at]).count(name)) for at, name in enumerate(applications)]
        )

    def missing(self, applications: Sequence[str]) -> int:
        """Number of residents that must be started for these."""
        keys = {(name, list(applications[:at]).count(name)) for at, name in enumerate(applications)}
        return len(keys - self._kept.keys())

    def learn(self, application: str, held_mib: int) -> None:
        """Remembers what it really holds: its class only says the most."""
        if held_mib:
            self._held_mib[application] = max(held_mib, self._held_mib.get(application, 0))

    def warm(self, names: Sequence[str]) -> list[Failure]:
        """Start as many of these as there is room for, several at a time; those that failed."""
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
        """End all others; whether there were any."""
        spare = [key for key in self._kept if key[0] not in applications]
        self._end_all(spare)
        return bool(spare)

    def forget(self, applications: Sequence[str]) -> None:
        """End these: one of them failed, and nobody knows what that did to the others."""
        self._end_all([key for key in self._kept if key[0] in applications])

    def close(self) -> None:
        """End all."""
        self._end_all(list(self._kept))

    def wait_for(self, resident: BenchResident, name: str, state: State, timeout_s: float) -> None:
        """Wait until it says so; `FailedError` where it fails, or takes too long."""
        deadline_s = self._bench.now_s() + timeout_s
        while (report := resident.report()).state != state:
            if report.state in {"failed", "ended"}:
                raise FailedError(Failure(name, report.reason or report.state, report.text))
            if self._bench.now_s() >= deadline_s:
                raise FailedError(Failure(name, TIMEOUT, f"not {state} in {timeout_s:g} s"))
            self._bench.sleep(_LOOK_S)

    def _ready(self, keys: Sequence[Key]) -> list[BenchResident]:
        for key in keys:  # those that are there are used: they do not make room for the others
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
        """At the same time: each takes a second or two to give its GPU memory back."""
        ending = [self._kept.pop(key) for key in keys]
        if ending:
            with ThreadPoolExecutor(len(ending)) as enders:
                list(enders.map(lambda resident: resident.end(), ending))

    def _end(self, key: Key) -> None:
        self._kept.pop(key).end()

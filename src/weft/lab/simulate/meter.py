"""Measures a run: allocation and fragmentation against arrived demand."""

import time
from collections import Counter

import numpy as np
import numpy.typing as npt

from weft.core.engine import Engine, Record
from weft.core.engine.nominations import is_kept
from weft.core.framework.fragments import Fragments, NodeShares, TypicalPods
from weft.core.ledger.table import LedgerTable
from weft.lab.simulate.results import PolicyRun
from weft.model import Code, Placement
from weft.model.reason import TEXT


def main_reason(record: Record) -> str:
    """Return the commonest reason for which nodes rejected the pod."""
    counts = record.counts[1:]
    code = Code(counts.index(max(counts)) + 1) if any(counts) else Code.NO_GPU
    return TEXT[code]


def commonest_first(reasons: Counter[str]) -> dict[str, int]:
    """Sort counted reasons by descending count, then by text."""
    return dict(sorted(reasons.items(), key=lambda counted: (-counted[1], counted[0])))


def held_milli(table: LedgerTable) -> npt.NDArray[np.int64]:
    """Return the thousandths of each GPU that are held: of its cores or of its memory, whichever is
    more."""
    cores = np.array(table.milli_used, dtype=np.int64)
    memory = np.array(table.memory_used, dtype=np.int64) * 1000
    return np.maximum(cores, memory // np.maximum(table.device_memory_total, 1))


class Meter:
    """Measures a run pod by pod. Percentages are of the cluster's GPU milli, as in FGD's
    figures."""

    def __init__(self, engine: Engine, typical: TypicalPods, capacity_milli: int) -> None:
        self._engine = engine
        self._capacity = max(1, capacity_milli)
        table = engine.ledger.table
        pattern = Fragments(typical, [kind.model for kind in table.kinds])
        self._nodes = NodeShares(pattern, table)
        self._arrived, self._used = [0], [0]
        self._bin = 0
        self._fragments: dict[str, float] = {}
        self._held: dict[tuple[str, int], int] = {}
        self.refusals = 0
        self.first_failed: int | None = None
        self._reasons: Counter[str] = Counter()
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def arrives(self, milli: int) -> None:
        """Record the arrival of a pod that requests `milli` thousandths of GPUs in total; if the
        demand enters a new whole percent, store the fragmentation first."""
        percent = round((self._arrived[-1] + milli) * 100 / self._capacity)
        if percent != self._bin:
            self._mark_bin()
            self._bin = percent

    def arrived(self, milli: int, used_milli: int) -> None:
        """Record that the scheduler decided on a pod that requests `milli`; all placed pods now
        request `used_milli`, both in thousandths of GPUs."""
        self._arrived.append(self._arrived[-1] + milli)
        self._used.append(used_milli)

    def _mark_bin(self) -> None:
        fragments = self.fragments_milli() * 100 / self._capacity
        self._fragments[str(self._bin)] = round(fragments, 2)

    def refused(self, record: Record, at: int) -> None:
        """Record that the pod which arrived after `at` others was not placed, with the main
        reason."""
        self.refusals += 1
        if self.first_failed is None:
            self.first_failed = at
        self._reasons[main_reason(record)] += 1

    def fragments_milli(self) -> float:
        """Return the cluster's present fragmentation by FGD's measure, in thousandths of a GPU."""
        self._nodes.mend()
        return float(np.cumsum(self._nodes.fragments)[-1]) if len(self._nodes.fragments) else 0.0

    def held_change(self, placement: Placement) -> int:
        """Return the change in held thousandths of the placement's GPUs since the previous call."""
        table, change = self._engine.ledger.table, 0
        row = table.row_of.get(placement.node)
        for share in placement.shares:
            held, card = 0, (placement.node, share.gpu)
            if row is not None:
                device = table.device_row(row, share.gpu)
                kept_milli, kept_mib = self._kept(placement.node, share.gpu)
                memory = (table.memory_used[device] - kept_mib) * 1000
                part = memory // max(1, int(table.device_memory_total[device]))
                held = max(table.milli_used[device] - kept_milli, part)
            change += held - self._held.get(card, 0)
            self._held[card] = held
        return change

    def _kept(self, node: str, gpu: int) -> tuple[int, int]:
        """Return the thousandths and MiB of a GPU that are reserved for pending pods, so that no
        pod uses them yet."""
        milli = mib = 0
        if not (self._engine.preemption.nominations or self._engine.kept_places.turns):
            return milli, mib
        for holding in self._engine.ledger.pods_on(node):
            if is_kept(holding.placement.uid):
                for share in holding.placement.shares:
                    if share.gpu == gpu:
                        milli, mib = milli + share.milli, mib + share.memory_mib
        return milli, mib

    def used_milli(self) -> int:
        """Return the thousandths of GPUs held now, summed over GPUs: of each GPU's cores or
        memory, whichever is more."""
        return int(held_milli(self._engine.ledger.table).sum())

    def result(
        self, policy: str, seed: int, failed: int, asked_milli: int, *, timing: bool
    ) -> PolicyRun:
        """Return the finished run; `asked_milli` is the total request of placed pods at its end."""
        used, fragments = self.used_milli(), self.fragments_milli()
        self._mark_bin()
        idle = self._capacity - used
        return PolicyRun(
            policy=policy,
            seed=seed,
            arrived_percent=round(self._arrived[-1] * 100 / self._capacity, 2),
            gpu_allocated_percent=round(asked_milli * 100 / self._capacity, 2),
            gpu_held_percent=round(used * 100 / self._capacity, 2),
            gpu_fragmentation_percent=round(fragments * 100 / self._capacity, 2),
            fragmentation_of_idle_percent=round(fragments * 100 / idle, 2) if idle else 0.0,
            used_gpu_milli=used,
            failed_pods=failed,
            pods=len(self._arrived) - 1,
            curve=self._curve(),
            fragmentation_curve=self._fragments,
            by_model=self._by_model(),
            unscheduled=commonest_first(self._reasons),
            first_failed=self.first_failed,
            side_faults=self._engine.side_tasks.count,
            cpu_s=round(time.process_time() - self._cpu, 3) if timing else None,
            wall_s=round(time.perf_counter() - self._wall, 3) if timing else None,
        )

    def _curve(self) -> dict[str, float]:
        """Return the mean allocation (%) over the pods that arrive in each whole percent of
        demand."""
        arrived = np.array(self._arrived[1:], dtype=np.int64) / (self._capacity / 100)
        used = np.round(np.array(self._used[1:], dtype=np.int64) / (self._capacity / 100), 2)
        bins = np.round(arrived).astype(np.int64)
        if len(bins) == 0:
            return {}
        counts = np.bincount(bins)
        sums = np.bincount(bins, weights=used)
        return {
            str(percent): round(float(sums[percent] / counts[percent]), 2)
            for percent in np.flatnonzero(counts).tolist()
        }

    def _by_model(self) -> dict[str, float]:
        table = self._engine.ledger.table
        kinds = table.device_kind
        total = np.bincount(kinds, weights=np.array(table.milli_total, dtype=np.float64))
        used = np.bincount(kinds, weights=held_milli(table).astype(np.float64))
        sums: dict[str, list[float]] = {}
        for number, kind in enumerate(table.kinds):
            if number < len(total) and total[number]:
                cell = sums.setdefault(kind.model or "unknown", [0.0, 0.0])
                cell[0] += float(used[number])
                cell[1] += float(total[number])
        return {model: round(100 * u / t, 2) for model, (u, t) in sorted(sums.items())}

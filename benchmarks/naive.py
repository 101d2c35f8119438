"""The obvious way: dense arrays, the published formulas over every node, nothing kept.

The baseline that the engine is timed against, and the reference its placements must equal.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.framework.fragments import TypicalPods
from weft.model import Placement, Shape

Choice = tuple[int, tuple[int, ...]]


class NaiveCluster:
    """Equal nodes: free GPU milli [nodes, gpus], free CPU and memory [nodes]."""

    def __init__(
        self, nodes: int, gpus: int, cpu_milli: int, memory_mib: int, typical: TypicalPods
    ) -> None:
        self.free = np.full((nodes, gpus), 1000)
        self.cpu = np.full(nodes, cpu_milli)
        self.memory = np.full(nodes, memory_mib)
        self.typical = typical
        shares = iter(typical.gpu_share.tolist())
        cpu_shares = iter(typical.cpu_only_share.tolist())
        self.types = [
            (kind, next(shares if kind[1] * kind[2] else cpu_shares)) for kind in typical.types
        ]

    def charge(self, placement: Placement, row: int, sign: int) -> None:
        """Take (`sign` 1) or give back what a placement holds."""
        for share in placement.shares:
            self.free[row, share.gpu] -= sign * share.milli
        self.cpu[row] -= sign * placement.cpu_milli
        self.memory[row] -= sign * placement.memory_mib

    def decide(self, policy: str, shape: Shape) -> Choice | None:
        """The first best node and its GPUs."""
        gpu_request = shape.gpu_requests[0]
        milli = 1000 if gpu_request.whole else gpu_request.milli
        fits = (self.free >= milli).sum(axis=1) >= gpu_request.count
        fits &= (self.cpu >= shape.cpu_milli) & (self.memory >= shape.memory_mib)
        if not fits.any():
            return None
        if policy == "fgd":
            return self._fgd(shape, gpu_request.count, milli, fits)
        left = 0.5 * (self.cpu - shape.cpu_milli) / 128_000
        left = left + 0.5 * (self.free.sum(axis=1) - gpu_request.count * milli) / 8_000
        score = np.where(fits, np.trunc(100 * (1 - left)), -np.inf)
        row = int(score.argmax())
        if gpu_request.whole:
            return row, self._first_idle(row, gpu_request.count)
        room = np.where(self.free[row] >= milli, self.free[row], 9999)
        return row, (int(room.argmin()),)

    def _first_idle(self, row: int, count: int) -> tuple[int, ...]:
        return tuple(int(g) for g in np.flatnonzero(self.free[row] == 1000)[:count])

    def _fgd(self, shape: Shape, count: int, milli: int, fits: npt.NDArray[Any]) -> Choice:
        before = self.fragments(self.free, self.cpu)
        cpu = self.cpu - shape.cpu_milli
        if milli == 1000:
            after = self.free.copy()
            for fitting in np.flatnonzero(fits).tolist():
                after[fitting, list(self._first_idle(fitting, count))] = 0
            row = int(np.where(fits, self._score(before, after, cpu), -1).argmax())
            return row, self._first_idle(row, count)
        score, gpu = np.full(len(cpu), -1), np.zeros(len(cpu), dtype=int)
        for g in range(self.free.shape[1]):
            after = self.free.copy()
            after[:, g] -= milli
            here = np.where(fits & (self.free[:, g] >= milli), self._score(before, after, cpu), -1)
            gpu, score = np.where(here > score, g, gpu), np.maximum(score, here)
        row = int(score.argmax())
        return row, (int(gpu[row]),)

    def _score(
        self, before: npt.NDArray[Any], after: npt.NDArray[Any], cpu: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        fall = before - self.fragments(after, cpu)
        return np.asarray((100 / (1 + np.exp(-fall / 1000))).astype(int))

    def fragments(self, free: npt.NDArray[Any], cpu: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """FGD's measure, one typical pod after the other, in the published order of sums."""
        total = free.sum(axis=1)
        sums = np.zeros((5, len(cpu)))
        for (need_cpu, milli, gpus, _), share in self.types:
            cpu_fits = cpu >= need_cpu
            if milli * gpus == 0:
                sums[3] += np.where(cpu_fits, share * total, 0.0)
                sums[4] += np.where(cpu_fits, 0.0, share * total)
                continue
            gpu_fits = (free >= milli).sum(axis=1) >= gpus
            lost = np.where(free < milli, free, 0).sum(axis=1)
            here = np.where(gpu_fits, share * lost, share * total)
            sums[0] += np.where(~gpu_fits & ~cpu_fits, share * total, 0.0)
            sums[1] += np.where(cpu_fits, here, 0.0)
            sums[2] += np.where(gpu_fits & ~cpu_fits, share * total, 0.0)
        return np.asarray((((sums[0] + sums[1]) + sums[2]) + sums[3]) + sums[4])

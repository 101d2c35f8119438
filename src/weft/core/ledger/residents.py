"""Co-residents of each GPU, by number: whoever judges a set of them looks it up once.

*Co-residents* are the pods on a device (`Resident`), whatever their order. GPUs with equal
co-residents have equal numbers; 0 is nobody.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.model import Gpu, Placement
from weft.model.request import LATENCY_CRITICAL
from weft.model.slowdown_limit import SlowdownLimit, percent_on

KEPT = 4096
"""Sets remembered beside two for each device: old ones are forgotten beyond that."""


SMALL_PART = 4
"""A pod is small where it asks at most one part in so many of its card."""


class Resident(NamedTuple):
    """Application and class of one pod; both "" where nobody said.

    Of a latency-critical one, on its card: `bound_percent` is how slow it may get by its own SLO,
    percent of alone on `percent_on`'s grid (0: it says none); and whether it is `small`.
    """

    application: str
    job_class: str
    bound_percent: int = 0
    small: bool = False


CoResidents = tuple[Resident, ...]


def is_small(job_class: str, memory_mib: int, milli: int, card: tuple[int, int]) -> bool:
    """True if a pod that asks for so much of a card (MiB, milli) is latency-critical and small.

    One that asks for neither memory nor compute does not say how large it is.
    """
    if job_class != LATENCY_CRITICAL or not (memory_mib or milli):
        return False
    return SMALL_PART * memory_mib <= card[0] and SMALL_PART * milli <= card[1]


def own_percent(job_class: str, slowdown_limit: SlowdownLimit, gpu_model: str) -> int:
    """The slowdown bound in percent of such a pod on this GPU model: few pods differ, whatever they say."""
    return percent_on(slowdown_limit, gpu_model) if job_class == LATENCY_CRITICAL else 0


def resident_on(placement: Placement, gpu: Gpu) -> Resident:
    """The pod, by what it holds of this one of its GPUs."""
    if placement.job_class != LATENCY_CRITICAL:
        return Resident(placement.application, placement.job_class)
    shares = [share for share in placement.shares if share.gpu == gpu.index]
    memory_mib, milli = (sum(s.memory_mib for s in shares), sum(s.milli for s in shares))
    return Resident(
        placement.application,
        LATENCY_CRITICAL,
        own_percent(LATENCY_CRITICAL, placement.slowdown_limit, gpu.model),
        is_small(LATENCY_CRITICAL, memory_mib, milli, (gpu.memory_mib, gpu.milli)),
    )


class Residents:
    """`co_residents[d]` is the number of what runs on device d, `members[number]` that, sorted.

    Numbers stay until `epoch` moves: then all are new.
    """

    def __init__(self, devices: int) -> None:
        self.co_residents: npt.NDArray[np.int64] = np.zeros(devices, dtype=np.int64)
        self.members: list[CoResidents] = [()]
        self.epoch = 0
        self._number: dict[CoResidents, int] = {(): 0}
        self._now = [0] * devices

    @property
    def numbers(self) -> list[int]:
        """`co_residents`, as a list."""
        return self._now

    def moved(self, numbers: list[int]) -> "Residents":
        """The same numbers, of other devices; this one is not to be used any more."""
        moved = Residents(0)
        moved.co_residents, moved._now = np.array(numbers, dtype=np.int64), numbers
        moved.members, moved._number, moved.epoch = self.members, self._number, self.epoch
        return moved

    def on(self, device: int) -> CoResidents:
        """Residents of the device."""
        return self.members[self._now[device]]

    def change(self, device: int, resident: Resident, sign: int) -> None:
        """A pod came to the device (`sign` 1) or left it (−1)."""
        co_residents = list(self.on(device))
        if sign > 0:
            co_residents.append(resident)
            co_residents.sort()
        else:
            if resident not in co_residents:
                raise RuntimeError(f"{resident} leaves device {device}, and was not there")
            co_residents.remove(resident)
        self._put(device, tuple(co_residents))
        if len(self.members) > 2 * len(self._now) + KEPT:
            self._renumber()

    def _put(self, device: int, co_residents: CoResidents) -> None:
        number = self._number.get(co_residents)
        if number is None:
            number = self._number[co_residents] = len(self.members)
            self.members.append(co_residents)
        self._now[device] = number
        self.co_residents[device] = number

    def _renumber(self) -> None:
        """Forget what is nowhere any more."""
        everywhere = [self.members[number] for number in self._now]
        self.members, self._number = [()], {(): 0}
        for device, co_residents in enumerate(everywhere):
            self._put(device, co_residents)
        self.epoch += 1

"""What runs together on each GPU, by number: whoever judges company looks it up once.

A *company* is the applications (and classes) of the pods on a device, whatever their order. GPUs
with equal company have equal numbers; 0 is nobody.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.model import Placement

KEPT = 4096
"""Companies remembered beside two for each device: old ones are forgotten beyond that."""


class Resident(NamedTuple):
    """What one pod runs, and of which class it is; both "" where nobody said."""

    application: str
    job_class: str


Company = tuple[Resident, ...]


class Residents:
    """`company[d]` is the number of what runs on device d, `members[number]` what that is, sorted.

    Numbers stay until `epoch` moves: then all are new.
    """

    def __init__(self, devices: int) -> None:
        self.company: npt.NDArray[np.int64] = np.zeros(devices, dtype=np.int64)
        self.members: list[Company] = [()]
        self.epoch = 0
        self._number: dict[Company, int] = {(): 0}
        self._now = [0] * devices

    def on(self, device: int) -> Company:
        """What runs on the device."""
        return self.members[self._now[device]]

    def change(self, device: int, placement: Placement, sign: int) -> None:
        """A pod came to the device (`sign` 1) or left it (−1)."""
        who = Resident(placement.application, placement.job_class)
        there = list(self.on(device))
        if sign > 0:
            there.append(who)
            there.sort()
        else:
            if who not in there:
                raise RuntimeError(f"{placement.uid} leaves device {device}, and was not there")
            there.remove(who)
        self._put(device, tuple(there))
        if len(self.members) > 2 * len(self._now) + KEPT:
            self._renumber()

    def _put(self, device: int, company: Company) -> None:
        number = self._number.get(company)
        if number is None:
            number = self._number[company] = len(self.members)
            self.members.append(company)
        self._now[device] = number
        self.company[device] = number

    def _renumber(self) -> None:
        """Forget what is nowhere any more."""
        everywhere = [self.members[number] for number in self._now]
        self.members, self._number = [()], {(): 0}
        for device, company in enumerate(everywhere):
            self._put(device, company)
        self.epoch += 1

"""Arrays to whose end more is added: it costs what is added, not what is there."""

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from weft.core.ledger.table import Ints

Number = TypeVar("Number", bound=np.generic)

_ROOM = 16


class GrowingArray(Generic[Number]):
    """An array whose last axis grows; the others are `shape`."""

    def __init__(self, shape: tuple[int, ...], kind: type[Number]) -> None:
        self.length = 0
        self._room: npt.NDArray[Number] = np.zeros((*shape, _ROOM), dtype=kind)

    @property
    def now(self) -> npt.NDArray[Number]:
        """The values, not to be written to; what is added later may not show in them."""
        return self._room[..., : self.length]

    def add(self, more: npt.NDArray[Number]) -> None:
        """These at the end."""
        old, length = self.now, self.length + more.shape[-1]
        if length > self._room.shape[-1]:
            room = max(length, old.shape[-1] * 5 // 4)
            self._room = np.zeros((*old.shape[:-1], room), old.dtype)
            self._room[..., : self.length] = old
        self._room[..., self.length : length] = more
        self.length = length

    def take(self, positions: Ints) -> npt.NDArray[Number]:
        """Values at these positions of the last axis, all of which must be there."""
        return self._room.take(positions, axis=-1)

"""Stores the container images that each node has, as its kubelet last reported. Names are stored as
numbers, and a node's images as an array of numbers, because thousands of nodes may have a hundred
images each.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from weft.core.ledger.table import Bools, Ints, LedgerTable

KEPT = 256
"""Maximum number of images for which the nodes that have them are cached; the least recently used
is dropped."""
_MIB = 1 << 20
_LEAST, _MOST_OF_ONE = 23 * _MIB, 1_000 * _MIB
"""kube-scheduler's bounds, bytes: the size below which an image counts nothing, and the size per
container at which the score is highest."""

_Numbers = npt.NDArray[np.int32]


class ImagesOnNodes:
    """The images of nodes. An image's size, bytes, is the one reported by the first node that has
    it."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._images: list[tuple[str, int]] = []  # name and size by number
        self._held: list[int] = []  # number of nodes by image
        self._free: list[int] = []
        self._of_node: dict[str, _Numbers] = {}
        self._flat: tuple[_Numbers, Ints] | None = None  # all nodes' images, and their rows
        self._row_of: Mapping[str, int] = {}  # of the layout that rows are of
        self._asked: OrderedDict[str, Bools] = OrderedDict()

    def put(self, node: str, images: Iterable[tuple[str, int]]) -> None:
        """Set the node's images, names and sizes; empty if the node is gone."""
        before = self._of_node.pop(node, None)
        found = [self._take(name, size) for name, size in dict(images).items()]
        if found:
            self._of_node[node] = np.array(found, dtype=np.int32)
        for number in [] if before is None else before.tolist():
            self._drop(number)
        self._flat = None
        if (row := self._row_of.get(node)) is not None:
            here = set(found)
            for name, column in self._asked.items():
                column[row] = self._number.get(name, -1) in here

    def have_any(self, names: Sequence[str]) -> bool:
        """Return True if some node has one of these images."""
        return any(name in self._number for name in names)

    def points(self, table: LedgerTable, names: Sequence[str], containers: int, rows: Ints) -> Ints:
        """Return 0 to 100 points for each of these rows, by the bytes of these images that the node
        has; an image named twice counts twice. An image counts less the fewer nodes have it, so
        that its pods do not crowd there.
        """
        found = np.zeros(len(rows), dtype=np.int64)
        for name in names:
            if (number := self._number.get(name)) is not None:
                column = self._column(table, name)
                spread = float(np.count_nonzero(column)) / float(table.count)
                found += int(float(self._images[number][1]) * spread) * column.take(rows)
        most = _MOST_OF_ONE * max(1, containers)
        return (found.clip(_LEAST, most) - _LEAST) * 100 // (most - _LEAST)

    def _column(self, table: LedgerTable, name: str) -> Bools:
        """Return a mask of the nodes that have the image, [N]."""
        if self._row_of is not table.row_of:
            self._row_of, self._flat = table.row_of, None
            self._asked.clear()
        column = self._asked.get(name)
        if column is None:
            numbers, rows = self._all()
            column = self._asked[name] = np.zeros(table.count, dtype=np.bool_)
            column[rows[numbers == self._number[name]]] = True
            if len(self._asked) > KEPT:
                self._asked.popitem(last=False)
        self._asked.move_to_end(name)
        return column

    def _all(self) -> tuple[_Numbers, Ints]:
        if self._flat is None:
            here = [name for name in self._of_node if name in self._row_of]
            found = [self._of_node[name] for name in here]
            rows = np.array([self._row_of[name] for name in here], dtype=np.int64)
            numbers = np.concatenate([np.zeros(0, dtype=np.int32), *found])
            self._flat = numbers, np.repeat(rows, [len(each) for each in found])
        return self._flat

    def _take(self, name: str, size: int) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._free.pop() if self._free else len(self._images)
            if number == len(self._images):
                self._images.append((name, size))
                self._held.append(0)
            self._number[name], self._images[number] = number, (name, size)
        self._held[number] += 1
        return number

    def _drop(self, number: int) -> None:
        self._held[number] -= 1
        if not self._held[number]:
            del self._number[self._images[number][0]]
            self._images[number] = "", 0
            self._free.append(number)

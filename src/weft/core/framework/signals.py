"""Readings of the GPUs as policies see them: one snapshot, replaced as a whole between two
decisions.

A `SignalsSnapshot` is plain data that can be logged and replayed; a `SignalsView` aligns it with
the ledger's device rows. The freshness of values is fixed when the snapshot is made."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from weft.core.ledger.table import Ints, LedgerTable

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.int8]

MISSING, STALE, FRESH = 0, 1, 2
"""Freshness of a value: missing, only the last known value, or current."""

CORRELATION = "correlation"
"""Prefix of the columns `correlation.<application>`: the correlation of an application's load with
the GPU's load."""


class SignalsSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Values of named columns for G GPUs.

    `version` grows with every snapshot. `gpus` are (node, GPU index). `values` are C-ordered
    float64 [columns, G], NaN if MISSING; `freshness` int8 [columns, G]. `idle_mib` is the memory
    measured as unneeded of each share, by pod UID; `peaks_mib` is the most GPU memory that a pod
    used, for pods watched without a gap since their start. `why` says what the source lacks."""

    version: int
    at_ns: int
    gpus: tuple[tuple[str, int], ...] = ()
    columns: tuple[str, ...] = ()
    values: bytes = b""
    freshness: bytes = b""
    idle_mib: dict[str, tuple[int, ...]] = {}
    why: str = ""
    peaks_mib: dict[str, int] = {}


def snapshot(
    version: int,
    at_ns: int,
    gpus: Sequence[tuple[str, int]],
    columns: dict[str, tuple[Floats, Bytes]],
    **more: Any,
) -> SignalsSnapshot:
    """Return a snapshot of columns, each a pair of [G] arrays: values and freshness."""
    values = np.array([pair[0] for pair in columns.values()], dtype=np.float64)
    fresh = np.array([pair[1] for pair in columns.values()], dtype=np.int8)
    values = np.where(fresh == MISSING, np.nan, values) if len(columns) else values
    return SignalsSnapshot(
        version, at_ns, tuple(gpus), tuple(columns), values.tobytes(), fresh.tobytes(), **more
    )


class SignalsView:
    """A snapshot aligned with the device rows of a table. Immutable."""

    def __init__(self, source: SignalsSnapshot | None = None) -> None:
        self.source = source or SignalsSnapshot(0, 0)
        self.version, self.at_ns = self.source.version, self.source.at_ns
        shape = (len(self.source.columns), len(self.source.gpus))
        self.values: Floats = np.frombuffer(self.source.values, np.float64).reshape(shape)
        self.freshness: Bytes = np.frombuffer(self.source.freshness, np.int8).reshape(shape)
        self._row_of = {name: row for row, name in enumerate(self.source.columns)}
        self._at: dict[tuple[str, int], int] | None = None
        self._laid: tuple[LedgerTable, Floats, Bytes] | None = None

    def over(self, table: LedgerTable, column: str) -> tuple[Floats, Bytes]:
        """Return values and freshness of a column for all of a table's devices, [D] each."""
        row = self._row_of.get(column)
        if row is None:
            nothing = np.full(table.devices, np.nan)
            return nothing, np.full(table.devices, MISSING, dtype=np.int8)
        _, values, fresh = self._over(table)
        return values[row], fresh[row]

    def of_gpu(self, node: str, gpu: int) -> tuple[Floats, Bytes] | None:
        """Return values and freshness of one GPU, copied, [columns] each; None if it was not
        measured."""
        at = self._gpus().get((node, gpu))
        if at is None:
            return None
        return self.values[:, at].copy(), self.freshness[:, at].copy()

    def moved(self, before: "SignalsView", table: LedgerTable) -> Ints:
        """Return the node rows of `table` on which any column differs from `before`."""
        if self.source.columns != before.source.columns:
            return np.arange(table.count)
        _, new, new_age = self._over(table)
        _, old, old_age = before._over(table)
        same = ((new == old) | (np.isnan(new) & np.isnan(old))) & (new_age == old_age)
        return np.unique(table.device_node[~same.all(axis=0)])

    def _gpus(self) -> dict[tuple[str, int], int]:
        """Return the position of each GPU's values in the snapshot."""
        if self._at is None:
            self._at = {gpu: index for index, gpu in enumerate(self.source.gpus)}
        return self._at

    def _over(self, table: LedgerTable) -> tuple[LedgerTable, Floats, Bytes]:
        """Return (table, values, freshness) in the order of the table's devices; unmeasured devices
        are MISSING."""
        if self._laid is None or self._laid[0] is not table:
            at = self._gpus()
            beyond = len(at)
            rows = np.fromiter(
                (
                    at.get((node.name, gpu.index), beyond)
                    for node in table.nodes
                    for gpu in node.gpus
                ),
                dtype=np.int64,
                count=table.devices,
            )
            columns = len(self.values)
            values = np.concatenate([self.values, np.full((columns, 1), np.nan)], axis=1)
            nothing = np.full((columns, 1), MISSING, dtype=np.int8)
            fresh = np.concatenate([self.freshness, nothing], axis=1)
            self._laid = (table, values.take(rows, axis=1), fresh.take(rows, axis=1))
        return self._laid


NO_SIGNALS = SignalsView()
"""Signals that policies see if nothing is measured."""

"""Volumes that are attached to nodes, counted by driver, and how many each node can have."""

from collections.abc import Sequence

import numpy as np

from weft.core.constraints.counts import CountByNode
from weft.core.ledger.table import Ints, LedgerTable
from weft.model import Attached, NodeStorage

_NO_LIMIT = 1 << 60


class AttachedVolumes:
    """Counts volumes that pods use, and others that are attached; a volume of several pods counts
    once. A volume that a pod uses counts whether or not it is attached yet."""

    def __init__(self) -> None:
        self._storage: dict[str, NodeStorage] = {}
        self._limited: dict[str, CountByNode] = {}  # limits by driver, less `_NO_LIMIT`
        self._used: dict[str, dict[Attached, int]] = {}  # by node, with the number of pods
        self._where: dict[Attached, dict[str, None]] = {}
        self._counts: dict[str, CountByNode] = {}  # by driver

    def take(self, storage: NodeStorage) -> set[str]:
        """Set the node's attached volumes and limits; return the drivers of which the node may have
        more volumes than before."""
        name, before = storage.node, self._storage.get(storage.node, NodeStorage(storage.node))
        used = self._used.get(name, {})
        for volume in set(before.attached) - set(storage.attached):
            if volume not in used:
                self._count(volume[0], name, -1)
        for volume in set(storage.attached) - set(before.attached):
            if volume not in used:
                self._count(volume[0], name, 1)
        for driver, limit in before.limits.items():
            self._limited[driver].add(name, _NO_LIMIT - limit)
        for driver, limit in storage.limits.items():
            self._limited.setdefault(driver, CountByNode()).add(name, limit - _NO_LIMIT)
        self._storage[name] = storage
        if not storage.limits and not storage.attached:
            del self._storage[name]
        gone = {driver for driver, _ in set(before.attached) - set(storage.attached)}
        return gone | {
            driver
            for driver, limit in before.limits.items()
            if storage.limits.get(driver, _NO_LIMIT) > limit
        }

    def told(self) -> tuple[NodeStorage, ...]:
        """Return the attached volumes and limits of all nodes."""
        return tuple(self._storage.values())

    def put(self, node: str, volumes: Sequence[Attached]) -> None:
        """Count one more pod on the node that uses these volumes."""
        here = self._used.setdefault(node, {}) if volumes else {}
        for volume in volumes:
            here[volume] = here.get(volume, 0) + 1
            if here[volume] == 1:
                self._where.setdefault(volume, {})[node] = None
                if not self._is_seen(node, volume):
                    self._count(volume[0], node, 1)

    def remove(self, node: str, volumes: Sequence[Attached]) -> set[str]:
        """Count one pod less; return the drivers of which the node may have more volumes than
        before."""
        here = self._used.get(node, {})
        fell = set()
        for volume in volumes:
            here[volume] -= 1
            if not here[volume]:
                del here[volume]
                where = self._where[volume]
                del where[node]
                if not where:
                    del self._where[volume]
                fell.add(volume[0])
                if not self._is_seen(node, volume):
                    self._count(volume[0], node, -1)
        if not here:
            self._used.pop(node, None)
        return fell

    def limits(self, table: LedgerTable, driver: str) -> Ints | None:
        """Return the most of this driver's volumes that each node can have, [N]; None if no node
        states a limit."""
        limited = self._limited.get(driver)
        if limited is None or not limited.by_node:
            return None
        return limited.on(table) + _NO_LIMIT

    def used(self, table: LedgerTable, driver: str) -> Ints:
        """Return the volumes of this driver that each node has, [N]."""
        count = self._counts.get(driver)
        if count is None:
            return np.zeros(table.count, dtype=np.int64)
        return count.on(table)

    def with_volume(self, volume: Attached) -> Sequence[str]:
        """Return the nodes on which a pod uses this volume."""
        return list(self._where.get(volume, ()))

    def _is_seen(self, node: str, volume: Attached) -> bool:
        storage = self._storage.get(node)
        return storage is not None and volume in storage.attached

    def _count(self, driver: str, node: str, by: int) -> None:
        self._counts.setdefault(driver, CountByNode()).add(node, by)

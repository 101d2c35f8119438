"""Deltas: the changes from one picture to the next, row by row.

A browser gets a whole picture once, and then deltas: `applied(old, between(old, new)) == new`.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from weft.console.picture import Picture, ShownEvent, ShownGpu, ShownNode, ShownPod, ShownWaiting
from weft.core.explain.queue_rows import QueueRow

Row = TypeVar("Row")


class TableDelta(msgspec.Struct, Generic[Row], frozen=True, omit_defaults=True):
    """Rows that are new or different, by key, and the keys of those that are gone."""

    put: Mapping[str, Row] = {}
    gone: tuple[str, ...] = ()

    def on(self, rows: Mapping[str, Row]) -> dict[str, Row]:
        """Return these rows with the delta applied."""
        gone = frozenset(self.gone)
        return {**{key: row for key, row in rows.items() if key not in gone}, **self.put}


class PictureDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delta of each table, with the newer picture's time and its state of the connection."""

    at_s: float
    nodes: TableDelta[ShownNode] = TableDelta()
    gpus: TableDelta[ShownGpu] = TableDelta()
    pods: TableDelta[ShownPod] = TableDelta()
    waiting: TableDelta[ShownWaiting] = TableDelta()
    events: TableDelta[ShownEvent] = TableDelta()
    queues: TableDelta[QueueRow] = TableDelta()
    queue_order: str = ""
    lost: str = ""
    lost_s: float = 0.0


def between(old: Picture, new: Picture) -> PictureDelta:
    """Return the changes from the old picture to the new one."""
    return PictureDelta(
        new.at_s,
        _table(old.nodes, new.nodes),
        _table(old.gpus, new.gpus),
        _table(old.pods, new.pods),
        _table(old.waiting, new.waiting),
        _table(old.events, new.events),
        _table(old.queues, new.queues),
        new.queue_order,
        new.lost,
        new.lost_s,
    )


def applied(picture: Picture, delta: PictureDelta) -> Picture:
    """Return the picture with the delta applied."""
    return Picture(
        delta.at_s,
        delta.nodes.on(picture.nodes),
        delta.gpus.on(picture.gpus),
        delta.pods.on(picture.pods),
        delta.waiting.on(picture.waiting),
        delta.events.on(picture.events),
        delta.queues.on(picture.queues),
        delta.queue_order,
        delta.lost,
        delta.lost_s,
    )


def _table(old: Mapping[str, Row], new: Mapping[str, Row]) -> TableDelta[Row]:
    put = {
        key: row
        for key, row in new.items()
        if (before := old.get(key)) is not row and before != row
    }
    return TableDelta(put, tuple(key for key in old if key not in new))

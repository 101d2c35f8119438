"""A small cluster with readings, for tests of policies that read metrics."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.core.engine import Bind, Command, Engine, PodAdded, SignalsChanged
from weft.core.framework import Plugin, Policy, Profile
from weft.core.framework.signals import FRESH, SignalsSnapshot, snapshot
from weft.core.ledger import RequestLimits
from weft.model import Node, Placement, Share

Told = dict[tuple[str, int], dict[str, float]]
"""Readings of each GPU, by column."""


def readings(
    told: Told, *, version: int = 1, ages: dict[tuple[str, int], int] | None = None, **more: Any
) -> SignalsSnapshot:
    """FRESH unless `ages` says otherwise; what is not told is MISSING."""
    gpus, columns = list(told), sorted({column for one in told.values() for column in one})
    pairs = {}
    for column in columns:
        values = np.array([told[gpu].get(column, np.nan) for gpu in gpus])
        states = np.array([(ages or {}).get(gpu, FRESH) for gpu in gpus])
        pairs[column] = (values, np.where(np.isnan(values), 0, states).astype(np.int8))
    return snapshot(version, 0, gpus, pairs, **more)


def engine_of(
    policies: Policy | Iterable[Policy | Plugin], nodes: Iterable[Node], told: Told, **more: Any
) -> Engine:
    """An engine that was told these readings; `harvest_permille` declares a limit."""
    limits = RequestLimits(harvest_permille=more.pop("harvest_permille", 1000))
    plugins = [policies] if isinstance(policies, Policy) else list(policies)
    engine = Engine([Profile("weft", plugins)], nodes, limits=limits)
    engine.handle(SignalsChanged(readings(told, **more)), 0)
    return engine


def resident(engine: Engine, uid: str, node: str, gpu: int, mib: int) -> None:
    """A pod that is there already."""
    engine.ledger.adopt(Placement(uid, node, (Share(0, gpu, mib, 0),)))


def place(engine: Engine, asking: Any) -> tuple[str, int] | None:
    """Where the pod goes."""
    return places(engine.handle(PodAdded(asking), 1))


def places(commands: list[Command]) -> tuple[str, int] | None:
    for command in commands:
        if isinstance(command, Bind):
            return command.placement.node, command.placement.shares[0].gpu
    return None


def score(engine: Engine, asking: Any) -> int | None:
    """The score of the place it gets."""
    for command in engine.handle(PodAdded(asking), 1):
        if isinstance(command, Bind):
            return command.record.score
    return None

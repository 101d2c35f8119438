"""A simulation's engine, with or without its decisions on record."""

from collections.abc import Callable

from weft.core.engine import Command, Engine, Event
from weft.core.framework import Policy, Profile
from weft.core.ledger import RequestLimits
from weft.core.record import DecisionsWriter, Header, PolicyUse, ProfileUse, Recorder

PROFILE = "weft"
TOP_ON_RECORD = 3
"""How many of the best nodes a written record lists."""

HandleEvent = Callable[[Event, int], list[Command]]


def engine_on_record(
    policy: Policy, seed: int, limits: RequestLimits, decisions: DecisionsWriter | None
) -> tuple[Engine, HandleEvent]:
    """A fresh engine of one profile, and what to hand events to.

    That is the engine's own `handle`, or where there are `decisions` to write, a recorder's.
    """
    keep_top = TOP_ON_RECORD if decisions is not None else 0
    engine = Engine([Profile(PROFILE, [policy])], seed=seed, keep_top=keep_top, limits=limits)
    if decisions is None:
        return engine, engine.handle
    uses = [ProfileUse(PROFILE, [PolicyUse.of(policy)])]
    header = Header(uses, seed, keep_top, *limits)
    return engine, Recorder(engine, header, decisions.write).handle

"""Creates a simulation's engine for one policy or profile, with or without a decisions file."""

import logging
from collections.abc import Callable

from weft.core.engine import Command, Engine, Event, Faulted, TaskFaulted
from weft.core.engine.decision_faults import in_words
from weft.core.framework import Policy, Profile
from weft.core.ledger import RequestLimits
from weft.core.record import DecisionsWriter, Header, ProfileUse, Recorder

log = logging.getLogger("weft.simulate")

PROFILE = "weft"
TOP_ON_RECORD = 3
"""Number of best nodes listed in a written record."""

Decider = Policy | Profile
"""A policy that decides for all pods, or a profile of several weighted ones."""
HandleEvent = Callable[[Event, int], list[Command]]


def profile_of(decider: Decider) -> Profile:
    """Return the profile itself, or a profile of this policy alone."""
    return decider if isinstance(decider, Profile) else Profile(PROFILE, [decider])


def engine_on_record(
    decider: Decider, seed: int, limits: RequestLimits, decisions: DecisionsWriter | None
) -> tuple[Engine, HandleEvent]:
    """Return a new engine of one profile, and the function that takes events.

    The function is the engine's own `handle`, or, with `decisions`, a recorder's."""
    profile = profile_of(decider)
    keep_top = TOP_ON_RECORD if decisions is not None else 0
    engine = Engine([profile], seed=seed, keep_top=keep_top, limits=limits)
    if decisions is None:
        return engine, engine.handle
    header = Header([ProfileUse.of(profile)], seed, keep_top, *limits)
    return engine, Recorder(engine, header, decisions.write).handle


def going_on(handle: HandleEvent) -> HandleEvent:
    """Wrap `handle`: side tasks that fail are logged once per cause, and the run continues.

    A failed decision is raised: without it the result would not be the policy's."""
    told: set[str] = set()

    def handled(event: Event, now_ns: int) -> list[Command]:
        commands, broken = handle(event, now_ns), False
        for command in commands:
            if isinstance(command, Faulted):
                raise command.error
            if isinstance(command, TaskFaulted):
                broken, why = True, in_words(command.error, command.task)
                if why not in told:
                    told.add(why)
                    log.error("%s; it is left out", why, exc_info=command.error)
        if broken:
            commands = [one for one in commands if not isinstance(one, TaskFaulted)]
        return commands

    return handled

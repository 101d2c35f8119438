"""Decides in a simulation: an engine of one policy or profile, its decisions on record or not."""

import logging
from collections.abc import Callable

from weft.core.engine import Command, Engine, Event, Faulted, TaskFaulted
from weft.core.engine.decision_faults import in_words
from weft.core.framework import Policy, Profile
from weft.core.ledger import RequestLimits
from weft.core.record import DecisionsWriter, Header, PolicyUse, ProfileUse, Recorder

log = logging.getLogger("weft.simulate")

PROFILE = "weft"
TOP_ON_RECORD = 3
"""How many of the best nodes a written record lists."""

Decider = Policy | Profile
"""Decides for all pods: one policy, or several that are weighted."""
HandleEvent = Callable[[Event, int], list[Command]]


def profile_of(decider: Decider) -> Profile:
    """The profile itself, or one of this policy alone."""
    return decider if isinstance(decider, Profile) else Profile(PROFILE, [decider])


def engine_on_record(
    decider: Decider, seed: int, limits: RequestLimits, decisions: DecisionsWriter | None
) -> tuple[Engine, HandleEvent]:
    """A fresh engine of one profile, and what to hand events to.

    That is the engine's own `handle`, or where there are `decisions` to write, a recorder's.
    """
    profile = profile_of(decider)
    keep_top = TOP_ON_RECORD if decisions is not None else 0
    engine = Engine([profile], seed=seed, keep_top=keep_top, limits=limits)
    if decisions is None:
        return engine, engine.handle
    policies = [PolicyUse.of(plugin.policy, plugin.weight) for plugin in profile.plugins]
    header = Header([ProfileUse(profile.name, policies)], seed, keep_top, *limits)
    return engine, Recorder(engine, header, decisions.write).handle


def going_on(handle: HandleEvent) -> HandleEvent:
    """The same, without what broke off beside deciding: that is told once, and the run goes on.

    A decision that breaks off is raised: a result without it would not be the policy's.
    """
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

"""The ways to decide that every random world plays: what ships, and every policy there is.

What ships is read from `weft config defaults` and the chart's values, so that a profile that is new
there is played without another word. Each way is profiles whose prices are due tens of times a
story, and a policy of the catalogue beside them, another one in each story.

`WEFT_FAULT_SEED` is the first seed of every world's schedules, `WEFT_FAULT_CASES` how many there
are of each way (and kind).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import hypothesis
import msgspec
import yaml
from long_form import few_or_many

from weft.cluster.config.form import Configuration, PolicySettings, ProfileSettings
from weft.cluster.config.made_profiles import profiles as made_profiles
from weft.core.framework import Policy, Profile
from weft.core.framework.policy import PricesEvery
from weft.core.policies.auto import Auto
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.stranding_prices import Rounds

T = TypeVar("T", bound=Callable[..., Any])
WEFT, BESIDE = "weft", "beside"
POLICIES = tuple(policy.name for policy in BUILT_IN)
PRICES_EVERY = PricesEvery(pods=3, seconds=2.0)
FEW_ROUNDS = Rounds(100, 0.1)
VALUES = Path(__file__).resolve().parents[2] / "deploy" / "chart" / "values.yaml"

FIRST = int(os.environ.get("WEFT_FAULT_SEED", "0"))
CASES = int(os.environ.get("WEFT_FAULT_CASES", "0"))
CHOSEN = CASES > 0 or "WEFT_FAULT_SEED" in os.environ


def seeds(count: int, first: int = 0) -> range:
    """So many seeds from `first` on, or those that were chosen."""
    return range(FIRST, FIRST + (CASES or 1)) if CHOSEN else range(first, first + count)


def examples(few: int, many: int) -> int:
    """The same for Hypothesis: how many it draws; from which seed on, `drawn` says."""
    return CASES or few_or_many(few, many)


def drawn(test: T) -> T:
    """A test whose examples Hypothesis draws, from the seed that was chosen."""
    return hypothesis.seed(FIRST)(test) if CHOSEN else test


class Way(NamedTuple):
    """`made` makes the profiles under test anew, for a process of its own; `names` are those that
    pods ask for."""

    name: str
    made: Callable[[], list[Profile]]
    names: tuple[str, ...] = (WEFT,)

    def profiles(self, seed: int) -> list[Profile]:
        """Its own, and one beside them."""
        found = [*self.made(), *_profiles_of(BESIDE, POLICIES[seed % len(POLICIES)])]
        for profile in found:
            for policy in profile.policies:
                soon(policy)
        return found

    @property
    def pods_names(self) -> tuple[str, ...]:
        """The schedulerNames of pods that the process schedules."""
        return (*self.names, BESIDE)


def soon(policy: Policy) -> None:
    """Has the policy make its prices often, and quickly."""
    if policy.prices_every is not None:
        policy.prices_every = PRICES_EVERY
    part = policy._stranding if isinstance(policy, Auto) else policy
    if isinstance(part, LeastStranding):
        part._rounds = FEW_ROUNDS


def of_chart(values: Mapping[str, Any]) -> Configuration:
    """The configuration that the chart renders of its values (`weft.configuration`)."""
    told = dict(values["configuration"])
    if values["profiles"]:
        told["profiles"] = values["profiles"]
    return msgspec.convert(told, Configuration)


SHIPPED_BY = {
    "config defaults": Configuration(),
    "the chart": of_chart(yaml.safe_load(VALUES.read_text())),
}
"""The configurations that ship, by where they are written."""


def _profiles_of(scheduler_name: str, *policies: str | PolicySettings) -> list[Profile]:
    """One profile, as a configuration that says no more than its policies has it: it preempts."""
    uses = (PolicySettings(each) if isinstance(each, str) else each for each in policies)
    return _made(ProfileSettings(scheduler_name, tuple(uses)))


def _made(*profiles: ProfileSettings) -> list[Profile]:
    return made_profiles(Configuration(profiles=profiles), built_in())


def _policy(name: str) -> Way:
    return Way(name, partial(_profiles_of, WEFT, name))


def _weighed() -> list[Profile]:
    """Several policies that score: none ships, but users write such."""
    return _profiles_of(WEFT, PolicySettings("best-fit", 2), PolicySettings("spread", 3))


def shipped_ways(shipped_by: Mapping[str, Configuration]) -> Iterator[Way]:
    """Each profile under the name that the pods here have, and where there are several, all of them
    in one process; what two of them write alike is one way."""
    known: list[tuple[ProfileSettings, ...]] = []
    for where, config in shipped_by.items():
        beside = f" of {where}" if known else ""
        for settings in config.profiles:
            alone = (msgspec.structs.replace(settings, scheduler_name=WEFT, via="scheduler"),)
            if alone not in known:
                known.append(alone)
                yield Way(f"profile {settings.scheduler_name}{beside}", partial(_made, *alone))
        if (whole := tuple(config.profiles)) not in known and len(whole) > 1:
            known.append(whole)
            names = tuple(settings.scheduler_name for settings in whole)
            yield Way(f"all of {where}", partial(made_profiles, config, built_in()), names)


SHIPPED = (*shipped_ways(SHIPPED_BY), _policy("auto"))
OTHERS = (*(_policy(name) for name in POLICIES if name != "auto"), Way("weighed", _weighed))
WAYS = {way.name: way for way in (*SHIPPED, *OTHERS)}
DEFAULT = SHIPPED[0]

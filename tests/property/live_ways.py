"""The ways to decide that the fault schedules play: what ships, and every policy there is.

Each is one profile as it ships, whose prices are due tens of times a story, and a policy of the
catalogue beside it, another one in each story.
"""

from collections.abc import Callable
from typing import NamedTuple

from weft.cluster.config.form import Configuration
from weft.cluster.config.made_profiles import profiles as made_profiles
from weft.core.framework import Policy, Profile
from weft.core.framework.policy import PricesEvery
from weft.core.policies.auto import Auto
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.core.policies.completion_values import Rounds
from weft.core.policies.least_stranding import LeastStranding

WEFT, BESIDE = "weft", "beside"
POLICIES = tuple(policy.name for policy in BUILT_IN)
PRICES_EVERY = PricesEvery(pods=3, seconds=2.0)
FEW_ROUNDS = Rounds(100, 0.1)


class Way(NamedTuple):
    """`made` makes the profiles under test anew, for a process of its own; `names` are those that
    pods ask for."""

    name: str
    made: Callable[[], list[Profile]]
    names: tuple[str, ...] = (WEFT,)

    def profiles(self, seed: int) -> list[Profile]:
        """Its own, and one beside them."""
        other = POLICIES[seed % len(POLICIES)]
        found = [*self.made(), Profile(BESIDE, [built_in().create(other)])]
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


def _policy(name: str) -> Way:
    return Way(name, lambda: [Profile(WEFT, [built_in().create(name)])])


def _profile(index: int) -> Way:
    """One of `weft config defaults`, under the name that the pods here have."""

    def made() -> list[Profile]:
        shipped = made_profiles(Configuration(), built_in())[index]
        return [Profile(WEFT, shipped.plugins)]

    return Way(f"profile {Configuration().profiles[index].scheduler_name}", made)


ALL_DEFAULTS = Way("all of config defaults", lambda: made_profiles(Configuration(), built_in()))
SHIPPED = (
    *(_profile(index) for index in range(len(Configuration().profiles))),
    _policy("auto"),
    ALL_DEFAULTS,
)
OTHERS = tuple(_policy(name) for name in POLICIES if name != "auto")
WAYS = {way.name: way for way in (*SHIPPED, *OTHERS)}
DEFAULT = SHIPPED[0]

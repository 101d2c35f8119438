"""Profiles: the policies that decide for a schedulerName, and their weights."""

import copy
from collections.abc import Sequence

from weft.core.framework import policy as ask
from weft.core.framework.policy import Policy
from weft.core.framework.query import Observations
from weft.model import Shape
from weft.model.request import PREFERENCES_PERCENT


class Plugin:
    """One policy in a profile. `weight` counts if several policies score."""

    __slots__ = ("policy", "weight")

    def __init__(self, policy: Policy, weight: int = 1) -> None:
        if weight < 0:
            raise ValueError(f"weight of {policy.name} is {weight}; write 0 or more")
        self.policy, self.weight = policy, weight


class Profile:
    """Policies under one schedulerName. The first policy orders the queue, breaks ties and chooses
    devices.

    With one scoring policy its raw scores decide; with several, each is normalised to 0–100 over
    the feasible nodes and weighted. Pods' preferences decide among the nodes whose score is within
    `preferences` percent of the scores' range from the best; 0: preferences do not count."""

    def __init__(
        self,
        name: str,
        plugins: Sequence[Plugin | Policy],
        *,
        preferences: int = PREFERENCES_PERCENT,
        preempts: bool = False,
        budgets_are_law: bool = False,
    ) -> None:
        if not plugins:
            raise ValueError(f"profile {name} has no policy; name at least one")
        if not 0 <= preferences <= 100:
            raise ValueError(f"preferences of profile {name} are {preferences}; write 0 to 100")
        self.name, self.preferences = name, preferences
        self.preempts, self.budgets_are_law = preempts, budgets_are_law
        self.plugins = tuple(p if isinstance(p, Plugin) else Plugin(p) for p in plugins)
        self.policies = tuple(plugin.policy for plugin in self.plugins)
        self.lead = self.policies[0]
        self.scorers = tuple(
            plugin
            for plugin in self.plugins
            if plugin.weight and _overrides(plugin.policy, "score_nodes", "score_devices")
        )
        self.score_policies = tuple(plugin.policy for plugin in self.scorers)
        self.node_filters = tuple(p for p in self.policies if _overrides(p, "filter_nodes"))
        self.device_filters = tuple(p for p in self.policies if _overrides(p, "filter_devices"))
        by_device = [p.policy for p in self.scorers if _overrides(p.policy, "score_devices")]
        self.device_scorer: Policy | None = by_device[0] if by_device else None
        self.matcher = self.lead if "pending" in self.lead.reads else None
        self.predicts = _overrides(self.lead, "predict")
        self.reads = frozenset[str]().union(*(policy.reads for policy in self.policies))
        self.observes = not self.reads.isdisjoint(Observations._fields)
        self.pre_filters = tuple(p for p in self.policies if _overrides(p, "pre_filter"))
        self.harvests = any(policy.harvests for policy in self.policies)
        self.has_prices = any(policy.prices_every is not None for policy in self.policies)
        self.filters_by_prices = any(
            policy.prices_every is not None
            and not policy.is_built_in
            and _overrides(policy, "filter_nodes", "filter_devices")
            for policy in self.policies
        )
        self.breaks_ties = _overrides(self.lead, "choose_node")

    @property
    def answers_by_node(self) -> bool:
        """True if no policy's answer about a node depends on other nodes."""
        return "cluster" not in self.reads

    def without_scores(self) -> "Profile":
        """Return a copy of the profile without scores, to ask only if pods fit."""
        twin = copy.copy(self)
        twin.scorers, twin.score_policies, twin.device_scorer = (), (), None
        return twin

    def preempting(self) -> "Profile":
        """Return a copy of the profile with preemption."""
        twin = copy.copy(self)
        twin.preempts = True
        return twin

    def shaped(self, shape: Shape) -> Shape:
        """Return the shape that is placed for a pod with this shape (preFilter)."""
        for policy in self.pre_filters:
            shape = ask.pre_filter(policy, shape)
        return shape


def _overrides(policy: Policy, *methods: str) -> bool:
    return any(getattr(type(policy), name) is not getattr(Policy, name) for name in methods)

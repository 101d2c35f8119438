"""The paths, and the policy each decides by, as each system's own extender had it (data, no code).

`/weft` decides by the pod's schedulerName. The other two are the originals' paths, so that a
kube-scheduler configured for them goes on unchanged: only they answer a failed bind with HTTP 500.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec

from weft.core.framework import Policy, Profile

Report = Literal["", "status", "inspect"]
ElasticPriority = Literal["binpack", "spread", "random"]

WEFT, ELASTIC, GPUSHARE = "/weft", "/scheduler", "/gpushare-scheduler"
_REPORTS: dict[str, Report] = {ELASTIC: "status", GPUSHARE: "inspect"}

PRIORITIZE_VERBS = ("prioritize", "priorities")
"""The first is kube-scheduler's documentation's, the second Elastic GPU's."""

ORIGINAL_PORTS = (39999, 12345)
"""Elastic GPU's port and gpushare's."""

ELASTIC_POLICIES: dict[ElasticPriority, str] = {
    "binpack": "elastic-binpack",
    "spread": "spread",
    "random": "random",
}


class Route(msgspec.Struct, frozen=True):
    """One path. `policy` is the profile that decides (a configured one's schedulerName, or a
    policy's name), "" for that of the pod's schedulerName.

    `bind_failure` is the HTTP status of a failed bind. `report` is what it shows at GET.
    """

    path: str
    policy: str = ""
    bind_failure: int = 200
    report: Report = ""


def default_routes(elastic: ElasticPriority = "binpack", gpushare: str = "gpushare") -> list[Route]:
    """The three paths. `elastic` is the original's `-priority`, `gpushare` a policy's name."""
    policies = {WEFT: "", ELASTIC: ELASTIC_POLICIES[elastic], GPUSHARE: gpushare}
    return [route_at(path, policy) for path, policy in policies.items()]


def route_at(path: str, policy: str) -> Route:
    """A path decided by this policy; the originals' paths have the originals' ways."""
    report = _REPORTS.get(path)
    return Route(path, policy) if report is None else Route(path, policy, 500, report)


def route_profiles(
    routes: Sequence[Route], create: Callable[[str], Policy], have: Collection[str] = ()
) -> list[Profile]:
    """The profiles that the engine needs for these routes besides those it has, named as policies.

    `create` makes a policy of a name, as `Registry.create` does.
    """
    names = dict.fromkeys(route.policy for route in routes if route.policy)
    return [Profile(name, [create(name)]) for name in names if name not in have]

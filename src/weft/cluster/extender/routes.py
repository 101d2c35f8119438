"""HTTP paths of the extender, with the policy by which each decides (data only).

`/weft` decides by the pod's schedulerName. `/scheduler` and `/gpushare-scheduler` are the paths of
Elastic GPU and gpushare, so that a kube-scheduler configured for them works unchanged; a failed
bind is answered there with HTTP 500, as in those systems."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec

from weft.core.framework import Policy, Profile

Report = Literal["", "status", "inspect"]
ElasticPriority = Literal["binpack", "spread", "random"]

WEFT, ELASTIC, GPUSHARE = "/weft", "/scheduler", "/gpushare-scheduler"
_REPORTS: dict[str, Report] = {ELASTIC: "status", GPUSHARE: "inspect"}

PRIORITIZE_VERBS = ("prioritize", "priorities")
"""Verbs for prioritize: kube-scheduler's documented one, and Elastic GPU's."""

ORIGINAL_PORTS = (39999, 12345)
"""Elastic GPU's port and gpushare's port."""

ELASTIC_POLICIES: dict[ElasticPriority, str] = {
    "binpack": "elastic-binpack",
    "spread": "spread",
    "random": "random",
}


class Route(msgspec.Struct, frozen=True):
    """A path of the extender. `policy` names the profile that decides (a configured profile's
    schedulerName, or a policy's name); "" means the profile of the pod's schedulerName.

    `bind_failure` is the HTTP status of a failed bind. `report` is the report returned by GET."""

    path: str
    policy: str = ""
    bind_failure: int = 200
    report: Report = ""


def default_routes(elastic: ElasticPriority = "binpack", gpushare: str = "gpushare") -> list[Route]:
    """Return the routes of Weft's, Elastic GPU's and gpushare's paths. `elastic` is the value of
    Elastic GPU's option `-priority`, `gpushare` a policy's name."""
    policies = {WEFT: "", ELASTIC: ELASTIC_POLICIES[elastic], GPUSHARE: gpushare}
    return [route_at(path, policy) for path, policy in policies.items()]


def route_at(path: str, policy: str) -> Route:
    """Return a path with this policy; a path of an original system also gets its report and failure
    status."""
    report = _REPORTS.get(path)
    return Route(path, policy) if report is None else Route(path, policy, 500, report)


def route_profiles(
    routes: Sequence[Route], create: Callable[[str], Policy], have: Collection[str] = ()
) -> list[Profile]:
    """Create the profiles that these routes need, one per policy name, except those in `have`.

    `create` makes a policy from a name, as `Registry.create` does."""
    names = dict.fromkeys(route.policy for route in routes if route.policy)
    return [Profile(name, [create(name)]) for name in names if name not in have]

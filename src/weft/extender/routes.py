"""Which path decides by which policy, as each system's own extender had it (data, no code).

`/weft` decides by the pod's schedulerName. The other two are the originals' paths, so that a
kube-scheduler configured for them goes on unchanged: only they answer a failed bind with HTTP 500.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from weft.framework import Policy, Profile

Report = Literal["", "status", "inspect"]
ElasticPriority = Literal["binpack", "spread", "random"]

ORIGINAL_PORTS = (39999, 12345)
"""Elastic GPU's port and gpushare's."""

ELASTIC_POLICIES: dict[ElasticPriority, str] = {
    "binpack": "elastic-binpack",
    "spread": "elastic-spread",
    "random": "random",
}


class Route(msgspec.Struct, frozen=True):
    """One path. `policy` is the profile that decides, "" for that of the pod's schedulerName.

    `prioritize_verbs` are its names for prioritize. `bind_failure` is the HTTP status of a failed
    bind. `report` is what it shows at GET.
    """

    path: str
    policy: str = ""
    prioritize_verbs: tuple[str, ...] = ("prioritize", "priorities")
    bind_failure: int = 200
    report: Report = ""


def default_routes(elastic: ElasticPriority = "binpack", gpushare: str = "gpushare") -> list[Route]:
    """The three paths. `elastic` is the original's `-priority`, `gpushare` a policy's name."""
    return [
        Route("/weft"),
        Route("/scheduler", ELASTIC_POLICIES[elastic], bind_failure=500, report="status"),
        Route("/gpushare-scheduler", gpushare, bind_failure=500, report="inspect"),
    ]


def route_profiles(routes: Sequence[Route], create: Callable[[str], Policy]) -> list[Profile]:
    """The profiles that the engine needs for these routes, named as their policies.

    `create` makes a policy of a name, as `Registry.create` does.
    """
    names = dict.fromkeys(route.policy for route in routes if route.policy)
    return [Profile(name, [create(name)]) for name in names]

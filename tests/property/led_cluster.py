"""A live cluster with the parts of a leader, as `weft scheduler` makes one."""

from collections.abc import Sequence
from typing import Any

from weft.cluster.control.leadership import LeaseHolder
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.options import EngineClusterOptions
from weft.cluster.eviction.past_scheduler import Treatment
from weft.cluster.leader.leader_parts import LeaderParts
from weft.core.framework import Profile
from weft.kube.client import ApiClient
from weft.kube.configmap import OwnConfigMap


def led(
    client: ApiClient,
    profiles: Sequence[Profile],
    *,
    lease: LeaseHolder | None = None,
    config_map: OwnConfigMap | None = None,
    past_scheduler: Treatment = "charge",
    group_status: bool = True,
    **options: Any,
) -> LeaderParts:
    """The parts over a cluster of these profiles; `options` are `EngineClusterOptions`."""
    live = EngineCluster(client, profiles, lease=lease, options=EngineClusterOptions(**options))
    return LeaderParts(
        live, config_map=config_map, past_scheduler=past_scheduler, group_status=group_status
    )

"""Counts invalid input from other systems and drivers, by kind.

Each case is also reported where it is found: by a pod's event, the log, `weft status` and `weft
doctor`.
"""

from collections import Counter

from weft.cluster.control.interface import ClusterView
from weft.cluster.state.claims import is_left
from weft.dialects.kai import is_reservation
from weft.model.bad_input import KINDS, BadInputKind


def bad_input(live: ClusterView) -> dict[BadInputKind, int]:
    """Return how many pools, nodes, claims, pods and API versions have invalid input of each kind
    now, including zeros."""
    found: Counter[BadInputKind] = Counter()
    slices, pods, claims = live.nodes.slices, live.pods, live.pods.claims
    found["pool-incomplete"] = len(slices.problems)
    found["uuid-twice"] = len(slices.doubles())
    found.update(kind for kinds in claims.kinds.values() for kind in kinds)
    there = live.pod_by_uid
    left = [c for c in claims.claims.values() if is_left(c, lambda uid: there(uid) is not None)]
    found["claim-without-pod"] = len(left)
    doubts = (doubt for each in pods.doubts.values() for doubt in each)
    found.update(doubt.kind for doubt in doubts if doubt.kind is not None)
    known, dead = live.nodes.objects, live.nodes.not_ready
    for pod in pods.perhaps_stuck():
        name = pod.spec.node_name
        found["reservation-on-dead-node"] += is_reservation(pod) and (
            name not in known or name in dead
        )
    found["rights-missing"] = len(live.optional.unreadable)
    return {kind: found[kind] for kind in KINDS}
